"""Observers of clusters that files describe: manifests or a snapshot. Public."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.observation.observer import Observer
from session_scheduler.offline.simulate import left_out, place_all
from session_scheduler.offline.state import ClusterState, open_state, read_state

__all__ = ["open_files", "simulated"]


async def open_files(
    files: Sequence[str], *, config: SchedulerConfig | None = None, levels: Sequence[str] = ()
) -> Observer:
    """Observe the cluster of manifests (paths, directories, "-") or of a snapshot; nothing is scheduled.

    The configuration is that of the snapshot unless given. Raises InputError.
    """
    state, config = await _read(files, config)
    return Observer(await open_state(state, config), _named(files), levels=levels)


async def simulated(
    files: Sequence[str], *, config: SchedulerConfig | None = None, levels: Sequence[str] = ()
) -> tuple[dict[str, Any], Observer]:
    """Schedule the pending pods in memory: the JSON of `fluence simulate`, and the cluster after it.

    Raises InputError.
    """
    state, config = await _read(files, config)
    scheduler = await open_state(state, config)
    result = {**await place_all(scheduler), **left_out(state, config)}
    return result, Observer(scheduler, _named(files), levels=levels)


async def _read(files: Sequence[str], config: SchedulerConfig | None) -> tuple[ClusterState, SchedulerConfig]:
    state = await read_state(files)
    return state, config or state.config()


def _named(files: Sequence[str]) -> str:
    return ", ".join("standard input" if file == "-" else file for file in files)
