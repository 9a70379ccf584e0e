"""Workloads as the API server has them: what translation reads of each kind, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fluence_plugins.slurm_bridge.workloads.workload import (
    COSCHEDULED,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    NATIVE,
    POD,
    REPLICA_SET,
    STATEFUL_SET,
    WORKLOAD,
    Kind,
    NotAllowedError,
    Workload,
    kind_of,
)
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.model.related import ReplicaSet, StatefulSet
from session_scheduler.model.workload_objects import Job, JobSet, LeaderWorkerSet, WorkloadObject
from session_scheduler.model.workload_objects import Workload as GroupWorkload
from session_scheduler.sdk.dynamic_client import Forbidden, NotFound

if TYPE_CHECKING:
    from session_scheduler.sdk.cluster import Cluster

_KINDS: Final[Mapping[Kind, tuple[type[Any], str]]] = {
    POD: (Pod, "pods"),
    JOB: (Job, "jobs"),
    JOB_SET: (JobSet, "jobsets"),
    LEADER_WORKER_SET: (LeaderWorkerSet, "leaderworkersets"),
    STATEFUL_SET: (StatefulSet, "statefulsets"),
    REPLICA_SET: (ReplicaSet, "replicasets"),
    NATIVE: (PodGroup, "podgroups"),
    COSCHEDULED: (PodGroup, "podgroups"),
    WORKLOAD: (GroupWorkload, "workloads"),
}
_OF_VERSION: Final = frozenset({NATIVE, COSCHEDULED, WORKLOAD})
"""Of which the version matters: an API server may have another than the usual one."""


@dataclass(frozen=True, slots=True)
class ClusterWorkloads:
    """`Workloads` of a live cluster: each is read when it is asked for, and none is kept."""

    cluster: Cluster

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Workload | None:
        """As `Workloads.get`. What else a cluster may answer is raised as it is: it may be tried again."""
        wanted = kind_of(api_version, kind)
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
            raise NotAllowedError(
                f"{kind} {namespace}/{name} must not be read: let the scheduler's service account get {right} ({error})"
            ) from error
        return as_workload(found)


def as_workload(found: Pod | PodGroup | StatefulSet | ReplicaSet | WorkloadObject) -> Workload:
    """What is read of an object."""
    return Workload(api_version=found.api_version, kind=type(found).__name__, metadata=found.metadata, **_spec(found))


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
