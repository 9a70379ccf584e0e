"""PodGroups for groups by label, made by a task of the plugin's own: with one, a start survives a crash.

A made PodGroup is marked by a label and belongs to who made the pods, or to the pods themselves: the cluster's garbage
collector removes it after the last of these. One that somebody else made is never used, changed or removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import islice

from fluence_plugins.resources.coordination import PRODUCER, role_of
from fluence_plugins.resources.label_groups import members
from session_scheduler.errors import ChangedMeanwhileError, FluenceError
from session_scheduler.model.groups import Group
from session_scheduler.model.meta import ObjectMeta, OwnerReference
from session_scheduler.model.objects import GangPolicy, Pod, PodGroup, PodGroupSpec, SchedulingPolicy
from session_scheduler.sdk.bindings import Runtime
from session_scheduler.sdk.tasks import alongside

log = logging.getLogger("fluence")

MADE_LABEL = "app.kubernetes.io/managed-by"
MADE_BY = "fluence"
AGAIN_SECONDS = 5.0
"""After which a PodGroup that could not be made is tried again, if its group still waits for it."""
_MOST_OWNERS = 500
"""References that an object of bounded size has room for."""
_MOST_PROBLEMS = 1000


class PodGroupMaker:
    """What sessions ask for, made one after the other: sessions write nothing."""

    def __init__(self) -> None:
        self._wanted: dict[str, PodGroup] = {}
        """By the group's key."""
        self._problems: dict[str, str] = {}
        """Why what was wanted could not be made, by the group's key."""
        self._requested: asyncio.Event | None = None

    def why_waiting(self, group: Group) -> str | None:
        """Why the group must wait for its PodGroup, which is asked for by this; None where it need not, or has it."""
        name = f"PodGroup {group.namespace}/{group.name}"
        made = group.pod_group
        if made is None:
            if self._requested is None or (group.min_count < 2 and not _produces(group)):
                return None
            self._wanted[group.key] = pod_group_of(group)
            self._requested.set()
            return self._problems.get(group.key) or f"{name} is being made for it"
        if made.metadata.labels.get(MADE_LABEL) != MADE_BY:
            return f"{name} was not made by {MADE_BY}: rename it, or the group that the pods' label names"
        size = group.ref.min_count
        if made.min_count != max(1, size):
            return f"{name} was made for {made.min_count} pods, and its pods say {size}: delete it, and it is made anew"
        return None

    @asynccontextmanager
    async def serve(self, runtime: Runtime) -> AsyncGenerator[None]:
        """Make what is asked for, for as long as this is entered."""
        self._requested = asyncio.Event()
        try:
            async with alongside(self._run(runtime, self._requested)):
                yield
        finally:
            self._requested = None

    async def _run(self, runtime: Runtime, requested: asyncio.Event) -> None:
        while True:
            await requested.wait()
            requested.clear()
            while self._wanted:
                key, wanted = self._wanted.popitem()
                if runtime.elected:
                    await self._make(runtime, key, wanted)

    async def _make(self, runtime: Runtime, key: str, wanted: PodGroup) -> None:
        if runtime.cluster is None:
            return
        known = self._problems.pop(key, None)
        try:
            await runtime.cluster.create(wanted)
            log.info("[fluence] PodGroup %s: made for the pods that name it by label", wanted.key)
        except ChangedMeanwhileError:
            log.debug("[fluence] PodGroup %s: is there already", wanted.key)
        except FluenceError as error:
            if len(self._problems) >= _MOST_PROBLEMS:  # some of groups that are no more
                self._problems.clear()
            self._problems[key] = f"PodGroup {wanted.key} cannot be made for it (makePodGroups): {error}"
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._again, runtime, key)
            if known != self._problems[key]:
                log.warning("[fluence] %s", self._problems[key])
                runtime.wake(key, "its PodGroup cannot be made")

    def _again(self, runtime: Runtime, key: str) -> None:
        """Let the group ask for it anew, if there still is one."""
        if self._requested is not None:
            runtime.wake(key, "its PodGroup could not be made")


def pod_group_of(group: Group) -> PodGroup:
    """The PodGroup that says of a group by label what its pods do."""
    owners = {owner.uid: owner for pod in members(group) for owner in (_owner_of(pod),)}
    metadata = ObjectMeta(
        name=group.name,
        namespace=group.namespace,
        labels={MADE_LABEL: MADE_BY},
        owner_references=tuple(islice(owners.values(), _MOST_OWNERS)),
    )
    policy = SchedulingPolicy(gang=GangPolicy(min_count=group.ref.min_count))
    return PodGroup(metadata=metadata, spec=PodGroupSpec(scheduling_policy=policy))


def _produces(group: Group) -> bool:
    """Whether it is a producer's group: that has a PodGroup though it is one pod, for people to see."""
    return any(role_of(pod) == PRODUCER for pod in members(group))


def _owner_of(pod: Pod) -> OwnerReference:
    """Who made the pod, else the pod."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            return OwnerReference(api_version=owner.api_version, kind=owner.kind, name=owner.name, uid=owner.uid)
    return OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid)
