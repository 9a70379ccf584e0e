"""Builds what an observer sees, for tests of views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from session_scheduler.observation.values import Gang, Gpu, Nodes, Observed, Pods

NOW = 1_700_000_000.0


def nodes(
    names: Sequence[str] = (),
    *,
    cpu: float = 8,
    used: Sequence[float] | None = None,
    levels: Mapping[str, Sequence[str | None]] | None = None,
    gpus: Sequence[Gpu] = (),
    states: Sequence[str] | None = None,
    pods: Sequence[int] | None = None,
) -> Nodes:
    allocatable = np.tile([cpu, 64 * 1024.0**3], (len(names), 1))
    allocated = np.zeros_like(allocatable)
    if used is not None:
        allocated[:, 0] = used
        allocated[:, 1] = 0.5 * allocatable[:, 1]
    return Nodes(
        names=tuple(names),
        levels={level: tuple(values) for level, values in (levels or {}).items()},
        resources=("cpu", "memory"),
        allocatable=allocatable,
        allocated=allocated,
        pods=np.array(pods if pods is not None else [0] * len(names), np.int64),
        states=tuple(states or ["Ready"] * len(names)),
        gpus=tuple(gpus),
    )


def pod(key: str, **fields: Any) -> dict[str, Any]:
    """One row of `pods`; the default is a pending pod without group."""
    return {
        "key": key, "group": None, "queue": "default", "priority": 0, "node": -1, "phase": "Pending", "reason": None,
        "cpu": 1.0, "created": NOW - 60, "bound": np.nan, "started": np.nan, "until": np.nan, **fields,
    }  # fmt: skip


def pods(rows: Sequence[Mapping[str, Any]] = ()) -> Pods:
    def times(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([row[name] for row in rows], np.float64)

    return Pods(
        keys=tuple(row["key"] for row in rows),
        groups=tuple(row["group"] for row in rows),
        queues=tuple(row["queue"] for row in rows),
        priorities=np.array([row["priority"] for row in rows], np.int64),
        nodes=np.array([row["node"] for row in rows], np.int64),
        phases=tuple(row["phase"] for row in rows),
        reasons=tuple(row["reason"] for row in rows),
        requests={"cpu": times("cpu")},
        created=times("created"),
        bound=times("bound"),
        started=times("started"),
        until=times("until"),
    )


def observed(
    some_nodes: Nodes | None = None,
    rows: Sequence[Mapping[str, Any]] = (),
    *,
    gangs: Sequence[Gang] = (),
    queues: Sequence[Mapping[str, Any]] = (),
    problems: Mapping[str, str] | None = None,
    hidden: Mapping[str, int] | None = None,
) -> Observed:
    return Observed(
        time=NOW,
        source="a test",
        nodes=some_nodes or nodes(),
        pods=pods(rows),
        gangs=tuple(gangs),
        queues=tuple(queues),
        problems=problems or {},
        hidden=hidden or {},
    )
