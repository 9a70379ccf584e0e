"""The session core: holds a consistent view of the cluster, asks the plugins, commits or undoes.

The public modules are this one, `hookspecs`, `errors`, `config`, `model`, `sdk`, `testing` and `observation`.
Everything else is internal and may change without notice.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from session_scheduler.config.settings import PluginArguments
    from session_scheduler.errors import FluenceError, InputError
    from session_scheduler.framework.answers import SKIP, Normalise, Placement, Prepared, Scope
    from session_scheduler.framework.callbacks import Event, Scenario
    from session_scheduler.framework.node_info import NodeInfo
    from session_scheduler.framework.session import Session
    from session_scheduler.hookspecs import API_VERSION, hookimpl
    from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
    from session_scheduler.model.refusals import Gate, Refusal
    from session_scheduler.registry.registry import register_plugin_builder

_LAZY = {
    "API_VERSION": "hookspecs",
    "ActionType": "model.events",
    "ClusterEvent": "model.events",
    "ClusterEventWithHint": "model.events",
    "Event": "framework.callbacks",
    "FluenceError": "errors",
    "Gate": "model.refusals",
    "InputError": "errors",
    "NodeInfo": "framework.node_info",
    "Normalise": "framework.answers",
    "Placement": "framework.answers",
    "PluginArguments": "config.settings",
    "Prepared": "framework.answers",
    "Refusal": "model.refusals",
    "SKIP": "framework.answers",
    "Scenario": "framework.callbacks",
    "Scope": "framework.answers",
    "Session": "framework.session",
    "hookimpl": "hookspecs",
    "register_plugin_builder": "registry.registry",
}
"""Where the public names are. They are imported when they are asked for: the command begins without any of them."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


__all__ = [
    "API_VERSION", "SKIP", "ActionType", "ClusterEvent", "ClusterEventWithHint", "Event", "FluenceError", "Gate",
    "InputError", "NodeInfo", "Normalise", "Placement", "PluginArguments", "Prepared", "Refusal", "Scenario", "Scope",
    "Session", "hookimpl", "register_plugin_builder",
]  # fmt: skip
