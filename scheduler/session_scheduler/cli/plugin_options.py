"""The configuration of a command: that of a file or a state, with the options that plugins add."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from session_scheduler.sdk.commands import PluginOption

if TYPE_CHECKING:
    from session_scheduler.config.settings import SchedulerConfig
    from session_scheduler.offline.state import ClusterState

PluginOptions = Sequence[tuple[PluginOption, str | None]]
"""The options that plugins add, each with its value, if it has one."""


def configuration(
    path: Path | None, options: PluginOptions, defaults: PluginOptions = (), state: ClusterState | None = None
) -> SchedulerConfig:
    """`options` need a profile that enables their plugins; `defaults` apply only where there is one."""
    from session_scheduler.builtin import BUILTIN
    from session_scheduler.config.settings import SchedulerConfig, load_config
    from session_scheduler.registry.registry import Registry

    config = load_config(path) if path else state.config() if state is not None else SchedulerConfig()
    registry = Registry(BUILTIN)
    enabled = [(option, value) for option, value in defaults if value and registry.enables(config, option.plugin)]
    for option, value in [*options, *enabled]:
        if value is not None:
            config = registry.with_arguments(config, option.plugin, {option.argument: value})
    return config
