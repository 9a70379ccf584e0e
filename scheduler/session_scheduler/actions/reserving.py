"""Nodes kept for a gang that waits: where it can start first, once pods that are to end by a known time have ended.

Its members are nominated there, so that nothing else takes the room but what ends before that time (see `backfill`).
It holds until the scheduler retries the gang, and then is worked out again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from session_scheduler.actions.postfilter import give_up_places, nominate
from session_scheduler.actions.trial import Trial
from session_scheduler.framework.answers import Reservation
from session_scheduler.framework.session import Session
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.groups import Group, Phase, Task

_LATEST: Final = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()


def reserve(session: Session, group: Group, result: PlacementResult) -> None:
    """Keep nodes for a gang that was refused, unless they are kept for enough others. Raises PluginError.

    The result says where. What was kept for the group before, and cannot be so any more, is given up.
    """
    tasks = _waiting(session, group, result)
    found = first_start(session, group, tasks) if tasks and _may_reserve(session, group) else None
    starts = session.nominations.starts
    kept = found.nominated if found is not None else {}
    give_up_places(session, result, [task for task in group.tasks.values() if task in starts and task not in kept])
    if found is None:
        return
    for task, node in found.nominated.items():
        nominate(session, result, task, node, start=found.start)
    where = f"nodes are kept for it, where it can start {_at(session, found.start)}"
    for task in tasks:
        result.reasons[task] = f"{result.reasons[task].removesuffix('.')}. {where}"


def _at(session: Session, start: float) -> str:
    """A time for people: the same at each attempt, so that what is reported of a gang changes only where that does."""
    if start <= session.wall:
        return "as soon as those there have ended whose time is over"
    return f"at {datetime.fromtimestamp(min(start, _LATEST), UTC):%Y-%m-%dT%H:%M:%SZ}"


def _waiting(session: Session, group: Group, result: PlacementResult) -> list[Task]:
    """The tasks of a gang for which nodes were looked for in vain, and for which no pod is preempted."""
    if not result.refused or not (group.needed > 1 or group.lacks):
        return []
    tasks = [task for task in result.tried if task.phase is Phase.PENDING and task in result.reasons]
    known, starts = session.nominations, session.nominations.starts
    return [] if any(known.node_of(task) and task not in starts for task in tasks) else tasks


def _may_reserve(session: Session, group: Group) -> bool:
    """Whether nodes are kept for fewer gangs, of its priority or more, than there may be."""
    others = {task.group for task in session.nominations.starts if task.node is None} - {group}
    return sum(other.priority >= group.priority for other in others) < session.options.reservations


def first_start(session: Session, group: Group, tasks: Sequence[Task]) -> Reservation | None:
    """When a gang's tasks, which fit nowhere now, can start first, and where; None where that is not known: the first
    plugin's answer, else the core's own. All is as it was. Raises PluginError.
    """
    with Trial(session, group, tasks, alone=False) as trial:
        session.trials_made += 1
        for call in session.calls.functions("reservation"):
            answer = call(session, trial)
            if answer is None:
                continue
            if not isinstance(answer, Reservation) or not call.guarded(_is_sound, session, trial, answer):
                raise call.wrong(
                    f"{answer!r} is no reservation: return a Reservation of tasks of the trial on nodes of the table, "
                    "from session.wall or later, or None"
                )
            return answer
        return _first_start(session, trial)


def _is_sound(session: Session, trial: Trial, answer: Reservation) -> bool:
    tasks, nodes = answer.nominated.keys(), set(answer.nominated.values())
    known = bool(tasks) and tasks <= set(trial.tasks) and nodes <= session.table.row_of.keys()
    return known and session.wall <= answer.start < math.inf


def _first_start(session: Session, trial: Trial) -> Reservation | None:
    """Simulate removing pods with a known end, the first to end first, as few as let the gang be placed."""
    ends = _known_ends(session)
    times = sorted(ends)
    if not times:
        return None
    for time in times:
        trial.remove(ends[time])
    enough = len(times) - 1 if trial.is_placeable() else -1
    low, away = 0, len(times) - 1
    while low < enough:  # the tasks that end by times[away] are away; by times[enough] suffices
        middle = (low + enough) // 2
        away = _move(trial, ends, times, away, middle)
        low, enough = (low, middle) if trial.is_placeable() else (middle + 1, enough)
    if enough < 0:
        return None
    _move(trial, ends, times, away, enough)
    placed = trial.place()
    return Reservation(placed, times[enough]) if placed is not None else None


def _move(trial: Trial, ends: dict[float, list[Task]], times: Sequence[float], before: int, now: int) -> int:
    """Let those be away that end by times[now], where those were that end by times[before]."""
    for time in times[now + 1 : before + 1]:
        trial.put_back(ends[time])
    for time in times[before + 1 : now + 1]:
        trial.remove(ends[time])
    return now


def _known_ends(session: Session) -> dict[float, list[Task]]:
    """The tasks on nodes by when they end, in seconds since 1970."""
    found: dict[float, list[Task]] = {}
    for task in sorted(session.running(), key=lambda task: task.uid):
        end = session.ledger.ends_at(task)
        if end is not None:
            found.setdefault(end, []).append(task)
    return found
