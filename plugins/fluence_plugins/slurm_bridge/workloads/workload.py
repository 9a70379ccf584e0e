"""Finds a pod's root workload: the object with the annotations and the number of pods that start together.

All reads go through the protocol `Workloads`, so this module needs no cluster.
Source: slurm-bridge 1.2.1, internal/utils/slurmjobir/owner.go; the APIs of Job, JobSet, LeaderWorkerSet and PodGroup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from session_scheduler.errors import FluenceError
from session_scheduler.model.group_api import COSCHEDULING, V1ALPHA2
from session_scheduler.model.meta import ObjectMeta, OwnerReference
from session_scheduler.model.objects import Pod

DEPTH: Final = 32
"""The maximum number of owners between a pod and its root."""
POD_GROUP_LABEL: Final = "scheduling.k8s.io/pod-group"
COSCHEDULING_LABEL: Final = "scheduling.x-k8s.io/pod-group"
LWS_LABEL: Final = "leaderworkerset.sigs.k8s.io/"
JOBSET_NAME_LABEL: Final = "jobset.sigs.k8s.io/jobset-name"

Kind = tuple[str, str]
"""API group and kind; all versions of an API are one kind."""
POD: Final[Kind] = ("", "Pod")
JOB: Final[Kind] = ("batch", "Job")
JOB_SET: Final[Kind] = ("jobset.x-k8s.io", "JobSet")
LEADER_WORKER_SET: Final[Kind] = ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
NATIVE: Final[Kind] = ("scheduling.k8s.io", "PodGroup")
COSCHEDULED: Final[Kind] = ("scheduling.x-k8s.io", "PodGroup")
STATEFUL_SET: Final[Kind] = ("apps", "StatefulSet")
WORKLOAD: Final[Kind] = ("scheduling.k8s.io", "Workload")
REPLICA_SET: Final[Kind] = ("apps", "ReplicaSet")

_KNOWN: Final = frozenset({JOB, JOB_SET, LEADER_WORKER_SET, NATIVE, COSCHEDULED})
"""Owners that can be a pod's root."""
_BETWEEN: Final = frozenset({STATEFUL_SET, REPLICA_SET, POD})
"""Owners that are not a root, but may have one: a LeaderWorkerSet's worker has the leader and its
StatefulSet above it.
"""


class TranslationError(FluenceError):
    """A workload cannot be translated into a Slurm job, or cannot be read. The message names the
    object and the remedy.
    """


class NotAllowedError(TranslationError):
    """The API server does not allow the scheduler to read an object."""


