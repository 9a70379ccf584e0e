"""What the containers of a pod need in NUMA zones, for NodeResourceTopologyMatch.

The kubelet gives a pod of the QoS class Guaranteed whole CPUs, memory and huge pages of its own, and any pod its
devices. Source: Kubernetes' documentation of the CPU manager, the memory manager and the topology manager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from session_scheduler.model.objects import Container, Pod, Quantity, ResourceRequirements
from session_scheduler.model.quantity import QuantityError, parse_quantity

Amounts = tuple[tuple[str, int], ...]
"""(resource, amount), sorted: cpu in millicores, the rest in base units."""
_QOS: Final = ("cpu", "memory")
LARGEST: Final = 2**50
"""Larger amounts count as this one: what all pods of a node hold must fit in 64 bits."""


class Need(msgspec.Struct, frozen=True):
    """What must be free in one zone for a container, or for a pod as a whole."""

    what: str
    """container, init container, sidecar container or pod: for messages."""
    requests: Amounts
    stays: bool = True
    """Whether it keeps them while the containers after it run."""


class Pinned(msgspec.Struct, frozen=True):
    """What the kubelet allocates to a running pod in NUMA zones: by container, each in one zone.

    It is the key of the counter of such pods on a node.
    """

    containers: tuple[Amounts, ...]

    @property
    def total(self) -> Amounts:
        """The sum over the containers."""
        return _sum(self.containers)


class Reported(msgspec.Struct, frozen=True):
    """The key of the counter of those pods that the node's NodeResourceTopology accounts for."""

    pinned: Pinned


class PodNeeds(msgspec.Struct, frozen=True):
    """A pod's needs, for both scopes of the topology manager."""

    containers: tuple[Need, ...]
    """In the order in which the kubelet allocates: init containers first."""
    whole: Need
    guaranteed: bool

    @property
    def any(self) -> bool:
        """Whether the pod needs anything in a zone."""
        return any(need.requests for need in self.containers)

    def of_scope(self, *, pod: bool) -> tuple[Need, ...]:
        """The needs to align, in order."""
        return (self.whole,) if pod else self.containers


def needs_of(pod: Pod, requests: Mapping[str, int]) -> PodNeeds:
    """What a pod to place needs; `requests` are those of the pod as a whole. Without QoS Guaranteed only devices count.

    Raises QuantityError.
    """
    guaranteed = is_guaranteed(pod)
    needs = []
    for one in pod.spec.init_containers:
        kind = "sidecar" if is_sidecar(one) else "init"
        needs.append(Need(f"{kind} container", _aligned(one, guaranteed=guaranteed), is_sidecar(one)))
    needs += [Need("container", _aligned(one, guaranteed=guaranteed)) for one in pod.spec.containers]
    whole = {name: min(amount, LARGEST) for name, amount in requests.items() if guaranteed or _is_device(name)}
    return PodNeeds(tuple(needs), Need("pod", tuple(sorted(whole.items()))), guaranteed)


def pinned_of(pod: Pod) -> Pinned | None:
    """What a running pod holds in zones; None if nothing. Raises QuantityError."""
    guaranteed = is_guaranteed(pod)
    running = [one for one in pod.spec.init_containers if is_sidecar(one)] + list(pod.spec.containers)
    held = [
        tuple((name, amount) for name, amount in _aligned(one, guaranteed=guaranteed) if _is_exclusive(name, amount))
        for one in running
    ]
    found = tuple(amounts for amounts in held if amounts)
    return Pinned(found) if found else None


def is_guaranteed(pod: Pod) -> bool:
    """Whether the pod has the QoS class Guaranteed by its containers.

    The kubelet aligns no CPUs and no memory for resources of the pod level.
    """
    if pod.spec.resources is not None:
        return False
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return bool(containers) and all(_limits_all(one.resources) for one in containers)


def _limits_all(resources: ResourceRequirements) -> bool:
    try:
        return all(
            0 < _amount(name, resources.limits.get(name, 0))
            == _amount(name, resources.requests.get(name, resources.limits.get(name, 0)))
            for name in _QOS
        )  # fmt: skip
    except QuantityError:
        return False


def is_sidecar(container: Container) -> bool:
    """Whether an init container runs beside the pod's containers."""
    return container.restart_policy == "Always"


def _aligned(container: Container, *, guaranteed: bool) -> Amounts:
    resources = container.resources
    requests = {**resources.limits, **resources.requests}
    amounts = {name: _amount(name, one) for name, one in requests.items() if guaranteed or _is_device(name)}
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def _is_device(name: str) -> bool:
    """Whether it is an extended resource, which a device plugin may offer."""
    return "/" in name and "kubernetes.io/" not in name


def _is_exclusive(name: str, amount: int) -> bool:
    """Whether the kubelet gives that amount to one container alone: it does not for a fraction of a CPU."""
    return amount % 1000 == 0 if name == "cpu" else name == "memory" or name.startswith("hugepages-") or "/" in name


def _amount(name: str, quantity: Quantity) -> int:
    return min(parse_quantity(quantity, milli=name == "cpu"), LARGEST)


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    total: Counter[str] = Counter()
    for one in amounts:
        total.update(dict(one))
    return tuple(sorted((name, min(amount, LARGEST)) for name, amount in total.items()))
