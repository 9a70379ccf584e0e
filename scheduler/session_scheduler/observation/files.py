"""Observers of clusters that files describe: manifests or a snapshot. Public."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.observation.experiment import read
from session_scheduler.observation.observer import Observer

__all__ = ["open_files", "simulated"]


async def open_files(
    files: Sequence[str], *, config: SchedulerConfig | None = None, levels: Sequence[str] = ()
) -> Observer:
    """Observe the cluster of manifests (paths, directories, "-") or of a snapshot; nothing is scheduled.

    The configuration is that of the snapshot unless given. Raises InputError.
    """
    return await (await read(files, config=config, levels=levels)).observer()


async def simulated(
    files: Sequence[str], *, config: SchedulerConfig | None = None, levels: Sequence[str] = ()
) -> tuple[dict[str, Any], Observer]:
    """Schedule the pending pods in memory: the JSON of `fluence simulate`, and the resulting cluster.

    Raises InputError.
    """
    return await (await read(files, config=config, levels=levels)).run()
