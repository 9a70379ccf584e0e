"""pluggy's plugin manager, which checks hooks against their specifications; without its search of what is no hook."""

from __future__ import annotations

from types import FunctionType, MemberDescriptorType, MethodType
from typing import Any, Final

import pluggy

from session_scheduler import hookspecs
from session_scheduler.hookspecs import HOOKS, PROJECT

_OF_EVERY_OBJECT: Final = frozenset(dir(type("", (), {})))
"""Names that are no hook's."""
_MARK: Final = f"{PROJECT}_impl"
_BOUND: Final = (FunctionType, MethodType, staticmethod, classmethod, MemberDescriptorType)
"""What pluggy takes hooks from: the last one is a slot."""


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
