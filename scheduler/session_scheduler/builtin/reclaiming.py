"""The victims of reclaiming, which end so that a queue gets its share: `Proportion`'s answers to the reclaim action.

Queues are compared as they will be once all is done that was decided before: pods that were made to end for others
count no more, and pods that are to have their places count already. So several decisions of one session, and those of
sessions before whose victims still end, take no more together than is to be taken.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from session_scheduler.framework.callbacks import Scenario
from session_scheduler.framework.session import Session
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.queue_shares import Change, Giving, QueueShares, beyond, may_reclaim, reclaimable
from session_scheduler.model.queues import PODS, Amounts

_Usage = tuple[tuple[int, int], ...]
"""What a task has, by number of the resource."""
_Kind = tuple[str, _Usage]
"""Of a running task: its queue, and what it has."""


class Reclaiming:
    """Of one session."""

    def __init__(self, session: Session, shares: QueueShares) -> None:
        """`shares` are those of when the session opened: what it moves changes what queues have, not their shares."""
        self._session = session
        self._shares = self._as_decided = shares
        self._of: tuple[object, ...] = ()
        """What the rest was worked out for."""
        self._needs: Amounts = {}
        self._refusal: str | None = None
        """Why the group may take nothing."""
        self._within = ""
        """The lowest queue above the group's whose limit is in the way: only what ends there helps."""
        self._beyond: dict[str, bool] = {}
        """By queue, from the group's own to the top: whether it would have more than its share if no pod ended."""
        self._taker = ""
        """The group's queue."""
        self._open: dict[str, bool] = {}
        """By queue: whether the end of its pods helps at all."""
        self._kinds: dict[_Kind, Amounts] = {}
        """What pods have that run, as the session began: only these may end."""
        self._answers: dict[_Kind, bool] = {}
        """Whether they may end for the group."""
        self._others: list[Group] | None = None
        """The running groups that may end at all, those that matter least first."""
        self._capped: dict[Group, bool] = {}
        """For what may end all over the cluster, as for a gang: the groups of which all may end together."""

    def refusal(self, group: Group) -> str | None:
        """Why a group may take nothing back, whoever ends; None where it may."""
        self._update(group)
        return self._refusal

    def alike(self, group: Group) -> Hashable:
        """What `may_end` depends on beside the victims' queues and classes: all its answers."""
        self._update(group)
        if self._capped or len(self._answers) > len(self._kinds):
            return self._of
        return frozenset(kind for kind, may_end in self._answers.items() if may_end)

    def may_end(self, group: Group, victim: Group) -> bool:
        """Whether tasks of the victim may end for the group."""
        self._update(group)
        if victim in self._capped:
            return self._capped[victim]
        if self._refusal is not None or group.queue == victim.queue or not victim.preemptible:
            return False
        return all(self._session.queues.concerns(task) and self._answer(task) for task in _running(victim))

    def objection(self, scenario: Scenario) -> str | None:
        """Why all of this must not be done: what each queue would have then.

        It is evaluated as if the victims ran and the tasks waited, whatever is tried out just now.
        """
        group = scenario.group
        self._update(group)
        victims: dict[str, list[Amounts]] = {}
        for task in scenario.victims:
            if not self._session.leaves(task):
                victims.setdefault(task.group.queue, []).append(_amounts(task))
        shares, needs, preemptible = self._as_decided, _total(scenario.nominated), group.preemptible
        why = shares.tree.why_not(group.queue)
        if why is None and not all(map(shares.tree.usable, victims)):
            why = "pods that are in no queue keep what they have"
        why = why or may_reclaim(shares, group.queue, needs, preemptible=preemptible)
        return why or reclaimable(shares, group.queue, needs, victims, preemptible=preemptible)

    def beyond_bounds(self, scenario: Scenario) -> str | None:
        """Why the tasks could not be placed, even once all that is to end has ended and all that is to come has come.

        Several that make others end in one session would else each pass their queue's bounds alone.
        """
        group, session = scenario.group, self._session
        if not self._shares.tree.usable(group.queue):
            return None
        self._update(group)
        going = [task for task in scenario.victims if not session.leaves(task) and session.queues.concerns(task)]
        coming = filter(session.nominations.comes_next, scenario.nominated)
        shares = self._after([_change(task, -1) for task in (*going, *coming)], self._as_decided)
        needs = _total(scenario.nominated)
        for name in shares.tree.path(group.queue):
            if _over_limit(shares, name, needs) or (not group.preemptible and _over_deserved(shares, name, needs)):
                return f"queue {name!r} has given what it may have to pods that are to come"
        return None

    # ------------------------------------------------------------------ inside

    def _answer(self, task: Task) -> bool:
        kind = task.group.queue, task.cls.usage
        if kind not in self._answers:
            self._answers[kind] = self._ask(task.group.queue, _amounts(task))
        return self._answers[kind]

    def _ask(self, queue: str, has: Amounts) -> bool:
        """Whether one pod that has this may end for the group."""
        if self._refusal is not None or not self._is_open(queue):
            return False
        return self._giving(queue).why_not([has]) is None

    def _is_open(self, queue: str) -> bool:
        """Whether the end of a queue's pods helps the group's, and all above it, to stay within what they may have.

        How much of it is needed where a queue above both of them has its share is for `objection` to say.
        """
        if queue not in self._open:
            tree = self._as_decided.tree
            path = tree.path(queue)
            within = not self._within or self._within in path
            beyond = any(self._beyond[above] for above in tree.path(self._taker) if above not in path)
            self._open[queue] = tree.usable(queue) and within and not beyond
        return self._open[queue]

    def _giving(self, queue: str, left: dict[str, Amounts] | None = None) -> Giving:
        return Giving(self._as_decided, self._taker, queue, self._needs, left)

    def _update(self, group: Group) -> None:
        """Update from the session; what is tried out for the group changes nothing of it."""
        session, asked = self._session, self._session.asked_for
        cls = asked.cls if asked is not None else None
        key = group, cls, session.ledger.committed, session.nominations.version, len(session.ledger.to_end)
        if self._of == key:
            return
        self._of = key
        self._as_decided = self._after(self._simulated(), self._shares.as_decided())
        tasks = self._together(group) if asked is None else [asked]
        self._needs = _total(tasks)
        self._taker = group.queue
        self._refusal = self._refused(group)
        if not self._kinds:
            self._kinds = {(queue, cls.usage): {**cls.requests, PODS: 1} for queue, cls in session.queues.kinds}
        may = self._refusal is None
        self._answers = {kind: kind[0] != group.queue and self._ask(kind[0], has)
                         for kind, has in self._kinds.items()} if may else {}  # fmt: skip
        self._capped.clear()
        if (len(tasks) > 1 or self._within) and self._refusal is None:
            self._cap(group)

    def _together(self, group: Group) -> list[Task]:
        """The tasks that must be placed together."""
        lacks = group.lacks
        pending = sorted(group.in_phase(Phase.PENDING), key=self._session.runner.task_key)
        pending.sort(key=lambda task: task.sub_group not in lacks)
        return pending[: group.needed]

    def _refused(self, group: Group) -> str | None:
        """Why it may take nothing; else it is noted from where it may."""
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
            self._within = next((name for name in path if _over_limit(shares, name, needs)), "")
            self._beyond = {name: beyond(shares, name, needs, preemptible=preemptible) is not None for name in path}
        return why

    def _over_gpus(self, group: Group) -> str | None:
        """Parts of GPUs are held to limits, and are no part of shares: they are not taken back."""
        asked = self._session.asked_for
        needs = _gpus(group.in_phase(Phase.PENDING) if asked is None else [asked])
        for name in self._as_decided.tree.path(group.queue) if needs else ():
            if _is_beyond(self._as_decided.tree.specs[name].limit, self._session.queues.counts(name).gpus, needs):
                return f"queue {name!r} has reached a limit of parts of GPUs, which are not taken back"
        return None

    def _simulated(self) -> list[Change]:
        """What differs just now from what was decided: tasks whose removal is simulated, and what is being decided."""
        session = self._session
        tasks = (session.snapshot.cache.tasks.get(uid) for uid in session.ledger.to_end)
        ending = [task for task in tasks if task is not None and task.uid not in session.snapshot.cache.preempted]
        back = [task for task in session.ledger.away if not session.leaves(task)]
        changes = [(task, -1) for task in ending if task not in session.ledger.away] + [(task, 1) for task in back]
        return [_change(task, sign) for task, sign in changes if session.queues.concerns(task)]

    def _after(self, changes: Iterable[Change], shares: QueueShares) -> QueueShares:
        return shares.with_more(one for one in changes if shares.tree.usable(one.queue))

    def _cap(self, group: Group) -> None:
        """Let only so many groups end, of all together, that each queue keeps its share whichever of them do."""
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


