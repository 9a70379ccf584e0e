"""Validation of workload objects, as the API server does it. Source: validation of pkg/apis/apps and pkg/apis/batch."""

from __future__ import annotations

from collections.abc import Mapping

from session_scheduler.cluster.object_checks import check_pod_spec
from session_scheduler.cluster.workload_types import (
    DaemonSet,
    Deployment,
    JobSet,
    JobSpec,
    LeaderWorkerSet,
    PodTemplate,
    ReplicaSet,
    ReplicationController,
    StatefulSet,
    Workload,
    job_specs,
    pod_templates,
)
from session_scheduler.model.field_checks import (
    FieldError,
    check_annotations,
    check_label_selector,
    check_labels,
    check_metadata,
    selects,
)
from session_scheduler.model.objects import LabelSelector

MAX_REPLICAS = 500_000
"""Maximum number of pods that one field may request: more than any cluster has."""
_JOB_RESTARTS = ("OnFailure", "Never")


def check_workload(workload: Workload) -> None:
    """Raise FieldError for the first field that would keep the workload's controller from creating its pods."""
    check_metadata(workload.metadata)
    for where, template in pod_templates(workload):
        check_labels(template.metadata.labels, f"{where}.metadata.labels")
        check_annotations(template.metadata.annotations, f"{where}.metadata.annotations")
        check_pod_spec(template.spec, f"{where}.spec")
    for where, job in job_specs(workload):
        _check_job(job, where, ("", *_JOB_RESTARTS) if isinstance(workload, JobSet) else _JOB_RESTARTS)
    match workload:
        case Deployment() | ReplicaSet() | StatefulSet():
            _check_count(workload.spec.replicas, "spec.replicas")
            _check_selector(workload.spec.selector, workload.spec.template)
        case ReplicationController():
            _check_count(workload.spec.replicas, "spec.replicas")
            _check_plain_selector(workload.spec.selector, workload.spec.template)
        case DaemonSet():
            _check_selector(workload.spec.selector, workload.spec.template)
        case JobSet():
            for number, replicated in enumerate(workload.spec.replicated_jobs):
                _check_count(replicated.replicas, f"spec.replicatedJobs[{number}].replicas")
        case LeaderWorkerSet():
            _check_count(workload.spec.replicas, "spec.replicas")
            _check_count(workload.spec.leader_worker_template.size, "spec.leaderWorkerTemplate.size", least=1)


def _check_count(count: int, where: str, least: int = 0) -> None:
    if not least <= count <= MAX_REPLICAS:
        raise FieldError(where, f"{count} is out of range; use {least} to {MAX_REPLICAS}")


def _check_selector(selector: LabelSelector, template: PodTemplate) -> None:
    check_label_selector(selector, "spec.selector")
    if not selector.match_labels and not selector.match_expressions:
        raise FieldError("spec.selector", "is empty; select the template's labels, "
                         "for example matchLabels: {app: NAME}")  # fmt: skip
    if not selects(selector, template.metadata.labels):
        raise FieldError("spec.selector", "does not select spec.template.metadata.labels; make them equal")


def _check_plain_selector(labels: Mapping[str, str], template: PodTemplate) -> None:
    check_labels(labels, "spec.selector")
    own = template.metadata.labels
    if not labels and not own:
        raise FieldError("spec.selector", "is empty, like the template's labels; label the template, "
                         "for example app: NAME")  # fmt: skip
    if any(own.get(key) != value for key, value in labels.items()):
        raise FieldError("spec.selector", "does not select spec.template.metadata.labels; make them equal")


def _check_job(job: JobSpec, where: str, restarts: tuple[str, ...]) -> None:
    _check_count(job.parallelism, f"{where}.parallelism")
    if job.completions is not None:
        _check_count(job.completions, f"{where}.completions")
    if job.completion_mode not in ("", "NonIndexed", "Indexed"):
        raise FieldError(f"{where}.completionMode", f"{job.completion_mode!r} is not one of NonIndexed, Indexed")
    if job.template.spec.restart_policy not in restarts:  # a JobSet's own default is OnFailure
        raise FieldError(f"{where}.template.spec.restartPolicy", "must be OnFailure or Never for a Job")
