"""Finds plugins by name, validates them against the hook specifications, and builds them with typed arguments.

This module looks a name up among the builders registered in this process, the built-in plugins, and the entry points of
the group `session_scheduler.plugins`, and imports no other plugin. Every error names the plugin, its distribution and
its version.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from importlib import metadata
from types import FunctionType, MethodType
from typing import Any, Final

import msgspec
import pluggy
from msgspec.structs import replace
from pydantic import BaseModel

from session_scheduler import hookspecs
from session_scheduler.config.parsing import validated
from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.errors import FluenceError, InputError
from session_scheduler.framework.failures import place_of
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.registry.moved import moved
from session_scheduler.registry.validation import hook_calls, implementations
from session_scheduler.state.configured_queues import check_configured

GROUP: Final = "session_scheduler.plugins"
"""The entry-point group of plugins."""
CORE: Final = "fluence-scheduler"
"""The core's distribution."""
PRODUCT: Final = "fluence"
"""The default plugin, in addition to the built-in ones."""

_COUNTS: Final = "NodeResourcesFit"
"""The plugin that counts extended resources."""

Builder = Callable[[Any], object]
_builders: dict[str, Builder] = {}


class Origin(Enum):
    """Where a plugin comes from."""

    REGISTERED = "registered"
    BUILT_IN = "built-in"
    ENTRY_POINT = "entry point"


class PluginLoadError(InputError):
    """A plugin cannot be loaded."""


class PluginNotFoundError(PluginLoadError):
    """No builder, built-in plugin or entry point has the name."""


class PluginAmbiguousError(PluginLoadError):
    """More than one distribution offers the name."""


class PluginImportError(PluginLoadError):
    """The plugin's module cannot be imported, or lacks the object that its entry point names."""


class PluginVersionError(PluginLoadError):
    """The plugin is built for another version of the hook specifications."""


class PluginArgumentsError(PluginLoadError):
    """The configuration's `args` are invalid for the plugin."""


class PluginConstructionError(PluginLoadError):
    """The plugin's constructor or builder raised an exception."""


class PluginHooksError(PluginLoadError):
    """A hook does not match its specification: it is unknown, unmarked, not asynchronous, or has a wrong argument."""


class PluginSource(msgspec.Struct, frozen=True):
    """The source of a plugin's class (or builder). `load` imports it."""

    name: str
    origin: Origin
    distribution: str
    version: str
    load: Callable[[], Builder]

    def __str__(self) -> str:
        return f"plugin {self.name} ({self.distribution} {self.version})".replace(" )", ")")


class LoadedPlugin(msgspec.Struct, frozen=True):
    """A plugin that is ready to be called. `weight` None uses the weight that it declares."""

    name: str
    instance: object
    weight: int | None
    source: PluginSource


class InstalledPlugin(msgspec.Struct, frozen=True):
    """A row of `fluence plugins`. `problem` is why the plugin cannot be used, or empty."""

    name: str
    distribution: str
    version: str
    origin: str
    hooks: tuple[str, ...]
    summary: str
    problem: str = ""


def register_plugin_builder(name: str, builder: Builder) -> None:
    """Register a plugin that no distribution contains, in this process only: for notebooks and tests.

    `builder` is a plugin's class, or a function of the configuration's `args` (a mapping). It replaces an earlier
    registration, or a built-in plugin, of the same name.
    """
    _builders[name] = builder


