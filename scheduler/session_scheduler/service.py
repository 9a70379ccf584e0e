"""The scheduler itself: state, sessions and binding put together over a cluster port.

One owner: events are applied between sessions, never in one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from session_scheduler.actions import ACTIONS
from session_scheduler.binding import Binder, Failure, cancel, holding_of, record_problem
from session_scheduler.clock import Clock
from session_scheduler.cluster.port import Cluster
from session_scheduler.config import SchedulerConfig
from session_scheduler.errors import InputError
from session_scheduler.hook_calls import (
    HookCall,
    HookCalls,
    PluginError,
    asked_class_key,
    asked_footprint,
    asked_group,
)
from session_scheduler.hookspecs import Refusal
from session_scheduler.model.bindings import Allocation
from session_scheduler.model.classes import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import KubeObject, Node, Pod, PodGroup, PriorityClass
from session_scheduler.session import Outcome, Session, SessionOptions
from session_scheduler.state.cache import EVERY_GROUP, Cache, Woken
from session_scheduler.state.pending import PendingGroups
from session_scheduler.state.snapshot import Snapshot
from session_scheduler.statement import Decision

_log = structlog.get_logger()

KINDS: tuple[type[KubeObject], ...] = (PriorityClass, Node, PodGroup, Pod)
"""What is listed and watched, in the order in which it must be known: a pod's group and priority before the pod."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What became of a decision: the tasks now bound, and those that are pending again, with the reason."""

    decision: Decision
    bound: list[Task]
    failed: Mapping[Task, str]


