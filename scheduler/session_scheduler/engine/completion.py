"""Carries decisions out, and applies the results of their binds to the cache, the queue and the plugins.

A session decides, `carry_out` passes the decision to the binder, and a later turn completes it. A bind with unknown
outcome is completed when an event or another check shows its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import msgspec
import structlog
from msgspec.structs import replace

from session_scheduler.base.clock import Clock
from session_scheduler.binding.binder import Binder, BindResult, cancel, unexpected
from session_scheduler.binding.plan_store import PlanSwap
from session_scheduler.engine.gang_starts import GangStarts
from session_scheduler.engine.in_flight import InFlight, raise_first
from session_scheduler.engine.plugin_sync import PluginSync
from session_scheduler.engine.preemption_executor import PreemptionExecutor
from session_scheduler.engine.unknown_binds import UnknownBind, UnknownBinds
from session_scheduler.framework.bindings import Allocation, Failure
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError
from session_scheduler.framework.observer import Observer
from session_scheduler.framework.statement import Decision, PlacementResult
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.refusals import Refusal
from session_scheduler.state.cache import Cache
from session_scheduler.state.scheduling_queue import SchedulingQueue, Wants, lacks_pods

_log = structlog.get_logger(__name__)


class Bound(msgspec.Struct, frozen=True):
    """The result of a decision: the bound tasks, and those that are pending again, with the reason.

    `unknown` are tasks with an unknown outcome: they keep their node and allocation until it is known.
    """

    decision: Decision
    bound: list[Task]
    failed: Mapping[Task, str]
    unknown: Mapping[Task, str] = msgspec.field(default_factory=dict)


@dataclass(eq=False, repr=False)
class BindCompletion:
    """Completes decisions, and keeps the last outcome of each group."""

    cache: Cache
    queue: SchedulingQueue
    clock: Clock
    observer: Observer
    binder: Binder
    in_flight: InFlight[Bound]
    unknown_binds: UnknownBinds
    gang_starts: GangStarts
    preemption: PreemptionExecutor
    plugin_sync: PluginSync
    back_off: Callable[[str], None]
    """Puts a group (its key) into backoff."""
    freed: Callable[[Task, str], None]
    """Called with each task that was not bound, and the node that it frees."""
    outcomes: dict[str, PlacementResult] = field(default_factory=dict, init=False)
    """The last outcome of each known group that waits or is being bound, by its key."""

    # ------------------------------------------------------------------ session outcomes

    def record(
        self,
        outcomes: Mapping[Group, PlacementResult],
        wants: Callable[[PlacementResult], Wants | None] = lambda _: None,
    ) -> None:
        """`wants` returns the events that requeue an unschedulable group; None for one that failed with an error."""
        now = self.clock.now()
        for group, outcome in outcomes.items():
            self.outcomes[group.key] = outcome
            self.observer.decided(outcome)
            if not outcome.scheduled:
                wanted = wants(outcome)
                if not wanted or not lacks_pods(wanted):
                    group.queued = now
                    group.failed_attempts += 1
                self.queue.failed(group.key, now, wanted)
            elif not outcome.placed:  # else its failures are forgotten after its binds
                self._placed(group)

    def plugin_failed(self, groups: Iterable[Group], error: PluginError) -> None:
        """A plugin failed while these groups were being placed: back them off."""
        self.record(
            {group: PlacementResult(group, refusal=Refusal(str(error), error.plugin, failed=True)) for group in groups}
        )

    # ------------------------------------------------------------------ decisions

    def carry_out(self, decision: Decision, calls: HookCalls, swap: PlanSwap | None) -> None:
        """Start the binds of a decision; a later turn completes them."""
        work = self.binder.carry_out(decision, calls, swap)
        self.in_flight.start(decision.group.key, work, partial(self._carried_out, decision, calls, swap))

    async def _carried_out(
        self, decision: Decision, calls: HookCalls, swap: PlanSwap | None, _: str,
        answer: BindResult | BaseException,
    ) -> Bound:  # fmt: skip
        started = perf_counter()
        result = unexpected(decision, answer) if isinstance(answer, BaseException) else answer
        failures = result.failures
        for stage, seconds in result.seconds.items():
            self.observer.stage(stage, seconds)
        bound = await self._complete(decision, failures, calls)
        self.gang_starts.completed(decision.group, swap)
        self.observer.stage("settle", perf_counter() - started)  # codespell:ignore settle
        raise_first([failure.error for failure in failures if failure.error is not None])
        return bound

    async def _complete(self, decision: Decision, failures: Sequence[Failure], calls: HookCalls) -> Bound:
        """Make the tasks that were not bound pending again, and free their allocations.

        Evicted tasks keep their node until they have terminated.
        """
        group = decision.group
        if not failures and not decision.evicted:  # the common case
            self._bound(decision.allocated)
            self._started(group)
            return Bound(decision, decision.allocated, {})
        for task, node in decision.evicted.items():
            self.cache.occupy(task, node)
            task.phase = Phase.RELEASING if await self.binder.evict(task) else Phase.BOUND
        not_bound = {failure.task for failure in failures}
        self._bound([task for task in decision.allocated if task not in not_bound])
        failed: dict[Task, str] = {}
        for unknown_outcome in (True, False):  # unknown outcomes first: they may have started the gang
            keeps = self.gang_starts.may_have_begun(group)
            for failure in failures:
                if failure.unknown is unknown_outcome and await self._undo(failure, calls, keeps=keeps):
                    failed[failure.task] = failure.reason
        unknown = {
            failure.task: f"bind with unknown outcome: {failure.reason}"
            for failure in failures
            if failure.task.uid in self.unknown_binds
        }
        bound = [task for task in decision.allocated if task not in failed and task not in unknown]
        self._bound([task for task in bound if task in not_bound])
        for failure in failures:
            self.observer.bind_failed(failure)
        if failed:
            self._report_failed(group, failed)
        elif not unknown:
            self._started(group)
        self._add_reasons(group, unknown)
        return Bound(decision, bound, failed, unknown)

    def _bound(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if task.phase is Phase.ASSUMED:
                task.phase = Phase.BOUND
            self.observer.bound(task, task.node or "")

    def _started(self, group: Group) -> None:
        """Forget a bound group's failures, and its outcome unless a task of it waits."""
        outcome = self.outcomes.get(group.key)
        if outcome is None or outcome.scheduled:
            self._placed(group)
            if not group.pending:
                self.outcomes.pop(group.key, None)

    def _placed(self, group: Group) -> None:
        group.failed_attempts = 0
        self.queue.placed(group.key)

    async def _undo(self, failure: Failure, calls: HookCalls, *, keeps: bool) -> bool:
        """Undo a failed bind: the task is pending again and its allocation is free. Returns whether it was undone.

        With `keeps`, for a gang that has started, the node stays reserved against tasks of equal or lower priority.
        It undoes nothing if the task is bound as decided (its event came before the response), or may be.
        """
        task = failure.task
        if self.cache.tasks.get(task.uid) is not task:
            return True  # its deletion has freed its allocation
        if task.phase is not Phase.ASSUMED and failure.landed(task.pod):
            return False
        if task.phase is Phase.ASSUMED and failure.unknown:
            self.unknown_binds.put(failure, calls)
            return False
        await self._unassume(task, failure.node, calls)
        if task.node is not None:  # another scheduler bound it
            self.plugin_sync.later(task)
        elif keeps and failure.node in self.cache.table.row_of:
            self.cache.nominations.keep(task, failure.node)
        else:
            self.preemption.give_up(task)
        return True

    async def give_up(self, task: Task, calls: HookCalls) -> None:
        """Make a placed task pending again instead of binding it, and free its allocation."""
        await self._unassume(task, task.node or "", calls)
        self.preemption.give_up(task)

    async def _unassume(self, task: Task, node: str, calls: HookCalls) -> None:
        self.cache.forget(task)
        await self._cancel(calls.functions("cancel"), task, node)
        self.freed(task, node)

    async def _cancel(self, calls: Iterable[HookCall], task: Task, node: str) -> None:
        for error in await cancel(calls, Allocation(task.uid, task.pod, node)):
            _log.error("cancel failed", pod=task.key, plugin=error.plugin, error=str(error))

    def _report_failed(self, group: Group, reasons: Mapping[Task, str]) -> None:
        """Back the group off, and report why its placed tasks are pending again."""
        if self.cache.groups.get(group.key) is group:  # else a new group has its name
            self.back_off(group.key)
            self._add_reasons(group, reasons)
        for task, reason in reasons.items():
            self.observer.failed(task, reason)
        if reasons and group.pod_group is not None and not group.whole:
            self.observer.group_failed(group.pod_group, next(iter(reasons.values())))

    def _add_reasons(self, group: Group, reasons: Mapping[Task, str]) -> None:
        """Add reasons to the group's last outcome."""
        if group.key in self.outcomes:
            self.outcomes[group.key].reasons.update(reasons)

    # ------------------------------------------------------------------ binds with unknown outcome

    async def resolve(self, bind: UnknownBind, failure: Failure | None) -> None:
        """Complete a bind whose outcome is known now: `failure`, or None if the pod is bound."""
        task = bind.failure.task
        if failure is None:
            task.phase = Phase.BOUND
            self.observer.bound(task, bind.failure.node)
        elif await self._undo(failure, bind.calls, keeps=self.gang_starts.may_have_begun(task.group)):
            self._report_failed(task.group, {task: failure.reason})
        self.gang_starts.completed(task.group)

    # ------------------------------------------------------------------ events

    async def pod_bound(self, task: Task, before: Phase | None) -> None:
        """An event shows that a pod is bound; it was in phase `before` (None: not known)."""
        bind = self.unknown_binds.take(task.uid)
        if bind is not None:
            failure, keeps = replace(bind.failure, unknown=False), self.gang_starts.may_have_begun(task.group)
            if not await self._undo(failure, bind.calls, keeps=keeps):
                self.observer.bound(task, bind.failure.node)
        elif before in (None, Phase.PENDING, Phase.GATED):  # another replica or scheduler bound it
            self.plugin_sync.later(task)
        else:
            return
        self.gang_starts.completed(task.group)

    async def pod_ended(self, task: Task, node: str | None) -> None:
        """A pod on a node, or with a bind in flight, has terminated."""
        self.unknown_binds.take(task.uid)
        if node is not None:
            await self._cancel(self.plugin_sync.ended(task), task, node)
