"""Validates hooks with pluggy's plugin manager, without its slow search of attributes that are not hooks."""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any, Final

import pluggy

from session_scheduler import hookspecs
from session_scheduler.framework.hooks import HookCalls, Implementation, ResolvedPlugin
from session_scheduler.hookspecs import HOOKS, PROJECT

_OF_EVERY_OBJECT: Final = frozenset(dir(type("", (), {})))
"""Attributes of every object."""
_MARK: Final = f"{PROJECT}_impl"
_BOUND: Final = (FunctionType, MethodType, staticmethod, classmethod, MemberDescriptorType)
"""The types of attributes that pluggy accepts as hooks; the last one is a slot."""
_CORE: Final = "session_scheduler."


def hook_calls(plugins: Iterable[tuple[str, object, int | None]], hook_seconds: float | None = None) -> HookCalls:
    """The hooks of (name, plugin, weight), in the configured order; weight None uses the declared one.

    Raises pluggy.PluginValidationError.
    """
    resolved = (ResolvedPlugin(name, plugin, weight, implementations(name, plugin)) for name, plugin, weight in plugins)
    return HookCalls(resolved, hook_seconds)


def implementations(name: str, plugin: object) -> dict[str, Implementation]:
    """A plugin's validated hooks by name. Raises pluggy.PluginValidationError.

    The result is cached for each of the core's classes until the class changes: every profile has many of them.
    """
    cls = type(plugin)
    if not cls.__module__.startswith(_CORE) or _may_have_own(plugin):
        return _found(name, plugin)
    body = tuple(value for base in cls.__mro__ for value in vars(base).values())
    known = _known.get(cls)
    if known is not None and known[0] == body:
        return {hook: Implementation(getattr(plugin, hook), takes, given) for hook, takes, given in known[1]}
    found = _found(name, plugin)
    if all(getattr(plugin, hook, None) == each.function for hook, each in found.items()):
        _known[cls] = body, [(hook, each.takes, each.given) for hook, each in found.items()]
    return found


_known: Final[dict[type, tuple[tuple[object, ...], list[tuple[str, tuple[str, ...], tuple[str, ...]]]]]] = {}
"""By class: the attributes of it and its bases, and its hooks with their parameters and arguments."""


def _may_have_own(plugin: object) -> bool:
    """Whether the object itself may have hooks, in its dictionary or a slot."""
    own = getattr(plugin, "__dict__", {}).values()
    return any(isinstance(value, FunctionType | MethodType) for value in own) or any(
        "__slots__" in vars(base) for base in type(plugin).__mro__
    )


def _found(name: str, plugin: object) -> dict[str, Implementation]:
    manager = new_manager()
    manager.register(plugin, name=name)
    manager.check_pending()
    found: dict[str, Implementation] = {}
    for caller in manager.get_hookcallers(plugin) or ():
        if caller.spec is not None:
            first = caller.get_hookimpls()[0]
            found[caller.name] = Implementation(first.function, tuple(first.argnames), tuple(caller.spec.argnames))
    return {hook: found[hook] for hook in HOOKS if hook in found}


def new_manager() -> pluggy.PluginManager:
    """A plugin manager with the hook specifications."""
    manager = _PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


class _PluginManager(pluggy.PluginManager):
    """Skips attributes that cannot be hooks, on which pluggy spends most of its time."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if name in _OF_EVERY_OBJECT or _cannot_be_hook(plugin, name):
            return None
        return super().parse_hookimpl_opts(plugin, name)

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        return super().parse_hookspec_opts(module_or_class, name) if name in HOOKS else None


def _cannot_be_hook(plugin: object, name: str) -> bool:
    """Whether an object's attribute is certainly not a hook: a plain value, or a method without the mark.

    Evaluates no attribute. False for classes and modules.
    """
    if isinstance(plugin, type):
        return False
    own = getattr(plugin, "__dict__", {})
    if name in own:
        return not isinstance(own[name], FunctionType | MethodType)
    for cls in type(plugin).__mro__:
        if name in vars(cls):
            found = vars(cls)[name]
            return not hasattr(found, _MARK) if type(found) is FunctionType else not isinstance(found, _BOUND)
    return False
