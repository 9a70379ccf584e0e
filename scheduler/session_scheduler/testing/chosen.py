"""The plugins of a test's scheduler: the built-in ones, with those that the test adds and removes."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from session_scheduler.builtin import BUILTIN
from session_scheduler.config.settings import PluginConfig
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.registry.registry import Origin, PluginSource, Registry
from session_scheduler.registry.validation import hook_calls

_PLACE: Final = ("FakeCluster", "use")
"""The place of a plugin's entry, in messages."""

Entry = tuple[str, object, int | None]


class Chosen:
    """The plugins in call order; one with a built-in's name replaces it."""

    def __init__(self) -> None:
        self._without: set[str] = set()
        self._used: dict[str, Entry] = {}
        self._recipes: dict[str, tuple[object, Mapping[str, Any] | None, int | None]] = {}
        """How to build those of `_used` that are not instances of the test."""

    def use(self, plugin: object, args: Mapping[str, Any] | None, weight: int | None) -> None:
        """Add a plugin: its class, an instance, or the name of an installed one.

        The plugin and its arguments are validated like those of a configuration. Raises PluginLoadError.
        """
        name = plugin if isinstance(plugin, str) else name_of(plugin)
        sources = None if isinstance(plugin, str) else [_source(name, plugin)]
        if sources is not None and not isinstance(plugin, type) and args:
            raise TypeError(f"plugin {name} is an instance; pass its class and the arguments")
        loaded = Registry(BUILTIN).load_plugin(PluginConfig(name=name, args=args or {}, weight=weight), _PLACE, sources)
        self.add(name, loaded.instance, weight)
        if isinstance(plugin, str | type):
            self._recipes[name] = (plugin, args, weight)

    def add(self, name: str, instance: object, weight: int | None = None) -> None:
        """Add a plugin's instance without validation."""
        self._used.pop(name, None)
        self._recipes.pop(name, None)
        self._used[name] = (name, instance, weight)
        self._without.discard(name)

    def rebuild(self) -> None:
        """Build every plugin again, as after a crash. Raises RuntimeError for an instance."""
        if ready := [name for name in self._used if name not in self._recipes]:
            raise RuntimeError(
                f"plugin {ready[0]} is an instance, which would keep its state; pass its class to use(…)"
            )
        for name in list(self._used):
            self.use(*self._recipes[name])

    def instances(self) -> dict[str, object]:
        """The added plugins by name."""
        return {name: instance for name, instance, _ in self._used.values()}

    def disable(self, name: str) -> None:
        """Disable a built-in plugin. Raises ValueError."""
        if name not in BUILTIN:
            near = get_close_matches(name, BUILTIN, 1, 0.6)
            remedy = f"did you mean {near[0]}?" if near else f"name one of {', '.join(BUILTIN)}"
            raise ValueError(f"{name!r} is not a built-in plugin; {remedy}")
        self._without.add(name)

    def calls(self, hook_seconds: float | None = None) -> HookCalls:
        """The chosen plugins' hooks, ready to be called; `hook_seconds` as in a configuration, None for no timeout."""
        listed = [
            self._used.get(name) or (name, builtin(None), None)
            for name, builtin in BUILTIN.items()
            if name not in self._without and (name in self._used or getattr(builtin, "by_default", True))
        ]
        added = (entry for name, entry in self._used.items() if name not in BUILTIN)
        return hook_calls([*listed, *added], hook_seconds)


def name_of(plugin: object) -> str:
    """The `name` of a plugin (a class or an instance), or its class's name."""
    cls = plugin if isinstance(plugin, type) else type(plugin)
    return str(getattr(plugin, "name", cls.__name__))


def _source(name: str, plugin: object) -> PluginSource:
    builder = plugin if isinstance(plugin, type) else lambda _: plugin
    return PluginSource(name, Origin.REGISTERED, "given to FakeCluster", "", lambda: builder)
