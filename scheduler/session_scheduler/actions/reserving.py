"""The reservation of nodes for a gang that cannot start yet: the earliest start that the known ends of pods allow.

`allocate` makes it for a rejected gang. It nominates the gang's pods for the nodes, so that only pods which end before
the start can use the capacity (see `backfill`). Each retry of the gang computes the reservation again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from session_scheduler.actions.postfilter import give_up_nominations, nominate
from session_scheduler.actions.trial import Trial
from session_scheduler.framework.answers import Reservation
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.groups import Group, Phase, Task

_LATEST: Final = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()


def reserve(session: Session, group: Group, result: PlacementResult) -> None:
    """Reserve nodes for a rejected gang, up to the configured number of reservations. Raises PluginError.

    Updates the result, and gives up the group's earlier nominations that are no longer a part of the reservation.
    """
    tasks = _waiting_tasks(session, group, result)
    found = first_start(session, group, tasks) if tasks and _may_reserve(session, group) else None
    starts = session.nominations.starts
    kept = found.nominated if found is not None else {}
    given_up = [task for task in group.tasks.values() if task in starts and task not in kept]
    give_up_nominations(session, result, given_up)
    if found is None:
        return
    for task, node in found.nominated.items():
        nominate(session, result, task, node, start=found.start)
    note = f"nodes are reserved for the gang, and it can start {_start_as_text(session, found.start)}"
    for task in tasks:
        result.reasons[task] = f"{result.reasons[task].removesuffix('.')}. {note}"


def _start_as_text(session: Session, start: float) -> str:
    """The start for messages. Equal starts give equal messages, so a retry alone does not change the condition."""
    if start <= session.wall:
        return "once the pods there that exceed their duration have terminated"
    return f"at {datetime.fromtimestamp(min(start, _LATEST), UTC):%Y-%m-%dT%H:%M:%SZ}"


def _waiting_tasks(session: Session, group: Group, result: PlacementResult) -> list[Task]:
    """The tasks of a gang that fit on no node; none if any of them has victims."""
    if not result.refused or not (group.needed > 1 or group.lacks):
        return []
    tasks = [task for task in result.tried if task.phase is Phase.PENDING and task in result.reasons]
    known, starts = session.nominations, session.nominations.starts
    return [] if any(known.node_of(task) and task not in starts for task in tasks) else tasks


def _may_reserve(session: Session, group: Group) -> bool:
    """Whether the other gangs of equal or higher priority leave a reservation to the group."""
    others = {task.group for task in session.nominations.starts if task.node is None} - {group}
    return sum(other.priority >= group.priority for other in others) < session.options.reservations


def first_start(session: Session, group: Group, tasks: Sequence[Task]) -> Reservation | None:
    """Where and when a gang's tasks, which do not fit now, can start the earliest; None if that is unknown. This is the
    first plugin's answer, else the core's own. The session is unchanged afterwards. Raises PluginError.
    """
    with Trial(session, group, tasks, alone=False) as trial:
        session.trials_made += 1
        for call in session.calls.functions("reservation"):
            answer = call(session, trial)
            if answer is None:
                continue
            if not isinstance(answer, Reservation) or not call.guarded(_is_valid, session, trial, answer):
                raise call.wrong(
                    "expected None, or a Reservation with the trial's tasks, nodes of the table and a start at or "
                    f"after session.wall, got {answer!r}"
                )
            return answer
        return _first_start(session, trial)


def _is_valid(session: Session, trial: Trial, answer: Reservation) -> bool:
    tasks, nodes = answer.nominated.keys(), set(answer.nominated.values())
    known = bool(tasks) and tasks <= set(trial.tasks) and nodes <= session.table.row_of.keys()
    return known and session.wall <= answer.start < math.inf


def _first_start(session: Session, trial: Trial) -> Reservation | None:
    """Simulate removing pods in the order of their known ends, and find the earliest end after which the gang fits."""
    ends = _known_ends(session)
    times = sorted(ends)
    if not times:
        return None
    for time in times:
        trial.remove(ends[time])
    enough = len(times) - 1 if trial.is_placeable() else -1
    low, removed = 0, len(times) - 1
    while low < enough:  # tasks that end by times[removed] are removed; the gang fits after times[enough]
        middle = (low + enough) // 2
        removed = _advance(trial, ends, times, removed, middle)
        low, enough = (low, middle) if trial.is_placeable() else (middle + 1, enough)
    if enough < 0:
        return None
    _advance(trial, ends, times, removed, enough)
    placed = trial.place()
    return Reservation(placed, times[enough]) if placed is not None else None


def _advance(trial: Trial, ends: dict[float, list[Task]], times: Sequence[float], before: int, now: int) -> int:
    """Change the simulation from the time times[before] to times[now], forward or back."""
    for time in times[now + 1 : before + 1]:
        trial.put_back(ends[time])
    for time in times[before + 1 : now + 1]:
        trial.remove(ends[time])
    return now


def _known_ends(session: Session) -> dict[float, list[Task]]:
    """The tasks on nodes by the time of their end, in seconds since 1970."""
    found: dict[float, list[Task]] = {}
    for task in sorted(session.running(), key=lambda task: task.uid):
        end = session.ledger.ends_at(task)
        if end is not None:
            found.setdefault(end, []).append(task)
    return found
