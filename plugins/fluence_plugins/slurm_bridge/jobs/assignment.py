"""Assigns the pods of a Slurm job to the job's nodes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluence_plugins.slurm_bridge.jobs.job_table import PodJob
from session_scheduler.model.groups import Task


@dataclass(frozen=True, slots=True)
class JobNode:
    """A node of a job."""

    node: str
    job_id: int


class Assignment:
    """The placement of a group on its jobs' nodes. It reserves nothing, because Slurm has allocated the nodes."""

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
        """Do nothing: the placement reserves nothing."""

    def redo(self) -> None:
        """Do nothing: the placement reserves nothing."""

    def release(self, tasks: Sequence[Task]) -> None:
        """Remove these tasks from the placement."""
        for task in tasks:
            del self._nodes[task]


def assign(
    tasks: Sequence[Task], job: PodJob, nodes: Sequence[str], occupied: Iterable[str], fits: Callable[[Task, str], bool]
) -> dict[Task, str]:
    """Assign as many tasks as possible, each to a node that it fits. Tasks and nodes are used in the given order.

    Each node gets the same number of pods: a job with four pods and two nodes has two on each. `occupied` contains the
    node of each pod that already has one. If a task fits only where another task is, the other one moves, provided that
    it finds a node (augmenting paths).
    """
    if not nodes:
        return {}
    each = -(-len(job.pods) // len(job.nodes or nodes))
    left = Counter(occupied)
    slots = [node for node in nodes for _ in range(max(0, each - left[node]))]
    assigned: dict[int, Task] = {}
    hopeless: set[object] = set()
    free = dict.fromkeys(range(len(slots)))
    for task in tasks:
        number = next((number for number in free if fits(task, slots[number])), None)
        if number is not None:
            del free[number]
            assigned[number] = task
        elif task.cls not in hopeless and (path := _path(task, slots, assigned, fits)):
            free.pop(path[0][0], None)
            assigned.update(path)
        else:
            hopeless.add(task.cls)  # its other tasks do not fit either
    return {task: slots[number] for number, task in assigned.items()}


def _path(
    task: Task, slots: Sequence[str], assigned: Mapping[int, Task], fits: Callable[[Task, str], bool]
) -> list[tuple[int, Task]]:
    """The moves that give the task a slot, the free slot first; empty if no slot can be freed."""
    came: dict[int, tuple[Task, int | None]] = {}
    queue: deque[tuple[Task, int | None]] = deque([(task, None)])
    classes = set()
    while queue:
        one, slot = queue.popleft()
        if one.cls in classes:
            continue
        classes.add(one.cls)
        for number, node in enumerate(slots):
            if number in came or not fits(one, node):
                continue
            came[number] = (one, slot)
            if number in assigned:
                queue.append((assigned[number], number))
                continue
            path: list[tuple[int, Task]] = []
            to: int | None = number
            while to is not None:
                moved, before = came[to]
                path.append((to, moved))
                to = before
            return path
    return []
