"""One profile's hook implementations, resolved once, in the order of the configuration.

pluggy validates specifications and implementations; the calls themselves are made here, because pluggy calls in
last-in-first-out order, drops None and who answered, stops at the first exception and costs six times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import pluggy

from session_scheduler import hookspecs
from session_scheduler.errors import FluenceError
from session_scheduler.hookspecs import HOOKS, PROJECT, Normalise, Scope

_E = TypeVar("_E", Scope, Normalise)


class PluginError(FluenceError):
    """A plugin raised, or answered with what its contract does not allow."""

    def __init__(self, plugin: str, hook: str, problem: str) -> None:
        super().__init__(f"plugin {plugin} failed in {hook}: {problem}")
        self.plugin = plugin
        self.hook = hook


class HookCall:
    """One plugin's implementation of one hook: calls it, times it, and names it when it fails."""

    __slots__ = ("_function", "calls", "hook", "plugin", "seconds")

    def __init__(self, plugin: str, hook: str, function: Callable[..., Any]) -> None:
        self.plugin = plugin
        self.hook = hook
        self._function = function
        self.calls = 0
        self.seconds = 0.0

    def __call__(self, *args: Any) -> Any:
        """The answer. Raises PluginError in place of whatever the plugin raised."""
        started = perf_counter()
        try:
            return self._function(*args)
        except Exception as error:
            raise PluginError(self.plugin, self.hook, f"{type(error).__name__}: {error}") from error
        finally:
            self.calls += 1
            self.seconds += perf_counter() - started

    async def wait(self, *args: Any) -> Any:
        """The answer of an asynchronous hook. Raises PluginError in place of whatever the plugin raised."""
        started = perf_counter()
        try:
            return await self._function(*args)
        except Exception as error:
            raise PluginError(self.plugin, self.hook, f"{type(error).__name__}: {error}") from error
        finally:
            self.calls += 1
            self.seconds += perf_counter() - started

    def wrong(self, problem: str) -> PluginError:
        """The error for an answer that the contract does not allow."""
        return PluginError(self.plugin, self.hook, problem)


@dataclass(frozen=True, slots=True)
class FilterCall:
    """A filter with what it declares."""

    call: HookCall
    scope: Scope


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """A score with what it declares."""

    call: HookCall
    scope: Scope
    weight: int
    normalise: Normalise


@dataclass(frozen=True, slots=True)
class PluginCalls:
    """All hooks of one plugin that a class's evaluation needs."""

    name: str
    prepare: HookCall | None
    filter: FilterCall | None
    score: ScoreCall | None
    why: HookCall | None


class HookCalls:
    """Every hook's implementations, in order: `calls.hooks["prefilter"]`, and by plugin for the evaluation."""

    def __init__(self, plugins: Iterable[tuple[str, object, int | None]]) -> None:
        """`plugins`: (name, plugin, weight or None for the one that it declares), in the configured order."""
        manager = new_manager()
        self.hooks: dict[str, list[HookCall]] = {hook: [] for hook in HOOKS}
        self.plugins: list[PluginCalls] = []
        self.instances: dict[str, object] = {}
        for name, plugin, weight in plugins:
            manager.register(plugin, name=name)
            manager.check_pending()
            calls = {hook: call for hook in HOOKS if (call := _resolve(manager, name, hook)) is not None}
            for hook, call in calls.items():
                self.hooks[hook].append(call)
            self.instances[name] = plugin
            self.plugins.append(_of_plugin(name, plugin, weight, calls))

    def seconds(self) -> dict[str, float]:
        """Seconds spent in each plugin so far."""
        total: dict[str, float] = {}
        for calls in self.hooks.values():
            for call in calls:
                total[call.plugin] = total.get(call.plugin, 0.0) + call.seconds
        return total

    def functions(self, hook: str) -> Sequence[HookCall]:
        """The implementations of one hook, in order."""
        return self.hooks[hook]


def new_manager() -> pluggy.PluginManager:
    """A plugin manager that knows the hook specifications."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _resolve(manager: pluggy.PluginManager, name: str, hook: str) -> HookCall | None:
    caller = getattr(manager.hook, hook)
    for impl in caller.get_hookimpls():
        if impl.plugin_name == name:
            wanted = tuple(caller.spec.argnames)
            return HookCall(name, hook, _with_arguments(impl.function, tuple(impl.argnames), wanted))
    return None


def _with_arguments(function: Callable[..., Any], takes: tuple[str, ...], given: tuple[str, ...]) -> Callable[..., Any]:
    """Lets an implementation name only some of the specification's arguments, in any order."""
    if takes == given:
        return function
    places = [given.index(name) for name in takes]
    return lambda *args: function(*(args[place] for place in places))


def _of_plugin(name: str, plugin: object, weight: int | None, calls: dict[str, HookCall]) -> PluginCalls:
    filtering, scoring = calls.get("filter"), calls.get("score")
    declared = weight if weight is not None else int(getattr(plugin, "weight", 1))
    return PluginCalls(
        name=name,
        prepare=calls.get("prepare"),
        filter=FilterCall(filtering, _declared(plugin, "filter_scope", Scope.ANY)) if filtering else None,
        score=ScoreCall(
            scoring,
            _declared(plugin, "score_scope", Scope.ANY),
            declared,
            _declared(plugin, "normalise", Normalise.NONE),
        )
        if scoring
        else None,
        why=calls.get("why"),
    )


def _declared(plugin: object, attribute: str, default: _E) -> _E:
    value = getattr(plugin, attribute, default)
    if not isinstance(value, type(default)):
        kind = type(default).__name__
        raise PluginError(getattr(plugin, "name", "?"), attribute, f"{value!r} is no {kind}: use a member of {kind}")
    return value
