"""The task that creates PodGroups for groups by label: with a PodGroup, the start of a gang survives a crash.

A created PodGroup has a label, and the controller of the pods, or each pod, as its owner, so the cluster's garbage
collector deletes it after the last of these. The task never uses, changes or deletes a PodGroup of another creator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import islice

from fluence_plugins.resources.coordination import PRODUCER, role_of
from fluence_plugins.resources.label_groups import MADE_BY, MADE_LABEL, MADE_PREFIX, group_of, members
from fluence_plugins.resources.names import ANNOTATION_PREFIX
from session_scheduler.errors import ChangedMeanwhileError, FluenceError
from session_scheduler.model.groups import Group
from session_scheduler.model.meta import ObjectMeta, OwnerReference
from session_scheduler.model.objects import GangPolicy, Pod, PodGroup, PodGroupSpec, SchedulingPolicy
from session_scheduler.sdk.bindings import Runtime
from session_scheduler.sdk.cluster import Cluster
from session_scheduler.sdk.dynamic_client import NotFound
from session_scheduler.sdk.tasks import alongside

log = logging.getLogger("fluence")

CREATED_BY, GO_WEBHOOK = ANNOTATION_PREFIX + "created-by", "fluence-webhook"
"""The annotation, and its value, of PodGroups that the Go version's webhook created."""
AGAIN_SECONDS = 5.0
"""The delay of the retry for a PodGroup, if its group still waits for it."""
_MOST_OWNERS = 500
"""The maximum number of owner references: the size of an object is limited."""
_MOST_PROBLEMS = 1000


class PodGroupMaker:
    """Creates the requested PodGroups one after the other; sessions only request them, because they write nothing."""

    def __init__(self, *, compatible: bool = False) -> None:
        """`compatible`: with the Go version's PodGroups, which have the groups' names and exist for consumers, too."""
        self.prefix = "" if compatible else MADE_PREFIX
        """Prepended to a group's name to form the PodGroup's."""
        self._compatible = compatible
        self._wanted: dict[str, PodGroup] = {}
        """By the group's key."""
        self._problems: dict[str, str] = {}
        """By the group's key: why its PodGroup could not be created."""
        self._requested: asyncio.Event | None = None

    def why_waiting(self, group: Group) -> str | None:
        """Request the PodGroup of a group. Returns why the group must wait; None if it need not."""
        name = f"PodGroup {group.namespace}/{group.name}"
        made = group.pod_group
        if made is None:
            if self._requested is None or (group.min_count < 2 and not _produces(group)):
                return None
            self._request(pod_group_of(group.namespace, group.name, group.ref.min_count, members(group)))
            return self._problems.get(group.key) or f"waiting for {name} to be created"
        if self._compatible and made.metadata.annotations.get(CREATED_BY) == GO_WEBHOOK:
            return None  # its pods do not all have the annotation with the size
        if made.metadata.labels.get(MADE_LABEL) != MADE_BY:
            return f"{name} was not created by {MADE_BY}; rename it, or the group in the pods' label"
        size = group.ref.min_count
        if self._compatible and not made.metadata.owner_references:  # the webhook created it before the pod
            self._request(pod_group_of(group.namespace, group.name, size, members(group)))
        if made.min_count != max(1, size):
            return (
                f"{name} was created for {made.min_count} pods, but the size of its group is now {size}; delete the "
                "PodGroup; the scheduler creates it again"
            )
        return None

    def request_consumers(self, consumers: Sequence[Pod]) -> None:
        """Request the PodGroup of consumers that still wait, if all are there."""
        ref = group_of(consumers[0], self.prefix)
        if ref is not None and len(consumers) >= ref.min_count and self._requested is not None:
            self._request(pod_group_of(ref.namespace, ref.name, ref.min_count, consumers))

    def _request(self, pod_group: PodGroup) -> None:
        self._wanted[f"PodGroup {pod_group.key}"] = pod_group
        if self._requested is not None:
            self._requested.set()

    @asynccontextmanager
    async def serve(self, runtime: Runtime) -> AsyncGenerator[None]:
        """Run the task while the context is entered."""
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
            if self._compatible and await _given_to(wanted, runtime.cluster):
                return
            await runtime.cluster.create(wanted)
            log.info("[fluence] PodGroup %s: created for the pods with its label", wanted.key)
        except ChangedMeanwhileError:
            log.debug("[fluence] PodGroup %s: already exists", wanted.key)
        except FluenceError as error:
            if len(self._problems) >= _MOST_PROBLEMS:  # some are of deleted groups
                self._problems.clear()
            self._problems[key] = f"cannot create PodGroup {wanted.key} (makePodGroups): {error}"
            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._again, runtime, key)
            if known != self._problems[key]:
                log.warning("[fluence] %s", self._problems[key])
                runtime.wake(key, "its PodGroup cannot be created")

    def _again(self, runtime: Runtime, key: str) -> None:
        """Requeue the group, which requests its PodGroup again if it still exists."""
        if self._requested is not None:
            runtime.wake(key, "creation of its PodGroup is retried")


async def _given_to(wanted: PodGroup, cluster: Cluster) -> bool:
    """Whether the PodGroup exists. If the webhook created it, which knows no owners, it gets them, so that it ends."""
    try:
        found = await cluster.get(PodGroup, wanted.metadata.namespace, wanted.metadata.name)
    except NotFound:
        return False
    metadata = found.metadata
    if metadata.labels.get(MADE_LABEL) == MADE_BY and not metadata.owner_references:
        owners, version = wanted.metadata.owner_references, metadata.resource_version
        await cluster.patch_metadata(found, owner_references=owners, resource_version=version)
    return True


def pod_group_of(namespace: str, name: str, min_count: int, pods: Iterable[Pod]) -> PodGroup:
    """The PodGroup for a group by label, owned by its pods' controllers."""
    owners = {owner.uid: owner for pod in pods for owner in (_owner_of(pod),)}
    metadata = ObjectMeta(
        name=name,
        namespace=namespace,
        labels={MADE_LABEL: MADE_BY},
        owner_references=tuple(islice(owners.values(), _MOST_OWNERS)),
    )
    policy = SchedulingPolicy(gang=GangPolicy(min_count=min_count))
    return PodGroup(metadata=metadata, spec=PodGroupSpec(scheduling_policy=policy))


def _produces(group: Group) -> bool:
    """Whether it is the group of a producer, which gets a PodGroup even for one pod, to show its state."""
    return any(role_of(pod) == PRODUCER for pod in members(group))


def _owner_of(pod: Pod) -> OwnerReference:
    """The controller of the pod, or the pod itself if it has none."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            return OwnerReference(api_version=owner.api_version, kind=owner.kind, name=owner.name, uid=owner.uid)
    return OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid)
