"""Where modules are that plugins imported while the hooks were in version 1: a failing import names the new one."""

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
"""By module below `session_scheduler`: those whose names it has now; the root has what every plugin needs."""
_INTERNAL: Final = {
    "actions": "actions.preempting",
    "base": "clock",
    "binding": "announcing binding plans pod_binding",
    "config": "yaml_scalars",
    "engine": "adoption doubts engine gangs informing plan_reading preempting service taking_in under_way waking",
    "framework": "board builtin.victims callback_answers hook_calls interrupting nominated observer order_keys outcome "
                 "trial_memory unjudged",
    "cluster": "election",
    "offline": "explain live_state offline queue_report simulate snapshots status what_if",
    "registry": "hook_manager",
    "reporting": "metrics queue_telling reporting reporting_queue telling",
    "server": "explanations live plugin_routes",
    "state": "state.pending state.rejections",
}  # fmt: skip
"""By package: the modules that went there, which are internal."""

MOVED: Final[Mapping[str, str]] = {
    f"session_scheduler.{old}": f"session_scheduler.{new}".rstrip(".")
    for new, names in (*_PUBLIC.items(), *_INTERNAL.items())
    for old in names.split()
}
"""By module: where its names are now, or the internal package that it went into."""
_NAME: Final = re.compile(r"cannot import name '(\w+)' from 'session_scheduler'")


def moved(error: Exception) -> str | None:
    """What a plugin author does about an import that fails because a module moved; None for any other failure."""
    if not isinstance(error, ImportError):
        return None
    submodule = _NAME.match(error.msg)
    old = f"session_scheduler.{submodule[1]}" if submodule else error.name or ""
    new = MOVED.get(old)
    if new is None:
        return None
    if new.removeprefix("session_scheduler.") in _INTERNAL:
        return f"{old} is internal now, in {new}: use what docs/reference/public-names.md lists"
    return f"{old} is {new} now: import its names from there"
