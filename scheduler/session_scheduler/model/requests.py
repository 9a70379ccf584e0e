"""Resource requests of a pod, as kube-scheduler counts them. Source: component-helpers' resource.PodRequests, 1.36.

The requests of containers and sidecars are added up. If an init container, together with the sidecars started before
it, needs more, that counts instead. Pod-level requests replace the result for cpu, memory and huge pages. The overhead
is added last. The API server's defaults are applied here too, so that manifests count as they would in a cluster.
Amounts are added up in thousandths and rounded up once, at the end.

While a pod is resized in place, its status counts, too (`effective_spec`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from operator import is_

from msgspec.structs import replace

from session_scheduler.model.objects import (
    Container,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    Quantity,
    ResourceRequirements,
)
from session_scheduler.model.quantity import LARGEST, QuantityError, thousandths, whole

__all__ = ["effective_spec", "pod_requests", "without_wrong_amounts"]

Amounts = dict[str, int]
DEFAULT_CPU_MILLIS = 100
"""The CPU of a container without a CPU request, for scores."""
DEFAULT_MEMORY_BYTES = 200 * 1024 * 1024
"""The memory of a container without a memory request, for scores."""

_SCORED: Mapping[str, int] = {"cpu": DEFAULT_CPU_MILLIS, "memory": 1000 * DEFAULT_MEMORY_BYTES}
_COUNTED = "cpu", "memory", "ephemeral-storage"


def pod_requests(pod: Pod) -> tuple[Amounts, Amounts]:
    """The requests; also cpu and memory for scores, with a default amount for each container without a request.

    cpu is in millicores, the rest in base units. The requests omit zero amounts, and resources that kube-scheduler
    ignores. For a pod on a node, the effective requests count. Raises QuantityError, which names the field.
    """
    needs = _Needs(effective_spec(pod))
    total = needs.total({})
    missing = {name: amount for name, amount in _SCORED.items() if name not in total} if needs.whole else _SCORED
    scored = needs.total(missing) if missing else total
    return (
        {name: amount for name, exact in total.items() if is_counted(name) and (amount := _rounded(name, exact))},
        {name: _rounded(name, scored.get(name, 0)) for name in _SCORED},
    )


def containers_requests(pod: Pod) -> Amounts:
    """cpu and memory of containers and overhead, with defaults, without pod-level requests.

    kube-scheduler's NodeResourcesFit scores the pod to place by these amounts. Raises QuantityError.
    """
    total = _Needs(pod.spec, with_whole=False).total(_SCORED)
    return {name: _rounded(name, total.get(name, 0)) for name in _SCORED}


def without_wrong_amounts(pod: Pod) -> Pod:
    """The pod without its invalid amounts, so that the other requests can be counted."""

    def kept(resources: ResourceRequirements) -> ResourceRequirements:
        return replace(resources, requests=_readable(resources.requests), limits=_readable(resources.limits))

    def each(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(replace(one, resources=kept(one.resources)) for one in containers)

    spec = pod.spec
    whole_pod = kept(spec.resources) if spec.resources is not None else None
    return replace(pod, spec=replace(spec, containers=each(spec.containers), init_containers=each(spec.init_containers),
                                     overhead=_readable(spec.overhead), resources=whole_pod))  # fmt: skip


def _readable(quantities: Mapping[str, Quantity]) -> dict[str, Quantity]:
    found = {}
    for name, quantity in quantities.items():
        with suppress(QuantityError):
            _amounts({name: quantity}, "")
            found[name] = quantity
    return found


def is_counted(name: str) -> bool:
    """Whether the scheduler counts this resource: like kube-scheduler it ignores unknown names without a domain."""
    return name in _COUNTED or is_scalar(name)


def is_scalar(name: str) -> bool:
    """Whether the resource is extended, huge pages, attachable volumes, or has Kubernetes' prefix."""
    if "/" not in name:
        return name.startswith(("hugepages-", "attachable-volumes-"))
    return not name.startswith("requests.") or "kubernetes.io/" in name


def unknown_resource(name: str, *others: str) -> str:
    """The problem of a name that is not counted, and the remedy. `others` are valid here, too."""
    known = (*_COUNTED, *others)
    without_prefix = name.removeprefix("requests.").removeprefix("limits.")  # as in a ResourceQuota
    is_known = without_prefix != name and is_counted(without_prefix)
    near = [without_prefix] if is_known else get_close_matches(name.lower(), known, 1, 0.7)  # gpu is not cpu
    remedy = f"did you mean {near[0]}?" if near else f"use {', '.join(known)}, hugepages-SIZE or DOMAIN/NAME"
    return f"unknown resource; {remedy}"


def _rounded(name: str, amount: int) -> int:
    return min(LARGEST, amount if name == "cpu" else whole(amount))


# ------------------------------------------------------------------ in-place resize


def effective_spec(pod: Pod) -> PodSpec:
    """The spec with the effective requests: the pod's own, unless the pod is on a node and a resize is incomplete.

    A resize changes the spec at once. The kubelet then allocates the new amounts, applies them, and reports both in the
    status. Until they agree, a container counts with the greatest of the three amounts of each resource. While the
    kubelet reports the resize as infeasible, the spec does not count. A reported amount that is not a valid quantity
    does not count either.
    """
    spec, status = pod.spec, pod.status
    if not spec.node_name or not (status.container_statuses or status.init_container_statuses or status.resources):
        return spec
    statuses = {one.name: one for one in (*status.container_statuses, *status.init_container_statuses)}
    infeasible = is_infeasible(status)
    containers = [_effective_container(one, statuses.get(one.name), infeasible) for one in spec.containers]
    init = [
        _effective_container(one, statuses.get(one.name), infeasible) if one.restart_policy == "Always" else one
        for one in spec.init_containers
    ]
    whole_pod = _effective_pod_level(spec.resources, status, infeasible)
    if (
        all(map(is_, containers, spec.containers))
        and all(map(is_, init, spec.init_containers))
        and whole_pod is spec.resources
    ):
        return spec
    return replace(spec, containers=tuple(containers), init_containers=tuple(init), resources=whole_pod)


