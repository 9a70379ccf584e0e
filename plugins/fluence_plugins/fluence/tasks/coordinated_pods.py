"""Producers and consumers that there are, by group: an event costs a look at its own group, not at all of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from fluence_plugins.resources.coordination import Group, group_of, waits
from session_scheduler.model.objects import Pod


class CoordinatedPods:
    """The pods as they were last heard of. `changed` are the groups of which something was heard since."""

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
        """Whether nothing was heard of the pod since it looked so."""
        uid = pod.metadata.uid
        return uid in self and self._groups[self._group_by_uid[uid]][uid] is pod

    def recheck(self, uids: Iterable[str]) -> None:
        """As if something had been heard of these pods, if they are there."""
        self.changed |= {self._group_by_uid[uid]: None for uid in uids if uid in self}

    def all_changed(self) -> None:
        """As if something had been heard of every pod."""
        self.changed |= dict.fromkeys(self._groups)

    def any_waits(self, names: Container[str]) -> bool:
        """Whether a consumer waits that is for one of these schedulers."""
        return any(name in names for name in self._waiting)

    def of(self, groups: Iterable[Group]) -> Mapping[str, Pod]:
        """The pods of these groups, by uid."""
        return {uid: pod for group in groups for uid, pod in self._groups.get(group, {}).items()}
