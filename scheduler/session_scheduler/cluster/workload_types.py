"""Types of workload objects, with the fields that decide which pods their controllers create.

Only manifests contain them. The scheduler does not list or watch them, so they are not part of the model.
Source: apps/v1, batch/v1, jobset.x-k8s.io/v1alpha2, leaderworkerset.x-k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import field

from session_scheduler.model.meta import ApiStruct
from session_scheduler.model.objects import LabelSelector, ObjectMeta, PodCondition, PodSpec
from session_scheduler.model.storage import PersistentVolumeClaimSpec


class PodTemplate(ApiStruct, frozen=True, kw_only=True):
    """The pod template of a workload: labels, annotations and spec."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec


class _ControllerSpec(ApiStruct, frozen=True, kw_only=True):
    """Common fields of specs with a selector and one template."""

    selector: LabelSelector
    template: PodTemplate


class ReplicasSpec(_ControllerSpec, frozen=True, kw_only=True):
    """spec of a Deployment and of a ReplicaSet."""

    replicas: int = 1


class ReplicationControllerSpec(ApiStruct, frozen=True, kw_only=True):
    """spec of a ReplicationController. The default selector is the template's labels."""

    replicas: int = 1
    selector: dict[str, str] = field(default_factory=dict)
    template: PodTemplate


class Ordinals(ApiStruct, frozen=True, kw_only=True):
    """spec.ordinals of a StatefulSet."""

    start: int = 0


class VolumeClaimTemplate(ApiStruct, frozen=True, kw_only=True):
    """spec.volumeClaimTemplates[] of a StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class StatefulSetSpec(ReplicasSpec, frozen=True, kw_only=True):
    """spec of a StatefulSet."""

    ordinals: Ordinals = Ordinals()
    volume_claim_templates: tuple[VolumeClaimTemplate, ...] = ()


class DaemonSetSpec(_ControllerSpec, frozen=True, kw_only=True):
    """spec of a DaemonSet."""


class JobSpec(ApiStruct, frozen=True, kw_only=True):
    """spec of a Job. Without completions it is a work queue of `parallelism` pods."""

    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = ""
    suspend: bool = False
    template: PodTemplate


class JobStatus(ApiStruct, frozen=True, kw_only=True):
    """status of a Job that has run."""

    succeeded: int = 0
    completed_indexes: str = ""
    conditions: tuple[PodCondition, ...] = ()


class JobTemplate(ApiStruct, frozen=True, kw_only=True):
    """The Job template of a CronJob or a JobSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec


class CronJobSpec(ApiStruct, frozen=True, kw_only=True):
    """spec of a CronJob."""

    suspend: bool = False
    job_template: JobTemplate


class ReplicatedJob(ApiStruct, frozen=True, kw_only=True):
    """spec.replicatedJobs[] of a JobSet."""

    name: str
    replicas: int = 1
    template: JobTemplate


class JobSetSpec(ApiStruct, frozen=True, kw_only=True):
    """spec of a JobSet."""

    suspend: bool = False
    replicated_jobs: tuple[ReplicatedJob, ...] = ()


class LeaderWorkerTemplate(ApiStruct, frozen=True, kw_only=True):
    """spec.leaderWorkerTemplate: `size` pods in a group, including the leader."""

    size: int = 1
    leader_template: PodTemplate | None = None
    worker_template: PodTemplate


class LeaderWorkerSetSpec(ApiStruct, frozen=True, kw_only=True):
    """spec of a LeaderWorkerSet."""

    replicas: int = 1
    leader_worker_template: LeaderWorkerTemplate


class _Workload(ApiStruct, frozen=True, kw_only=True):
    """Common fields of all workload objects."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class Deployment(_Workload, frozen=True, kw_only=True):
    """apps/v1 Deployment."""

    spec: ReplicasSpec


class ReplicaSet(_Workload, frozen=True, kw_only=True):
    """apps/v1 ReplicaSet."""

    spec: ReplicasSpec


class ReplicationController(_Workload, frozen=True, kw_only=True):
    """v1 ReplicationController."""

    spec: ReplicationControllerSpec


class StatefulSet(_Workload, frozen=True, kw_only=True):
    """apps/v1 StatefulSet."""

    spec: StatefulSetSpec


class DaemonSet(_Workload, frozen=True, kw_only=True):
    """apps/v1 DaemonSet."""

    spec: DaemonSetSpec


class Job(_Workload, frozen=True, kw_only=True):
    """batch/v1 Job."""

    spec: JobSpec
    status: JobStatus = JobStatus()


class CronJob(_Workload, frozen=True, kw_only=True):
    """batch/v1 CronJob."""

    spec: CronJobSpec


class JobSet(_Workload, frozen=True, kw_only=True):
    """jobset.x-k8s.io/v1alpha2 JobSet."""

    spec: JobSetSpec


class LeaderWorkerSet(_Workload, frozen=True, kw_only=True):
    """leaderworkerset.x-k8s.io/v1 LeaderWorkerSet."""

    spec: LeaderWorkerSetSpec


Workload = (
    Deployment | ReplicaSet | ReplicationController | StatefulSet | DaemonSet | Job | CronJob | JobSet | LeaderWorkerSet
)
"""Every kind that creates pods."""


def job_specs(workload: Workload) -> Iterator[tuple[str, JobSpec]]:
    """Yield (path, spec) of the workload's Job, or of each of its Job templates."""
    match workload:
        case Job():
            yield "spec", workload.spec
        case CronJob():
            yield "spec.jobTemplate.spec", workload.spec.job_template.spec
        case JobSet():
            for number, job in enumerate(workload.spec.replicated_jobs):
                yield f"spec.replicatedJobs[{number}].template.spec", job.template.spec


def pod_templates(workload: Workload) -> Iterator[tuple[str, PodTemplate]]:
    """Yield (path, template) of every pod template in the workload."""
    match workload:
        case Deployment() | ReplicaSet() | ReplicationController() | StatefulSet() | DaemonSet():
            yield "spec.template", workload.spec.template
        case LeaderWorkerSet():
            where, both = "spec.leaderWorkerTemplate", workload.spec.leader_worker_template
            if both.leader_template is not None:
                yield f"{where}.leaderTemplate", both.leader_template
            yield f"{where}.workerTemplate", both.worker_template
        case _:
            for where, spec in job_specs(workload):
                yield f"{where}.template", spec.template
