"""Measures the resources that a cluster can offer as a pool: its nodes' resources, minus those of pods outside the
pool.

Kueue already counts its admitted workloads against the pool's quota. So the pool's own pods, in the given namespaces,
are not subtracted: they would count twice.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fluence_plugins.master_queue.amounts import RESOURCES, amount_text, amounts
from session_scheduler.errors import InputError, plain, shown
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.quantity import QuantityError
from session_scheduler.model.requests import pod_requests, without_wrong_amounts
from session_scheduler.sdk.dynamic_client import ClusterError, Invalid, KubeApi, Unreadable

log = logging.getLogger("fluence")

_BLOCKING: Final = ("NoSchedule", "NoExecute")
_RUNNING: Final = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a cluster that a pool offers."""

    selector: str = ""
    """A label selector for its nodes; empty for all nodes."""
    own: frozenset[str] = frozenset()
    """The namespaces of the pool's own pods."""
    tolerated: frozenset[str] = frozenset()
    """The keys of taints that the pool's pods tolerate."""


async def capacity(api: KubeApi, part: Part) -> dict[str, str]:
    """What the part can offer, by resource, in the API server's form. Raises ClusterError or InputError."""
    try:
        nodes, pods = await _nodes(api, part.selector), await api.list("/api/v1/pods", Pod, fields=_RUNNING)
    except Unreadable as error:
        raise ClusterError(f"{error}: the server is not a Kubernetes API server") from None
    return {name: amount_text(name, amount) for name, amount in free(nodes, pods, part).items()}


async def _nodes(api: KubeApi, selector: str) -> tuple[Node, ...]:
    try:
        return await api.list("/api/v1/nodes", Node, labels=selector)
    except Invalid as error:
        what = f"--selector: {shown(selector)} is not a valid label selector; write zone=a,!old"
        raise InputError(f"{what} ({error})") from None


# ------------------------------------------------------------------ pure


def free(nodes: Iterable[Node], pods: Iterable[Pod], part: Part) -> dict[str, int]:
    """Thousandths of each resource that a node has: what others' pods leave, at least 0, summed over nodes."""
    left = {node.key: amounts(node.status.allocatable) for node in nodes if is_schedulable(node, part.tolerated)}
    for pod in pods:
        on = left.get(pod.spec.node_name)
        if on is None or pod.terminal or pod.metadata.namespace in part.own:
            continue
        for resource, amount in _used(pod).items():
            if resource in on:
                on[resource] = max(0, on[resource] - amount)
    there = [name for name in RESOURCES if any(name in on for on in left.values())]
    return {name: sum(on.get(name, 0) for on in left.values()) for name in there}


def is_schedulable(node: Node, tolerated: Collection[str]) -> bool:
    """Whether the node is ready, not cordoned, and has no taint that the pool's pods do not tolerate."""
    ready = any((one.type, one.status) == ("Ready", "True") for one in node.status.conditions)
    blocked = any(taint.effect in _BLOCKING and taint.key not in tolerated for taint in node.spec.taints)
    return ready and not node.spec.unschedulable and not blocked


def _used(pod: Pod) -> dict[str, int]:
    """The pod's requests, in thousandths; invalid amounts are omitted."""
    try:
        requests, _ = pod_requests(pod)
    except QuantityError as error:
        log.debug("[master-queue] pod %s: %s", plain(pod.key), error)
        requests, _ = pod_requests(without_wrong_amounts(pod))
    whole = {name: 1000 * amount for name, amount in requests.items() if name in RESOURCES and name != "cpu"}
    return {**whole, "cpu": requests.get("cpu", 0), "pods": 1000}


def lesser(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str]:
    """The lesser amount of each resource. If `second` lacks a resource, the amount of `first` counts; if `first` lacks
    it, 0.
    """
    one, other = amounts(dict(first)), amounts(dict(second))
    found = {name: min(amount, other.get(name, amount)) for name, amount in one.items()}
    found |= {name: 0 for name in other if name not in one}
    return {name: amount_text(name, found[name]) for name in RESOURCES if name in found}
