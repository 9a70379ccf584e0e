"""The scheduler itself: state, sessions and binding put together over a cluster port.

One owner: events are applied between sessions, never in one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import structlog

from session_scheduler.actions import ACTIONS
from session_scheduler.binding import Binder, Failure, cancel, holding_of, record_problem, unexpected
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
from session_scheduler.model.bindings import Allocation, Holding
from session_scheduler.model.classes import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.groups import Group, Phase, Task
from session_scheduler.model.objects import KubeObject, Node, Pod, PodGroup, PriorityClass
from session_scheduler.session import Outcome, Session, SessionOptions
from session_scheduler.state.cache import EVERY_GROUP, Cache, Woken, schedulers_of
from session_scheduler.state.pending import PendingGroups
from session_scheduler.state.snapshot import Snapshot
from session_scheduler.statement import Decision

_log = structlog.get_logger()
_T = TypeVar("_T")

KINDS: tuple[type[KubeObject], ...] = (PriorityClass, Node, PodGroup, Pod)
"""What is listed and watched, in the order in which it must be known: a pod's group and priority before the pod."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What became of a decision: the tasks now bound, and those that are pending again, with the reason.

    `unknown` are those of which the cluster did not say: they keep their place and share until it does.
    """

    decision: Decision
    bound: list[Task]
    failed: Mapping[Task, str]
    unknown: Mapping[Task, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A bind whose outcome is unknown, and the hooks of the profile that decided it."""

    failure: Failure
    calls: HookCalls


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
        self._doubts: dict[str, _Doubt] = {}
        """By pod uid; their tasks are assumed."""
        self._to_recover: dict[HookCall, dict[str, Task]] = {}
        """By `recover` hook and pod uid: bound pods of which the plugin is to be told before the next session."""

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
                call(_holdings(ours, call.plugin))

    async def apply(self, change: str, obj: KubeObject) -> None:
        """A watch event: ADDED, MODIFIED or DELETED. Frees what ended, wakes what may be better off."""
        before = self.cache.tasks.get(obj.metadata.uid) if isinstance(obj, Pod) else None
        node, phase = (before.node, before.phase) if before is not None else (None, None)
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
        elif isinstance(obj, Pod):
            await self._noticed(obj.metadata.uid, phase)
        if woken is EVERY_GROUP:
            self.pending.wake_all()
            return
        for each in woken:
            self.pending.wake(each.key, self.clock.now())

    async def _noticed(self, uid: str, before: Phase | None) -> None:
        """Decide where a pod's binding was in doubt; see the bound pods that no session here placed."""
        task = self.cache.tasks.get(uid)
        if task is None or not task.pod.spec.node_name:
            return
        doubt = self._doubts.pop(uid, None)
        if doubt is not None:
            await self._undone(replace(doubt.failure, unknown=False), doubt.calls)
        elif before in (None, Phase.PENDING, Phase.GATED):
            self._recover_later(task)

    def _recover_later(self, task: Task) -> None:
        """Another replica bound the pod, or a late request did: the plugins are told before the next session."""
        calls = self.profiles.get(task.pod.spec.scheduler_name)
        if calls is None:
            return
        problem = record_problem(task)
        if problem is not None:
            _log.warning(problem)
        for call in calls.functions("recover"):
            self._to_recover.setdefault(call, {})[task.uid] = task

    def _recover(self, failed: dict[str, PluginError]) -> None:
        """Tell the plugins what pods turned out to hold. A profile that fails is added, and told again next time."""
        for name, calls in self.profiles.items() if self._to_recover else ():
            for call in calls.functions("recover"):
                found = self._to_recover.get(call, {})
                tasks = [task for uid, task in found.items() if self.cache.tasks.get(uid) is task and task.node]
                error = failed.get(name) or (_failure(call, _holdings(tasks, call.plugin)) if tasks else None)
                if error is None:
                    self._to_recover.pop(call, None)
                else:
                    failed[name] = error

    async def _ended(self, task: Task, node: str | None) -> None:
        self._doubts.pop(task.uid, None)
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
        """One session for each profile over what is due; what was decided is bound before this returns.

        An error that nobody expected is raised at the end, when everything else is done and settled.
        """
        errors: list[BaseException] = []
        await _kept(self.settle_unknown(), errors)
        failed = self._tell_nodes()
        self._recover(failed)
        done: list[Bound] = []
        for name, calls in self.profiles.items():
            due = self._refuse_mixed(self._due(name))
            if due and name in failed:
                self._fail(due, failed[name])
            elif due:
                done.extend(await _kept(self._session(calls, due), errors) or ())
        _raise_first(errors)
        return done

    async def settle_unknown(self) -> None:
        """Ask again what became of binds whose answers were lost. Each cycle does it first.

        What the cluster still does not say stays as it is; an error that nobody expected is raised at the end.
        """
        doubts = list(self._doubts.values())
        answers = await asyncio.gather(*(self._binder.look(doubt.failure) for doubt in doubts), return_exceptions=True)
        for doubt, answer in zip(doubts, answers, strict=True):
            task = doubt.failure.task
            if isinstance(answer, BaseException) or (answer is not None and answer.unknown):
                continue
            if self._doubts.get(task.uid) is not doubt:  # an event has decided meanwhile
                continue
            del self._doubts[task.uid]
            if answer is None:
                task.phase = Phase.BOUND
            elif await self._undone(answer, doubt.calls):
                self._tell_failed(task.group, {task: answer.reason})
        _raise_first([answer for answer in answers if isinstance(answer, BaseException)])

    def _fail(self, groups: Iterable[Group], error: PluginError) -> None:
        self._record({group: Outcome(group, refusal=Refusal(str(error), error.plugin)) for group in groups})

    def _due(self, scheduler_name: str) -> tuple[Group, ...]:
        now = self.clock.now()
        waiting = self.cache.pending_groups(lambda group: self.pending.is_due(group.key, now))
        return tuple(group for group in waiting if schedulers_of(group)[0] == scheduler_name)

    def _refuse_mixed(self, due: tuple[Group, ...]) -> tuple[Group, ...]:
        """The groups without those whose pods name several schedulers: a session places its own profile's pods only."""
        mixed = [group for group in due if len(schedulers_of(group)) > 1]
        for group in mixed:
            names = " and ".join(schedulers_of(group))
            reason = f"{group.key}: its pods name different schedulers, {names}: give all of them one schedulerName"
            self._record({group: Outcome(group, refusal=Refusal(reason))})
        return tuple(group for group in due if group not in mixed)

    async def _session(self, calls: HookCalls, due: tuple[Group, ...]) -> list[Bound]:
        try:
            session = self.open_session(calls, due)
        except PluginError as error:
            self._fail(due, error)
            return []
        under_way: list[tuple[Decision, asyncio.Future[list[Failure]]]] = []
        try:
            for decision in self._decisions(session):
                under_way.append((decision, asyncio.ensure_future(self._binder.carry_out(decision, calls))))
                await asyncio.sleep(0)
        finally:
            done = await self._finish(session, under_way, calls)
        return done

    async def _finish(
        self, session: Session, under_way: Sequence[tuple[Decision, asyncio.Future[list[Failure]]]], calls: HookCalls
    ) -> list[Bound]:
        """Close the session, wait for what is under way and settle all of it; only then raise what nobody expected."""
        try:
            session.close()
        except PluginError as error:
            _log.error("session close failed", plugin=error.plugin, error=str(error))
        self._record(session.outcomes)
        answers = await asyncio.gather(*(future for _, future in under_way), return_exceptions=True)
        done: list[Bound] = []
        errors: list[BaseException] = []
        for (decision, _), answer in zip(under_way, answers, strict=True):
            failures = unexpected(decision, answer) if isinstance(answer, BaseException) else answer
            errors.extend(failure.error for failure in failures if failure.error is not None)
            done.append(await self._settle(decision, failures, calls))
        _raise_first(errors)
        return done

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
        """After the session: what was bound stands, what was not is pending again and its share is freed.

        What was evicted keeps its place until it has ended.
        """
        for task, node in decision.evicted.items():
            self.cache.occupy(task, node)
            task.phase = Phase.RELEASING if await self._binder.evict(task) else Phase.BOUND
        failed = {failure.task: failure.reason for failure in failures if await self._undone(failure, calls)}
        unknown = {
            failure.task: f"it is not known yet whether this was done: {failure.reason}"
            for failure in failures
            if failure.task.uid in self._doubts
        }
        bound = [task for task in decision.allocated if task not in failed and task not in unknown]
        for task in bound:
            if task.phase is Phase.ASSUMED:
                task.phase = Phase.BOUND
        if failed:
            self._tell_failed(decision.group, failed)
        self._note(decision.group, unknown)
        return Bound(decision, bound, failed, unknown)

    async def _undone(self, failure: Failure, calls: HookCalls) -> bool:
        """Whether the bind came to nothing: then the task is pending again and its share is free.

        Nothing is freed of a task that is bound as decided (its event came before the answer), or may be.
        """
        task = failure.task
        if self.cache.tasks.get(task.uid) is not task:
            return True  # its end has freed its share
        if task.phase is not Phase.ASSUMED and failure.landed(task.pod):
            return False
        if task.phase is Phase.ASSUMED and failure.unknown:
            self._doubts[task.uid] = _Doubt(failure, calls)
            return False
        self.cache.forget(task)
        await self._cancel(calls, task, failure.node)
        if task.node is not None:  # somebody else bound it
            self._recover_later(task)
        return True

    def _tell_failed(self, group: Group, reasons: Mapping[Task, str]) -> None:
        self.pending.failed(group.key, self.clock.now())
        self._note(group, reasons)

    def _note(self, group: Group, reasons: Mapping[Task, str]) -> None:
        """Let the group's last outcome tell what became of its placement."""
        if group.key in self.outcomes:
            self.outcomes[group.key].reasons.update(reasons)

    def _record(self, outcomes: Mapping[Group, Outcome]) -> None:
        now = self.clock.now()
        for group, outcome in outcomes.items():
            self.outcomes[group.key] = outcome
            if outcome.scheduled:
                self.pending.placed(group.key)
            else:
                self.pending.failed(group.key, now)


def _holdings(tasks: Iterable[Task], plugin: str) -> list[Holding]:
    return [holding_of(task, plugin) for task in tasks]


async def _kept(work: Coroutine[object, object, _T], errors: list[BaseException]) -> _T | None:
    """What the work answers; or None, its error being kept until everything else is done."""
    (answer,) = await asyncio.gather(work, return_exceptions=True)
    if isinstance(answer, BaseException):
        errors.append(answer)
        return None
    return answer


def _raise_first(errors: Sequence[BaseException]) -> None:
    for error in errors[1:]:
        _log.error("another error in the same cycle", exc_info=error)
    if errors:
        raise errors[0]


def _failure(call: HookCall, *arguments: object) -> PluginError | None:
    """Call a hook whose answer is of no interest; the error that it ended in, or None."""
    try:
        call(*arguments)
    except PluginError as error:
        return error
    return None
