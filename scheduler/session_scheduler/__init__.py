"""The session core: holds a consistent view of the cluster, asks the plugins, commits or undoes.

The names here, `hookspecs`, `model`, `commands`, `yaml_text` and `testing` are for plugin authors; everything else is
inside and may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from session_scheduler.hookspecs import API_VERSION, SKIP, Normalise, Placement, Refusal, Scope, hookimpl

if TYPE_CHECKING:
    from session_scheduler.config import PluginArguments
    from session_scheduler.errors import FluenceError, InputError
    from session_scheduler.evaluation import NodeInfo
    from session_scheduler.plugin_loading import register_plugin_builder
    from session_scheduler.session import Session
    from session_scheduler.statement import Event

_LAZY = {
    "Event": "statement",
    "FluenceError": "errors",
    "InputError": "errors",
    "NodeInfo": "evaluation",
    "PluginArguments": "config",
    "Session": "session",
    "register_plugin_builder": "plugin_loading",
}
"""Names that cost something to import, and where they are: `fluence --help` needs none of them."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


__all__ = [
    "API_VERSION", "SKIP", "Event", "FluenceError", "InputError", "NodeInfo", "Normalise", "Placement",
    "PluginArguments", "Refusal", "Scope", "Session", "hookimpl", "register_plugin_builder",
]  # fmt: skip
