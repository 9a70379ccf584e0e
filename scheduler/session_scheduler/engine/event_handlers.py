"""Event handlers: update the cache with each watched object, and requeue the groups that the change may help.

The mirror delivers watch events to the loop, which passes them to `EventHandlers.apply` one by one, between sessions.
`Requeuer` compares an object before (`known`) and after (`changed`) the update of the cache. It requeues an
unschedulable group if its own pods or its PodGroup changed, or if the queueing hints of a plugin that rejected it
(`events_to_register`) match the change.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import call as call_with
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from session_scheduler.base.clock import Clock
from session_scheduler.binding.binder import Binder
from session_scheduler.engine.completion import BindCompletion
from session_scheduler.engine.gang_starts import GangStarts
from session_scheduler.engine.plugin_sync import PluginSync
from session_scheduler.engine.preemption_executor import PreemptionExecutor
from session_scheduler.framework.hooks import HookCall, HookCalls, PluginError
from session_scheduler.framework.observer import Observer
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.events import EVERY_EVENT, ActionType, ClusterEvent, ClusterEventWithHint, RequiredFree
from session_scheduler.model.gang_plan import PLAN_ANNOTATION
from session_scheduler.model.groups import Group, GroupRef, Phase, Task
from session_scheduler.model.object_changes import ADD, DELETE, OTHER, node_actions, object_actions, pod_actions
from session_scheduler.model.objects import KubeObject, Node, ObjectMeta, Pod, PodGroup, PriorityClass
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.refusals import Gate
from session_scheduler.model.related import Namespace, RelatedObject
from session_scheduler.model.sub_groups import SUB_GROUP_LABEL
from session_scheduler.state.cache import Cache, pod_group_key, schedulers_of
from session_scheduler.state.scheduling_queue import GANG_SCHEDULING, TOPOLOGY_PLACEMENT, Hints, SchedulingQueue

_log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class EventHandlers:
    """Applies watch events to the cache, the queue and the work in flight."""

    cache: Cache
    queue: SchedulingQueue
    requeuer: Requeuer
    observer: Observer
    binder: Binder
    completion: BindCompletion
    gang_starts: GangStarts
    preemption: PreemptionExecutor
    plugin_sync: PluginSync
    _reported: dict[str, str] = field(default_factory=dict, init=False)
    """By uid: the reported problems of nodes and bound pods."""

    async def apply(self, change: str, obj: KubeObject) -> None:
        """Handle a watch event (ADDED, MODIFIED or DELETED): update the cache, free resources, requeue groups."""
        known, gone = self.requeuer.known(obj), change == "DELETED"
        if gone:
            self._reported.pop(obj.metadata.uid, None)
            self.cache.remove(obj)
        else:
            self.ingest(obj)
        if isinstance(obj, Pod):
            await self._follow_pod(obj, known, gone=gone)
        elif gone and isinstance(obj, Node) and self.cache.nominations.node_by_uid:
            self.preemption.node_gone(obj.metadata.name)
        self.requeuer.changed(obj, known, gone=gone)

    async def _follow_pod(self, pod: Pod, known: _KnownPod | None, *, gone: bool) -> None:
        """Apply a pod's change to its group, its bind and its preemptors."""
        task = self.cache.tasks.get(pod.metadata.uid)
        if known is not None and (key := known.ref.key) not in self.cache.groups:
            self.queue.placed(key)
            self.completion.outcomes.pop(key, None)
            if self.cache.serves(known.pod):
                self.gang_starts.ended(key, self.cache.pod_group(key))
        if gone or pod.metadata.deletion_timestamp is not None:
            self.binder.ends(pod.metadata.uid)
        if task is None and known is not None:
            if known.phase in (Phase.BOUND, Phase.RELEASING):
                self.gang_starts.lost(known.task, succeeded=pod.status.phase == "Succeeded")
            self.preemption.ended(pod.metadata.uid)
            await self.completion.pod_ended(known.task, known.node)
        elif task is not None and task.pod.spec.node_name:
            phase = known.phase if known is not None else None
            if phase not in (Phase.BOUND, Phase.RELEASING):
                await self.completion.pod_bound(task, phase)

    def absorb(self, change: str, obj: KubeObject) -> None:
        """Update the cache alone, while another replica leads: requeue and report nothing."""
        if isinstance(obj, Pod):
            self.plugin_sync.changed(obj.metadata.uid)
        if change == "DELETED":
            self.cache.remove(obj)
        else:
            self.cache.put(obj)

    def ingest(self, obj: KubeObject) -> None:
        """Add or update an object in the cache, and report its problem."""
        self.cache.put(obj)
        self.report_problem(obj)

    def report_problem(self, obj: KubeObject) -> None:
        """Report the problem of a node or a bound pod in the cache, once. A session reports those of unbound pods."""
        if not isinstance(obj, Node | Pod) or (isinstance(obj, Pod) and not obj.spec.node_name):
            return
        problem = self.cache.problems.get(f"{type(obj).__name__} {obj.key}")
        if problem is None:
            self._reported.pop(obj.metadata.uid, None)
        elif self._reported.get(obj.metadata.uid) != problem:
            self._reported[obj.metadata.uid] = problem
            self.observer.wrong(obj, f"{problem}: {_consequence(obj)}")

    def failed(self, obj: KubeObject, error: Exception) -> None:
        """The handler of an object's event raised an unexpected error."""
        _log.error("an event handler failed", kind=type(obj).__name__, name=obj.key, exc_info=error)
        self.observer.wrong(obj, f"ignoring the object: {type(error).__name__}: {error}")


