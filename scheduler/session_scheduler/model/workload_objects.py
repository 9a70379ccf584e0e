"""What makes pods, as typed values: as far as who schedules these pods asks how they belong together.

Source: the Kubernetes API reference (batch/v1, scheduling.k8s.io), and the CustomResourceDefinitions of JobSet
(jobset.x-k8s.io/v1alpha2) and LeaderWorkerSet (leaderworkerset.x-k8s.io/v1), which not every cluster has.
"""

from __future__ import annotations

from session_scheduler.model.meta import ApiStruct, Namespaced

__all__ = ["Job", "JobSet", "LeaderWorkerSet", "Workload", "WorkloadObject"]


class JobSpec(ApiStruct, frozen=True):
    """spec of a Job: how many pods at a time, how many in all, and for how many seconds."""

    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None


class Job(Namespaced, frozen=True, tag_field="kind", tag="Job"):
    """batch/v1 Job. Read by name, never listed."""

    api_version: str = "batch/v1"
    spec: JobSpec = JobSpec()


class JobSet(Namespaced, frozen=True, tag_field="kind", tag="JobSet"):
    """jobset.x-k8s.io JobSet: whose Jobs are objects of their own. Read by name, never listed."""

    api_version: str = "jobset.x-k8s.io/v1alpha2"


class LeaderWorkerTemplate(ApiStruct, frozen=True):
    """leaderWorkerTemplate: how many pods a group has, its leader among them."""

    size: int | None = None


class LeaderWorkerSetSpec(ApiStruct, frozen=True):
    """spec of a LeaderWorkerSet: how many groups, and what each is."""

    replicas: int | None = None
    leader_worker_template: LeaderWorkerTemplate = LeaderWorkerTemplate()
    startup_policy: str = ""
    """LeaderReady: workers come only once the leader runs; else LeaderCreated, which is the default."""


class LeaderWorkerSet(Namespaced, frozen=True, tag_field="kind", tag="LeaderWorkerSet"):
    """leaderworkerset.x-k8s.io LeaderWorkerSet. Read by name, never listed."""

    api_version: str = "leaderworkerset.x-k8s.io/v1"
    spec: LeaderWorkerSetSpec = LeaderWorkerSetSpec()


class Workload(Namespaced, frozen=True, tag_field="kind", tag="Workload"):
    """scheduling.k8s.io Workload, which native PodGroups are made from. Read by name, never listed."""

    api_version: str = "scheduling.k8s.io/v1alpha2"


WorkloadObject = Job | JobSet | LeaderWorkerSet | Workload
"""What pods and their groups are made from."""
WORKLOAD_KINDS: tuple[type[WorkloadObject], ...] = (Job, JobSet, LeaderWorkerSet, Workload)
