"""Task class: pods with equal scheduling needs, which filters and scores evaluate once.

The class key holds only what filters and scores read. It leaves out what differs for each pod: names, index labels,
template hashes and the token volume.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple, cast

from session_scheduler.model.gpu_shares import gpu_amounts
from session_scheduler.model.objects import Pod
from session_scheduler.model.pod_reads import Observed, PodReads, reading
from session_scheduler.model.pod_terms import PodTerms
from session_scheduler.model.refusals import Refusal
from session_scheduler.model.requests import pod_requests
from session_scheduler.model.volumes import has_ephemeral_claims, volume_keys

__all__ = ["TaskClass"]

_MORE_PODS_THAN_FIT: Final = 2**40
"""A number of pods that exceeds the capacity of every node."""


class ClassKey(NamedTuple):
    """What equal pods have in common, as JSON in three parts."""

    constraints: bytes
    """Everything but the other two parts."""
    requests: bytes
    """The requests, and the entries of containers for ResourceClaims."""
    claims: bytes
    """The ResourceClaims, with the pod that they may belong to; empty for a pod without claims."""


class TaskClass:
    """Pods with equal scheduling needs. `pod` is one of them: read what equal pods share, never its name or uid."""

    __slots__ = (
        "_pod", "_reads", "footprint", "index", "key", "nonzero_cpu", "nonzero_memory", "ports", "problem",
        "queue_amounts", "refusal", "requests", "terms", "usage", "volumes",
    )  # fmt: skip

    def __init__(self, index: int, key: ClassKey, pod: Pod, reads: PodReads | None = None) -> None:
        """`reads` notes what plugins read of `pod`."""
        self.index = index
        self.key = key
        self._pod = pod
        self._reads = reads or PodReads()
        self.requests, scored = pod_requests(pod)
        if pod.unreadable:  # its real requests are unknown, so no other pod may fit beside it
            self.requests["pods"] = _MORE_PODS_THAN_FIT
        """Resource name → amount (cpu in millicores), zero amounts left out."""
        self.queue_amounts = {**self.requests, **gpu_amounts(pod.metadata), "pods": 1}
        """What a task counts with in queues, except for its claims: its requests, its parts of GPUs, and one pod."""
        self.nonzero_cpu = scored.get("cpu", 0)
        self.nonzero_memory = scored.get("memory", 0)
        self.usage: tuple[tuple[int, int], ...] = ()
        """(resource column, amount): what one task adds to its row."""
        self.ports = host_ports(pod)
        """(host IP, protocol, host port) of every host port."""
        self.volumes = volume_keys(pod) if pod.spec.volumes else ()
        """Keys of the volumes that other pods may use too."""
        self.terms = PodTerms()
        """Its inter-pod affinity and anti-affinity terms."""
        self.footprint: frozenset[Hashable] = frozenset()
        """Keys of the counters that one task increments. The plugins declare them when the class is created."""
        self.refusal: Refusal | None = None
        """Why no task of the class can be placed: `problem`, or a plugin failed on the class."""
        self.problem = pod.unreadable
        """Which field of its pods is invalid, and why; empty if none is."""

    @property
    def pod(self) -> Pod:
        """One of the class's pods. In an observed call of a plugin, an observed pod: `model.pod_reads`."""
        return self._pod if reading.beyond is None else self.observed(self._pod)

    def observed(self, pod: Pod) -> Pod:
        """One of the class's pods, as an observed call sees it."""
        return cast("Pod", Observed(pod, self._reads))

    @property
    def claims(self) -> tuple[str, ...]:
        """The keys of the ResourceClaims that its pods name, or that a controller created for its pod."""
        pod = self.pod
        if not pod.spec.resource_claims:
            return ()
        names = [entry.get("resourceClaimName") for entry in pod.spec.resource_claims]
        names += [status.resource_claim_name for status in pod.status.resource_claim_statuses]
        return tuple(f"{pod.metadata.namespace}/{name}" for name in dict.fromkeys(names) if name)

    @property
    def of_one_pod(self) -> bool:
        """Whether no other pod has this class."""
        return has_own_class(self._pod)

    @property
    def uses_devices(self) -> bool:
        """Whether the class's pods use ResourceClaims, or request extended resources that devices may provide."""
        return bool(self._pod.spec.resource_claims) or any("/" in name for name in self.requests)

    @property
    def namespace(self) -> str:
        """The namespace of all its pods."""
        return self._pod.metadata.namespace

    def __repr__(self) -> str:
        return f"TaskClass({self.index}, {self._pod.key})"


def has_own_class(pod: Pod) -> bool:
    """Whether the pod shares its class with no other: it has claims, which may be its own."""
    return bool(pod.spec.resource_claims) or (bool(pod.spec.volumes) and has_ephemeral_claims(pod))


def host_ports(pod: Pod) -> tuple[tuple[str, str, int], ...]:
    """The host ports of containers and sidecars, sorted; an empty host IP means 0.0.0.0.

    With hostNetwork every container port is a host port, as the API server defaults it.
    """
    sidecars = [c for c in pod.spec.init_containers if c.restart_policy == "Always"]
    ports = [port for container in (*pod.spec.containers, *sidecars) for port in container.ports]
    wanted = [(port, port.host_port or (port.container_port if pod.spec.host_network else 0)) for port in ports]
    return tuple(
        sorted(
            (port.host_ip or "0.0.0.0", port.protocol or "TCP", number)  # noqa: S104 (only a key)
            for port, number in wanted
            if number > 0
        )
    )