class Registry:
    """The plugins that a configuration can name. `builtin` are the built-in ones by name, in call order.

    `given` are further ones by name, for this registry only; see `register_plugin_builder`.
    """

    def __init__(self, builtin: Mapping[str, Builder], given: Mapping[str, Builder] | None = None) -> None:
        self._builtin = builtin
        self._given = given or {}

    def load_calls(self, config: SchedulerConfig, *last: tuple[str, object]) -> dict[str, HookCalls]:
        """Each profile's hooks by schedulerName, ready to be called. Raises PluginLoadError.

        `last` are plugins (name, instance) that the scheduler itself adds to the end of each profile.
        """
        added = [(name, instance, None) for name, instance in last]
        return {
            name: hook_calls(
                [*((plugin.name, plugin.instance, plugin.weight) for plugin in plugins), *added], config.hook_seconds
            )
            for name, plugins in self.load_profiles(config).items()
        }

    def load_profiles(self, config: SchedulerConfig) -> dict[str, list[LoadedPlugin]]:
        """Every profile's plugins by schedulerName, as `load_plugins` returns them. Raises PluginLoadError.

        Profiles with equal arguments for a plugin share one instance and its state. Raises InputError for invalid
        queues in the configuration.
        """
        check_configured(config.queues, config.source, config.device_resources)
        ignored = [one.name for extender in config.extenders for one in extender.managed_resources
                   if one.ignored_by_scheduler]  # fmt: skip
        if ignored and self.enables(config, _COUNTS):  # as in kube-scheduler, this replaces what its arguments name
            config = self.with_arguments(config, _COUNTS, {"ignoredResources": ignored})
        shared: dict[tuple[str, str], LoadedPlugin] = {}
        loaded = {profile.scheduler_name: self.load_plugins(profile, shared) for profile in config.profiles}
        _check_actions(config, shared.values())
        return loaded

    def load_plugins(
        self, profile: Profile, shared: dict[tuple[str, str], LoadedPlugin] | None = None
    ) -> list[LoadedPlugin]:
        """The profile's plugins, validated and built, in call order. Raises PluginLoadError.

        `shared` has the plugins of other profiles by name and arguments; new ones are added to it.
        """
        shared = {} if shared is None else shared
        defaults = self.default_plugins()
        _check_disabled(profile, defaults)
        sources = list(self._sources())
        loaded = []
        for plugin in profile.effective_plugins(defaults):
            key = (plugin.name, json.dumps(plugin.args, sort_keys=True, default=repr))
            if key not in shared:
                place = profile.place_of(plugin.name)
                found = self.load_plugin(plugin, place, sources)
                _check_alone(found, place, shared.values())
                shared[key] = found
            loaded.append(replace(shared[key], weight=plugin.weight))
        return loaded

    def load_plugin(
        self, config: PluginConfig, place: tuple[str, str], sources: Sequence[PluginSource] | None = None
    ) -> LoadedPlugin:
        """One plugin, validated and built. `place` is the file and the path of its entry. Raises PluginLoadError.

        `sources` defaults to all installed plugins.
        """
        source = _find(config.name, place, list(self._sources()) if sources is None else sources)
        builder = _imported(source)
        _check_version(source, builder)
        instance = _built(source, builder, config.args, place)
        _check_hooks(source, instance)
        return LoadedPlugin(config.name, instance, config.weight, source)

    def default_plugins(self) -> tuple[str, ...]:
        """The default plugins of a profile: kube-scheduler's in its order, then `fluence`."""
        return (*(name for name, cls in self._builtin.items() if getattr(cls, "by_default", True)), PRODUCT)

    def enables(self, config: SchedulerConfig, plugin: str) -> bool:
        """Whether a profile enables the plugin."""
        defaults = self.default_plugins()
        return any(entry.name == plugin for profile in config.profiles for entry in profile.effective_plugins(defaults))

    def with_arguments(self, config: SchedulerConfig, plugin: str, arguments: Mapping[str, Any]) -> SchedulerConfig:
        """The configuration with some arguments of one plugin set, in each profile that enables the plugin.

        Raises InputError if the profile is unknown.
        """
        defaults = self.default_plugins()
        profiles, found = [], False
        for profile in config.profiles:
            on = any(entry.name == plugin for entry in profile.effective_plugins(defaults))
            found |= on
            profiles.append(profile.with_arguments(plugin, arguments) if on else profile)
        if not found:
            raise InputError(
                f"argument {', '.join(arguments)}: no profile enables the plugin {plugin}; add it to a profile"
            )
        return config.model_copy(update={"profiles": tuple(profiles)})

    def installed(self) -> list[InstalledPlugin]:
        """All plugins that a configuration can name, sorted by origin and name. A broken one has a `problem`."""
        sources = list(self._sources())
        found = [_described(source, sources) for source in sources]
        return sorted(found, key=lambda plugin: (plugin.origin, plugin.name, plugin.distribution))

    def offers(self) -> list[tuple[str, str]]:
        """Name and distribution of all plugins that a configuration can name, without importing them."""
        return [(source.name, source.distribution) for source in self._sources()]

    def _sources(self) -> Iterator[PluginSource]:
        for name, builder in {**_builders, **self._given}.items():
            yield PluginSource(name, Origin.REGISTERED, "registered in this process", "", _given(builder))
        version = _core_version()
        for name, cls in self._builtin.items():
            yield PluginSource(name, Origin.BUILT_IN, CORE, version, _given(cls))
        seen = set()
        for entry in metadata.entry_points(group=GROUP):
            distribution, version = (
                (entry.dist.name, entry.dist.version) if entry.dist else ("unknown distribution", "")
            )
            if (entry.name, distribution) not in seen:  # a distribution can be on the path twice
                seen.add((entry.name, distribution))
                yield PluginSource(entry.name, Origin.ENTRY_POINT, distribution, version, entry.load)


