"""The session core: holds a consistent view of the cluster, asks the plugins, commits or undoes.

The names here, `hookspecs`, `model`, `commands`, `yaml_text` and `testing` are for plugin authors, and for plugins' own
servers `endpoints`, `kube_api`, `logs` and `stopping`; everything else is inside and may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from session_scheduler.callbacks import Scenario
    from session_scheduler.config import PluginArguments
    from session_scheduler.errors import FluenceError, InputError
    from session_scheduler.evaluation import NodeInfo
    from session_scheduler.hookspecs import (
        API_VERSION,
        SKIP,
        Gate,
        Normalise,
        Placement,
        Prepared,
        Refusal,
        Scope,
        hookimpl,
    )
    from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
    from session_scheduler.plugin_loading import register_plugin_builder
    from session_scheduler.session import Session
    from session_scheduler.statement import Event

_LAZY = {
    "API_VERSION": "hookspecs",
    "SKIP": "hookspecs",
    "ActionType": "model.events",
    "ClusterEvent": "model.events",
    "ClusterEventWithHint": "model.events",
    "Event": "statement",
    "FluenceError": "errors",
    "Gate": "hookspecs",
    "InputError": "errors",
    "NodeInfo": "evaluation",
    "Normalise": "hookspecs",
    "Placement": "hookspecs",
    "PluginArguments": "config",
    "Prepared": "hookspecs",
    "Refusal": "hookspecs",
    "Scenario": "callbacks",
    "Scope": "hookspecs",
    "Session": "session",
    "hookimpl": "hookspecs",
    "register_plugin_builder": "plugin_loading",
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
