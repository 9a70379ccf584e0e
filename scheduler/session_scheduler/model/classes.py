"""Classes: pods with equal needs, evaluated once for all of them.

A class's key holds what filters and scores read and nothing else: names, index labels, template hashes and the token
volume that every pod gets would make each pod a class of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

import msgspec

from session_scheduler.errors import FluenceError
from session_scheduler.hookspecs import Refusal
from session_scheduler.model.columns import PODS, NodeTable
from session_scheduler.model.gpu_shares import queue_amounts
from session_scheduler.model.label_reads import LabelReads
from session_scheduler.model.objects import Pod
from session_scheduler.model.quantity import QuantityError
from session_scheduler.model.requests import pod_requests, without_wrong_amounts
from session_scheduler.model.volumes import has_ephemeral_claims, volume_keys

_encoder = msgspec.json.Encoder(order="sorted")
_MORE_THAN_ANY: Final = 2**40
"""Pods, of which no node takes as many."""


class TaskClass:
    """The needs that pods share. `pod` is one of them: read its spec, never its name, uid or other identity."""

    __slots__ = (
        "footprint", "gpu_amounts", "index", "key", "nonzero_cpu", "nonzero_memory", "pod", "ports", "problem",
        "refusal", "requests", "terms", "usage", "volumes",
    )  # fmt: skip

    def __init__(self, index: int, key: bytes, pod: Pod, table: NodeTable) -> None:
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
        self.usage: tuple[tuple[int, int], ...] = (
            (PODS, 1),
            *((table.resource(name), amount) for name, amount in sorted(self.requests.items())),
        )
        """(number of the resource's columns, amount): what one task adds to its row."""
        self.ports = host_ports(pod)
        """(host IP, protocol, host port) of every host port."""
        self.volumes = volume_keys(pod) if pod.spec.volumes else ()
        """What of the pod's volumes other pods may use too."""
        self.terms = table.terms.terms_of(pod)
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


def _volumes(pod: Pod) -> list[dict[str, Any]]:
    """The volumes without the service account's token, whose name is random."""
    return [v for v in pod.spec.volumes if not str(v.get("name", "")).startswith("kube-api-access-")]


class ClassTable:
    """Gives each pod its class. Classes are kept while the table lives; `forget_unused` bounds them."""

    def __init__(
        self,
        table: NodeTable,
        class_keys: Iterable[Callable[[Pod], object]] = (),
        footprints: Iterable[Callable[[TaskClass], Iterable[Hashable] | None]] = (),
    ) -> None:
        self._table = table
        self._class_keys = tuple(class_keys)
        self._footprints = tuple(footprints)
        self._classes: dict[bytes, TaskClass] = {}
        self._next = 0
        self._reads = LabelReads()
        self._read_anew: list[tuple[str, str]] = []

    def of(self, pod: Pod) -> TaskClass:
        """The pod's class; one whose `problem` tells where a request is no quantity, which is left out then."""
        self._read_anew += self._reads.note(pod)
        own, refusal = self._own_keys(pod)
        key = self._key(pod, own)
        found = self._classes.get(key)
        if found is None:
            found = self._new(key, pod)
            found.refusal = Refusal(found.problem) if found.problem else refusal
            self._ask_footprints(found)
            self._next += 1
            self._classes[key] = found
        return found

    def _new(self, key: bytes, pod: Pod) -> TaskClass:
        try:
            return TaskClass(self._next, key, pod, self._table)
        except QuantityError as error:
            cls = TaskClass(self._next, key, without_wrong_amounts(pod), self._table)
            cls.problem = cls.problem or str(error)
            return cls

    def read_anew(self) -> list[tuple[str, str]]:
        """The labels that selectors read since this was last asked, and none before: see `label_reads.concerns`."""
        new, self._read_anew = self._read_anew, []
        return new

    def _own_keys(self, pod: Pod) -> tuple[object, Refusal | None]:
        """What the plugins read of the pod; the pods for which one fails alike are a class of their own."""
        try:
            return [key(pod) for key in self._class_keys], None
        except FluenceError as error:
            return str(error), _refusal(error)

    def _ask_footprints(self, cls: TaskClass) -> None:
        """Where a plugin fails the class cannot be placed; those that run already count with what the others said."""
        keys: set[Hashable] = set()
        for footprint in self._footprints:
            try:
                keys.update(footprint(cls) or ())
            except FluenceError as error:
                cls.refusal = cls.refusal or _refusal(error)
        cls.footprint = frozenset(keys)

    def _key(self, pod: Pod, own: object) -> bytes:
        spec = pod.spec
        labels = self._reads.of(pod.metadata.namespace, pod.metadata.labels)
        return _encoder.encode(
            (
                pod.metadata.namespace, spec.scheduler_name, spec.containers and _container_needs(pod), spec.overhead,
                spec.resources, spec.node_selector, spec.affinity, spec.tolerations, spec.topology_spread_constraints,
                spec.resource_claims, _volumes(pod), spec.host_network, spec.host_users, _wanted_node(pod), labels, own,
                pod.unreadable,
                (pod.metadata.name, pod.metadata.uid, pod.status.resource_claim_statuses)
                if spec.resource_claims or (spec.volumes and has_ephemeral_claims(pod)) else None,
            )
        )  # fmt: skip

    def forget_unused(self, in_use: Iterable[TaskClass]) -> None:
        """Drop the classes that no pod has any more."""
        self._classes = {cls.key: cls for cls in in_use}
        classes = self._classes.values()
        self._table.terms.keep(held for cls in classes for held in cls.terms.held)
        self._table.keep_counters({key for cls in classes for key in cls.footprint})

    def __len__(self) -> int:
        return len(self._classes)


def _refusal(error: FluenceError) -> Refusal:
    return Refusal(str(error), getattr(error, "plugin", ""))


def _wanted_node(pod: Pod) -> str:
    """A node named by a pod that is not bound: only `explain` and tests meet it."""
    return pod.spec.node_name


def _container_needs(pod: Pod) -> list[tuple[object, ...]]:
    """What filters and scores read of each container: resources, ports, image, and whether and how it starts again."""
    spec = pod.spec
    return [
        *((c.resources, c.ports, c.image, c.restart_policy_rules) for c in spec.containers),
        *((c.resources, c.ports, c.image, c.restart_policy_rules, c.restart_policy) for c in spec.init_containers),
    ]