def _consequence(obj: Node | Pod) -> str:
    if isinstance(obj, Node):
        return "the scheduler places no pods on this node"
    return "the scheduler places no more pods on its node" if obj.unreadable else "the scheduler ignores it"


# ------------------------------------------------------------------ requeues


class _KnownPod(msgspec.Struct, frozen=True):
    """A pod in the cache before a change."""

    task: Task
    pod: Pod
    cls: TaskClass
    group: Group
    ref: GroupRef
    phase: Phase
    priority: int
    node: str | None


@dataclass(eq=False, repr=False)
class Requeuer:
    """Requeues groups after changes of the cache."""

    cache: Cache
    queue: SchedulingQueue
    clock: Clock

    def back_off(self, key: str) -> None:
        """Put a group (its key) into backoff after a failure, if it still exists."""
        group = self.cache.groups.get(key)
        if group is not None:
            group.queued = self.clock.now()
            group.failed_attempts += 1
            self.queue.failed(key, group.queued)

    def ingest_written(self, pod_group: PodGroup) -> None:
        """Update the cache with a written PodGroup, unless events brought a later state, or another PodGroup.

        Changes by other clients requeue groups now: their event will show no change.
        """
        known = self.cache.pod_group(pod_group_key(pod_group))
        if known is not None and known.metadata.uid == pod_group.metadata.uid and not _is_older(pod_group, known):
            self.cache.put(pod_group)
            self.changed(pod_group, known, gone=False)

    # ------------------------------------------------------------------ changes

    def known(self, obj: KubeObject) -> Any:
        """The cached object before a change, for `changed`."""
        if isinstance(obj, Pod):
            task = self.cache.tasks.get(obj.metadata.uid)
            if task is None:
                return None
            ref, node = task.group.ref, task.node
            return _KnownPod(task, task.pod, task.cls, task.group, ref, task.phase, task.priority, node)
        if isinstance(obj, PodGroup):
            return self.cache.pod_group(pod_group_key(obj))
        if not self.queue.wants(type(obj)):
            return None
        if isinstance(obj, Node):
            return self.cache.node(obj.metadata.name)
        if isinstance(obj, RelatedObject):
            return self.cache.view.known(obj)
        return self.cache.objects.of(type(obj)).get(obj.key)

    def changed(self, obj: KubeObject, known: Any, *, gone: bool) -> None:
        """The cache was updated; `known` is the result of `known` before that."""
        self._changed(obj, known, gone=gone)
        if self.cache.nominations.ended:
            self.release_nominations()

    def _changed(self, obj: KubeObject, known: Any, *, gone: bool) -> None:
        if isinstance(obj, Pod):
            self._pod_changed(obj, known)
            return
        if isinstance(obj, PodGroup):
            self._pod_group_changed(obj, known, gone)
        elif isinstance(obj, PriorityClass):
            self.queue.changed_order()
        wanted = self.queue.wants(type(obj))
        if not wanted:
            return
        old, new = known, None if gone else obj
        if isinstance(obj, RelatedObject):
            if known == self.cache.view.known(obj):
                return
            old = _before_change(obj, known)
        elif isinstance(obj, Node):
            new = self.cache.node(obj.metadata.name)
        action = _actions(old, new) & wanted
        if action:
            self.queue.happened(self._event(type(obj), action, old, new))

    # ------------------------------------------------------------------ pods

    def _pod_changed(self, pod: Pod, known: _KnownPod | None) -> None:
        task = self.cache.tasks.get(pod.metadata.uid)
        self._group_changed(task, known)
        group = task.group if task is not None else known.group if known is not None else None
        if group is not None and not group.single:
            self.queue.changed_order(group.key)
        wanted = self.queue.wants(Pod)
        if not wanted:
            return
        was, stays = known is not None and known.node is not None, task is not None and bool(task.pod.spec.node_name)
        if task is None:
            if known is not None and was and wanted & DELETE:
                also = _protected(known.task, known.group, assumed=known.phase is Phase.ASSUMED)
                self.queue.happened(self._gone(known.pod, known.cls, known.node or ""), also=also)
            elif known is not None and not was and self.cache.queues.active and self.queue.wants(Queue) & OTHER:
                # the queue's pending resources changed, and so the fair shares
                self.queue.happened(self._event(Queue, OTHER, None, None))
        elif stays and (known is None or not known.pod.spec.node_name):
            if wanted & ADD:
                self.queue.happened(self._event(Pod, ADD, None, task.pod, old_class=None, new_class=task.cls))
        elif stays and known is not None:
            action = pod_actions(known.pod, task.pod, known.cls, task.cls) & wanted
            if action:
                self.queue.happened(self._pod_event(action, known, task))

    def _gone(self, pod: Pod, cls: TaskClass, node: str) -> ClusterEvent:
        return self._event(Pod, DELETE, pod, None, node=node, old_class=cls, new_class=None)

    def _pod_event(self, action: int, known: _KnownPod, task: Task, *, own: bool = False) -> ClusterEvent:
        return self._event(Pod, action, known.pod, task.pod, old_class=known.cls, new_class=task.cls, own=own)

    def _event(self, kind: type[KubeObject], action: int, old: Any, new: Any, **of_pods: Any) -> ClusterEvent:
        cache = self.cache
        return ClusterEvent(
            kind, action, old, new, **of_pods, view=cache.view, terms=cache.table.terms, objects=cache.objects.of
        )

    def release_nominations(self) -> None:
        """Requeue the groups that yielded to pods which are not nominated any more."""
        for task, node in self.cache.nominations.drain_ended():
            if node in self.cache.table.row_of and self.queue.wants(Pod) & DELETE:
                event = self._gone(task.pod, task.cls, node)
                self.queue.happened_to(task.group.key, event)  # whatever is free: it may need other victims
                self.queue.changed_order(task.group.key)
                self.queue.happened(event, partial(self._yielded, task.standing))

    def _yielded(self, standing: int, key: str) -> bool:
        """Whether a group has an unbound pod that yields to nominated ones of this standing."""
        group = self.cache.groups.get(key)
        tasks = group.tasks.values() if group is not None else ()
        any_priority = self.cache.queues.active  # then pods of other queues yield, whatever their priority
        return any(task.node is None and (any_priority or task.preemptor_priority <= standing) for task in tasks)

    def freed(self, task: Task, node: str) -> None:
        """An assumed task was not bound: its resources on the node are free."""
        if self.queue.wants(Pod) & DELETE:
            event = self._gone(task.pod, task.cls, node)
            self.queue.happened(event, also=_protected(task, task.group, assumed=True))

    def _group_changed(self, task: Task | None, known: _KnownPod | None) -> None:
        """Requeue the pod's own group if the change affects its placement."""
        if known is None:
            if task is not None:
                self._pod_added(task)
        elif task is None:
            self._pod_removed(known)
        elif task.group is not known.group or task.group.ref != known.ref:
            self._pod_added(task)
            self._pod_removed(known)
        elif task.phase is not known.phase:
            if (
                task.phase is Phase.PENDING or known.node is None
            ):  # ungated, bound by another scheduler, or being deleted
                self.queue.requeue(task.group.key, "UnschedulablePodUpdate")
        elif task.node is None:
            self._own_change(task, known)

    def _pod_added(self, task: Task) -> None:
        """The group has a new pod. A bound one matters to gangs and topology constraints only."""
        group = task.group
        if all(other is task or other.phase in (Phase.BOUND, Phase.RELEASING) for other in group.tasks.values()):
            group.entered = self.clock.now()
        if len(group.tasks) == 1:
            group.queued = self.clock.now()
        if task.phase is Phase.PENDING or _together(group):
            self.queue.requeue(group.key, "UnschedulablePodAdd")

    def _pod_removed(self, known: _KnownPod) -> None:
        """The group lost a pod: that matters to gangs, topology constraints, and mixed schedulerNames."""
        if _together(known.group) or known.pod.spec.scheduler_name not in schedulers_of(known.group):
            self.queue.requeue(known.group.key, "UnschedulablePodDelete")

    def _own_change(self, task: Task, known: _KnownPod) -> None:
        if not self.queue.is_unschedulable(task.group.key):
            return
        if task.priority != known.priority or _changes_sub_group(task, known.pod):
            self.queue.requeue(task.group.key, "UnschedulablePodUpdate")
            return
        action = pod_actions(known.pod, task.pod, known.cls, task.cls)
        if action == OTHER and task.cls is not known.cls:  # a plugin's class key changed
            self.queue.requeue(task.group.key, "UnschedulablePodUpdate")
        elif action:
            self.queue.happened_to(task.group.key, self._pod_event(action, known, task, own=True))

    # ------------------------------------------------------------------ groups

    def _pod_group_changed(self, pod_group: PodGroup, known: PodGroup | None, gone: bool) -> None:
        if gone or known is None or not _same(known, pod_group):
            action = "Delete" if gone else "Add" if known is None else "Update"
            self.queue.requeue_now(pod_group_key(pod_group), self.clock.now(), f"PodGroup{action}")


