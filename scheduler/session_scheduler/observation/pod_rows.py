"""The pods of an observation: one row for each task, rebuilt only when the task has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import nan
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import natural
from session_scheduler.model.disruption import is_disrupted
from session_scheduler.model.durations import known_end, placed_at, wrong_durations
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.model.queues import is_in_thousandths
from session_scheduler.model.times import parsed_time
from session_scheduler.observation.values import Pods


class _Row:
    """What a pod's row was made from, and its values."""

    __slots__ = (
        "bound", "cls", "created", "evicted", "group", "group_name", "key", "node", "order", "phase", "place", "pod",
        "pod_group", "priority", "problems", "queue", "reason", "served", "started", "state", "task", "until",
    )  # fmt: skip

    def __init__(self, task: Task, order: tuple[tuple[str, int], ...], served: bool) -> None:
        self.task = task
        self.key = task.key
        self.order = order
        self.served = served
        """Whether a profile serves the pod: others have no row in the observation, but may hold GPUs."""
        self.place = -1
        """Its row in the observation."""
        self.pod: Pod | None = None
        self.node: str | None = None
        self.phase: Phase | None = None
        self.cls: TaskClass | None = None
        self.group: Group | None = None
        self.pod_group: PodGroup | None = None
        self.queue = ""
        self.priority = 0
        self.reason: str | None = None
        self.state = ""
        self.evicted = False
        self.group_name: str | None = None
        self.created = self.bound = self.started = self.until = nan
        self.problems: Mapping[str, str] = {}


class PodRows:
    """The rows of all tasks of a scheduler. `update` first, then read."""

    def __init__(self, scheduler: Scheduler, reason_of: Callable[[Task], str]) -> None:
        """`reason_of` is called for each changed pod without a node."""
        self._scheduler = scheduler
        self._reason_of = reason_of
        self._rows: dict[str, _Row] = {}
        """By pod uid, of all schedulers."""
        self._shown: list[_Row] = []
        """The rows of served pods, in natural order of their keys."""
        self._changed: list[_Row] = []
        """Those that were rebuilt after the columns were read."""
        self._columns: _Columns | None = None
        """The columns as they were read; None if the rows are others by now."""
        self.rebuilt = 0
        """How many rows were built or rebuilt since the start."""
        self.nodes: set[str] = set()
        """The nodes whose pods the last update changed."""
        self.groups: set[Group] = set()
        """The groups whose pods the last update changed."""

    def update(self) -> None:
        """Rebuild the rows of the tasks that have changed."""
        self.nodes, self.groups = set(), set()
        tasks, gates = self._scheduler.cache.tasks, self._scheduler.cache.gates.by_task
        rows, new, gone = self._rows, list[_Row](), list[_Row]()
        for uid, task in tasks.items():
            row = rows.get(uid)
            if (
                row is not None
                and row.task is task
                and row.pod is task.pod
                and row.node == task.node
                and row.phase is task.phase
                and row.cls is task.cls
                and row.priority == task.priority
                and row.group is (group := task.group)
                and row.queue == group.queue
                and row.pod_group is group.pod_group
                and (task not in gates or gates[task].reason == row.reason)
            ):
                continue
            if row is None or row.task is not task:
                if row is not None:
                    gone.append(row)
                row = rows[uid] = _Row(
                    task, natural(task.key), task.pod.spec.scheduler_name in self._scheduler.profiles
                )
                new.append(row)
            self._rebuild(row)
        if len(rows) > len(tasks):
            for uid in [uid for uid in rows if uid not in tasks]:
                gone.append(rows.pop(uid))
        for row in gone:
            self._note(row)
        if new or gone:
            left = {id(row) for row in gone}
            self._shown = [row for row in self._shown if id(row) not in left] if gone else self._shown
            self._shown += [row for row in new if row.served]
            self._shown.sort(key=attrgetter("order"))
            self._columns = None

    def _note(self, row: _Row) -> None:
        """Note the node and the group of a row's values."""
        if row.node is not None:
            self.nodes.add(row.node)
        if row.group is not None:
            self.groups.add(row.group)

    def _rebuild(self, row: _Row) -> None:
        self.rebuilt += 1
        self._note(row)
        task = row.task
        pod = row.pod = task.pod
        row.node, row.phase, row.cls, row.priority = task.node, task.phase, task.cls, task.priority
        row.group, row.queue, row.pod_group = task.group, task.group.queue, task.group.pod_group
        self._note(row)
        if not row.served:
            return
        self._changed.append(row)
        row.group_name = None if task.group.single else task.group.name
        row.reason = self._reason_of(task) if task.node is None else None
        row.state = _state(task)
        row.evicted = is_disrupted(pod)
        row.created = seconds_of(pod.metadata.creation_timestamp)
        row.bound = seconds_of(placed_at(pod)) if task.node is not None else nan
        row.started = seconds_of(pod.status.start_time)
        end = known_end(task)
        row.until = nan if end is None else end
        row.problems = wrong_durations((task,))

    # ------------------------------------------------------------------ read

    def tasks(self) -> Iterable[Task]:
        """The served tasks, in natural order of their keys."""
        return (row.task for row in self._shown)

    def reason(self, uid: str) -> str | None:
        """The reason in a pod's row."""
        return self._rows[uid].reason

    def problems(self) -> dict[str, str]:
        """The errors in durations, by "Pod NS/NAME" or "PodGroup NS/NAME"."""
        return {name: text for row in self._shown if row.problems for name, text in row.problems.items()}

    def columns(self, row_of: Mapping[str, int]) -> Pods:
        """All rows; `row_of` has the row of each node. Columns without changes are those of the last call."""
        if self._columns is None:
            for place, row in enumerate(self._shown):
                row.place = place
            self._columns = _Columns(self._shown, row_of)
        else:
            self._columns.update(self._shown, self._changed, row_of)
        self._changed = []
        return self._columns.pods()


