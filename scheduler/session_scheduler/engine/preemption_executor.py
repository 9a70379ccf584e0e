"""Executes preemptions beside the sessions: writes the nominations, then evicts or deletes the victims.

In this order, so that a successor that finds victims terminating also finds for which pods. The scheduler retries the
group when the last request is answered; victims that are gone requeue it like any other pod. What the API server
refuses is decided anew after a backoff.
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
"""Of a write, against others that write to the pod."""
_NotEnded = Mapping[Task, str]
"""Victims that are not known to end, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class _Nomination:
    """What is to be written about a pod: the node, empty for none, and why it waits."""

    task: Task
    node: str
    reason: str = ""
    before: str = ""
    """The node that is taken back, where its status may say so."""


@dataclass(frozen=True, slots=True)
class _End:
    """What a victim's condition and event say; made before any request, since the preemptor may be gone at its end."""

    condition: PodCondition
    """Without the time."""
    event: str
    moved: bool
    """Whether it is to run elsewhere: then its disruption budget has the last word."""


@dataclass(eq=False, repr=False)
class PreemptionExecutor:
    """Keeps which groups wait for which victims."""

    cluster: Cluster
    cache: Cache
    queue: SchedulingQueue
    clock: Clock
    observer: Observer
    in_flight: InFlight[Any]
    back_off: Callable[[str], None]
    """Lets a group (its key) wait."""
    release_nominations: Callable[[], None]
    slots: asyncio.Semaphore
    """Bounds how many requests go at once."""
    _waits: dict[str, set[str]] = field(default_factory=dict, init=False)
    """By victim (uid): the groups (their keys) that it ends for."""
    _left: Counter[str] = field(default_factory=Counter, init=False)
    """By group (key): how many victims it waits for."""
    _latest: dict[str, _Nomination] = field(default_factory=dict, init=False)
    """By pod (uid): what is to be written of it last, until it is."""
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)
    """By pod (uid): its nominations are written one after the other."""

    def carry_out(self, decision: Decision, reasons: Mapping[Task, str]) -> None:
        """Let a session's nominations be written and its victims end; `reasons` are those of the tasks that wait."""
        group = decision.group
        nominations = [_Nomination(task, node, reasons.get(task, "")) for task, node in decision.nominated.items()]
        victims: dict[Task, _End] = {}
        moves: dict[Task, str] = {}
        for preemption in decision.preemptions:
            victims.update((task, _end_of(task, group, preemption)) for task in preemption.victims)
            moves.update(preemption.moves)
            self._outdo(group, preemption)
        for task in victims:
            waiting = self._waits.setdefault(task.uid, set())
            if group.key not in waiting:
                waiting.add(group.key)
                self._left[group.key] += 1
        asked = {task: end for task, end in victims.items() if not self._ends(task)}
        self.cache.made_to_end(victims)
        if moved := [task for task in asked if task in moves]:
            self.observer.moves(group, moved)
        if preempted := [task for task in asked if task not in moves]:
            self.observer.preempts(group, preempted)
        self._spawn(group, nominations, asked)

    def tried(self, outcomes: Mapping[Group, PlacementResult]) -> None:
        """What failed by an error gives up its places, as in kube-scheduler; unless it was preemption that failed.

        A gang that is bound in part keeps what its members had.
        """
        for group, outcome in outcomes.items() if self.cache.nominations else ():
            if outcome.refusal is not None and outcome.refusal.failed and not outcome.preempts:
                for task in group.in_phase(Phase.PENDING):
                    if task.uid not in self.cache.nominations.kept:
                        self.give_up(task)

    def ended(self, uid: str) -> None:
        """A pod went: with the last of its victims a group is requeued."""
        for key in self._let_go(uid):
            if key not in self._left:
                self.queue.requeue(key, "AssignedPodDelete")

    def node_gone(self, node: str) -> None:
        """A node went: no pod is nominated for it any more."""
        for task in self.cache.nominations.on_node(node):
            self.queue.requeue(task.group.key, "NodeDelete")
            self.give_up(task)

    def started(self) -> None:
        """The cluster was ingested: drop the nominations of gangs which a predecessor nominated only in part.

        Nothing is written here, since a gang with a write in flight is not due. The first session tries these gangs and
        updates the status of their pods.
        """
        for group in {task.group: None for _, tasks in self.cache.nominations.waiting() for task in tasks}:
            if self._in_part(group):
                self._give_up_all(group)

    def _take_back_part(self, group: Group, lost: Sequence[_Nomination]) -> None:
        """A gang of which fewer members are nominated than it needs to start keeps no place from others.

        `lost`: nominations that may be written although the answers say that they are not.
        """
        if self._in_part(group):
            nodes = self._give_up_all(group)
            for nomination in lost:
                nodes[nomination.task] = nomination.node
                self.cache.nominations.give_up(nomination.task, nomination.node)
            self._spawn(group, [_Nomination(task, "", before=node) for task, node in nodes.items()], {})

    def _give_up_all(self, group: Group) -> dict[Task, str]:
        """Nominate none of its tasks any more. Returns the nodes that they were nominated for."""
        known = self.cache.nominations
        nodes = {task: known.nominated_node_name(task) for task in self._nominated(group)}
        for task, node in nodes.items():
            known.give_up(task, node)
        return nodes

    def _in_part(self, group: Group) -> bool:
        """Whether it needs several more tasks to start, and fewer of them are nominated."""
        return len(self._nominated(group)) < group.needed > 1

    def _nominated(self, group: Group) -> list[Task]:
        return [task for task in group.tasks.values() if self.cache.nominations.node_of(task) is not None]

    def give_up(self, task: Task) -> None:
        """A task is nominated for no node any more: its node went, or an attempt or its bind failed by an error."""
        node = self.cache.nominations.nominated_node_name(task)
        if node:
            self.cache.nominations.give_up(task, node)
            self._spawn(task.group, [_Nomination(task, "", before=node)], {})

    def _outdo(self, group: Group, preemption: Preemption) -> None:
        """Pods of lower priority that were to go to the same nodes look for another place at once.

        That is written as their own group's work, so that they are tried when it is done.
        """
        for task, node in preemption.nominated.items():
            for other in self.cache.nominations.on_node(node):
                if self._outranks(task, other) and other.group is not group and other.node is None:
                    self.cache.nominations.give_up(other, node)
                    self.queue.activate(other.group.key, self.clock.now())
                    self._spawn(other.group, [_Nomination(other, "", before=node)], {})

    def _outranks(self, task: Task, other: Task) -> bool:
        """By priority; which ranks no pods of different queues, where there are any."""
        apart = self.cache.queues.active and task.standing < SYSTEM_CRITICAL and task.group.queue != other.group.queue
        return other.standing < task.standing and not apart

    def _spawn(self, group: Group, nominations: Sequence[_Nomination], victims: Mapping[Task, _End]) -> None:
        if nominations or victims:
            self._latest.update((nomination.task.uid, nomination) for nomination in nominations)
            unwritten: list[_Nomination] = []
            work = self._write(nominations, victims, unwritten)
            self.in_flight.start(group.key, work, partial(self._written, tuple(victims), unwritten))

    # ------------------------------------------------------------------ victims and the groups that wait for them

    def _ends(self, task: Task) -> bool:
        """Whether a running task was asked to end already, by this scheduler or by others."""
        return task.uid in self.cache.preempted or task.pod.metadata.deletion_timestamp is not None

    def _let_go(self, uid: str) -> list[str]:
        """A victim is waited for no more. Returns the groups (their keys) that did."""
        keys = sorted(self._waits.pop(uid, ()))
        for key in keys:
            self._left[key] -= 1
            if not self._left[key]:
                del self._left[key]
        return keys

    # ------------------------------------------------------------------ beside the sessions

    async def _write(
        self, nominations: Sequence[_Nomination], victims: Mapping[Task, _End], unwritten: list[_Nomination]
    ) -> _NotEnded:
        """Returns the victims that are not known to end, and why. Raises ClusterError where a nomination fails, which
        is added to `unwritten`.

        The last of them is asked when the others end: where one does not, it would end for nothing.
        """
        await _all(self._nominate(nomination, unwritten) for nomination in nominations)
        asked = list(victims.items())
        ends = await _all(self._end(task, end) for task, end in asked[:-1])
        if asked:
            spared = any(why is not None for why in ends)
            ends.append("another one was not ended" if spared else await self._end(*asked[-1]))
        return {task: why for task, why in zip(victims, ends, strict=True) if why is not None}

    async def _nominate(self, nomination: _Nomination, unwritten: list[_Nomination]) -> None:
        """Write it, unless another one is to be written instead. Raises ClusterError, and adds it to `unwritten`."""
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
                return  # it is gone, or bound: its event tells
            except BaseException:
                unwritten.append(nomination)
                raise
            finally:
                if self._latest.get(uid) is nomination:
                    del self._latest[uid]

    async def _end(self, task: Task, end: _End) -> str | None:
        """Say of a pod why it ends, and ask that it does. Why it does not; None where it does, or is gone."""
        try:
            await self._patch(task.pod, lambda pod: pod.metadata.deletion_timestamp is None, [end.condition], None)
            if not await self._asked_to_end(task.pod, end):
                return None
        except NotFound:
            return None
        except ClusterError as error:
            return str(error)
        report = self.observer.moved if end.moved else self.observer.preempted
        report(task, end.event)
        return None

    async def _asked_to_end(self, pod: Pod, end: _End) -> bool:
        """Whether it was there. Raises ClusterError, for a pod that is moved where its budget does not allow that."""
        request = self.cluster.evict if end.moved else self.cluster.delete
        try:
            async with self.slots:
                await request(pod)
        except (NotFound, Conflict):  # it is gone already, or another one has its name
            return False
        return True

    async def _patch(
        self, pod: Pod, wanted: Callable[[Pod], bool], conditions: Sequence[PodCondition], node: str | None
    ) -> None:
        """Write a pod's status while it is this pod and `wanted`. Raises ClusterError; NotFound for another pod."""
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
                raise NotFound(f"{pod.key} is another pod by now")
            if not wanted(fresh):
                return
            pod = fresh

    async def _written(
        self, victims: Iterable[Task], unwritten: Iterable[_Nomination], key: str, answer: _NotEnded | BaseException
    ) -> None:
        """What could not be done is decided anew after a backoff: what refused it once may do so again."""
        lost = self._as_written(unwritten)
        if lost and isinstance(answer, ClusterError):
            self._take_back_part(lost[0].task.group, lost)
        self.release_nominations()
        if isinstance(answer, BaseException):
            not_ended, again = dict.fromkeys(victims, str(answer)), {key}
        else:
            not_ended, again = dict(answer), set()
        for task, why in not_ended.items():
            _log.warning("a pod that is preempted is not ended", pod=task.key, by=key, error=why)
            self.cache.spared(task)
            self.cache.moves.came_to_nothing(task.uid)
            again.update((key, *self._let_go(task.uid)))
        for group in sorted(again):
            self.back_off(group)
        if isinstance(answer, ClusterError):  # one of a victim would be told with it
            _log.warning("a nomination is not written", group=key, error=str(answer))
        elif isinstance(answer, BaseException):
            raise answer

    def _as_written(self, unwritten: Iterable[_Nomination]) -> list[_Nomination]:
        """Of pods of which a nomination could not be written holds what their status says: no place is kept of which
        nobody else, a successor say, knows. What was done although its answer was lost is heard of by its event.

        A reservation for a later start stays: it does not depend on a pod's status, and a successor computes it again.

        A part of a gang's places is not taken up again, whatever events tell of it yet: its pods' status is written
        anew when the gang is tried next. Returns those that lost a place.
        """
        known, lost, kept = self.cache.nominations, list[_Nomination](), list[_Nomination]()
        for nomination in unwritten:
            task = nomination.task
            there = self.cache.tasks.get(task.uid) is task and task.node is None and task.uid not in self._latest
            if there and task not in known.starts and (known.node_of(task) or "") == nomination.node:
                known.put(task, task.pod.status.nominated_node_name)
                (lost if nomination.node else kept).append(nomination)
        for nomination in kept:
            if self._in_part(nomination.task.group):
                known.give_up(nomination.task, nomination.before)
        return lost


def _end_of(task: Task, group: Group, preemption: Preemption) -> _End:
    """What a victim's condition and event say, where it ends for this group."""
    kind = "pod" if group.single else "podgroup"
    scheduler = next((one.pod.spec.scheduler_name for one in group.tasks.values()), "")
    moved = task in preemption.moves
    if moved:
        text, reason = f"{scheduler}: moved so that a {kind} fits", MOVED
        event = f"Moved from node {task.node} so that {kind} {group.uid} fits"
    else:
        text, reason = f"{scheduler}: preempting to accommodate a higher priority {kind}", PREEMPTED
        event = f"Preempted by {kind} {group.uid} on node {preemption.where}"
    return _End(PodCondition(DISRUPTION_TARGET, "True", reason, text), event, moved)


async def _all(work: Iterable[Awaitable[_T]]) -> list[_T]:
    """All answers; the first error is raised when all of it has ended."""
    answers = await asyncio.gather(*work, return_exceptions=True)
    raise_first([answer for answer in answers if isinstance(answer, BaseException)])
    return [answer for answer in answers if not isinstance(answer, BaseException)]
