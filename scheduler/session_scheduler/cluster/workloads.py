"""Creates the pods of workloads in manifests, once at load time: no controller runs later.

Existing pods of a workload (also through a ReplicaSet or a Job) count, so only missing pods are created. A created pod
is named `<owner>-<i>` and has an owner reference to the object in the manifest.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from session_scheduler.cluster import daemon_nodes
from session_scheduler.cluster.group_templates import is_gang_of_job
from session_scheduler.cluster.workload_checks import MAX_REPLICAS
from session_scheduler.cluster.workload_types import (
    CronJob,
    DaemonSet,
    Deployment,
    Job,
    JobSet,
    JobSpec,
    JobStatus,
    LeaderWorkerSet,
    PodTemplate,
    ReplicaSet,
    ReplicationController,
    StatefulSet,
    Workload,
)
from session_scheduler.model import related
from session_scheduler.model.field_checks import FieldError, selects
from session_scheduler.model.objects import Node, ObjectMeta, OwnerReference, Pod, PodGroup, PodSpec, SchedulingGroup
from session_scheduler.model.storage import PersistentVolumeClaim

_Owned = TypeVar("_Owned", Pod, PodGroup, Workload)
_IDENTITY = uuid.UUID("6f2f6c1e-57a9-5a3e-9d7b-3a6c1f0e8b42")
_INDEX = "batch.kubernetes.io/job-completion-index"
_JOBSET = "jobset.sigs.k8s.io"
_LWS = "leaderworkerset.sigs.k8s.io"


def made_up_uid(kind: str, namespace: str, name: str) -> str:
    """Return a uid that is the same in every run."""
    return str(uuid.uuid5(_IDENTITY, f"{kind} {namespace}/{name}"))


def as_owner(workload: Workload) -> related.RelatedObject | None:
    """Return the controller whose selector default topology spreading uses for the workload's pods, or None.

    For a Deployment it is a ReplicaSet of the same name: the Deployment's pods are created without their ReplicaSet.
    """
    match workload:
        case ReplicationController():
            selector = workload.spec.selector or workload.spec.template.metadata.labels
            spec = related.ReplicationControllerSpec(selector=selector)
            return related.ReplicationController(metadata=workload.metadata, spec=spec)
        case Deployment() | ReplicaSet() | StatefulSet():
            kind = related.StatefulSet if isinstance(workload, StatefulSet) else related.ReplicaSet
            return kind(metadata=workload.metadata, spec=related.SetSpec(selector=workload.spec.selector))
    return None


class Expansion:
    """Creates the missing pods of workloads, based on the nodes and the existing objects."""

    def __init__(
        self,
        nodes: Sequence[Node],
        pods: Iterable[Pod],
        workloads: Sequence[Workload],
        groups: Iterable[PodGroup] = (),
    ) -> None:
        pods = list(pods)
        self.claims: list[PersistentVolumeClaim] = []
        """The claims of the pods of StatefulSets."""
        self._nodes = nodes
        self._names = {pod.key for pod in pods}
        self._made = 0
        self._pods = _by_controller(pods)
        self._groups = _by_controller(groups)
        self._children = _by_controller(workloads)
        self._known = {uid for workload in workloads for uid in _handles(workload.kind, workload.metadata)}
        self._orphans: dict[tuple[str, str], list[Pod]] = {}
        """Pods whose controller is in no file, by the controller's kind and namespace."""
        for pod in pods:
            for ref in _controllers(pod.metadata):
                if not self._known.intersection(_ref_handles(ref, pod.metadata.namespace)):
                    self._orphans.setdefault((ref.kind, pod.metadata.namespace), []).append(pod)

    def pods_of(self, workload: Workload) -> Iterator[Pod]:
        """Yield the pods that the workload's controller would still create. Raises FieldError for too many pods."""
        if self._is_child(workload):
            return
        for pod in self._expand(workload):
            self._made += 1
            if self._made > MAX_REPLICAS:
                raise FieldError(
                    "spec", f"all workloads together create more than {MAX_REPLICAS} pods; use fewer replicas"
                )
            self._names.add(pod.key)
            yield pod

    def _is_child(self, workload: Workload) -> bool:
        """Whether another of these workloads creates the pods of this one."""
        controllers = {"ReplicaSet": ("Deployment",), "StatefulSet": ("LeaderWorkerSet", "Pod")}
        kinds = controllers.get(workload.kind, ())
        return any(
            ref.kind in kinds
            and (ref.kind == "Pod" or self._known.intersection(_ref_handles(ref, workload.metadata.namespace)))
            for ref in _controllers(workload.metadata)
        )

    def _expand(self, workload: Workload) -> Iterator[Pod]:
        match workload:
            case Deployment() | ReplicaSet() | ReplicationController():
                return self._replicas(workload)
            case StatefulSet():
                return self._stateful(workload)
            case DaemonSet():
                return self._daemons(workload)
            case Job():
                return self._job(workload, workload.metadata.name, workload.spec, workload.status)
            case CronJob():
                return self._cron(workload)
            case JobSet():
                return self._job_set(workload)
            case LeaderWorkerSet():
                return self._leader_workers(workload)

    # -------------------------------------------------------------- existing objects

    def _owned(self, workload: Workload) -> list[Pod]:
        """Return the pods that the workload owns, also through its ReplicaSets. Ownership may be cyclic."""
        found: dict[int, Pod] = {}
        owners, met = [workload], {id(workload)}
        for owner in owners:
            for handle in _handles(owner.kind, owner.metadata):
                found.update((id(pod), pod) for pod in self._pods.get(handle, ()))
            if isinstance(owner, Deployment):  # its ReplicaSets are in no file: use the selector
                orphans = self._orphans.get(("ReplicaSet", owner.metadata.namespace), ())
                found.update((id(p), p) for p in orphans if selects(owner.spec.selector, p.metadata.labels))
            for child in self._owned_workloads(owner):
                if id(child) not in met:
                    met.add(id(child))
                    owners.append(child)
        return list(found.values())

    def _jobs_of(self, workload: JobSet) -> set[str]:
        """Return the names of the JobSet's existing Jobs, including Jobs that only their pods show."""
        jobs = {job.metadata.name for job in self._owned_workloads(workload)}
        for pod in self._orphans.get(("Job", workload.metadata.namespace), ()):
            if pod.metadata.labels.get(f"{_JOBSET}/jobset-name") == workload.metadata.name:
                jobs.update(ref.name for ref in _controllers(pod.metadata))
        return jobs

    def _owned_workloads(self, workload: Workload) -> list[Workload]:
        handles = _handles(workload.kind, workload.metadata)
        found = {id(child): child for handle in handles for child in self._children.get(handle, ())}
        return list(found.values())

    def _has_pod(self, owner: Workload, name: str) -> bool:
        return f"{owner.metadata.namespace}/{name}" in self._names

    def _free_names(self, owner: Workload, base: str, count: int) -> Iterator[str]:
        """Yield `count` unused pod names base-0, base-1, …"""
        names = (f"{base}-{index}" for index in itertools.count())
        return itertools.islice((name for name in names if not self._has_pod(owner, name)), max(0, count))

    # -------------------------------------------------------------- one method for each controller

    def _replicas(self, workload: Deployment | ReplicaSet | ReplicationController) -> Iterator[Pod]:
        missing = workload.spec.replicas - sum(map(_active, self._owned(workload)))
        for name in self._free_names(workload, workload.metadata.name, missing):
            yield _pod(workload, workload.spec.template, name)

    def _stateful(self, workload: StatefulSet) -> Iterator[Pod]:
        owned = {pod.metadata.name for pod in self._owned(workload)}
        start = workload.spec.ordinals.start
        for ordinal in range(start, start + workload.spec.replicas):
            name = f"{workload.metadata.name}-{ordinal}"
            if name not in owned:
                labels = {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": str(ordinal)}
                yield self._with_claims(workload, _pod(workload, workload.spec.template, name, labels))

    def _with_claims(self, workload: StatefulSet, pod: Pod) -> Pod:
        """Return the pod with a volume for each claim template, which replaces one of its name."""
        volumes = {str(volume.get("name")): volume for volume in pod.spec.volumes}
        for template in workload.spec.volume_claim_templates:
            name = f"{template.metadata.name}-{pod.metadata.name}"
            metadata = replace(template.metadata, name=name, namespace=pod.metadata.namespace)
            self.claims.append(PersistentVolumeClaim(metadata=metadata, spec=template.spec))
            volumes[template.metadata.name] = {
                "name": template.metadata.name, "persistentVolumeClaim": {"claimName": name}
            }  # fmt: skip
        return replace(pod, spec=replace(pod.spec, volumes=tuple(volumes.values())))

    def _daemons(self, workload: DaemonSet) -> Iterator[Pod]:
        template = workload.spec.template
        spec = daemon_nodes.with_daemon_tolerations(template.spec)
        served = {daemon_nodes.node_of(pod.spec) for pod in self._owned(workload) if _active(pod)}
        nodes = [node.metadata.name for node in self._nodes if daemon_nodes.should_run(spec, node)]
        missing = [node for node in nodes if node not in served]
        names = self._free_names(workload, workload.metadata.name, len(missing))
        for name, node in zip(names, missing, strict=True):
            yield _pod(workload, replace(template, spec=daemon_nodes.for_node(spec, node)), name)

    def _job(
        self, owner: Workload, name: str, spec: JobSpec, status: JobStatus, labels: Mapping[str, str] | None = None
    ) -> Iterator[Pod]:
        if spec.suspend or any(c.type in ("Complete", "Failed") and c.status == "True" for c in status.conditions):
            return
        pods = self._owned(owner) if isinstance(owner, Job) else []
        job_labels = {"batch.kubernetes.io/job-name": name, "job-name": name, **(labels or {})}
        if spec.completion_mode == "Indexed":
            template = replace(spec.template, spec=self._grouped(owner, spec))
            for index in _missing_indexes(spec, status, pods):
                own, pod_name = {_INDEX: str(index)}, f"{name}-{index}"
                if self._has_pod(owner, pod_name):
                    pod_name = next(self._free_names(owner, pod_name, 1))
                yield _pod(owner, template, pod_name, {**job_labels, **own}, own)
            return
        for pod_name in self._free_names(owner, name, _missing_pods(spec, status, pods)):
            yield _pod(owner, spec.template, pod_name, job_labels)

    def _grouped(self, owner: Workload, spec: JobSpec) -> PodSpec:
        """Return the pods' spec; if the Job controller has created a PodGroup for the Job, with that group."""
        groups = (group for handle in _handles(owner.kind, owner.metadata) for group in self._groups.get(handle, ()))
        names = {group.metadata.name for group in groups}
        if not isinstance(owner, Job) or len(names) != 1 or not is_gang_of_job(spec):
            return spec.template.spec
        return replace(spec.template.spec, scheduling_group=SchedulingGroup(pod_group_name=names.pop()))

    def _cron(self, workload: CronJob) -> Iterator[Pod]:
        if workload.spec.suspend or self._owned_workloads(workload):
            return iter(())
        return self._job(workload, workload.metadata.name, workload.spec.job_template.spec, JobStatus())

    def _job_set(self, workload: JobSet) -> Iterator[Pod]:
        if workload.spec.suspend:
            return
        existing = self._jobs_of(workload)
        for replicated in workload.spec.replicated_jobs:
            for number in range(replicated.replicas):
                name = f"{workload.metadata.name}-{replicated.name}-{number}"
                if name not in existing:
                    labels = {
                        f"{_JOBSET}/jobset-name": workload.metadata.name,
                        f"{_JOBSET}/replicatedjob-name": replicated.name,
                        f"{_JOBSET}/replicatedjob-replicas": str(replicated.replicas),
                        f"{_JOBSET}/job-index": str(number),
                    }
                    yield from self._job(workload, name, _indexed(replicated.template.spec), JobStatus(), labels)

    def _leader_workers(self, workload: LeaderWorkerSet) -> Iterator[Pod]:
        both = workload.spec.leader_worker_template
        for group in range(workload.spec.replicas):
            leader = f"{workload.metadata.name}-{group}"
            for worker in range(both.size):
                name = f"{leader}-{worker}" if worker else leader
                if self._has_pod(workload, name):
                    continue
                labels = {
                    f"{_LWS}/name": workload.metadata.name,
                    f"{_LWS}/group-index": str(group),
                    f"{_LWS}/worker-index": str(worker),
                }
                template = both.worker_template if worker or both.leader_template is None else both.leader_template
                yield _pod(workload, template, name, labels, {f"{_LWS}/size": str(both.size)})


# ------------------------------------------------------------------ stateless helpers


def _handles(kind: str, metadata: ObjectMeta) -> tuple[str, ...]:
    """Return the keys by which owner references find this object: its uid, or kind and name if it has no uid."""
    if metadata.uid:
        return (metadata.uid,)
    named = f"{kind} {metadata.namespace}/{metadata.name}"
    return (made_up_uid(kind, metadata.namespace, metadata.name), named)


def _controllers(metadata: ObjectMeta) -> Iterator[OwnerReference]:
    return (ref for ref in metadata.owner_references if ref.controller)


def _ref_handles(ref: OwnerReference, namespace: str) -> tuple[str, str]:
    return ref.uid, f"{ref.kind} {namespace}/{ref.name}"


def _by_controller(objects: Iterable[_Owned]) -> dict[str, list[_Owned]]:
    """Group objects by the keys of their controllers."""
    found: dict[str, list[_Owned]] = {}
    for obj in objects:
        for ref in _controllers(obj.metadata):
            for handle in _ref_handles(ref, obj.metadata.namespace):
                found.setdefault(handle, []).append(obj)
    return found


def _active(pod: Pod) -> bool:
    return not pod.terminal and pod.metadata.deletion_timestamp is None


def _indexed(spec: JobSpec) -> JobSpec:
    """Return the spec of a JobSet's Job: by default indexed, with completions for every pod."""
    if spec.completion_mode == "NonIndexed":
        return spec
    completions = spec.parallelism if spec.completions is None else spec.completions
    return JobSpec(parallelism=spec.parallelism, completions=completions, completion_mode="Indexed",
                   suspend=spec.suspend, template=spec.template)  # fmt: skip


def _missing_pods(spec: JobSpec, status: JobStatus, pods: Sequence[Pod]) -> int:
    succeeded = max(status.succeeded, sum(pod.status.phase == "Succeeded" for pod in pods))
    active = sum(map(_active, pods))
    if spec.completions is None:  # a work queue starts no more pods once one has succeeded
        return 0 if succeeded else spec.parallelism - active
    return min(spec.parallelism, spec.completions - succeeded) - active


def _missing_indexes(spec: JobSpec, status: JobStatus, pods: Sequence[Pod]) -> list[int]:
    completions = spec.parallelism if spec.completions is None else spec.completions
    active = {_index_of(pod) for pod in pods if _active(pod)}
    done = _read_indexes(status.completed_indexes, completions)
    done |= {_index_of(pod) for pod in pods if pod.status.phase == "Succeeded"}
    left = [index for index in range(completions) if index not in done and index not in active]
    return left[: max(0, spec.parallelism - len(active))]


def _index_of(pod: Pod) -> int:
    text = pod.metadata.annotations.get(_INDEX) or pod.metadata.labels.get(_INDEX) or ""
    return int(text) if text.isdecimal() else -1


def _read_indexes(text: str, completions: int) -> set[int]:
    """Parse "0,2-4" into a set of numbers below `completions`."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last.isdecimal() or not last):
            numbers.update(range(int(first), min(int(last or first), completions - 1) + 1))
    return numbers


def _pod(
    owner: Workload,
    template: PodTemplate,
    name: str,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    metadata = owner.metadata
    uid = metadata.uid or made_up_uid(owner.kind, metadata.namespace, metadata.name)
    ref = OwnerReference(api_version=owner.api_version, kind=owner.kind, name=metadata.name, uid=uid, controller=True)
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=metadata.namespace,
            labels={**template.metadata.labels, **(labels or {})},
            annotations={**template.metadata.annotations, **(annotations or {})},
            owner_references=(ref,),
        ),
        spec=template.spec,
    )
