"""Who may be ended so that a queue gets its share: `Proportion`'s answers to the reclaim action.

Queues are compared as they will be once all is done that was decided before: pods that were made to end for others
count no more, and pods that are to have their places count already. So several decisions of one session, and those of
sessions before whose victims still end, take no more together than is to be taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.queue_shares import Change, QueueShares, may_reclaim, reclaimable
from session_scheduler.model.queues import PODS, Amounts

if TYPE_CHECKING:
    from session_scheduler.callbacks import Scenario
    from session_scheduler.model.classes import TaskClass
    from session_scheduler.session import Session


class Reclaiming:
    """Of one session."""

    def __init__(self, session: Session, shares: QueueShares) -> None:
        """`shares` are those of when the session opened: what it moves changes what queues have, not their shares."""
        self._session = session
        self._shares = self._as_decided = shares
        self._of: tuple[object, ...] = ()
        """What the rest was worked out for."""
        self._needs: Amounts = {}
        self._leaving: frozenset[Task] = frozenset()
        self._answers: dict[tuple[str, TaskClass], bool] = {}
        self._capped: dict[Group, bool] = {}
        """For a gang: the groups of which all may end together, those that matter least first."""

    def may_end(self, group: Group, victim: Group) -> bool:
        """Whether tasks of the victim may end for the group."""
        self._look(group)
        if victim in self._capped:
            return self._capped[victim]
        if group.queue == victim.queue or not victim.preemptible:
            return False
        return all(self._session.queues.concerns(task) and self._answer(group, task) for task in _running(victim))

    def objection(self, scenario: Scenario) -> str | None:
        """Why all of this must not be done: what each queue would have then.

        It is judged as if the victims ran and the tasks waited, whatever is tried out just now.
        """
        self._look(scenario.group)
        victims: dict[str, list[Amounts]] = {}
        for task in scenario.victims:
            if task not in self._leaving:
                victims.setdefault(task.group.queue, []).append(_amounts(task))
        return self._why_not(scenario.group, _total(scenario.nominated), victims)

    def beyond_bounds(self, scenario: Scenario) -> str | None:
        """Why the tasks could not be placed, even once all that is to end has ended and all that is to come has come.

        Several that make others end in one session would else each pass their queue's bounds alone.
        """
        group, known = scenario.group, self._session.nominations.node_of
        if not self._shares.tree.usable(group.queue):
            return None
        self._look(group)
        going = [task for task in scenario.victims if task not in self._leaving and self._session.queues.concerns(task)]
        changes = [_change(task, -1) for task in (*going, *filter(known, scenario.nominated))]
        shares, needs = self._after(changes, self._as_decided), _total(scenario.nominated)
        for name in shares.tree.path(group.queue):
            spec, has = shares.tree.specs[name], shares.has[name]
            bounds = [(spec.limit, has.allocated), *([(spec.deserved, has.kept)] if not group.preemptible else [])]
            for most, had in bounds:
                if any(had.get(one, 0) + needs.get(one, 0) > most[one] for one in most if needs.get(one)):
                    return f"queue {name!r} has given what it may have to pods that are to come"
        return None

    # ------------------------------------------------------------------ inside

    def _why_not(self, group: Group, needs: Mapping[str, int], victims: Mapping[str, list[Amounts]]) -> str | None:
        shares = self._as_decided
        why = shares.tree.why_not(group.queue)
        if why is not None:
            return why
        if not all(map(shares.tree.usable, victims)):
            return "pods that are in no queue keep what they have"
        preemptible = group.preemptible
        return may_reclaim(shares, group.queue, needs, preemptible=preemptible) or reclaimable(
            shares, group.queue, needs, victims, preemptible=preemptible
        )

    def _answer(self, group: Group, task: Task) -> bool:
        key = task.group.queue, task.cls
        if key not in self._answers:
            why = self._why_not(group, self._needs, {key[0]: [_amounts(task)]})
            self._answers[key] = why is None
        return self._answers[key]

    def _look(self, group: Group) -> None:
        """Take in how things are; what is tried out for the group changes nothing of it."""
        session = self._session
        key = group, session.committed, session.nominations.version
        if self._of == key:
            return
        self._of = key
        self._answers.clear()
        self._capped.clear()
        self._leaving = frozenset(session.leaving())
        self._as_decided = self._after(self._decided(self._leaving), self._shares.as_now())
        lacks, together = group.lacks, group.needed
        pending = sorted(group.in_phase(Phase.PENDING), key=session.task_key)
        pending.sort(key=lambda task: task.sub_group not in lacks)
        self._needs = _total(pending[:together])
        if together > 1:
            self._cap(group)

    def _decided(self, leaving: Iterable[Task]) -> list[Change]:
        """What becomes of what was decided before, as if nothing were thought away."""
        coming = (task for _, tasks in self._session.nominations.waiting() for task in tasks)
        counts = self._session.queues.concerns
        back = [_change(task, 1) for task in (*self._session.away, *coming) if counts(task)]
        return [*(_change(task, -1) for task in leaving if counts(task)), *back]

    def _after(self, changes: Iterable[Change], shares: QueueShares) -> QueueShares:
        return shares.with_more(one for one in changes if shares.tree.usable(one.queue))

    def _cap(self, group: Group) -> None:
        """Let only so many groups end, of all together, that each queue keeps its share whichever of them do."""
        counts = self._session.queues.concerns
        running = {t.group: None for t in self._session.running() if t.group.queue != group.queue and counts(t)}
        others = [one for one in running if one.preemptible]
        others.sort(key=lambda one: (one.creation, one.key), reverse=True)
        others.sort(key=lambda one: one.priority)
        taken: dict[str, list[Amounts]] = {}
        for one in others:
            mine = taken.setdefault(one.queue, [])
            more = [_amounts(task) for task in _running(one) if task not in self._leaving]
            fits = self._why_not(group, self._needs, {one.queue: [*mine, *more]}) is None
            if fits or len(more) == 1:
                self._capped[one] = fits
            if fits:
                mine += more


def _running(group: Group) -> list[Task]:
    return group.in_phase(Phase.BOUND, Phase.RELEASING)


def _change(task: Task, sign: int) -> Change:
    return Change(task.group.queue, _amounts(task), sign, not task.group.preemptible)


def _amounts(task: Task) -> Amounts:
    return {**task.cls.requests, PODS: 1}


def _total(tasks: Iterable[Task]) -> Amounts:
    total: Amounts = {}
    for task in tasks:
        for name, amount in _amounts(task).items():
            total[name] = total.get(name, 0) + amount
    return total