def _protected(task: Task, group: Group, *, assumed: bool) -> Iterator[str]:
    """The nodes of the members that a task which left its node may have protected from preemption.

    Those are members of lower priority, and all of them if it was assumed: see `units_of`.
    """
    for other in group.in_phase(Phase.BOUND, Phase.RELEASING) if not group.single else ():
        if other.node is not None and (assumed or other.standing < task.standing):
            yield other.node


def _together(group: Group) -> bool:
    """Whether the placement of a pod depends on the other pods of its group."""
    return group.is_gang or group.topology_key is not None


def _changes_sub_group(task: Task, old: Pod) -> bool:
    """Whether a pod changed its sub-group."""
    labels, before = task.pod.metadata.labels, old.metadata.labels
    return bool(task.group.minima) and labels.get(SUB_GROUP_LABEL) != before.get(SUB_GROUP_LABEL)


def _same(old: PodGroup, new: PodGroup) -> bool:
    """Whether nothing changed that affects placement: conditions and the plan do not.

    Any other annotation may, since plugins read annotations.
    """
    before, now = old.metadata, new.metadata
    same = old.spec == new.spec and before.labels == now.labels and _annotations(before) == _annotations(now)
    return same and (before.deletion_timestamp is None) == (now.deletion_timestamp is None)


