"""DataFrames of observations and results. pandas is imported when one is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from session_scheduler.observation.values import Observed, Times
from session_scheduler.sdk.extras import require

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["decisions", "frame", "gangs", "gpus", "nodes", "pods", "queues"]

_TIMES = ("created", "bound", "started", "until")


def frame(columns: Mapping[str, Any], index: str | list[str] = "") -> pd.DataFrame:
    """A DataFrame of these columns. Raises InputError without pandas."""
    require("a DataFrame", "pandas", requirement="fluence-scheduler[notebook]")
    import pandas as pd

    made = pd.DataFrame(dict(columns))
    return made.set_index(index) if index else made


def nodes(observed: Observed) -> pd.DataFrame:
    """Indexed by name: levels, state, number of pods, and for each resource the allocatable and allocated amount."""
    known = observed.nodes
    columns: dict[str, Any] = {"name": known.names, **known.levels, "state": known.states, "pods": known.pods}
    for column, resource in enumerate(known.resources):
        columns[f"{resource} allocatable"] = known.allocatable[:, column]
        columns[f"{resource} allocated"] = known.allocated[:, column]
    return frame(columns, "name")


def pods(observed: Observed) -> pd.DataFrame:
    """Indexed by namespace and name: group, queue, priority, node, phase, reason, requests and times in UTC."""
    known = observed.pods
    names = [key.partition("/") for key in known.keys]
    columns: dict[str, Any] = {
        "namespace": [namespace for namespace, _, _ in names],
        "name": [name for _, _, name in names],
        "group": known.groups,
        "queue": known.queues,
        "priority": known.priorities,
        "node": [observed.nodes.names[row] if row >= 0 else None for row in known.nodes.tolist()],
        "phase": known.phases,
        "reason": known.reasons,
        **known.requests,
        **{name: _times(getattr(known, name)) for name in _TIMES},
    }
    return frame(columns, ["namespace", "name"])


def gangs(observed: Observed) -> pd.DataFrame:
    """Indexed by namespace and name: queue, priority, minimum, pending and placed pods, and the reason."""
    fields = ("namespace", "name", "queue", "priority", "min_count", "pending", "placed", "reason")
    columns = {field: [getattr(gang, field) for gang in observed.gangs] for field in fields}
    return frame(columns, ["namespace", "name"])


def queues(observed: Observed) -> pd.DataFrame:
    """Indexed by name: a column for each field, and for each kind of amount and resource."""
    rows = [dict(_flat(queue)) for queue in observed.queues]
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    return frame(columns, "name")


def _flat(queue: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        pair
        for name, value in queue.items()
        for pair in ([(f"{name} {resource}", amount) for resource, amount in value.items()]
                     if isinstance(value, Mapping) else [(name, value)])
    ]  # fmt: skip


def gpus(observed: Observed) -> pd.DataFrame:
    """Indexed by node, resource and index: model, and the pod with its share; a free GPU has one row without a pod."""
    free: Mapping[str | None, float] = {None: 0.0}
    rows = [
        (observed.nodes.names[gpu.node], gpu.resource, gpu.index, gpu.model, pod, share)
        for gpu in observed.nodes.gpus
        for pod, share in (gpu.holders or free).items()
    ]
    names = ("node", "resource", "index", "model", "pod", "share")
    columns = {name: [row[number] for row in rows] for number, name in enumerate(names)}
    return frame(columns, ["node", "resource", "index"])


def decisions(result: Mapping[str, Any]) -> pd.DataFrame:
    """Indexed by namespace and name: group, node, reason, and each column of plugins that has a value."""
    rows = result["pods"]
    more = dict.fromkeys(name for row in rows for name, value in row.items() if value not in (None, {}, []))
    names = dict.fromkeys(["namespace", "name", "group", "node", "reason", *more])
    return frame({name: [row.get(name) for row in rows] for name in names}, ["namespace", "name"])


def _times(seconds: Times) -> Any:
    """Seconds since 1970 as UTC; NaT for NaN."""
    import pandas as pd

    known = np.where(np.isnan(seconds), np.iinfo(np.int64).min, np.nan_to_num(seconds) * 1e9)
    return pd.to_datetime(known.astype(np.int64), utc=True)