class Scheduler:
    """Profiles by schedulerName over one cluster. `start` once, then `cycle` whenever something is due."""

    def __init__(
        self,
        cluster: Cluster,
        config: SchedulerConfig,
        profiles: Mapping[str, HookCalls],
        clock: Clock,
        *,
        evaluation: str = "heap",
    ) -> None:
        self.cluster = cluster
        self.config = config
        self.profiles = profiles
        self.clock = clock
        self.outcomes: dict[str, Outcome] = {}
        """The last outcome of each group that is known, by its key."""
        self._options = SessionOptions(evaluation=evaluation, placement_retries=config.placement_retries)
        table = NodeTable(config.seed)
        class_keys = [asked_class_key(call) for call in self._all("class_key")]
        footprints = [asked_footprint(call) for call in self._all("footprint")]
        group_of = [asked_group(call) for call in self._all("group_of")]
        self.cache = Cache(table, ClassTable(table, class_keys, footprints), profiles.__contains__, group_of)
        self.pending = PendingGroups(config.backoff.initial_seconds, config.backoff.max_seconds)
        self._binder = Binder(cluster, config.bindings_in_flight)

    def _all(self, hook: str) -> list[HookCall]:
        """One hook's implementations over all profiles, each plugin once."""
        found: dict[tuple[str, int], HookCall] = {}
        for calls in self.profiles.values():
            for call in calls.functions(hook):
                found.setdefault((call.plugin, id(calls.instances[call.plugin])), call)
        return list(found.values())

    # ------------------------------------------------------------------ the cluster's state

    async def start(self) -> None:
        """Read the whole cluster, then let the plugins recover what live pods hold.

        Raises InputError where what the cluster has and what a plugin was given do not go together, else PluginError.
        """
        for kind in KINDS:
            listed = await self.cluster.list(kind)
            for obj in listed.items:
                self.cache.put(obj)
        for error in self._tell_nodes().values():
            raise error.__cause__ if isinstance(error.__cause__, InputError) else error
        bound = sorted(self.cache.bound_tasks(), key=lambda task: task.key)
        for name, calls in self.profiles.items():
            ours = [task for task in bound if task.pod.spec.scheduler_name == name]
            for problem in filter(None, map(record_problem, ours)):
                _log.warning(problem)
            for call in calls.functions("recover"):
                call([holding_of(task, call.plugin) for task in ours])

    async def apply(self, change: str, obj: KubeObject) -> None:
        """A watch event: ADDED, MODIFIED or DELETED. Frees what ended, wakes what may be better off."""
        before = self.cache.tasks.get(obj.metadata.uid) if isinstance(obj, Pod) else None
        node = before.node if before is not None else None
        group = before.group.key if before is not None else None
        woken: Woken = EVERY_GROUP
        if change == "DELETED":
            self.cache.remove(obj)
        else:
            woken = self.cache.put(obj)
        if group is not None and group not in self.cache.groups:
            self.pending.placed(group)
            self.outcomes.pop(group, None)
        if before is not None and obj.metadata.uid not in self.cache.tasks:
            await self._ended(before, node)
        if woken is EVERY_GROUP:
            self.pending.wake_all()
            return
        for each in woken:
            self.pending.wake(each.key, self.clock.now())

    async def _ended(self, task: Task, node: str | None) -> None:
        if node is None:
            return
        calls = self.profiles.get(task.pod.spec.scheduler_name)
        if calls is not None:
            await self._cancel(calls, task, node)

    async def _cancel(self, calls: HookCalls, task: Task, node: str) -> None:
        for error in await cancel(calls, Allocation(task.uid, task.pod, node)):
            _log.error("cancel failed", pod=task.key, plugin=error.plugin, error=str(error))

    def _tell_nodes(self) -> dict[str, PluginError]:
        """Tell the plugins which nodes changed. Returns the profiles that failed; they are told again next time."""
        changes = self.cache.node_changes()
        failed: dict[str, PluginError] = {}
        answers: dict[int, PluginError | None] = {}
        for name, calls in self.profiles.items() if changes else ():
            for call in calls.functions("on_nodes_changed"):
                instance = id(calls.instances[call.plugin])  # profiles may share it
                if instance not in answers:
                    answers[instance] = _failure(call, changes)
                error = answers[instance]
                if error is not None:
                    failed.setdefault(name, error)
        if failed:
            self.cache.mark_changed(change.name for change in changes)
        return failed

    # ------------------------------------------------------------------ cycles

    async def cycle(self) -> list[Bound]:
        """One session for each profile over what is due; what was decided is bound before this returns."""
        failed = self._tell_nodes()
        done = []
        for name, calls in self.profiles.items():
            due = self._due(name)
            if due and name in failed:
                self._fail(due, failed[name])
            elif due:
                done.extend(await self._session(calls, due))
        return done

    def _fail(self, groups: Iterable[Group], error: PluginError) -> None:
        self._record({group: Outcome(group, refusal=Refusal(str(error), error.plugin)) for group in groups})

    def _due(self, scheduler_name: str) -> tuple[Group, ...]:
        now = self.clock.now()
        due = self.cache.pending_groups(
            lambda group: group.scheduler_name == scheduler_name and self.pending.is_due(group.key, now)
        )
        return tuple(due)

    async def _session(self, calls: HookCalls, due: tuple[Group, ...]) -> list[Bound]:
        try:
            session = self.open_session(calls, due)
        except PluginError as error:
            self._fail(due, error)
            return []
        carried = []
        for decision in self._decisions(session):
            carried.append((decision, asyncio.ensure_future(self._binder.carry_out(decision, calls))))
            await asyncio.sleep(0)
        try:
            session.close()
        except PluginError as error:
            _log.error("session close failed", plugin=error.plugin, error=str(error))
        self._record(session.outcomes)
        return [await self._settle(decision, await failures, calls) for decision, failures in carried]

    def open_session(self, calls: HookCalls, due: tuple[Group, ...]) -> Session:
        """A session over these groups, with each plugin's facts. Raises PluginError."""
        facts = {call.plugin: call() for call in calls.functions("facts")}
        session = Session(Snapshot(self.cache, due, self.clock.now(), facts), calls, self._options)
        session.open()
        return session

    def _decisions(self, session: Session) -> Iterator[Decision]:
        """Every action's decisions; no new group is started after the cycle's time is over."""
        end = self.clock.now() + self.config.cycle_seconds
        session.expired = lambda: self.clock.now() > end
        for action in self.config.actions:
            yield from ACTIONS[action](session)

    async def _settle(self, decision: Decision, failures: Sequence[Failure], calls: HookCalls) -> Bound:
        """After the session: what was bound stands, what was not is pending again and its share is freed."""
        failed = {failure.task: failure.reason for failure in failures}
        for failure in failures:
            self.cache.forget(failure.task)
            await self._cancel(calls, failure.task, failure.node)
        for task in decision.allocated:
            if task.phase is Phase.ASSUMED:
                task.phase = Phase.BOUND
        if failed:
            self.pending.failed(decision.group.key, self.clock.now())
        return Bound(decision, [task for task in decision.allocated if task not in failed], failed)

    def _record(self, outcomes: Mapping[Group, Outcome]) -> None:
        now = self.clock.now()
        for group, outcome in outcomes.items():
            self.outcomes[group.key] = outcome
            if outcome.scheduled:
                self.pending.placed(group.key)
            else:
                self.pending.failed(group.key, now)


def _failure(call: HookCall, *arguments: object) -> PluginError | None:
    """Call a hook whose answer is of no interest; the error that it ended in, or None."""
    try:
        call(*arguments)
    except PluginError as error:
        return error
    return None
