"""Executes preemptions as work in flight: writes nominations, then evicts or deletes the victims.

In this order, so that a successor that finds terminating victims finds their preemptors too. The scheduler retries the
group after the last response; a deleted victim requeues it like any other pod. If the API server rejects a request, the
group is decided again after a backoff.
Source: kube-scheduler 1.36, pkg/scheduler/framework/preemption/executor.go.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
import structlog

from session_scheduler.base.clock import Clock
from session_scheduler.cluster.errors import ClusterError, Conflict, NotFound
from session_scheduler.cluster.port import Cluster
from session_scheduler.engine.in_flight import InFlight, raise_first
from session_scheduler.framework.answers import Preemption
from session_scheduler.framework.observer import Observer
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.disruption import DISRUPTION_TARGET, MOVED, PREEMPTED
from session_scheduler.model.groups import SYSTEM_CRITICAL, Group, Phase, Task
from session_scheduler.model.objects import Pod, PodCondition
from session_scheduler.model.times import time_text
from session_scheduler.state.cache import Cache
from session_scheduler.state.scheduling_queue import SchedulingQueue

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")
_TRIES = 5
"""Attempts to write a pod's status against concurrent writers."""
_NotEvicted = Mapping[Task, str]
"""Victims that may not have been evicted, and why."""


class _Nomination(msgspec.Struct, frozen=True, eq=False):
    """A write to a pod's status: the nominated node, empty for none, and why the pod waits."""

    task: Task
    node: str
    reason: str = ""
    before: str = ""
    """The nominated node that is removed, if the status may have it."""


class _Eviction(msgspec.Struct, frozen=True):
    """A victim's condition and event, made before any request: the preemptor may be gone later."""

    condition: PodCondition
    """Its time is set by the write."""
    event: str
    moved: bool
    """Whether it moves to another node: then its disruption budget applies."""


