"""Translates pods and their root into the placeholder job: how many nodes, and which resources on each.

Each pod gets a node of its own, so a job has as many nodes as it has pods. Pods with equal needs and annotations give
equal placeholders, whatever their order.
Source: slurm-bridge 1.2.1, internal/utils/slurmjobir.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from fluence_plugins.slurm_bridge import names
from fluence_plugins.slurm_bridge.slurm import gres
from fluence_plugins.slurm_bridge.slurm.placeholder import Placeholder, PodIdentity
from fluence_plugins.slurm_bridge.workloads.annotations import MIB, MOST_CPUS, MOST_NUMBER, JobAnnotations, read
from fluence_plugins.slurm_bridge.workloads.workload import (
    COSCHEDULED,
    COSCHEDULING_LABEL,
    JOB,
    JOB_SET,
    JOBSET_NAME_LABEL,
    LEADER_WORKER_SET,
    LWS_LABEL,
    NATIVE,
    TranslationError,
    Workload,
    controller,
    kind_of,
    native_group,
)
from session_scheduler.model.groups import GroupRef
from session_scheduler.model.meta import OwnerReference
from session_scheduler.model.objects import Container, Pod, ResourceRequirements
from session_scheduler.model.quantity import QuantityError
from session_scheduler.model.requests import pod_requests

_WORKER_INDEX: Final = LWS_LABEL + "worker-index"
_INDEXES: Final = ("batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index")
"""Labels of the pods of an Indexed Job and of a StatefulSet; the first is an annotation, too."""
_RUNS = re.compile(r"([^0-9]*)([0-9]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What translation reads in addition to the workload and its pods."""

    resources: Mapping[str, str] = field(default_factory=lambda: gres.DEFAULT_RESOURCES)
    """See `gres.DEFAULT_RESOURCES`."""
    known_gres: gres.Known = ()
    """See `gres.known_of`, which reads them from Slurm's nodes."""


def translate(root: Workload, pods: Sequence[Pod], terms: Terms = Terms()) -> Placeholder:
    """The job for these pods of the root, which start together. Raises TranslationError."""
    if not pods:
        raise TranslationError(f"{root} has no pods")
    _check_startup(root)
    wanted = read(root)
    in_order = ordered(pods)
    needs = [_needs(pod) for pod in in_order]
    nodes = _nodes(root, wanted, len(in_order))
    return Placeholder(
        name=wanted.name or _name(root, in_order[0]),
        pods=tuple(PodIdentity(one.namespace, one.name, one.uid) for one in (pod.metadata for pod in in_order)),
        minimum_nodes=nodes,
        maximum_nodes=nodes,
        cpus_per_task=wanted.cpus_per_task or _cpus(root, needs),
        memory_mib=_memory(needs) if wanted.memory_mib is None else wanted.memory_mib,
        gres=_gres(root, wanted, needs, terms),
        account=wanted.account,
        constraints=wanted.constraints,
        exclusive=wanted.exclusive,
        user_id=wanted.user_id,
        group_id=wanted.group_id,
        licenses=wanted.licenses,
        partition=wanted.partition,
        priority=wanted.priority,
        qos=wanted.qos,
        reservation=wanted.reservation,
        time_limit_minutes=wanted.time_limit_minutes or _deadline(root.part or root),
        wckey=wanted.wckey,
    )


def expected(root: Workload) -> int | None:
    """How many pods must exist, running ones included, before a job is requested; None if each pod starts alone.

    For a Job in a JobSet: its parallelism, or its completions if those are fewer.
    """
    if root.of_kind in (NATIVE, COSCHEDULED):
        return root.min_count
    if root.of_kind == LEADER_WORKER_SET:
        return root.size
    if root.of_kind == JOB_SET and root.part is not None:
        parallelism, completions = root.part.parallelism, root.part.completions
        at_a_time = 1 if parallelism is None else parallelism
        return at_a_time if completions is None else min(at_a_time, completions)
    return None


def group_of(pod: Pod, owners: Sequence[OwnerReference]) -> GroupRef | None:
    """The group of a pod that names no PodGroup, for the hook `group_of`; None for a single pod.

    The group has a minimum of one pod: the submitter checks whether all `expected` pods exist.
    """
    labels, namespace = pod.metadata.labels, pod.metadata.namespace
    if native_group(pod) or labels.get(COSCHEDULING_LABEL):
        return None
    if labels.get(LWS_LABEL + "name") and _index(labels.get(LWS_LABEL + "group-index")) is not None:
        return GroupRef(namespace, _lws_name(pod), kind="LeaderWorkerSet", api_group="")
    owner = controller(owners)
    kind = kind_of(owner.api_version, owner.kind) if owner else None
    if owner and kind == JOB and labels.get(JOBSET_NAME_LABEL):
        return GroupRef(namespace, owner.name, kind="JobSet", api_group="")
    if owner and kind == NATIVE:
        return GroupRef(namespace, owner.name)
    if owner and kind == COSCHEDULED:
        return GroupRef(namespace, owner.name, kind=f"PodGroup.{COSCHEDULED[0]}", api_group=COSCHEDULED[0])
    return None