def kind_of(api_version: str, kind: str) -> Kind:
    """The kind of an object, or of a reference to one."""
    group, slash, _ = api_version.partition("/")
    return (group if slash else "", kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An object that owns pods, of any API; a field that its API does not have is None."""

    api_version: str
    kind: str
    metadata: ObjectMeta
    parallelism: int | None = None
    """Of a Job."""
    completions: int | None = None
    """Of a Job."""
    active_deadline_seconds: int | None = None
    """Of a Job."""
    size: int | None = None
    """For a LeaderWorkerSet: the pods of one group, including the leader."""
    startup_policy: str = ""
    """Of a LeaderWorkerSet: LeaderCreated or LeaderReady."""
    min_count: int | None = None
    """Of a PodGroup."""
    part: Workload | None = None
    """For a JobSet that is a pod's root: the Job between the two."""
    template: str = ""
    """For a native PodGroup: the name of the Workload that it was created from."""
    above: tuple[Workload, ...] = ()
    """For a native PodGroup that is a pod's root: the objects whose annotations override its own, the first of them
    first.

    They are the Workload that the group was created from, and the pod's highest known owner.
    """

    @property
    def of_kind(self) -> Kind:
        """The API group and kind of the workload."""
        return kind_of(self.api_version, self.kind)

    def __str__(self) -> str:
        return f"{self.kind} {self.metadata.namespace}/{self.metadata.name}"


class Workloads(Protocol):
    """Reads workloads by name. A version of an API may stand in for another version."""

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Workload | None:
        """The current object; None if the object or its API does not exist. Raises NotAllowedError."""


def workload_of(pod: Pod) -> Workload:
    """The pod as its own root."""
    return Workload(api_version="v1", kind="Pod", metadata=pod.metadata)


def controller(owners: Sequence[OwnerReference]) -> OwnerReference | None:
    """The owner that controls an object, if any."""
    return next((owner for owner in owners if owner.controller), None)


def native_group(pod: Pod) -> str:
    """The PodGroup that the pod names through Kubernetes' own API; empty if there is none."""
    named = pod.spec.scheduling_group
    return (named.pod_group_name if named else "") or pod.metadata.labels.get(POD_GROUP_LABEL, "")


async def root_of(pod: Pod, workloads: Workloads) -> Workload:
    """The pod's root: the PodGroup that it names, else its highest known owner, else the pod itself.

    Raises TranslationError if an object in this chain is gone, was replaced by another one of the same name, or cannot
    be read.
    """
    if name := native_group(pod):
        group = await _pod_group(pod, name, (V1ALPHA2.api_version,), workloads)
        above = [await _template(group, workloads), await _highest(pod, workloads)]
        return replace(group, above=tuple(one for one in above if one is not None))
    if name := pod.metadata.labels.get(COSCHEDULING_LABEL, ""):
        return await _pod_group(pod, name, (COSCHEDULING.api_version, V1ALPHA2.api_version), workloads)
    return await _highest(pod, workloads) or workload_of(pod)


async def _pod_group(pod: Pod, name: str, api_versions: Sequence[str], workloads: Workloads) -> Workload:
    """Read the group from the first API that has it: like in the core, a coscheduling label may name a native group."""
    for api_version in api_versions:
        if (found := await workloads.get(api_version, "PodGroup", pod.metadata.namespace, name)) is not None:
            return found
    raise TranslationError(
        f"Pod {pod.key}: PodGroup {pod.metadata.namespace}/{name} does not exist; "
        "create it, or remove its name from the pod"
    )


async def _template(group: Workload, workloads: Workloads) -> Workload | None:
    """The Workload that a native group was created from; None if it is gone."""
    if not group.template or group.of_kind != NATIVE:
        return None
    return await workloads.get(group.api_version, WORKLOAD[1], group.metadata.namespace, group.template)


async def _highest(pod: Pod, workloads: Workloads) -> Workload | None:
    known: Workload | None = None
    metadata, on_the_way = pod.metadata, {(POD, pod.metadata.name)}
    while (owner := controller(metadata.owner_references)) is not None:
        kind = kind_of(owner.api_version, owner.kind)
        if kind not in _KNOWN and kind not in _BETWEEN:
            break
        if (kind, owner.name) in on_the_way:
            raise TranslationError(
                f"Pod {pod.key}: its owner references form a cycle through {_reference(metadata, owner)}"
            )
        if len(on_the_way) > DEPTH:
            raise TranslationError(f"Pod {pod.key}: its chain of owners is longer than {DEPTH}")
        on_the_way.add((kind, owner.name))
        try:
            found = await _owner(metadata, owner, workloads)
        except NotAllowedError:
            if known is None or kind in _KNOWN:
                raise
            break
        if kind in _KNOWN:
            known = replace(found, part=known if kind == JOB_SET else None)
        metadata = found.metadata
    return known


async def _owner(owned: ObjectMeta, owner: OwnerReference, workloads: Workloads) -> Workload:
    found = await workloads.get(owner.api_version, owner.kind, owned.namespace, owner.name)
    if found is None or found.metadata.uid != owner.uid:
        gone = "is gone" if found is None else "was replaced by another object of that name"
        raise TranslationError(
            f"{owned.namespace}/{owned.name}: its owner {_reference(owned, owner)} (uid {owner.uid}) {gone}; "
            "delete what the owner left behind"
        )
    return found


def _reference(owned: ObjectMeta, owner: OwnerReference) -> str:
    return f"{owner.kind} {owned.namespace}/{owner.name}"