def _over_limit(shares: QueueShares, queue: str, needs: Mapping[str, int]) -> bool:
    return _is_beyond(shares.tree.specs[queue].limit, shares.has[queue].allocated, needs)


def _over_deserved(shares: QueueShares, queue: str, needs: Mapping[str, int]) -> str | None:
    """Of what is not preemptible."""
    over = _is_beyond(shares.tree.specs[queue].deserved, shares.has[queue].kept, needs)
    return f"queue {queue!r} has all that it deserves for pods that are not preemptible" if over else None


def _is_beyond(most: Mapping[str, int], had: Mapping[str, int], needs: Mapping[str, int]) -> bool:
    return any(had.get(one, 0) + needs.get(one, 0) > most[one] for one in most if needs.get(one))


def _running(group: Group) -> list[Task]:
    return group.in_phase(Phase.BOUND, Phase.RELEASING)


def _change(task: Task, sign: int) -> Change:
    return Change(task.group.queue, _amounts(task), sign, not task.group.preemptible)


def _amounts(task: Task) -> Amounts:
    return {**task.cls.requests, PODS: 1}


def _gpus(tasks: Iterable[Task]) -> Amounts:
    """The least parts of GPUs that any of the tasks asks for."""
    asked = [task.cls.gpu_amounts for task in tasks]
    return {name: min(one.get(name, 0) for one in asked) for name in asked[0]} if asked else {}


def _total(tasks: Iterable[Task]) -> Amounts:
    total: Amounts = {}
    for task in tasks:
        for name, amount in _amounts(task).items():
            total[name] = total.get(name, 0) + amount
    return total
