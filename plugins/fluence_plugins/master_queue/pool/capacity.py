"""What a cluster can give to a pool: what its nodes have, less what others than the pool have of it.

Kueue counts what it admits against a pool's quota. Pods that the pool itself runs, in the namespaces that are named,
are therefore not taken off: they would be counted twice.
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

_HINDERS: Final = ("NoSchedule", "NoExecute")
_RUNNING: Final = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a cluster a pool may give out."""

    selector: str = ""
    """A label selector of its nodes; empty for all."""
    own: frozenset[str] = frozenset()
    """Namespaces of pods that the pool itself runs."""
    tolerated: frozenset[str] = frozenset()
    """Keys of taints that the pool's pods tolerate."""


async def capacity(api: KubeApi, part: Part) -> dict[str, str]:
    """What the part can give, by resource, as Kubernetes writes it. Raises ClusterError; InputError."""
    try:
        nodes, pods = await _nodes(api, part.selector), await api.list("/api/v1/pods", Pod, fields=_RUNNING)
    except Unreadable as error:
        raise ClusterError(f"{error}: what answers is no API server of Kubernetes") from None
    return {name: amount_text(name, amount) for name, amount in free(nodes, pods, part).items()}


async def _nodes(api: KubeApi, selector: str) -> tuple[Node, ...]:
    try:
        return await api.list("/api/v1/nodes", Node, labels=selector)
    except Invalid as error:
        what = f"--selector: {shown(selector)} is no label selector: write zone=a,!old"
        raise InputError(f"{what} ({error})") from None


# ------------------------------------------------------------------ pure


def free(nodes: Iterable[Node], pods: Iterable[Pod], part: Part) -> dict[str, int]:
    """Thousandths of each resource that some node has: of each node what it has less what others use, 0 at least."""
    left = {node.key: amounts(node.status.allocatable) for node in nodes if takes_pods(node, part.tolerated)}
    for pod in pods:
        on = left.get(pod.spec.node_name)
        if on is None or pod.terminal or pod.metadata.namespace in part.own:
            continue
        for resource, amount in _taken(pod).items():
            if resource in on:
                on[resource] = max(0, on[resource] - amount)
    there = [name for name in RESOURCES if any(name in on for on in left.values())]
    return {name: sum(on.get(name, 0) for on in left.values()) for name in there}


def takes_pods(node: Node, tolerated: Collection[str]) -> bool:
    """Whether the node is ready, not cordoned, and has no taint that keeps the pool's pods away."""
    ready = any((one.type, one.status) == ("Ready", "True") for one in node.status.conditions)
    hinders = any(taint.effect in _HINDERS and taint.key not in tolerated for taint in node.spec.taints)
    return ready and not node.spec.unschedulable and not hinders


def _taken(pod: Pod) -> dict[str, int]:
    """What the pod has of its node, in thousandths; amounts that cannot be read are left out."""
    try:
        requests, _ = pod_requests(pod)
    except QuantityError as error:
        log.debug("[master-queue] pod %s: %s", plain(pod.key), error)
        requests, _ = pod_requests(without_wrong_amounts(pod))
    whole = {name: 1000 * amount for name, amount in requests.items() if name in RESOURCES and name != "cpu"}
    return {**whole, "cpu": requests.get("cpu", 0), "pods": 1000}


def lesser(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str]:
    """Of each resource the lesser amount: what only `first` names as there, of what only `second` names nothing."""
    one, other = amounts(dict(first)), amounts(dict(second))
    found = {name: min(amount, other.get(name, amount)) for name, amount in one.items()}
    found |= {name: 0 for name in other if name not in one}
    return {name: amount_text(name, found[name]) for name in RESOURCES if name in found}
