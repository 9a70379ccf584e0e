"""Typed workloads (Job, JobSet, LeaderWorkerSet, Workload), with the fields that determine groups of pods.

Source: the Kubernetes API reference (batch/v1, scheduling.k8s.io), and the CustomResourceDefinitions of JobSet
(jobset.x-k8s.io/v1alpha2) and LeaderWorkerSet (leaderworkerset.x-k8s.io/v1), which not every cluster has.
"""

from __future__ import annotations

from session_scheduler.model.meta import ApiStruct, Namespaced

__all__ = ["Job", "JobSet", "LeaderWorkerSet", "Workload", "WorkloadObject"]


class JobSpec(ApiStruct, frozen=True):
    """spec of a Job: the number of pods at a time and in total, and its deadline."""

    parallelism: int | None = None
    completions: int | None = None
    active_deadline_seconds: int | None = None


class Job(Namespaced, frozen=True, tag_field="kind", tag="Job"):
    """batch/v1 Job. The scheduler reads it by name, without a watch."""

    api_version: str = "batch/v1"
    spec: JobSpec = JobSpec()


class JobSet(Namespaced, frozen=True, tag_field="kind", tag="JobSet"):
    """jobset.x-k8s.io JobSet; its Jobs are separate objects. The scheduler reads it by name, without a watch."""

    api_version: str = "jobset.x-k8s.io/v1alpha2"


class LeaderWorkerTemplate(ApiStruct, frozen=True):
    """leaderWorkerTemplate: the number of pods in a group, including its leader."""

    size: int | None = None


class LeaderWorkerSetSpec(ApiStruct, frozen=True):
    """spec of a LeaderWorkerSet: the number of groups, and their template."""

    replicas: int | None = None
    leader_worker_template: LeaderWorkerTemplate = LeaderWorkerTemplate()
    startup_policy: str = ""
    """LeaderReady: workers are created once the leader is ready; LeaderCreated, the default: at once."""


class LeaderWorkerSet(Namespaced, frozen=True, tag_field="kind", tag="LeaderWorkerSet"):
    """leaderworkerset.x-k8s.io LeaderWorkerSet. The scheduler reads it by name, without a watch."""

    api_version: str = "leaderworkerset.x-k8s.io/v1"
    spec: LeaderWorkerSetSpec = LeaderWorkerSetSpec()


class Workload(Namespaced, frozen=True, tag_field="kind", tag="Workload"):
    """scheduling.k8s.io Workload: templates of native PodGroups. The scheduler reads it by name, without a watch."""

    api_version: str = "scheduling.k8s.io/v1alpha2"


WorkloadObject = Job | JobSet | LeaderWorkerSet | Workload
"""The objects from which controllers create pods and PodGroups."""
WORKLOAD_KINDS: tuple[type[WorkloadObject], ...] = (Job, JobSet, LeaderWorkerSet, Workload)
