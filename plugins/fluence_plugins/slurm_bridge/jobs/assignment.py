"""The assignment of a job's pods to the job's nodes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluence_plugins.slurm_bridge.jobs.job_table import PodJob
from session_scheduler.model.groups import Task


@dataclass(frozen=True, slots=True)
class JobNode:
    """A node that a job has."""

    node: str
    job_id: int


class Assignment:
    """A placement that reserves nothing: Slurm does."""

    def __init__(self, nodes: Mapping[Task, JobNode]) -> None:
        self._nodes = dict(nodes)

    @property
    def nodes(self) -> Mapping[Task, str]:
        """The node of each task."""
        return {task: one.node for task, one in self._nodes.items()}

    @property
    def holds(self) -> Mapping[Task, Mapping[str, Any]]:
        """The job of each task."""
        return {task: {"job": one.job_id} for task, one in self._nodes.items()}

    def undo(self) -> None:
        """Nothing was reserved."""

    def redo(self) -> None:
        """Nothing is reserved."""

    def release(self, tasks: Sequence[Task]) -> None:
        """Drop these tasks."""
        for task in tasks:
            del self._nodes[task]


def assign(
    tasks: Sequence[Task],
    job: PodJob,
    nodes: Sequence[str],
    held: Iterable[str],
    fits: Callable[[Task, str], bool],
) -> dict[Task, str]:
    """As many tasks as possible, each on a node that it fits: tasks and nodes in their order.

    Pods are spread evenly: a job with four pods and two nodes has two on each. `held` are the nodes of the pods that
    have one already. A later task moves earlier ones where only that places all (augmenting paths).
    """
    if not nodes:
        return {}
    each = -(-len(job.pods) // len(job.nodes or nodes))
    left = Counter(held)
    slots = [node for node in nodes for _ in range(max(0, each - left[node]))]
    taken: dict[int, Task] = {}
    hopeless: set[object] = set()
    free = dict.fromkeys(range(len(slots)))
    for task in tasks:
        number = next((number for number in free if fits(task, slots[number])), None)
        if number is not None:
            del free[number]
            taken[number] = task
        elif task.cls not in hopeless and (path := _path(task, slots, taken, fits)):
            free.pop(path[0][0], None)
            taken.update(path)
        else:
            hopeless.add(task.cls)  # another task of its class finds none either
    return {task: slots[number] for number, task in taken.items()}


def _path(
    task: Task, slots: Sequence[str], taken: Mapping[int, Task], fits: Callable[[Task, str], bool]
) -> list[tuple[int, Task]]:
    """Which task moves to which slot so that one more has one: the free slot first. Empty if none can be freed."""
    came: dict[int, tuple[Task, int | None]] = {}
    ask: deque[tuple[Task, int | None]] = deque([(task, None)])
    classes = set()
    while ask:
        one, slot = ask.popleft()
        if one.cls in classes:
            continue
        classes.add(one.cls)
        for number, node in enumerate(slots):
            if number in came or not fits(one, node):
                continue
            came[number] = (one, slot)
            if number in taken:
                ask.append((taken[number], number))
                continue
            path: list[tuple[int, Task]] = []
            to: int | None = number
            while to is not None:
                who, before = came[to]
                path.append((to, who))
                to = before
            return path
    return []
