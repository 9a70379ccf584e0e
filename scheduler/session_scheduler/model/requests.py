"""What a pod requests, as the scheduler counts it. Source: component-helpers' resource.PodRequests.

The sum over containers and sidecars; or what starting needs, if more: each init container beside the sidecars started
before it; plus the overhead.
"""

from __future__ import annotations

from collections.abc import Iterable

from session_scheduler.model.objects import Container, Pod, Quantity, ResourceRequirements
from session_scheduler.model.quantity import QuantityError, parse_quantity

Amounts = dict[str, int]
DEFAULT_CPU_MILLIS = 100
"""What a container without a cpu request counts as in scores."""
DEFAULT_MEMORY_BYTES = 200 * 1024 * 1024
"""What a container without a memory request counts as in scores."""


def _amounts(quantities: dict[str, Quantity], where: str) -> Amounts:
    amounts = {}
    for name, quantity in quantities.items():
        try:
            amounts[name] = parse_quantity(quantity, milli=name == "cpu")
        except QuantityError as error:
            raise QuantityError(f"{where}.{name}: {error}") from None
        if amounts[name] < 0:
            raise QuantityError(f"{where}.{name}: {quantity!r} is negative: write 0 or more")
    return amounts


def _requests(resources: ResourceRequirements, where: str) -> Amounts:
    """The requests; a limit without a request of the same name is the request (as the API server defaults it)."""
    return _amounts({**resources.limits, **resources.requests}, f"{where}.requests")


def _nonzero(amounts: Amounts) -> Amounts:
    return {"cpu": amounts.get("cpu", DEFAULT_CPU_MILLIS), "memory": amounts.get("memory", DEFAULT_MEMORY_BYTES)}


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _most(total: Amounts, other: Amounts) -> None:
    for name, amount in other.items():
        total[name] = max(total.get(name, 0), amount)


def _combine(main: Iterable[Amounts], init: Iterable[tuple[Container, Amounts]]) -> Amounts:
    total: Amounts = {}
    for amounts in main:
        _add(total, amounts)
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container, amounts in init:
        if container.restart_policy == "Always":
            _add(total, amounts)
            _add(sidecars, amounts)
            _most(starting, sidecars)
        else:
            beside = dict(sidecars)
            _add(beside, amounts)
            _most(starting, beside)
    _most(total, starting)
    return total


def pod_requests(pod: Pod) -> tuple[Amounts, Amounts]:
    """(requests, the same for scores: cpu and memory with defaults for containers that name none).

    cpu in millicores, the rest in base units, zero amounts left out of the first. Raises QuantityError, which names
    the field.
    """
    spec = pod.spec
    main = [_requests(c.resources, f"spec.containers[{i}].resources") for i, c in enumerate(spec.containers)]
    init = [_requests(c.resources, f"spec.initContainers[{i}].resources") for i, c in enumerate(spec.init_containers)]
    overhead = _amounts(spec.overhead, "spec.overhead")
    requests = _combine(main, zip(spec.init_containers, init, strict=True))
    scored = _combine(map(_nonzero, main), zip(spec.init_containers, map(_nonzero, init), strict=True))
    if spec.resources is not None:
        whole = _requests(spec.resources, "spec.resources")
        requests.update(whole)
        scored.update({name: whole[name] for name in ("cpu", "memory") if name in whole})
    _add(requests, overhead)
    _add(scored, {name: overhead[name] for name in ("cpu", "memory") if name in overhead})
    return {name: amount for name, amount in requests.items() if amount}, scored
