"""`fluence snapshot`: saves the scheduler's whole input as one document that `simulate` and `explain` read.

It contains the objects that the scheduler watches, with the devices that plugins would advertise on nodes of manifests,
and the configuration with its seed. The scheduler reads no Secrets, so the document contains none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.saved_state import snapshot_text
from session_scheduler.config.parsing import without_users
from session_scheduler.config.settings import Profile, SchedulerConfig, is_secret, written
from session_scheduler.errors import InputError
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.offline.state import ClusterState, complete
from session_scheduler.registry.registry import Registry

_log = structlog.get_logger(__name__)
_YAML: Final = (".yaml", ".yml")


def snapshot(state: ClusterState, config: SchedulerConfig, *, yaml: bool = False) -> str:
    """The state and the configuration as a document; equal states give equal documents. Raises PluginLoadError."""
    profiles = Registry(BUILTIN).load_calls(config)
    return snapshot_text(complete(state, profiles, config), _configuration(config, profiles), yaml=yaml)


def write_snapshot(state: ClusterState, config: SchedulerConfig, file: Path) -> None:
    """Write the snapshot to a file: YAML if its name says so, else JSON. Raises InputError."""
    text = snapshot(state, config, yaml=file.suffix in _YAML)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror}; name another file") from error


def _configuration(config: SchedulerConfig, profiles: Mapping[str, HookCalls]) -> dict[str, Any]:
    """The configuration with files inlined by plugins, and without arguments that may be secret."""
    own = tuple(_with_own(profile, profiles[profile.scheduler_name]) for profile in config.profiles)
    values = written(config.model_copy(update={"profiles": own}))
    for profile in values["profiles"]:
        for plugin in profile["plugins"]:
            for name in [name for name in plugin["args"] if is_secret(name)]:
                del plugin["args"][name]
                _log.warning(f"left out the argument {name} of plugin {plugin['name']}: its name suggests a secret")
    for extender in values["extenders"]:  # offline commands do not call them
        extender |= {"tlsConfig": None, "urlPrefix": without_users(extender["urlPrefix"])}
    return values


def _with_own(profile: Profile, calls: HookCalls) -> Profile:
    for call in calls.functions("saved_arguments"):
        arguments = call()
        if arguments is None:
            continue
        if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
            raise call.wrong(f"expected a mapping of arguments to values, got {type(arguments).__name__}")
        profile = profile.with_arguments(call.plugin, dict(arguments))
    return profile
