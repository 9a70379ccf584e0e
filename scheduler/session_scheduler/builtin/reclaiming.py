"""Reclaiming: Proportion's callbacks for the reclaim action. They decide which pods of other queues a group may evict.

It compares queues as if all earlier decisions were complete: evicted pods no longer count, and nominated pods count
already. So decisions together, also those of earlier sessions whose victims still terminate, evict no more than needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from session_scheduler.framework.callbacks import Scenario
from session_scheduler.framework.session import Session
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.queue_shares import Change, Giving, QueueShares, beyond, may_reclaim, reclaimable
from session_scheduler.model.queues import PODS, Amounts

_Usage = tuple[tuple[int, int], ...]
"""A task's amounts by number of the resource."""
_Kind = tuple[str, _Usage]
"""The queue and the amounts of a running task."""


class Reclaiming:
    """The reclaim callbacks of one session."""

    def __init__(self, session: Session, shares: QueueShares) -> None:
        """`shares`: as of the session's opening. Placements change what queues have, not their fair shares."""
        self._session = session
        self._shares = self._as_decided = shares
        self._key: tuple[object, ...] = ()
        """What the attributes below were computed for."""
        self._needs: Amounts = {}
        self._refusal: str | None = None
        """Why the group may reclaim nothing."""
        self._limiting = ""
        """The lowest queue on the group's path whose limit the group exceeds: only victims in that queue help."""
        self._beyond: dict[str, bool] = {}
        """By queue on the group's path: whether the group would put it above its share if no pod were evicted."""
        self._taker = ""
        """The group's queue."""
        self._open: dict[str, bool] = {}
        """By queue: whether evicting its pods helps the group."""
        self._kinds: dict[_Kind, Amounts] = {}
        """The amounts of the running pods when the session began; only these pods are reclaimable."""
        self._answers: dict[_Kind, bool] = {}
        """By kind: whether the group may evict such pods."""
        self._others: list[Group] | None = None
        """The running preemptible groups, the least important first."""
        self._capped: dict[Group, bool] = {}
        """If victims may be on all nodes, as for a gang: whether all pods of a group may be evicted together."""

    def refusal(self, group: Group) -> str | None:
        """Why a group may reclaim nothing, whatever the victims; None if it may."""
        self._update(group)
        return self._refusal

    def alike(self, group: Group) -> Hashable:
        """What the answers of `is_reclaimable` depend on besides the victims' queues and classes."""
        self._update(group)
        if self._capped or len(self._answers) > len(self._kinds):
            return self._key
        return frozenset(kind for kind, answer in self._answers.items() if answer)

    def is_reclaimable(self, group: Group, victim: Group) -> bool:
        """Whether the group may evict tasks of the victim."""
        self._update(group)
        if victim in self._capped:
            return self._capped[victim]
        if self._refusal is not None or group.queue == victim.queue or not victim.preemptible:
            return False
        return all(self._session.queues.concerns(task) and self._answer(task) for task in _running(victim))

    def objection(self, scenario: Scenario) -> str | None:
        """Why the scenario would give queues the wrong shares; None if it would not.

        It evaluates the scenario from a state with the victims running and the tasks pending, whatever the trial does.
        """
        group = scenario.group
        self._update(group)
        victims: dict[str, list[Amounts]] = {}
        for task in scenario.victims:
            if not self._session.leaves(task):
                victims.setdefault(task.group.queue, []).append(_amounts(task))
        shares, needs, preemptible = self._as_decided, amounts_of(scenario.nominated), group.preemptible
        why = shares.tree.why_not(group.queue)
        if why is None and not all(map(shares.tree.usable, victims)):
            why = "pods outside of the queues are not reclaimed"
        why = why or may_reclaim(shares, group.queue, needs, preemptible=preemptible)
        return why or reclaimable(shares, group.queue, needs, victims, preemptible=preemptible)

    def exceeded_bound(self, scenario: Scenario) -> str | None:
        """Why the tasks would exceed a bound of their queue after all evictions and nominations are complete.

        Without this check several preemptors of one session would each stay within the bound on their own.
        """
        group, session = scenario.group, self._session
        if not self._shares.tree.usable(group.queue):
            return None
        self._update(group)
        victims = [task for task in scenario.victims if not session.leaves(task) and session.queues.concerns(task)]
        counted = filter(session.nominations.comes_next, scenario.nominated)
        shares = self._after([_change(task, -1) for task in (*victims, *counted)], self._as_decided)
        needs = amounts_of(scenario.nominated)
        for name in shares.tree.path(group.queue):
            if _over_limit(shares, name, needs) or (not group.preemptible and _over_deserved(shares, name, needs)):
                return f"queue {name!r} reserves the rest of its quota for nominated pods"
        return None

    # ------------------------------------------------------------------ inside

    def _answer(self, task: Task) -> bool:
        kind = task.group.queue, task.cls.usage
        if kind not in self._answers:
            self._answers[kind] = self._may_evict_one(task.group.queue, _amounts(task))
        return self._answers[kind]

    def _may_evict_one(self, queue: str, amounts: Amounts) -> bool:
        """Whether the group may evict one pod with these amounts."""
        if self._refusal is not None or not self._is_open(queue):
            return False
        return self._giving(queue).why_not([amounts]) is None

    def _is_open(self, queue: str) -> bool:
        """Whether evicting a queue's pods helps the queues on the group's path to stay within limits and shares.

        `objection` decides how much must be evicted if a common parent is at its share.
        """
        if queue not in self._open:
            tree = self._as_decided.tree
            path = tree.path(queue)
            within = not self._limiting or self._limiting in path
            beyond = any(self._beyond[above] for above in tree.path(self._taker) if above not in path)
            self._open[queue] = tree.usable(queue) and within and not beyond
        return self._open[queue]

    def _giving(self, queue: str, left: dict[str, Amounts] | None = None) -> Giving:
        return Giving(self._as_decided, self._taker, queue, self._needs, left)

    def _update(self, group: Group) -> None:
        """Compute the attributes for a group. The trial's own changes do not affect them."""
        session, asked = self._session, self._session.asked_for
        cls = asked.cls if asked is not None else None
        key = group, cls, session.ledger.committed, session.nominations.version, len(session.ledger.to_end)
        if self._key == key:
            return
        self._key = key
        self._as_decided = self._after(self._simulated(), self._shares.as_decided())
        tasks = required_tasks(group, session.runner.task_key) if asked is None else [asked]
        self._needs = amounts_of(tasks)
        self._taker = group.queue
        self._refusal = self._check(group)
        if not self._kinds:
            self._kinds = {(queue, cls.usage): {**cls.requests, PODS: 1} for queue, cls in session.queues.kinds}
        may = self._refusal is None
        self._answers = {kind: kind[0] != group.queue and self._may_evict_one(kind[0], amounts)
                         for kind, amounts in self._kinds.items()} if may else {}  # fmt: skip
        self._capped.clear()
        if (len(tasks) > 1 or self._limiting) and self._refusal is None:
            self._cap(group)

    def _check(self, group: Group) -> str | None:
        """Why the group may reclaim nothing; else sets which queues it may reclaim from."""
        shares, needs, preemptible = self._as_decided, self._needs, group.preemptible
        self._open.clear()
        why = shares.tree.why_not(group.queue) or may_reclaim(shares, group.queue, needs, preemptible=preemptible)
        if why is None and not preemptible:
            why = next(
                filter(None, (_over_deserved(shares, name, needs) for name in shares.tree.path(group.queue))), None
            )
        if why is None:
            why = self._over_gpus(group)
        if why is None:
            path = shares.tree.path(group.queue)
            self._limiting = next((name for name in path if _over_limit(shares, name, needs)), "")
            self._beyond = {name: beyond(shares, name, needs, preemptible=preemptible) is not None for name in path}
        return why

    def _over_gpus(self, group: Group) -> str | None:
        """The reason if the group exceeds a limit on shared GPUs: fair shares and reclaim do not cover them."""
        asked = self._session.asked_for
        needs = _gpus(group.in_phase(Phase.PENDING) if asked is None else [asked])
        for name in self._as_decided.tree.path(group.queue) if needs else ():
            if _is_beyond(self._as_decided.tree.specs[name].limit, self._session.queues.counts(name).gpus, needs):
                return f"queue {name!r} has reached a limit on shared GPUs, which cannot be reclaimed"
        return None

    def _simulated(self) -> list[Change]:
        """The changes from the decided state: tasks with a simulated removal, and victims chosen in this attempt."""
        session = self._session
        tasks = (session.snapshot.cache.tasks.get(uid) for uid in session.ledger.to_end)
        victims = [task for task in tasks if task is not None and task.uid not in session.snapshot.cache.preempted]
        removed = [task for task in session.ledger.away if not session.leaves(task)]
        changes = [(task, -1) for task in victims if task not in session.ledger.away] + [(task, 1) for task in removed]
        return [_change(task, sign) for task, sign in changes if session.queues.concerns(task)]

    def _after(self, changes: Iterable[Change], shares: QueueShares) -> QueueShares:
        return shares.with_more(one for one in changes if shares.tree.usable(one.queue))

    def _cap(self, group: Group) -> None:
        """Choose the groups that may be evicted, so few that each queue keeps its share even if all of them are."""
        givings: dict[str, Giving] = {}
        left: dict[str, Amounts] = {}
        for one in self._candidates():
            if one.queue == group.queue:
                continue
            if not self._is_open(one.queue):
                self._capped[one] = False
                continue
            giving = givings.get(one.queue) or givings.setdefault(one.queue, self._giving(one.queue, left))
            more = [_amounts(task) for task in _running(one) if not self._session.leaves(task)]
            fits = giving.why_not(more) is None
            if fits or len(more) == 1:
                self._capped[one] = fits
            if fits:
                giving.reclaim(more)

    def _candidates(self) -> list[Group]:
        if self._others is None:
            counts = self._session.queues.concerns
            running = {task.group: None for task in self._session.running() if counts(task)}
            self._others = [one for one in running if one.preemptible and _running(one)]
            self._others.sort(key=lambda one: (one.creation, one.key), reverse=True)
            self._others.sort(key=lambda one: one.priority)
        return self._others


