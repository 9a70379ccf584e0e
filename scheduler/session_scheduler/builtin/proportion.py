"""Queues share the cluster: whose turn it is, and what no queue may go beyond. KAI-Scheduler's plugin of this name.

Without queues it registers nothing. What queues have is counted by the cache (`session.queues`), placements of the
session and their undo included, so a limit holds at every moment, for a gang as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from session_scheduler.builtin.reclaiming import Reclaiming
from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.groups import PREEMPTIBILITY_LABEL, SYSTEM_CRITICAL, Group, Task
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.queue_shares import QueueShares
from session_scheduler.model.queues import IN_THOUSANDTHS, PODS, QUEUE_LABEL, Amounts, shown_amount
from session_scheduler.state.queue_use import QueueUse

_OF_PODS = ("allocated", "pending")
"""The metrics that queues have, too, which only pods name."""
_REMEMBERED = 10_000
"""Classes, and queues of each, of which it is known why they were refused; of others every end is taken to help."""


class Proportion(WithoutArguments):
    """Orders queues by their shares; refuses what is beyond a limit, and what would stay beyond what is deserved."""

    name = "Proportion"

    def __init__(self, arguments: None = None) -> None:
        super().__init__(arguments)
        self._use: QueueUse | None = None
        self._session: Session | None = None
        self._shares: QueueShares | None = None
        self._refused: dict[TaskClass, dict[str, int]] = {}
        """By class, the queues that had too little left, and how often something of them had ended by then."""

    # ------------------------------------------------------------------ a session

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Only where there are queues."""
        use = self._use = session.queues
        self._session = session
        if use.active:
            session.add_over_capacity(self._over_capacity)
            shares = self._shares = use.shares(session.table)
            session.add_queue_order(shares.order)
            session.add_queue_allocated(lambda queue: use.counts(queue).held)
            session.add_queue_deserved(lambda queue: use.tree.specs[queue].deserved if use.tree.usable(queue) else None)
            session.add_queue_fair_share(shares.fair.get)
            reclaiming = Reclaiming(session, shares)
            session.add_preemptable(_may_preempt, alike=True)
            session.add_preempt_validator(reclaiming.beyond_bounds, alike=True)
            session.add_can_reclaim(reclaiming.refusal)
            session.add_reclaimable(reclaiming.may_end, alike=reclaiming.alike)
            session.add_reclaim_validator(reclaiming.objection, alike=True)

    @hookimpl
    def on_session_close(self) -> None:
        """Let go of it."""
        self._session = None

    def _over_capacity(self, group: Group, tasks: Sequence[Task]) -> Sequence[str | None]:
        use = self._use
        if use is None:
            return [None] * len(tasks)
        why = use.tree.why_not(group.queue)
        if why is not None:
            self._note(tasks, group.queue, -1)
            return [why] * len(tasks)
        bounds = list(_bounds(use, group))
        if not bounds or not tasks:
            return [None] * len(tasks)
        coming = (
            []
            if self._session is None
            else [task for there in self._session.yields_to(tasks).values() for task in there if use.concerns(task)]
        )
        for bound in bounds if coming else ():
            bound.keep_for(coming, use)
        more: Amounts = {}
        return [self._beyond(task, bounds, more) for task in tasks]

    def _beyond(self, task: Task, bounds: Sequence[_Bound], more: Amounts) -> str | None:
        """Why a task may not have what it requests beside `more`, which it is added to where it may."""
        needs = _needs(task)
        for bound in bounds:
            for resource, most in bound.most.items():
                need, had = needs.get(resource, 0), bound.has.get(resource, 0) + more.get(resource, 0)
                if need and had + need > most:
                    self._note((task,), bound.queue, bound.freed)
                    return bound.reason(resource, had, need)
        for resource, need in needs.items():
            more[resource] = more.get(resource, 0) + need
        return None

    def _note(self, tasks: Iterable[Task], queue: str, freed: int) -> None:
        for cls in dict.fromkeys(task.cls for task in tasks):
            known = self._refused.setdefault(cls, {})
            known[queue] = freed
            if len(self._refused) > _REMEMBERED or len(known) > _REMEMBERED:
                self._refused.clear()

    # ------------------------------------------------------------------ what is measured

    @hookimpl
    def metrics(self) -> Iterable[Any]:
        """By queue and resource; nothing where there are no queues."""
        use, shares = self._use, self._shares
        if use is None or shares is None:
            return ()
        from prometheus_client.core import GaugeMetricFamily

        specs = use.tree.specs
        families: tuple[tuple[str, str, Callable[[str], Mapping[str, int]]], ...] = (
            ("allocated", "What queues have on nodes", lambda name: use.counts(name).held),
            ("pending", "What queues' waiting pods ask for", lambda name: use.counts(name).pending),
            ("deserved", "What queues may always have", lambda name: specs[name].deserved),
            ("limit", "What queues never exceed", lambda name: specs[name].limit),
            ("fair_share", "What queues should have, as of the last session", lambda name: shares.fair.get(name, {})),
        )
        found = []
        for what, text, amounts in families:
            family = GaugeMetricFamily(f"fluence_queue_{what}", f"{text}, cpu in cores.", labels=["queue", "resource"])
            for name in (*use.tree, *(use.deleted() if what in _OF_PODS else ())):
                for resource, amount in sorted(amounts(name).items()):
                    family.add_metric([name, resource], amount / 1000 if resource in IN_THOUSANDTHS else amount)
            found.append(family)
        return found

    # ------------------------------------------------------------------ what requeues

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Something of a queue that refused them ends; queues change; a pod or group goes to another queue."""
        return [
            ClusterEventWithHint(Pod, ActionType.DELETE, self._ended),
            ClusterEventWithHint(Pod, ActionType.UPDATE_POD_LABEL, _goes_elsewhere),
            ClusterEventWithHint(Pod, ActionType.UPDATE_POD_SCALE_DOWN),
            ClusterEventWithHint(PodGroup, ActionType.UPDATE | ActionType.DELETE, _goes_elsewhere),
            ClusterEventWithHint(Queue, ActionType.ALL, _is_another),
        ]

    def _ended(self, cls: TaskClass, _: ClusterEvent) -> bool:
        use, refused = self._use, self._refused.get(cls)
        if use is None or refused is None:
            return True
        return any(
            freed == _BY_PLACES_KEPT or (freed >= 0 and use.counts(queue).freed != freed)
            for queue, freed in refused.items()
        )


def _may_preempt(group: Group, victim: Group) -> bool:
    """Priorities rank the pods of one queue: between queues shares decide, but for what the cluster cannot do without.

    Else what one queue is given back by its share would be taken from it by another's priority, again and again.
    """
    return group.queue == victim.queue or group.priority >= SYSTEM_CRITICAL


_BY_PLACES_KEPT = -2
"""In place of how often something has ended: what is kept for others may be given up without any end."""


class _Bound:
    """What one queue on the way to the top must not go beyond."""

    def __init__(
        self, queue: str, what: str, most: Mapping[str, int], has: Mapping[str, int], freed: int, *, kept: bool = False
    ) -> None:
        """`kept`: only what is not preemptible counts."""
        self.queue = queue
        self.kept = kept
        self.what = what
        self.most = most
        self.has = has
        self.freed = freed

    def keep_for(self, coming: Iterable[Task], use: QueueUse) -> None:
        """Count what is to come to this queue, and those below it, in places that are kept for it."""
        has = dict(self.has)
        for task in coming:
            if self.queue in use.tree.path(task.group.queue) and not (self.kept and task.group.preemptible):
                for name, amount in _needs(task).items():
                    has[name] = has.get(name, 0) + amount
        self.has, self.freed = has, _BY_PLACES_KEPT

    def reason(self, resource: str, had: int, need: int) -> str:
        """The queue, the resource, its bound, what is allocated, and what is needed."""
        most, had_, need_ = (shown_amount(resource, amount) for amount in (self.most[resource], had, need))
        return f"queue {self.queue!r} {self.what} {resource}: {most}, {had_} allocated, {need_} needed"


def _needs(task: Task) -> Amounts:
    """What counts of a task: its requests, parts of GPUs, and itself."""
    return {**task.cls.requests, **task.cls.gpu_amounts, PODS: 1}


def _bounds(use: QueueUse, group: Group) -> Iterator[_Bound]:
    """Of the queue and those above it, what concerns the group."""
    kept = not group.preemptible
    for name in use.tree.path(group.queue):
        spec, counts = use.tree.specs[name], use.counts(name)
        if spec.limit:
            yield _Bound(name, "has reached its limit of", spec.limit, counts.held, counts.freed)
        if kept and spec.deserved:
            what = "gives pods that are not preemptible no more than it deserves of"
            yield _Bound(name, what, spec.deserved, counts.held_kept, counts.freed, kept=True)


def _goes_elsewhere(_: TaskClass, event: ClusterEvent) -> bool:
    return event.own or event.new is None or _counts_as(event.old) != _counts_as(event.new)


def _counts_as(obj: Any) -> tuple[object, ...]:
    """What decides how a pod, or a group's, counts in queues."""
    labels: Mapping[str, str] = obj.metadata.labels
    priority = obj.spec.priority if isinstance(obj, PodGroup) else None
    return labels.get(QUEUE_LABEL), labels.get(PREEMPTIBILITY_LABEL), priority


def _is_another(_: TaskClass, event: ClusterEvent) -> bool:
    """Not where only its status was written."""
    return event.old is None or event.new is None or event.old.spec != event.new.spec
