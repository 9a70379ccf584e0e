"""Classes: pods with equal needs, evaluated once for all of them.

A class's key holds what filters and scores read and nothing else: names, index labels, template hashes and the token
volume that every pod gets would make each pod a class of its own.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from session_scheduler.model.gpu_shares import queue_amounts
from session_scheduler.model.objects import Pod
from session_scheduler.model.pod_terms import PodTerms
from session_scheduler.model.refusals import Refusal
from session_scheduler.model.requests import pod_requests
from session_scheduler.model.volumes import volume_keys

__all__ = ["TaskClass"]

_MORE_THAN_ANY: Final = 2**40
"""Pods, of which no node takes as many."""


class TaskClass:
    """The needs that pods share. `pod` is one of them: read its spec, never its name, uid or other identity."""

    __slots__ = (
        "footprint", "gpu_amounts", "index", "key", "nonzero_cpu", "nonzero_memory", "pod", "ports", "problem",
        "refusal", "requests", "terms", "usage", "volumes",
    )  # fmt: skip

    def __init__(self, index: int, key: bytes, pod: Pod) -> None:
        self.index = index
        self.key = key
        self.pod = pod
        self.requests, scored = pod_requests(pod)
        if pod.unreadable:  # what it holds must not be taken for free
            self.requests["pods"] = _MORE_THAN_ANY
        """Resource name → amount (cpu in millicores), zero amounts left out."""
        self.gpu_amounts = queue_amounts(pod.metadata)
        """What it takes of GPUs that it shares, beside its requests: see `gpu_shares.queue_amounts`."""
        self.nonzero_cpu = scored.get("cpu", 0)
        self.nonzero_memory = scored.get("memory", 0)
        self.usage: tuple[tuple[int, int], ...] = ()
        """(number of the resource's columns, amount): what one task adds to its row."""
        self.ports = host_ports(pod)
        """(host IP, protocol, host port) of every host port."""
        self.volumes = volume_keys(pod) if pod.spec.volumes else ()
        """What of the pod's volumes other pods may use too."""
        self.terms = PodTerms()
        """Its affinity and anti-affinity between pods."""
        self.footprint: frozenset[Hashable] = frozenset()
        """Keys of the counters that one task adds 1 to; collected from the plugins when the class is made."""
        self.refusal: Refusal | None = None
        """Why no task of the class can be placed: a plugin failed when it was asked about the class, or `problem`."""
        self.problem = pod.unreadable
        """What of its pods is not what it should be; empty where nothing is."""

    @property
    def claims(self) -> tuple[str, ...]:
        """The keys of the claims for devices that its pods name, or that were made for its pod."""
        pod = self.pod
        if not pod.spec.resource_claims:
            return ()
        names = [entry.get("resourceClaimName") for entry in pod.spec.resource_claims]
        names += [status.resource_claim_name for status in pod.status.resource_claim_statuses]
        return tuple(f"{pod.metadata.namespace}/{name}" for name in names if name)

    @property
    def uses_devices(self) -> bool:
        """Whether its pods claim devices, or resources for which they may get some."""
        return bool(self.pod.spec.resource_claims) or any("/" in name for name in self.requests)

    @property
    def namespace(self) -> str:
        """The namespace that all pods of the class are in."""
        return self.pod.metadata.namespace

    def __repr__(self) -> str:
        return f"TaskClass({self.index}, {self.pod.key})"


def host_ports(pod: Pod) -> tuple[tuple[str, str, int], ...]:
    """The host ports of containers and sidecars, sorted; an empty IP is 0.0.0.0.

    On the host's network every container port is one, as the API server defaults it.
    """
    sidecars = [c for c in pod.spec.init_containers if c.restart_policy == "Always"]
    ports = [port for container in (*pod.spec.containers, *sidecars) for port in container.ports]
    wanted = [(port, port.host_port or (port.container_port if pod.spec.host_network else 0)) for port in ports]
    return tuple(
        sorted(
            (port.host_ip or "0.0.0.0", port.protocol or "TCP", number)  # noqa: S104 (a value, no bind)
            for port, number in wanted
            if number > 0
        )
    )
