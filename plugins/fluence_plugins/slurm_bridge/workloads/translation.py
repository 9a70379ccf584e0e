"""From pods to the Slurm job that stands in for them: how many nodes, and what of each.

Every pod gets a node of its own, so a job has as many nodes as it stands for pods. What is the same in all pods' needs
and in the annotations gives equal placeholders, whatever the order in which the pods are named.
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
from fluence_plugins.slurm_bridge.workloads.annotations import MIB, MOST_CPUS, MOST_NUMBER, Asked, read
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
"""Labels of pods of an Indexed Job and of a StatefulSet; the first is an annotation, too."""
_RUNS = re.compile(r"([^0-9]*)([0-9]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What translation needs to know beside workload and pods."""

    resources: Mapping[str, str] = field(default_factory=lambda: gres.DEFAULT_RESOURCES)
    """As `gres.DEFAULT_RESOURCES`."""
    known_gres: gres.Known = ()
    """As `gres.known_of` reads them from Slurm's nodes."""


def translate(root: Workload, pods: Sequence[Pod], terms: Terms = Terms()) -> Placeholder:
    """The job for these pods of the root: all that are to start together. Raises TranslationError."""
    if not pods:
        raise TranslationError(f"{root}: it has no pods to stand in for")
    _check_startup(root)
    asked = read(root)
    in_order = ordered(pods)
    needs = [_needs(pod) for pod in in_order]
    nodes = _nodes(root, asked, len(in_order))
    return Placeholder(
        name=asked.name or _name(root, in_order[0]),
        pods=tuple(PodIdentity(one.namespace, one.name, one.uid) for one in (pod.metadata for pod in in_order)),
        minimum_nodes=nodes,
        maximum_nodes=nodes,
        cpus_per_task=asked.cpus_per_task or _cpus(root, needs),
        memory_mib=_memory(needs) if asked.memory_mib is None else asked.memory_mib,
        gres=_gres(root, asked, needs, terms),
        account=asked.account,
        constraints=asked.constraints,
        exclusive=asked.exclusive,
        user_id=asked.user_id,
        group_id=asked.group_id,
        licenses=asked.licenses,
        partition=asked.partition,
        priority=asked.priority,
        qos=asked.qos,
        reservation=asked.reservation,
        time_limit_minutes=asked.time_limit_minutes or _deadline(root.part or root),
        wckey=asked.wckey,
    )


def expected(root: Workload) -> int | None:
    """How many pods there must be, those that run with them, before a job is asked for; None where each is for itself.

    Of a Job in a JobSet: its pods that run at a time, less those that it does not need any more to be complete.
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
    """The group of a pod that names no PodGroup, as the hook of this name answers; None for one that is alone.

    A group here needs one pod to be looked at: whether all are there that are `expected` is for the plugin to see.
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
    """The pods in the order in which they are given nodes, always the same.

    Of a LeaderWorkerSet's group by worker index, others by owner and index, and all in the natural order of names: p2
    before p10. So ranks that follow one another are on nodes that Slurm names one after the other.
    """
    return tuple(sorted(pods, key=_rank))


def _rank(pod: Pod) -> tuple[object, ...]:
    metadata = pod.metadata
    owner = controller(metadata.owner_references)
    worker = _index(metadata.labels.get(_WORKER_INDEX))
    if worker is not None:
        place: tuple[object, ...] = (_natural(""), worker)
    else:
        said = (_index(metadata.labels.get(key) or metadata.annotations.get(key)) for key in _INDEXES)
        index = next((one for one in said if one is not None), MOST_NUMBER)
        place = (_natural(owner.name if owner else ""), index)
    return (*place, _natural(metadata.name), metadata.name, metadata.namespace, metadata.uid)


def _index(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    return tuple((text, int(digits or -1)) for text, digits in _RUNS.findall(name) if text or digits)


# ------------------------------------------------------------------ what the job is


def _check_startup(root: Workload) -> None:
    if root.startup_policy == "LeaderReady" and (root.size or 1) > 1:
        raise TranslationError(
            f"{root}: spec.startupPolicy: with LeaderReady workers come only when the leader runs, "
            "and Slurm gives nodes to all at once: set LeaderCreated"
        )


def _name(root: Workload, first: Pod) -> str:
    if root.of_kind == LEADER_WORKER_SET:
        return _lws_name(first) if first.metadata.labels.get(LWS_LABEL + "group-index") else root.metadata.name
    return (root.part or root).metadata.name


def _lws_name(pod: Pod) -> str:
    return f"{pod.metadata.labels.get(LWS_LABEL + 'name')}-{pod.metadata.labels.get(LWS_LABEL + 'group-index')}"


def _nodes(root: Workload, asked: Asked, pods: int) -> int:
    """One for each pod, more where the annotation says so; never more than those just because a maximum allows it."""
    nodes = max(pods, asked.minimum_nodes or 1)
    if asked.maximum_nodes is not None and asked.maximum_nodes < nodes:
        raise TranslationError(
            f"{root}: {names.JOB}max-nodes is {asked.maximum_nodes}, and {nodes} are needed, "
            f"one for each of {pods} pods at least: raise or remove it"
        )
    return nodes


def _deadline(workload: Workload) -> int | None:
    """Minutes, rounded up. Slurm ends a job with a limit of 0 at once, so that is left out."""
    seconds = workload.active_deadline_seconds or 0
    return min(MOST_NUMBER, -(-seconds // 60)) if seconds > 0 else None


def _cpus(root: Workload, needs: Sequence[Mapping[str, int]]) -> int | None:
    millis = max(max(one.get("cpu", 0), 1000 * one.get(gres.CPU_CLASS, 0)) for one in needs)
    cpus = -(-millis // 1000)
    if cpus > MOST_CPUS:
        raise TranslationError(f"{root}: a pod of it asks for {cpus} CPUs, and Slurm takes {MOST_CPUS} at most")
    return cpus or None


def _memory(needs: Sequence[Mapping[str, int]]) -> int | None:
    return -(-max(one.get("memory", 0) for one in needs) // MIB) or None


def _gres(root: Workload, asked: Asked, needs: Sequence[Mapping[str, int]], terms: Terms) -> str:
    if asked.gres is not None:
        return gres.written(asked.gres, terms.known_gres)
    try:
        return gres.written(gres.of_pods(needs, terms.resources), terms.known_gres)
    except ValueError as error:
        raise TranslationError(f"{root}: resources of its pods: {error}") from None


def _needs(pod: Pod) -> dict[str, int]:
    """The greater of requests and limits of each resource: cpu in thousandths, the rest in base units."""
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
