"""Producers and consumers that there are, by group, and what there is to do for them.

An event costs a check of its own group, not of all of them. What there is to do is decided from pods alone, without
I/O, whatever was done before.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

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
    """The pods as their last events said. `changed` are the groups that had events since."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self.changed: dict[Group, None] = {}
        self._groups: dict[Group, dict[str, Pod]] = {}
        """By uid."""
        self._group_by_uid: dict[str, Group] = {}
        self._waiting: dict[str, set[str]] = {}
        """By schedulerName, the uids of consumers that wait."""
        for pod in pods:
            self.put(pod)

    def __contains__(self, uid: str) -> bool:
        return uid in self._group_by_uid

    def put(self, pod: Pod) -> None:
        """A pod came or changed. One that is neither producer nor consumer, or is not any more, is left out."""
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
        """A pod is gone."""
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
        """Whether the pod has had no event since it was so."""
        uid = pod.metadata.uid
        return uid in self and self._groups[self._group_by_uid[uid]][uid] is pod

    def recheck(self, uids: Iterable[str]) -> None:
        """As if these pods, if they are there, had had an event."""
        self.changed |= {self._group_by_uid[uid]: None for uid in uids if uid in self}

    def all_changed(self) -> None:
        """As if every pod had had an event."""
        self.changed |= dict.fromkeys(self._groups)

    def any_waits(self, names: Container[str]) -> bool:
        """Whether a consumer waits that is for one of these schedulers."""
        return any(name in names for name in self._waiting)

    def of(self, groups: Iterable[Group]) -> Mapping[str, Pod]:
        """The pods of these groups, by uid."""
        return {uid: pod for group in groups for uid, pod in self._groups.get(group, {}).items()}


@dataclass(slots=True)
class GateActions:
    """What is to be done now. Each pod is in one of the two, by name."""

    open: dict[str, tuple[Pod, Mapping[str, str | None]]] = field(default_factory=dict)
    """By key: consumers to be ungated, with the annotations that they get (None: none)."""
    delete: dict[str, Pod] = field(default_factory=dict)
    """By key: consumers whose producer is not to come any more."""
    waiting: dict[Group, list[Pod]] = field(default_factory=dict)
    """Consumers that nobody but us would end, and that are without a producer; those to be deleted, too."""


def decide(pods: Iterable[Pod], overdue: Iterable[Group] = ()) -> GateActions:
    """What there is to do of these pods, whatever was done before.

    `overdue`: groups whose consumers were without a producer for too long.
    """
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
                actions.open[pod.key] = (pod, told_by(ready, pod))
        orphaned = not any(_may_run(one) for one in candidates) and not group[2]
        left = [pod for pod in waiting if pod.key not in actions.open] if orphaned else []
        if left:
            actions.waiting[group] = left
        if group in late:
            actions.delete.update({pod.key: pod for pod in left})
    return actions


def told_by(producer: Pod, consumer: Pod) -> dict[str, str | None]:
    """The annotations by which a consumer learns its producer's backend, attributes and job; None removes one."""
    said = producer.metadata.annotations
    told: dict[str, str | None] = {name: None for name in consumer.metadata.annotations if is_answer(name)}
    told |= {name: said[name] for name in sorted(said) if is_answer(name) and said[name]}
    return told


def _is_ready(producer: Pod, submits: bool) -> bool:
    """Whether consumers may start; `submits`: those that wait for a submission.

    What has ended well has run, and says no more than it has said by then.
    """
    phase = producer.status.phase
    if phase == "Succeeded":
        return True
    if phase != "Running" or producer.metadata.deletion_timestamp is not None:
        return False
    return not submits or bool(producer.metadata.annotations.get(JOB_ID))


def _may_run(producer: Pod) -> bool:
    return producer.status.phase not in ("Succeeded", "Failed") and producer.metadata.deletion_timestamp is None