def _check_actions(config: SchedulerConfig, loaded: Iterable[LoadedPlugin]) -> None:
    """Reject the actions that a plugin declares incompatible (`refused_actions`)."""
    for plugin in loaded:
        refused = getattr(plugin.instance, "refused_actions", {})
        for index, action in enumerate(config.actions):
            if action in refused:
                raise PluginArgumentsError(f"{config.source}: actions[{index}]: {refused[action]} [{plugin.source}]")


def _check_alone(new: LoadedPlugin, place: tuple[str, str], loaded: Iterable[LoadedPlugin]) -> None:
    """A plugin with `single = True` has one instance: two would allocate the same resources twice."""
    name = new.name
    for other in loaded:
        if other.name == name and any(getattr(one.instance, "single", False) for one in (new, other)):
            where = ": ".join(place)
            raise PluginArgumentsError(
                f"{where}.args: another profile has different arguments, and {name} has a single instance; "
                "write the same arguments in both profiles"
            )


def _check_disabled(profile: Profile, defaults: Sequence[str]) -> None:
    for plugin in profile.plugins:
        if not plugin.enabled and plugin.name not in (defaults if profile.defaults else ()):
            where = ": ".join(profile.place_of(plugin.name))
            near = get_close_matches(plugin.name, defaults, 1, 0.6)
            remedy = f"did you mean {near[0]}?" if near else "remove the entry"
            raise PluginNotFoundError(
                f"{where}: {plugin.name!r} is not a default plugin, so it is not enabled; {remedy}"
            )


def _described(source: PluginSource, sources: Sequence[PluginSource]) -> InstalledPlugin:
    hooks: tuple[str, ...] = ()
    summary = problem = ""
    try:
        builder = _imported(source)
        hooks = tuple(hook for hook in hookspecs.HOOKS if _is_marked(getattr(builder, hook, None)))
        summary = (inspect.getdoc(builder) or "").partition("\n")[0]
        _check_version(source, builder)
        if isinstance(builder, type):
            _check_hooks(source, builder)
        _one_of(source.name, sources)
    except PluginLoadError as error:
        problem = str(error)
    return InstalledPlugin(
        source.name, source.distribution, source.version, source.origin.value, hooks, summary, problem
    )


def _is_marked(function: object) -> bool:
    return hasattr(function, f"{hookspecs.PROJECT}_impl")


# ------------------------------------------------------------------ find by name


def _find(name: str, place: tuple[str, str], sources: Sequence[PluginSource]) -> PluginSource:
    where = ": ".join(place)
    try:
        found = _one_of(name, sources)
    except PluginAmbiguousError as error:
        raise PluginAmbiguousError(f"{where}: {error}") from None
    if found is None:
        raise PluginNotFoundError(f"{where}: no plugin {name!r} is installed; {_advice(name, sources)}")
    return found


def _one_of(name: str, sources: Sequence[PluginSource]) -> PluginSource | None:
    """The source of the name, or None. Raises PluginAmbiguousError."""
    found = [source for source in sources if source.name == name]
    found = [source for source in found if source.origin is Origin.REGISTERED] or found
    if len(found) > 1:
        offers = " and ".join(f"{source.distribution} {source.version}" for source in found)
        raise PluginAmbiguousError(f"plugin {name!r} is offered by {offers}; uninstall one of them")
    return found[0] if found else None