def required_tasks(group: Group, order: Callable[[Task], Any]) -> list[Task]:
    """The group's next tasks that must be placed together, the first in this order. Raises what `order` raises."""
    pending = group.in_phase(Phase.PENDING)
    if len(pending) == 1:
        return pending
    lacks = group.lacks
    pending.sort(key=order)
    pending.sort(key=lambda task: task.sub_group not in lacks)
    return pending[: group.needed]


def _over_limit(shares: QueueShares, queue: str, needs: Mapping[str, int]) -> bool:
    return _is_beyond(shares.tree.specs[queue].limit, shares.has[queue].allocated, needs)


def _over_deserved(shares: QueueShares, queue: str, needs: Mapping[str, int]) -> str | None:
    over = _is_beyond(shares.tree.specs[queue].deserved, shares.has[queue].kept, needs)
    return f"queue {queue!r} has reached its deserved amount for non-preemptible pods" if over else None


def _is_beyond(most: Mapping[str, int], allocated: Mapping[str, int], needs: Mapping[str, int]) -> bool:
    return any(allocated.get(one, 0) + needs.get(one, 0) > most[one] for one in most if needs.get(one))


def _running(group: Group) -> list[Task]:
    return group.in_phase(Phase.BOUND, Phase.RELEASING)


def _change(task: Task, sign: int) -> Change:
    return Change(task.group.queue, _amounts(task), sign, not task.group.preemptible)


def _amounts(task: Task) -> Amounts:
    return {**task.cls.requests, PODS: 1}


def _gpus(tasks: Iterable[Task]) -> Amounts:
    """The smallest GPU share that any of the tasks requests."""
    amounts = [task.cls.gpu_amounts for task in tasks]
    return {name: min(one.get(name, 0) for one in amounts) for name in amounts[0]} if amounts else {}


def amounts_of(tasks: Iterable[Task]) -> Amounts:
    """The requests of tasks, and their number as `pods`."""
    total: Amounts = {}
    for task in tasks:
        for name, amount in _amounts(task).items():
            total[name] = total.get(name, 0) + amount
    return total