# ------------------------------------------------------------------ order


def ordered(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """The pods in the order in which they get nodes, whatever the order of the argument.

    The pods of a LeaderWorkerSet are ordered by worker index, others by owner and index; then all by the natural order
    of names, p2 before p10. So consecutive ranks get nodes with consecutive names in Slurm.
    """
    return tuple(sorted(pods, key=_rank))


def _rank(pod: Pod) -> tuple[object, ...]:
    metadata = pod.metadata
    owner = controller(metadata.owner_references)
    worker = _index(metadata.labels.get(_WORKER_INDEX))
    if worker is not None:
        place: tuple[object, ...] = (_natural(""), worker)
    else:
        labelled = (_index(metadata.labels.get(key) or metadata.annotations.get(key)) for key in _INDEXES)
        index = next((one for one in labelled if one is not None), MOST_NUMBER)
        place = (_natural(owner.name if owner else ""), index)
    return (*place, _natural(metadata.name), metadata.name, metadata.namespace, metadata.uid)


def _index(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    return tuple((text, int(digits or -1)) for text, digits in _RUNS.findall(name) if text or digits)


# ------------------------------------------------------------------ the job's fields


def _check_startup(root: Workload) -> None:
    if root.startup_policy == "LeaderReady" and (root.size or 1) > 1:
        raise TranslationError(
            f"{root}: spec.startupPolicy: with LeaderReady, workers are created when the leader runs, "
            "but Slurm allocates nodes to all pods at the same time; set LeaderCreated"
        )


def _name(root: Workload, first: Pod) -> str:
    if root.of_kind == LEADER_WORKER_SET:
        return _lws_name(first) if first.metadata.labels.get(LWS_LABEL + "group-index") else root.metadata.name
    return (root.part or root).metadata.name


def _lws_name(pod: Pod) -> str:
    return f"{pod.metadata.labels.get(LWS_LABEL + 'name')}-{pod.metadata.labels.get(LWS_LABEL + 'group-index')}"


def _nodes(root: Workload, wanted: JobAnnotations, pods: int) -> int:
    """One node for each pod, or `min-nodes` if that is more. A higher `max-nodes` adds none."""
    nodes = max(pods, wanted.minimum_nodes or 1)
    if wanted.maximum_nodes is not None and wanted.maximum_nodes < nodes:
        raise TranslationError(
            f"{root}: {names.JOB}max-nodes is {wanted.maximum_nodes}, but {nodes} nodes are needed, "
            f"at least one for each of {pods} pods; raise or remove it"
        )
    return nodes


def _deadline(workload: Workload) -> int | None:
    """In minutes, rounded up. A limit of 0 is omitted, because Slurm would end the job at once."""
    seconds = workload.active_deadline_seconds or 0
    return min(MOST_NUMBER, -(-seconds // 60)) if seconds > 0 else None


def _cpus(root: Workload, needs: Sequence[Mapping[str, int]]) -> int | None:
    millis = max(max(one.get("cpu", 0), 1000 * one.get(gres.CPU_CLASS, 0)) for one in needs)
    cpus = -(-millis // 1000)
    if cpus > MOST_CPUS:
        raise TranslationError(f"{root}: a pod requests {cpus} CPUs, and Slurm supports at most {MOST_CPUS}")
    return cpus or None


def _memory(needs: Sequence[Mapping[str, int]]) -> int | None:
    return -(-max(one.get("memory", 0) for one in needs) // MIB) or None


def _gres(root: Workload, wanted: JobAnnotations, needs: Sequence[Mapping[str, int]], terms: Terms) -> str:
    if wanted.gres is not None:
        return gres.to_text(wanted.gres, terms.known_gres)
    try:
        return gres.to_text(gres.of_pods(needs, terms.resources), terms.known_gres)
    except ValueError as error:
        raise TranslationError(f"{root}: resources of its pods: {error}") from None


def _needs(pod: Pod) -> dict[str, int]:
    """The larger of request and limit of each resource: cpu in millicores, the rest in base units."""
    try:
        requests, limits = pod_requests(pod)[0], pod_requests(_limits_as_requests(pod))[0]
    except QuantityError as error:
        raise TranslationError(f"Pod {pod.key}: {error}") from None
    return {name: max(requests.get(name, 0), limits.get(name, 0)) for name in {**requests, **limits}}


def _limits_as_requests(pod: Pod) -> Pod:
    def swapped(resources: ResourceRequirements) -> ResourceRequirements:
        return replace(resources, requests=resources.limits, limits={})

    def each(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(replace(one, resources=swapped(one.resources)) for one in containers)

    spec = pod.spec
    return replace(pod, spec=replace(spec, containers=each(spec.containers), init_containers=each(spec.init_containers),
                                     resources=swapped(spec.resources) if spec.resources else None))  # fmt: skip
