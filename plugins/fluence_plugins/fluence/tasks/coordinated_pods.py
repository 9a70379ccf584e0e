"""The existing producers and consumers, by group, and the decision what to do with the consumers.

An event costs a check of its group only. The decision depends on the pods alone, needs no I/O, and does not depend on
earlier actions.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from fluence_plugins.resources.coordination import (
    DEPENDS_KIND,
    JOB_ID,
    PRODUCER,
    SUBMITTED,
    Group,
    group_of,
    is_answer,
    role_of,
    waits,
)
from session_scheduler.model.objects import Pod


class CoordinatedPods:
    """The pods as of their last events. `changed`: the groups with events since."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self.changed: dict[Group, None] = {}
        self._groups: dict[Group, dict[str, Pod]] = {}
        """The pods of each group, by uid."""
        self._group_by_uid: dict[str, Group] = {}
        self._waiting: dict[str, set[str]] = {}
        """By schedulerName: the uids of waiting consumers."""
        for pod in pods:
            self.put(pod)

    def __contains__(self, uid: str) -> bool:
        return uid in self._group_by_uid

    def put(self, pod: Pod) -> None:
        """Add or change a pod. One that is neither producer nor consumer (now) is left out."""
        self.drop(pod.metadata.uid)
        group = group_of(pod)
        if group is None:
            return
        uid = pod.metadata.uid
        self._groups.setdefault(group, {})[uid] = pod
        self._group_by_uid[uid] = group
        self.changed[group] = None
        if waits(pod):
            self._waiting.setdefault(pod.spec.scheduler_name, set()).add(uid)

    def drop(self, uid: str) -> None:
        """Remove a pod."""
        group = self._group_by_uid.pop(uid, None)
        if group is None:
            return
        pods = self._groups[group]
        name = pods.pop(uid).spec.scheduler_name
        if not pods:
            del self._groups[group]
        self.changed[group] = None
        there = self._waiting.get(name)
        if there is not None:
            there.discard(uid)
            if not there:
                del self._waiting[name]

    def is_now(self, pod: Pod) -> bool:
        """Whether this is the pod as of its last event."""
        uid = pod.metadata.uid
        return uid in self and self._groups[self._group_by_uid[uid]][uid] is pod

    def recheck(self, uids: Iterable[str]) -> None:
        """Treat these pods, if they exist, as changed."""
        self.changed |= {self._group_by_uid[uid]: None for uid in uids if uid in self}

    def all_changed(self) -> None:
        """Treat all pods as changed."""
        self.changed |= dict.fromkeys(self._groups)

    def any_waits(self, names: Container[str]) -> bool:
        """Whether a consumer of one of these schedulers waits."""
        return any(name in names for name in self._waiting)

    def of(self, groups: Iterable[Group]) -> Mapping[str, Pod]:
        """The pods of these groups, by uid."""
        return {uid: pod for group in groups for uid, pod in self._groups.get(group, {}).items()}


class GateActions(msgspec.Struct):
    """The actions to take. Each pod is in at most one of `open` and `delete`."""

    open: dict[str, tuple[Pod, Mapping[str, str | None]]] = msgspec.field(default_factory=dict)
    """By key: consumers whose gate to remove, with the annotations to set (None: to remove)."""
    delete: dict[str, Pod] = msgspec.field(default_factory=dict)
    """By key: consumers whose producer can no longer run."""
    waiting: dict[Group, list[Pod]] = msgspec.field(default_factory=dict)
    """Consumers that have no producer, and that no controller would delete; includes those in `delete`."""


def decide(pods: Iterable[Pod], overdue: Iterable[Group] = ()) -> GateActions:
    """Decide what to do with these pods. `overdue`: groups whose consumers had no producer for too long."""
    late = set(overdue)
    producers: dict[Group, list[Pod]] = {}
    consumers: dict[Group, list[Pod]] = {}
    for pod in sorted(pods, key=lambda one: one.key):
        group = group_of(pod)
        if group is not None:
            if role_of(pod) == PRODUCER:
                producers.setdefault(group, []).append(pod)
            elif waits(pod):
                consumers.setdefault(group, []).append(pod)
    actions = GateActions()
    for group, waiting in consumers.items():
        candidates = producers.get(group, [])
        first = {
            submits: next((one for one in candidates if _is_ready(one, submits)), None) for submits in (False, True)
        }
        for pod in waiting:
            ready = first[pod.metadata.annotations.get(DEPENDS_KIND) == SUBMITTED]
            if ready is not None:
                actions.open[pod.key] = (pod, annotations_from(ready, pod))
        orphaned = not any(_may_run(one) for one in candidates) and not group[2]
        left = [pod for pod in waiting if pod.key not in actions.open] if orphaned else []
        if left:
            actions.waiting[group] = left
        if group in late:
            actions.delete.update({pod.key: pod for pod in left})
    return actions


def waiting_consumers(pods: Iterable[Pod]) -> Iterable[Sequence[Pod]]:
    """The consumers behind the gate, by group."""
    found: dict[Group, list[Pod]] = {}
    for pod in pods:
        if waits(pod) and (group := group_of(pod)) is not None:
            found.setdefault(group, []).append(pod)
    return found.values()


def annotations_from(producer: Pod, consumer: Pod) -> dict[str, str | None]:
    """The annotations that pass a producer's backend, attributes and job to a consumer; None removes one."""
    given = producer.metadata.annotations
    found: dict[str, str | None] = {name: None for name in consumer.metadata.annotations if is_answer(name)}
    found |= {name: given[name] for name in sorted(given) if is_answer(name) and given[name]}
    return found


def _is_ready(producer: Pod, submits: bool) -> bool:
    """Whether consumers may start; `submits`: those that wait for a submission.

    A succeeded producer has run, and its annotations are final.
    """
    phase = producer.status.phase
    if phase == "Succeeded":
        return True
    if phase != "Running" or producer.metadata.deletion_timestamp is not None:
        return False
    return not submits or bool(producer.metadata.annotations.get(JOB_ID))


def _may_run(producer: Pod) -> bool:
    return producer.status.phase not in ("Succeeded", "Failed") and producer.metadata.deletion_timestamp is None