class _Columns:
    """The columns of the rows; while these stay the same, only values of changed rows are read again."""

    def __init__(self, rows: Sequence[_Row], row_of: Mapping[str, int]) -> None:
        self._numbers = {name: _array(name, rows) for name in _NUMBERS}
        self._texts = {name: _texts(name, rows) for name in _TEXTS}
        self._classes = [row.task.cls for row in rows]
        self._requests = _requests(self._classes)
        self._evicted = frozenset(row.key for row in rows if row.evicted)
        self._row_of = row_of
        self._nodes = _node_rows(rows, row_of)

    def update(self, rows: Sequence[_Row], changed: Sequence[_Row], row_of: Mapping[str, int]) -> None:
        """Read the changed rows; all of them, if the nodes have other rows by now."""
        if self._row_of is not row_of:
            self._row_of, self._nodes = row_of, _node_rows(rows, row_of)
        if not changed:
            return
        places = [row.place for row in changed]
        self._nodes = _replaced(self._nodes, places, _node_rows(changed, row_of))
        for name in _NUMBERS:
            self._numbers[name] = _replaced(self._numbers[name], places, _array(name, changed))
        for name in _TEXTS:
            self._texts[name] = _replaced_texts(self._texts[name], places, _texts(name, changed))
        if any(self._classes[row.place] is not row.task.cls for row in changed):
            for row in changed:
                self._classes[row.place] = row.task.cls
            self._requests = _requests(self._classes)
        self._evicted = self._evicted.difference(row.key for row in changed).union(
            row.key for row in changed if row.evicted
        )

    def pods(self) -> Pods:
        """The value."""
        fields: dict[str, Any] = {**self._texts, **self._numbers}
        return Pods(nodes=self._nodes, requests=self._requests, evicted=self._evicted, **fields)


_TEXTS: Final = {"keys": "key", "groups": "group_name", "queues": "queue", "phases": "state", "reasons": "reason"}
"""The fields of `Pods` by those of a row."""
_NUMBERS: Final = {
    "priorities": "priority", "created": "created", "bound": "bound", "started": "started", "until": "until",
}  # fmt: skip


def _texts(name: str, rows: Sequence[_Row]) -> tuple[Any, ...]:
    return tuple(map(attrgetter(_TEXTS[name]), rows))


def _array(name: str, rows: Sequence[_Row]) -> NDArray[Any]:
    kind = np.int64 if name == "priorities" else np.float64
    return np.fromiter(map(attrgetter(_NUMBERS[name]), rows), kind, len(rows))


def _node_rows(rows: Sequence[_Row], row_of: Mapping[str, int]) -> NDArray[np.int64]:
    return np.fromiter((row_of.get(row.node, -1) if row.node else -1 for row in rows), np.int64, len(rows))


def _replaced(column: NDArray[Any], places: Sequence[int], values: NDArray[Any]) -> NDArray[Any]:
    """The column with these values, as a new one: observations keep theirs."""
    new = column.copy()
    new[places] = values
    return new


def _replaced_texts(column: tuple[Any, ...], places: Sequence[int], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same, but the column itself if no value is another one."""
    if all(column[place] == value for place, value in zip(places, values, strict=True)):
        return column
    new = list(column)
    for place, value in zip(places, values, strict=True):
        new[place] = value
    return tuple(new)


def _requests(classes: Sequence[TaskClass]) -> dict[str, NDArray[np.float64]]:
    """By resource: its amount for each of these classes; each class is read once."""
    unique = {cls: number for number, cls in enumerate(dict.fromkeys(classes))}
    amounts = [{name: amount for name, amount in cls.queue_amounts.items() if name != "pods"} for cls in unique]
    of_pod = np.fromiter(map(unique.__getitem__, classes), np.int64, len(classes))
    return {
        name: np.array([one.get(name, 0) / unit_of(name) for one in amounts], np.float64)[of_pod]
        for name in in_order({name for one in amounts for name in one})
    }


def unit_of(resource: str) -> float:
    """The divisor that converts the scheduler's amounts of a resource to the unit that people use."""
    return 1000.0 if is_in_thousandths(resource) else 1.0


def in_order(resources: Iterable[str]) -> list[str]:
    """cpu, memory, then every other one in natural order."""
    first = ("cpu", "memory")
    return sorted(resources, key=lambda name: (first.index(name) if name in first else len(first), natural(name)))


def _state(task: Task) -> str:
    pod = task.pod
    if pod.metadata.deletion_timestamp is not None or task.phase is Phase.RELEASING:
        return "Terminating"
    if task.node is None:
        return "Gated" if task.phase is Phase.GATED else "Pending"
    return "Running" if pod.status.phase == "Running" else "Bound"


def seconds_of(text: str | None) -> float:
    """A time of the API in seconds since 1970; NaN without one."""
    return _parsed(text) if text else nan


@lru_cache(maxsize=65536)
def _parsed(text: str) -> float:
    time = parsed_time(text)
    return nan if time is None else time.timestamp()
