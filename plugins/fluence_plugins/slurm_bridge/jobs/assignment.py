"""Which pod of a job goes to which of the job's nodes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluence_plugins.slurm_bridge.jobs.job_table import Stand
from session_scheduler.model.groups import Task


@dataclass(frozen=True, slots=True)
class Seat:
    """A node, by the word of a job."""

    node: str
    job_id: int


class Seats:
    """A placement that holds nothing: Slurm does."""

    def __init__(self, seats: Mapping[Task, Seat]) -> None:
        self._seats = dict(seats)

    @property
    def nodes(self) -> Mapping[Task, str]:
        """The node of each task."""
        return {task: seat.node for task, seat in self._seats.items()}

    @property
    def holds(self) -> Mapping[Task, Mapping[str, Any]]:
        """The job of each task."""
        return {task: {"job": seat.job_id} for task, seat in self._seats.items()}

    def undo(self) -> None:
        """Nothing was taken."""

    def redo(self) -> None:
        """Nothing is taken."""

    def release(self, tasks: Sequence[Task]) -> None:
        """These are not placed by this."""
        for task in tasks:
            del self._seats[task]


def seated(
    tasks: Sequence[Task],
    stand: Stand,
    nodes: Sequence[str],
    held: Iterable[str],
    takes: Callable[[Task, str], bool],
) -> dict[Task, str]:
    """As many of the tasks as there can be, each on a node that takes it: in their order on nodes in theirs.

    Pods are spread evenly: of four pods a job with two nodes has two on each. `held` are the nodes of its pods that
    have one already. Who comes later makes others move where only so all can be placed (augmenting paths).
    """
    if not nodes:
        return {}
    each = -(-len(stand.pods) // len(stand.nodes or nodes))
    left = Counter(held)
    seats = [node for node in nodes for _ in range(max(0, each - left[node]))]
    taken: dict[int, Task] = {}
    hopeless: set[object] = set()
    free = dict.fromkeys(range(len(seats)))
    for task in tasks:
        number = next((number for number in free if takes(task, seats[number])), None)
        if number is not None:
            del free[number]
            taken[number] = task
        elif task.cls not in hopeless and (path := _path(task, seats, taken, takes)):
            free.pop(path[0][0], None)
            taken.update(path)
        else:
            hopeless.add(task.cls)  # nor will another of its class have one
    return {task: seats[number] for number, task in taken.items()}


def _path(
    task: Task, seats: Sequence[str], taken: Mapping[int, Task], takes: Callable[[Task, str], bool]
) -> list[tuple[int, Task]]:
    """Who moves where so that one more has a seat: the free seat first. Empty where nobody can make room."""
    came: dict[int, tuple[Task, int | None]] = {}
    ask: deque[tuple[Task, int | None]] = deque([(task, None)])
    classes = set()
    while ask:
        one, seat = ask.popleft()
        if one.cls in classes:
            continue
        classes.add(one.cls)
        for number, node in enumerate(seats):
            if number in came or not takes(one, node):
                continue
            came[number] = (one, seat)
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
