"""pluggy's plugin manager, which checks hooks against their specifications; without its search of what is no hook."""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any, Final

import pluggy

from session_scheduler import hookspecs
from session_scheduler.framework.hooks import HookCalls, Implementation, ResolvedPlugin
from session_scheduler.hookspecs import HOOKS, PROJECT

_OF_EVERY_OBJECT: Final = frozenset(dir(type("", (), {})))
"""Names that are no hook's."""
_MARK: Final = f"{PROJECT}_impl"
_BOUND: Final = (FunctionType, MethodType, staticmethod, classmethod, MemberDescriptorType)
"""What pluggy takes hooks from: the last one is a slot."""
_CORE: Final = "session_scheduler."


def hook_calls(plugins: Iterable[tuple[str, object, int | None]], hook_seconds: float | None = None) -> HookCalls:
    """The hooks of (name, plugin, weight or None for the one that it declares), in the configured order.

    Raises pluggy.PluginValidationError.
    """
    resolved = (ResolvedPlugin(name, plugin, weight, implementations(name, plugin)) for name, plugin, weight in plugins)
    return HookCalls(resolved, hook_seconds)


def implementations(name: str, plugin: object) -> dict[str, Implementation]:
    """A plugin's hooks, by the hooks' names, checked. Raises pluggy.PluginValidationError.

    Each class of the core's own is looked through once, as long as it stays as it is: there are many, in every profile.
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
"""By class: all that is in it and in its bases, and its hooks, each with what it takes and what it is given."""


def _may_have_own(plugin: object) -> bool:
    """Whether hooks may be the object's, in its dictionary or a slot, and not its class's."""
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
    """A plugin manager that knows the hook specifications."""
    manager = _PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


class _PluginManager(pluggy.PluginManager):
    """pluggy takes its time over each attribute of a plugin, and most are plainly none that it looks for."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if name in _OF_EVERY_OBJECT or _is_no_hook(plugin, name):
            return None
        return super().parse_hookimpl_opts(plugin, name)

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        return super().parse_hookspec_opts(module_or_class, name) if name in HOOKS else None


def _is_no_hook(plugin: object, name: str) -> bool:
    """Whether an object's attribute is sure to be none: a value of its own, or a method without the mark.

    Nothing is evaluated for it, as by pluggy. Of classes and modules nothing is said.
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