def _advice(name: str, sources: Sequence[PluginSource]) -> str:
    names = sorted({source.name for source in sources})
    near = get_close_matches(name, names, 1, 0.6) or [known for known in names if known.lower() == name.lower()]
    if near:
        return f"did you mean {near[0]}?"
    return f"install its distribution, or use one of {', '.join(names)}"


def _given(builder: Builder) -> Callable[[], Builder]:
    return lambda: builder


def _core_version() -> str:
    try:
        return metadata.version(CORE)
    except metadata.PackageNotFoundError:
        return "not installed"


# ------------------------------------------------------------------ validate and build


def _imported(source: PluginSource) -> Builder:
    try:
        return source.load()
    except FluenceError as error:  # its text has a remedy
        raise PluginImportError(f"{source} cannot be imported: {error}") from error
    except Exception as error:  # any exception of the import is the plugin's error
        problem = moved(error) or f"{_problem(error)}; fix or reinstall it"
        raise PluginImportError(f"{source} cannot be imported: {problem}") from error


def _check_version(source: PluginSource, builder: Builder) -> None:
    version = getattr(builder, "api_version", None)
    if version is None and source.origin is Origin.ENTRY_POINT:
        raise PluginVersionError(
            f"{source} declares no version of the hooks; add `api_version = {hookspecs.API_VERSION!r}` to its class"
        )
    if version not in (None, hookspecs.API_VERSION):
        raise PluginVersionError(
            f"{source} is built for version {version} of the hooks, but this scheduler has {hookspecs.API_VERSION}; "
            f"install matching versions"
        )


def _built(source: PluginSource, builder: Builder, args: Mapping[str, Any], place: tuple[str, str]) -> object:
    arguments = _arguments(source, builder, args, place)
    try:
        return builder(arguments)
    except FluenceError as error:
        raise PluginConstructionError(*(f"{message} [{source}]" for message in error.messages)) from error
    except Exception as error:  # any exception of the constructor is the plugin's error
        raise PluginConstructionError(
            f"{source} cannot be instantiated: {_problem(error)}; check its arguments"
        ) from error


def _problem(error: Exception) -> str:
    """A plugin's exception, and the place in the plugin that raised it."""
    place = place_of(error)
    return " ".join(f"{type(error).__name__}: {error}{'' if place is None else f' at {place}'}".split())


def _arguments(source: PluginSource, builder: Builder, args: Mapping[str, Any], place: tuple[str, str]) -> Any:
    model = getattr(builder, "Arguments", None)
    file, path = place
    if model is not None and isinstance(model, type) and issubclass(model, BaseModel):
        try:
            return validated(model, dict(args), file, f"{path}.args")
        except InputError as error:
            raise PluginArgumentsError(*(f"{message} [{source}]" for message in error.messages)) from error
    if not isinstance(builder, type):
        return dict(args)
    if args:
        raise PluginArgumentsError(f"{file}: {path}.args: the plugin has no arguments; remove them [{source}]")
    return None


def _check_hooks(source: PluginSource, instance: object) -> None:
    try:
        implementations(source.name, instance)
    except (pluggy.PluginValidationError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise PluginHooksError(
            f"{source} has a hook that does not match its specification: {problem}; fix the plugin"
        ) from error
    for hook in hookspecs.HOOKS:
        given, specified = getattr(instance, hook, None), getattr(hookspecs, hook)
        if _is_marked(given) and inspect.iscoroutinefunction(specified) != inspect.iscoroutinefunction(given):
            wanted = "async def" if inspect.iscoroutinefunction(specified) else "def"
            raise PluginHooksError(f"{source} has a hook {hook} that must be declared with `{wanted}`; fix the plugin")
        if _is_method(instance, hook) and not _is_marked(given):
            cls = instance if isinstance(instance, type) else type(instance)
            raise PluginHooksError(
                f"{source} has a method {cls.__name__}.{hook}, which the scheduler does not call, because it is not "
                "marked as a hook; put @hookimpl above it, or rename it"
            )


def _is_method(plugin: object, name: str) -> bool:
    """Whether a plugin has a function of this name. Evaluates no attribute."""
    found = inspect.getattr_static(plugin, name, None)
    return isinstance(found, FunctionType | MethodType | staticmethod | classmethod)
