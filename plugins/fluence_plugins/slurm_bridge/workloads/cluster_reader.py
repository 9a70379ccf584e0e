"""Reads workload objects from the API server, by kind and name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fluence_plugins.slurm_bridge.workloads import workload
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.model.related import ReplicaSet, StatefulSet
from session_scheduler.model.workload_objects import Job, JobSet, LeaderWorkerSet, WorkloadObject
from session_scheduler.model.workload_objects import Workload as GroupWorkload
from session_scheduler.sdk.dynamic_client import Forbidden, NotFound

if TYPE_CHECKING:
    from session_scheduler.sdk.cluster import Cluster

_KINDS: Final[Mapping[workload.Kind, tuple[type[Any], str]]] = {
    workload.POD: (Pod, "pods"),
    workload.JOB: (Job, "jobs"),
    workload.JOB_SET: (JobSet, "jobsets"),
    workload.LEADER_WORKER_SET: (LeaderWorkerSet, "leaderworkersets"),
    workload.STATEFUL_SET: (StatefulSet, "statefulsets"),
    workload.REPLICA_SET: (ReplicaSet, "replicasets"),
    workload.NATIVE: (PodGroup, "podgroups"),
    workload.COSCHEDULED: (PodGroup, "podgroups"),
    workload.WORKLOAD: (GroupWorkload, "workloads"),
}
_OF_VERSION: Final = frozenset({workload.NATIVE, workload.COSCHEDULED, workload.WORKLOAD})
"""Kinds whose API version matters, because an API server may serve one other than the default."""


@dataclass(frozen=True, slots=True)
class ClusterWorkloads:
    """`Workloads` of a live cluster. Each call reads the object; there is no cache."""

    cluster: Cluster

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> workload.Workload | None:
        """See `Workloads.get`. Other errors of the API server are raised unchanged: they may be temporary."""
        wanted = workload.kind_of(api_version, kind)
        read, plural = _KINDS.get(wanted, (None, ""))
        if read is None:
            return None
        version = api_version if wanted in _OF_VERSION else ""
        try:
            found = await self.cluster.get(read, namespace, name, api_version=version)
        except NotFound:
            return None
        except Forbidden as error:
            right = f"{plural}.{wanted[0]}" if wanted[0] else plural
            raise workload.NotAllowedError(
                f"cannot read {kind} {namespace}/{name}; allow the scheduler's service account to get {right} ({error})"
            ) from error
        return as_workload(found)


def as_workload(found: Pod | PodGroup | StatefulSet | ReplicaSet | WorkloadObject) -> workload.Workload:
    """The fields of an object that translation uses."""
    kind = type(found).__name__
    return workload.Workload(api_version=found.api_version, kind=kind, metadata=found.metadata, **_spec(found))


def _spec(found: object) -> dict[str, Any]:
    if isinstance(found, Job):
        spec = found.spec
        return {"parallelism": spec.parallelism, "completions": spec.completions,
                "active_deadline_seconds": spec.active_deadline_seconds}  # fmt: skip
    if isinstance(found, LeaderWorkerSet):
        return {"size": found.spec.leader_worker_template.size, "startup_policy": found.spec.startup_policy}
    if isinstance(found, PodGroup):
        made_from = found.spec.pod_group_template_ref
        named = made_from.workload if made_from is not None else None
        return {"min_count": found.min_count, "template": named.workload_name if named is not None else ""}
    return {}