def _is_older(pod_group: PodGroup, known: PodGroup) -> bool:
    """Whether a PodGroup is older than another. resourceVersions are growing numbers (KEP-5504)."""
    versions = pod_group.metadata.resource_version, known.metadata.resource_version
    return all(version.isdecimal() for version in versions) and int(versions[0]) < int(versions[1])


def _annotations(metadata: ObjectMeta) -> Mapping[str, str]:
    """The annotations without the scheduler's own."""
    return {name: value for name, value in metadata.annotations.items() if name != PLAN_ANNOTATION}


def _before_change(obj: RelatedObject, known: object) -> RelatedObject | None:
    """A related object before its change; only a namespace's labels are known."""
    if known is None or not isinstance(obj, Namespace):
        return None if known is None else obj
    return replace(obj, metadata=replace(obj.metadata, labels=known))


def _actions(old: KubeObject | None, new: KubeObject | None) -> int:
    if old is None or new is None:
        return ADD if new is not None else DELETE if old is not None else 0
    if isinstance(old, Node) and isinstance(new, Node):
        return node_actions(old, new)
    if isinstance(old, PodGroup) and isinstance(new, PodGroup):
        return 0 if _same(old, new) else OTHER
    return OTHER if isinstance(new, RelatedObject | PriorityClass) else object_actions(old, new)