def is_infeasible(status: PodStatus) -> bool:
    """Whether the kubelet reports that the node cannot have the pod's new requests."""
    return any((one.type, one.reason) == ("PodResizePending", "Infeasible") for one in status.conditions)


def _effective_container(container: Container, status: ContainerStatus | None, infeasible: bool) -> Container:
    if status is None or status.resources is None:
        return container
    resources = container.resources
    spec = {**resources.limits, **resources.requests} if resources.limits else resources.requests
    requests = _effective(spec, status.resources, status.allocated_resources, infeasible)
    return container if requests == spec else replace(container, resources=ResourceRequirements(requests=requests))


def _effective_pod_level(
    resources: ResourceRequirements | None, status: PodStatus, infeasible: bool
) -> ResourceRequirements | None:
    """The status counts for the resources that the spec requests."""
    if resources is None or status.resources is None:
        return resources
    found = _effective(resources.requests, status.resources, status.allocated_resources, infeasible)
    requests = {name: found.get(name, "0") for name in resources.requests}
    return resources if requests == resources.requests else replace(resources, requests=requests)


def _effective(
    spec: Mapping[str, Quantity], actual: ResourceRequirements, allocated: Mapping[str, Quantity], infeasible: bool
) -> dict[str, Quantity]:
    found = {} if infeasible else dict(spec)
    for amounts in (actual.requests, allocated):
        for name, amount in amounts.items():
            if amount != found.get(name) and _exceeds(amount, found.get(name, -1)):
                found[name] = amount
    return found


def _exceeds(amount: Quantity, other: Quantity) -> bool:
    try:
        return thousandths(amount) > thousandths(other)
    except QuantityError:
        return False


# ------------------------------------------------------------------ sums


class _Needs:
    """A pod's parsed quantities: containers, init containers (and whether each is a sidecar), pod level, overhead."""

    def __init__(self, spec: PodSpec, *, with_whole: bool = True) -> None:
        self._main = [_requests(c.resources, f"spec.containers[{i}].resources") for i, c in enumerate(spec.containers)]
        self._init = [
            (c.restart_policy == "Always", _requests(c.resources, f"spec.initContainers[{i}].resources"))
            for i, c in enumerate(spec.init_containers)
        ]
        self._overhead = _amounts(spec.overhead, "spec.overhead")
        self.whole: Amounts = {}
        """The pod-level requests."""
        if with_whole and spec.resources is not None:
            self.whole = _pod_level(spec.resources, _combine(self._main, self._init, {}))

    def total(self, defaults: Mapping[str, int]) -> Amounts:
        """The total in thousandths; `defaults` apply to each container that does not name the resource."""
        total = _combine(self._main, self._init, defaults)
        total.update(self.whole)
        _add(total, self._overhead)
        return total


def _amounts(quantities: Mapping[str, Quantity], where: str) -> Amounts:
    amounts = {}
    for name, quantity in quantities.items():
        try:
            amounts[name] = thousandths(quantity)
        except QuantityError as error:
            raise QuantityError(f"{where}.{name}: {error}") from None
        if amounts[name] < 0:
            raise QuantityError(f"{where}.{name}: {quantity!r} is negative; write 0 or more")
    return amounts


def _requests(resources: ResourceRequirements, where: str) -> Amounts:
    """The requests; a limit without a request is the request too, as the API server defaults it."""
    if not resources.limits:
        return _amounts(resources.requests, f"{where}.requests")
    limits = {name: limit for name, limit in resources.limits.items() if name not in resources.requests}
    return {**_amounts(limits, f"{where}.limits"), **_amounts(resources.requests, f"{where}.requests")}


def _pod_level(resources: ResourceRequirements, containers: Amounts) -> Amounts:
    """The pod-level requests; for a limit without a request, the request of the containers, else the limit."""
    whole_pod = _supported(_amounts(resources.requests, "spec.resources.requests"))
    limits = _amounts(resources.limits, "spec.resources.limits")
    if limits:
        for name in _SCORED:
            if name in containers:
                whole_pod.setdefault(name, containers[name])
        for name, limit in _supported(limits).items():
            whole_pod.setdefault(name, limit)
    return whole_pod


def _supported(amounts: Amounts) -> Amounts:
    return {name: amount for name, amount in amounts.items() if name in _SCORED or name.startswith("hugepages-")}


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _most(total: Amounts, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        total[name] = max(total.get(name, 0), amount)


def _combine(main: list[Amounts], init: list[tuple[bool, Amounts]], defaults: Mapping[str, int]) -> Amounts:
    total: Amounts = {}
    for amounts in main:
        _add(total, {**defaults, **amounts})
    sidecars: Amounts = {}
    starting: Amounts = {}
    for sidecar, named in init:
        amounts = {**defaults, **named}
        if sidecar:
            _add(total, amounts)
            _add(sidecars, amounts)
            _most(starting, sidecars)
        else:
            _add(amounts, sidecars)
            _most(starting, amounts)
    _most(total, starting)
    return total
