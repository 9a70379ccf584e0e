"""Workloads, their pods, and a store that reads workloads by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from fluence_plugins.slurm_bridge.names import JOB
from fluence_plugins.slurm_bridge.workloads.workload import Kind, NotAllowedError, Workload, kind_of
from session_scheduler.model.meta import ObjectMeta, OwnerReference
from session_scheduler.model.objects import Pod
from session_scheduler.testing import pod

API = {
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "StatefulSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "CronJob": "batch/v1",
    "Pod": "v1",
    "PodGroup": "scheduling.k8s.io/v1alpha2",
    "Workload": "scheduling.k8s.io/v1alpha2",
}
COSCHEDULING = "scheduling.x-k8s.io/v1alpha1"


def workload(
    kind: str,
    name: str,
    *,
    owner: Workload | None = None,
    asked: Mapping[str, str] | None = None,
    api_version: str = "",
    uid: str = "",
    **spec: Any,
) -> Workload:
    """An object in the namespace `physics`; `asked` are annotations without their prefix."""
    metadata = ObjectMeta(name=name, namespace="physics", uid=uid or f"uid-{kind}-{name}",
                          annotations={JOB + key: text for key, text in (asked or {}).items()},
                          owner_references=references(owner))  # fmt: skip
    return Workload(api_version=api_version or API[kind], kind=kind, metadata=metadata, **spec)


def references(owner: Workload | None) -> tuple[OwnerReference, ...]:
    """The owner references of an object that `owner` controls, after an owner that does not control it."""
    if owner is None:
        return ()
    other = OwnerReference(api_version="batch/v1", kind="Job", name="other", uid="uid-other")
    named = owner.metadata
    return other, OwnerReference(api_version=owner.api_version, kind=owner.kind, name=named.name, uid=named.uid,
                                 controller=True)  # fmt: skip


def pod_of(owner: Workload | None, name: str, **options: Any) -> Pod:
    """A pod of the workload in the workload's namespace; `options` as for `testing.pod`."""
    made = pod(name, namespace="physics", **options)
    metadata = replace(made.metadata, uid=f"uid-{name}", owner_references=references(owner))
    return replace(made, metadata=metadata)


class Stored:
    """Workloads in memory; those of the forbidden kinds must not be read. `asked` counts the reads."""

    def __init__(self, *workloads: Workload, forbidden: Iterable[Kind] = ()) -> None:
        self._workloads = {(*one.of_kind, one.metadata.namespace, one.metadata.name): one for one in workloads}
        self._forbidden = frozenset(forbidden)
        self.asked: list[str] = []

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Workload | None:
        self.asked.append(f"{kind} {namespace}/{name}")
        wanted = kind_of(api_version, kind)
        if wanted in self._forbidden:
            raise NotAllowedError(f"{kind} {namespace}/{name} cannot be read: allow the scheduler to get {wanted}")
        return self._workloads.get((*wanted, namespace, name))