@dataclass(eq=False, repr=False)
class PreemptionExecutor:
    """Sends the requests, and tracks which groups wait for which victims."""

    cluster: Cluster
    cache: Cache
    queue: SchedulingQueue
    clock: Clock
    observer: Observer
    in_flight: InFlight[Any]
    back_off: Callable[[str], None]
    """Puts a group (its key) into backoff."""
    release_nominations: Callable[[], None]
    slots: asyncio.Semaphore
    """Limits the concurrent requests."""
    _waits: dict[str, set[str]] = field(default_factory=dict, init=False)
    """By victim (uid): the keys of its preemptors."""
    _left: Counter[str] = field(default_factory=Counter, init=False)
    """By group (key): the number of victims it waits for."""
    _latest: dict[str, _Nomination] = field(default_factory=dict, init=False)
    """By pod (uid): the latest pending nomination."""
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)
    """By pod (uid): serialises the writes of its nominations."""

    def carry_out(self, decision: Decision, reasons: Mapping[Task, str]) -> None:
        """Start the writes of a decision's nominations and evictions; `reasons` are those of the waiting tasks."""
        group = decision.group
        nominations = [_Nomination(task, node, reasons.get(task, "")) for task, node in decision.nominated.items()]
        victims: dict[Task, _Eviction] = {}
        moves: dict[Task, str] = {}
        for preemption in decision.preemptions:
            victims.update((task, _eviction_of(task, group, preemption)) for task in preemption.victims)
            moves.update(preemption.moves)
            self._displace(group, preemption)
        for task in victims:
            waiting = self._waits.setdefault(task.uid, set())
            if group.key not in waiting:
                waiting.add(group.key)
                self._left[group.key] += 1
        asked = {task: eviction for task, eviction in victims.items() if not self._is_evicted(task)}
        self.cache.made_to_end(victims)
        if moved := [task for task in asked if task in moves]:
            self.observer.moves(group, moved)
        if preempted := [task for task in asked if task not in moves]:
            self.observer.preempts(group, preempted)
        self._spawn(group, nominations, asked)

    def tried(self, outcomes: Mapping[Group, PlacementResult]) -> None:
        """Drop the nominations of groups that failed with an error, as in kube-scheduler, except in preemption.

        A partly bound gang keeps the reserved nodes of its members.
        """
        for group, outcome in outcomes.items() if self.cache.nominations else ():
            if outcome.refusal is not None and outcome.refusal.failed and not outcome.preempts:
                for task in group.in_phase(Phase.PENDING):
                    if task.uid not in self.cache.nominations.kept:
                        self.give_up(task)

    def awaits_victims(self, key: str) -> bool:
        """Whether a group (its key) waits for victims that are not gone yet."""
        return key in self._left

    def ended(self, uid: str) -> None:
        """A pod is gone: requeue the groups for which it was the last victim."""
        for key in self._stop_waiting(uid):
            if key not in self._left:
                self.queue.requeue(key, "AssignedPodDelete")

    def node_gone(self, node: str) -> None:
        """A node is gone: drop its nominations."""
        for task in self.cache.nominations.on_node(node):
            self.queue.requeue(task.group.key, "NodeDelete")
            self.give_up(task)

    def started(self) -> None:
        """After the initial list: drop the nominations of gangs that a predecessor nominated only partly.

        It writes nothing, since a gang with a write in flight is not due. The first session tries these gangs, and
        updates the status of their pods.
        """
        for group in {task.group: None for _, tasks in self.cache.nominations.waiting() for task in tasks}:
            if self._is_partial(group):
                self._give_up_all(group)

    def _drop_partial(self, group: Group, lost: Sequence[_Nomination]) -> None:
        """Drop the nominations of a gang with fewer nominated members than it needs to start.

        `lost`: nominations that may have been written in spite of an error.
        """
        if self._is_partial(group):
            nodes = self._give_up_all(group)
            for nomination in lost:
                nodes[nomination.task] = nomination.node
                self.cache.nominations.give_up(nomination.task, nomination.node)
            self._spawn(group, [_Nomination(task, "", before=node) for task, node in nodes.items()], {})

    def _give_up_all(self, group: Group) -> dict[Task, str]:
        """Drop the nominations of all tasks of a group. Returns their former nodes."""
        known = self.cache.nominations
        nodes = {task: known.nominated_node_name(task) for task in self._nominated(group)}
        for task, node in nodes.items():
            known.give_up(task, node)
        return nodes

    def _is_partial(self, group: Group) -> bool:
        """Whether the group needs several more tasks to start, and fewer of them are nominated."""
        return len(self._nominated(group)) < group.needed > 1

    def _nominated(self, group: Group) -> list[Task]:
        return [task for task in group.tasks.values() if self.cache.nominations.node_of(task) is not None]

    def give_up(self, task: Task) -> None:
        """Drop a task's nomination: its node is gone, or its attempt or bind failed with an error."""
        node = self.cache.nominations.nominated_node_name(task)
        if node:
            self.cache.nominations.give_up(task, node)
            self._spawn(task.group, [_Nomination(task, "", before=node)], {})

    def _displace(self, group: Group, preemption: Preemption) -> None:
        """Drop the nominations of lower-priority pods for the same nodes, and activate their groups.

        The write is work of their own group, which is retried after it.
        """
        for task, node in preemption.nominated.items():
            for other in self.cache.nominations.on_node(node):
                if self._outranks(task, other) and other.group is not group and other.node is None:
                    self.cache.nominations.give_up(other, node)
                    self.queue.activate(other.group.key, self.clock.now())
                    self._spawn(other.group, [_Nomination(other, "", before=node)], {})

    def _outranks(self, task: Task, other: Task) -> bool:
        """Compare by priority, which does not apply to pods of different queues."""
        apart = self.cache.queues.active and task.standing < SYSTEM_CRITICAL and task.group.queue != other.group.queue
        return other.standing < task.standing and not apart

    def _spawn(self, group: Group, nominations: Sequence[_Nomination], victims: Mapping[Task, _Eviction]) -> None:
        if nominations or victims:
            self._latest.update((nomination.task.uid, nomination) for nomination in nominations)
            unwritten: list[_Nomination] = []
            work = self._write(nominations, victims, unwritten)
            self.in_flight.start(group.key, work, partial(self._written, tuple(victims), unwritten))

    # ------------------------------------------------------------------ victims

    def _is_evicted(self, task: Task) -> bool:
        """Whether a bound task is already being evicted or deleted."""
        return task.uid in self.cache.preempted or task.pod.metadata.deletion_timestamp is not None

    def _stop_waiting(self, uid: str) -> list[str]:
        """Forget a victim. Returns the keys of the groups that waited for it."""
        keys = sorted(self._waits.pop(uid, ()))
        for key in keys:
            self._left[key] -= 1
            if not self._left[key]:
                del self._left[key]
        return keys

    # ------------------------------------------------------------------ requests

    async def _write(
        self, nominations: Sequence[_Nomination], victims: Mapping[Task, _Eviction], unwritten: list[_Nomination]
    ) -> _NotEvicted:
        """Write the nominations, then evict the victims. Returns the victims that may not have been evicted, and why.

        Raises ClusterError for a failed nomination, which it adds to `unwritten`. It evicts the last victim only after
        all others: if one fails, the last one stays.
        """
        await _all(self._nominate(nomination, unwritten) for nomination in nominations)
        asked = list(victims.items())
        errors = await _all(self._evict(task, eviction) for task, eviction in asked[:-1])
        if asked:
            failed = any(why is not None for why in errors)
            errors.append("another victim was not evicted" if failed else await self._evict(*asked[-1]))
        return {task: why for task, why in zip(victims, errors, strict=True) if why is not None}

    async def _nominate(self, nomination: _Nomination, unwritten: list[_Nomination]) -> None:
        """Write a nomination unless a later one replaces it. Raises ClusterError, and adds it to `unwritten`."""
        uid = nomination.task.uid
        turn = self._turns.setdefault(uid, asyncio.Lock())
        conditions = []
        if nomination.reason:
            conditions = [PodCondition("PodScheduled", "False", "Unschedulable", nomination.reason)]

        def wanted(pod: Pod) -> bool:
            return not pod.spec.node_name and self._latest.get(uid) is nomination

        async with turn:
            try:
                if wanted(nomination.task.pod):
                    await self._patch(nomination.task.pod, wanted, conditions, nomination.node)
            except NotFound:
                return  # the pod is gone or bound: its event follows
            except BaseException:
                unwritten.append(nomination)
                raise
            finally:
                if self._latest.get(uid) is nomination:
                    del self._latest[uid]

    async def _evict(self, task: Task, eviction: _Eviction) -> str | None:
        """Set a victim's condition, then evict it. Returns the error; None if it is evicted or gone."""
        try:
            await self._patch(task.pod, lambda pod: pod.metadata.deletion_timestamp is None, [eviction.condition], None)
            if not await self._send(task.pod, eviction):
                return None
        except NotFound:
            return None
        except ClusterError as error:
            return str(error)
        report = self.observer.moved if eviction.moved else self.observer.preempted
        report(task, eviction.event)
        return None

    async def _send(self, pod: Pod, eviction: _Eviction) -> bool:
        """Evict or delete a pod. Returns whether it existed. Raises ClusterError, including for a disruption budget."""
        request = self.cluster.evict if eviction.moved else self.cluster.delete
        try:
            async with self.slots:
                await request(pod)
        except (NotFound, Conflict):  # it is gone, or was recreated
            return False
        return True

    async def _patch(
        self, pod: Pod, wanted: Callable[[Pod], bool], conditions: Sequence[PodCondition], node: str | None
    ) -> None:
        """Write a pod's status while it is `wanted`. Raises ClusterError; NotFound if it was recreated."""
        for left in reversed(range(_TRIES)):
            now = time_text(datetime.fromtimestamp(self.clock.wall(), UTC))
            stamped = [one.since(pod.status.conditions, now) for one in conditions]
            try:
                async with self.slots:
                    await self.cluster.patch_status(
                        pod, conditions=stamped, nominated_node_name=node,
                        resource_version=pod.metadata.resource_version,
                    )  # fmt: skip
            except Conflict:
                if not left:
                    raise
            else:
                return
            async with self.slots:
                fresh = await self.cluster.get(Pod, pod.metadata.namespace, pod.metadata.name)
            if fresh.metadata.uid != pod.metadata.uid:
                raise NotFound(f"pod {pod.key} was recreated")
            if not wanted(fresh):
                return
            pod = fresh

    async def _written(
        self, victims: Iterable[Task], unwritten: Iterable[_Nomination], key: str, answer: _NotEvicted | BaseException
    ) -> None:
        """Complete the requests. Groups with an error are decided again after a backoff."""
        lost = self._restored(unwritten)
        if lost and isinstance(answer, ClusterError):
            self._drop_partial(lost[0].task.group, lost)
        self.release_nominations()
        if isinstance(answer, BaseException):
            not_evicted, again = dict.fromkeys(victims, str(answer)), {key}
        else:
            not_evicted, again = dict(answer), set()
        for task, why in not_evicted.items():
            _log.warning("preempting a pod failed", pod=task.key, by=key, error=why)
            self.cache.spared(task)
            self.cache.moves.came_to_nothing(task.uid)
            again.update((key, *self._stop_waiting(task.uid)))
        for group in sorted(again):
            self.back_off(group)
        if isinstance(answer, ClusterError):  # an error of a victim is logged above
            _log.warning("writing a nomination failed", group=key, error=str(answer))
        elif isinstance(answer, BaseException):
            raise answer

    def _restored(self, unwritten: Iterable[_Nomination]) -> list[_Nomination]:
        """Restore the nominations in the status of pods whose write failed, so that a successor knows them, too.

        A write with a lost response shows in a watch event. A reservation for a later start stays: it does not depend
        on a pod's status, and a successor computes it again. Partial nominations of a gang are not restored; the next
        attempt writes them. Returns the nominations that were lost.
        """
        known, lost, kept = self.cache.nominations, list[_Nomination](), list[_Nomination]()
        for nomination in unwritten:
            task = nomination.task
            there = self.cache.tasks.get(task.uid) is task and task.node is None and task.uid not in self._latest
            if there and task not in known.starts and (known.node_of(task) or "") == nomination.node:
                known.put(task, task.pod.status.nominated_node_name)
                (lost if nomination.node else kept).append(nomination)
        for nomination in kept:
            if self._is_partial(nomination.task.group):
                known.give_up(nomination.task, nomination.before)
        return lost


def _eviction_of(task: Task, group: Group, preemption: Preemption) -> _Eviction:
    """A victim's condition and event for this preemptor."""
    kind = "pod" if group.single else "podgroup"
    scheduler = next((one.pod.spec.scheduler_name for one in group.tasks.values()), "")
    moved = task in preemption.moves
    if moved:
        text, reason = f"{scheduler}: moved so that a {kind} fits", MOVED
        event = f"Moved from node {task.node} so that {kind} {group.uid} fits"
    else:
        text, reason = f"{scheduler}: preempting to accommodate a higher priority {kind}", PREEMPTED
        event = f"Preempted by {kind} {group.uid} on node {preemption.where}"
    return _Eviction(PodCondition(DISRUPTION_TARGET, "True", reason, text), event, moved)


async def _all(work: Iterable[Awaitable[_T]]) -> list[_T]:
    """All results. Raises the first error after all work has ended."""
    answers = await asyncio.gather(*work, return_exceptions=True)
    raise_first([answer for answer in answers if isinstance(answer, BaseException)])
    return [answer for answer in answers if not isinstance(answer, BaseException)]
