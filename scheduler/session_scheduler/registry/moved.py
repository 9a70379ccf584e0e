"""Modules that moved since version 1 of the hooks: the error of a failed import names the new module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_PUBLIC: Final = {
    "": "callbacks evaluation plugin_loading session statement",
    "config.parsing": "config_text",
    "config.settings": "config",
    "config.yaml_text": "yaml_text",
    "hookspecs": "actions.trial",
    "model.cluster_view": "state.cluster_view",
    "sdk.bindings": "model.bindings",
    "sdk.cluster": "cluster.port",
    "sdk.dynamic_client": "kube_api",
    "sdk.dynamic_informer": "kube_following",
    "sdk.http_server": "endpoints",
    "sdk.leader": "leadership",
    "sdk.signals": "stopping",
    "sdk.sockets": "listening",
    **{f"sdk.{name}": name for name in ("command_options", "commands", "event_loop", "logs", "tasks")},
}
"""By public module below `session_scheduler`: the former modules; the root has what every plugin needs."""
_INTERNAL: Final = {
    "actions": "actions.preempting",
    "base": "clock",
    "binding": "announcing binding plans pod_binding",
    "config": "yaml_scalars",
    "engine": "adoption doubts engine gangs informing plan_reading preempting service taking_in under_way waking",
    "framework": "board builtin.victims callback_answers hook_calls interrupting nominated observer order_keys outcome "
                 "trial_memory unjudged",  # codespell:ignore unjudged
    "cluster": "election",
    "offline": "explain live_state offline queue_report simulate snapshots status what_if",
    "registry": "hook_manager",
    "reporting": "metrics queue_telling reporting reporting_queue telling",  # codespell:ignore telling
    "server": "explanations live plugin_routes",
    "state": "state.pending state.rejections",
}  # fmt: skip
"""By internal package: the former modules."""

MOVED: Final[Mapping[str, str]] = {
    f"session_scheduler.{old}": f"session_scheduler.{new}".rstrip(".")
    for new, names in (*_PUBLIC.items(), *_INTERNAL.items())
    for old in names.split()
}
"""By former module: the public module, or the internal package."""
_NAME: Final = re.compile(r"cannot import name '(\w+)' from 'session_scheduler'")


def moved(error: Exception) -> str | None:
    """The remedy for an import that fails because a module moved; None for any other error."""
    if not isinstance(error, ImportError):
        return None
    submodule = _NAME.match(error.msg)
    old = f"session_scheduler.{submodule[1]}" if submodule else error.name or ""
    new = MOVED.get(old)
    if new is None:
        return None
    if new.removeprefix("session_scheduler.") in _INTERNAL:
        return f"{old} moved to {new}, which is internal; use the names in docs/reference/public-names.md"
    return f"{old} moved to {new}; import its names from there"