# ------------------------------------------------------------------ queueing hints


def registered_hints(profiles: Mapping[str, HookCalls], *, by_capacity: bool = True) -> Hints:
    """The queueing hints of each profile's plugins; every event for a plugin without any. Raises PluginError.

    Without `by_capacity` they need not find anything free on an event's node: its pods could move elsewhere.
    """
    domains = ClusterEventWithHint(Node, ActionType.ADD | ActionType.DELETE | ActionType.UPDATE_NODE_LABEL)
    found: dict[tuple[str, str], Sequence[ClusterEventWithHint]] = {}
    for profile in profiles:
        found[profile, GANG_SCHEDULING] = ()
        found[profile, TOPOLOGY_PLACEMENT] = (domains,)
    for profile, calls in profiles.items():
        asked = calls.hooks["queueing_hint"] = []  # shows its times with the other hooks
        for call in calls.functions("events_to_register"):
            hints = calls.class_call(call.plugin)(call.plugin, "queueing_hint", call_with, call.budget)
            asked.append(hints)
            known: dict[RequiredFree, RequiredFree] = {}
            events = _asked(call)
            if not by_capacity:
                events = [ClusterEventWithHint(event.resource, event.action, event.hint) for event in events]
            found[profile, call.plugin] = tuple(_guarded(hints, event, known) for event in events)
    return found.get


def _asked(call: HookCall) -> Sequence[ClusterEventWithHint]:
    answer = call()
    events = call.guarded(tuple, answer) if answer is not None else EVERY_EVENT
    for event in events:
        if not isinstance(event, ClusterEventWithHint):
            raise call.wrong(f"expected a ClusterEventWithHint, got {event!r}")
    return events


def _guarded(
    hints: HookCall, event: ClusterEventWithHint, known: dict[RequiredFree, RequiredFree]
) -> ClusterEventWithHint:
    """The event with timed functions; one that fails requeues, so that no group is forgotten.

    `known` has the timed `required_free` of the plugin's events so far: of one function there is one.
    """
    hint, required = event.hint, event.required_free
    if required is not None and required not in known:
        known[required] = _guarded_required(hints, required)

    def ask(cls: TaskClass, change: ClusterEvent) -> bool:
        try:
            return bool(hints(hint, cls, change))
        except PluginError:
            return True

    timed = None if required is None else known[required]
    return ClusterEventWithHint(event.resource, event.action, None if hint is None else ask, timed)


def _guarded_required(hints: HookCall, required: RequiredFree) -> RequiredFree:
    def ask(cls: TaskClass) -> Mapping[str, int]:
        try:
            return hints.guarded(_amounts, hints(required, cls))
        except PluginError:
            return {}

    return ask


def _amounts(answer: Any) -> dict[str, int]:
    return {str(name): operator.index(amount) for name, amount in dict(answer).items()}


# ------------------------------------------------------------------ gates


def gates_of(
    profiles: Mapping[str, HookCalls], objects: Callable[[type[Any]], Mapping[str, Any]]
) -> Callable[[Pod], Gate | None]:
    """The hook `pre_enqueue` of a pod's profile: the first gate of a plugin, or None."""
    asked = {profile: tuple(calls.functions("pre_enqueue")) for profile, calls in profiles.items()}

    def ask(pod: Pod) -> Gate | None:
        for call in asked.get(pod.spec.scheduler_name, ()):
            try:
                gate = call(pod, objects)
                if gate is None:
                    continue
                if not isinstance(gate, Gate) or not isinstance(gate.reason, str):
                    raise call.wrong(f"expected a Gate with a string, or None, got {gate!r}")
            except PluginError as error:
                _log.error("pre_enqueue failed", pod=pod.key, plugin=error.plugin, error=str(error))
                return Gate(str(error), plugin=error.plugin)
            return Gate(gate.reason, gate.awaits, call.plugin)
        return None

    return ask
