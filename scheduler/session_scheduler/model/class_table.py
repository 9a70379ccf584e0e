"""Class table: assigns each pod the class of pods with equal scheduling needs.

The cache asks it for each pod. Plugins extend the class key and declare the counters of a class.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import msgspec

from session_scheduler.errors import FluenceError
from session_scheduler.model.classes import ClassKey, TaskClass
from session_scheduler.model.columns import PODS, NodeTable
from session_scheduler.model.gpu_reservations import Uncounted
from session_scheduler.model.label_reads import LabelReads
from session_scheduler.model.objects import Pod
from session_scheduler.model.pod_reads import PodReads
from session_scheduler.model.quantity import QuantityError
from session_scheduler.model.refusals import Refusal
from session_scheduler.model.requests import without_wrong_amounts
from session_scheduler.model.volumes import has_ephemeral_claims

_CROWDED_SPARE = 16
"""How many new classes make a crowded table due for `forget_unused`, at least: it costs as much as there are classes.
"""
_encoder = msgspec.json.Encoder(order="sorted")


def _volumes(pod: Pod) -> list[dict[str, Any]]:
    """The pod's volumes without the service account token, whose name is random."""
    return [v for v in pod.spec.volumes if not str(v.get("name", "")).startswith("kube-api-access-")]


class ClassTable:
    """Assigns each pod its class. It keeps every class until `forget_unused` drops it."""

    def __init__(
        self,
        table: NodeTable,
        class_keys: Iterable[Callable[[Pod], object]] = (),
        footprints: Iterable[Callable[[TaskClass], Iterable[Hashable] | None]] = (),
    ) -> None:
        self._table = table
        self._class_keys = tuple(class_keys)
        self._footprints = tuple(footprints)
        self._classes: dict[ClassKey, TaskClass] = {}
        self._next = 0
        self._forgotten_at = 0
        self._reads = LabelReads()
        self._newly_read: list[tuple[str, str]] = []
        self.reads = PodReads()
        """What plugins read of pods."""
        self.outdated = False
        """Whether the classes that it returned before may have an older form of the key."""

    def of(self, pod: Pod) -> TaskClass:
        """The pod's class. It leaves out a request that is not a valid quantity, and reports it as `problem`."""
        self._newly_read += self._reads.note(pod)
        own, refusal = self._own_keys(pod)
        key = self._key(pod, own)
        found = self._classes.get(key)
        if found is None:
            found = self._with_footprint(key, pod, refusal)
            while self.reads.accept():  # a footprint read more of the pod
                self.outdated = True
                key = self._key(pod, own)
                found = self._with_footprint(key, pod, refusal)
            self._next += 1
            self._classes[key] = found
        return found

    def _with_footprint(self, key: ClassKey, pod: Pod, refusal: Refusal | None) -> TaskClass:
        cls = self._new(key, pod)
        cls.refusal = Refusal(cls.problem) if cls.problem else refusal
        self._collect_footprints(cls)
        for one in cls.footprint:
            if isinstance(one, Uncounted):
                cls.requests.pop(one.resource, None)
        amounts = sorted(cls.requests.items())
        cls.usage = ((PODS, 1), *((self._table.resource(name), amount) for name, amount in amounts))
        return cls

    def _new(self, key: ClassKey, pod: Pod) -> TaskClass:
        try:
            return self._build(key, pod)
        except QuantityError as error:
            cls = self._build(key, without_wrong_amounts(pod))
            cls.problem = cls.problem or str(error)
            return cls

    def _build(self, key: ClassKey, pod: Pod) -> TaskClass:
        cls = TaskClass(self._next, key, pod, self.reads)
        cls.terms = self._table.terms.terms_of(pod)
        return cls

    def accept_reads(self) -> bool:
        """Add what plugins have read of pods to the class key. Returns whether `of` may return other classes now."""
        changed = self.reads.accept() or self.outdated
        self.outdated = False
        return changed

    def drain_newly_read(self) -> list[tuple[str, str]]:
        """The label keys that selectors read for the first time since the last call: see `label_reads.concerns`."""
        new, self._newly_read = self._newly_read, []
        return new

    def _own_keys(self, pod: Pod) -> tuple[object, Refusal | None]:
        """The plugins' parts of the class key. If a plugin fails, its error is the key: equal failures, one class."""
        try:
            return [key(pod) for key in self._class_keys], None
        except FluenceError as error:
            return str(error), _refusal(error)

    def _collect_footprints(self, cls: TaskClass) -> None:
        """Collect the class's counter keys from the plugins.

        If a plugin fails, the class is refused. Its running pods still count under the other plugins' keys.
        """
        keys: set[Hashable] = set()
        for footprint in self._footprints:
            try:
                keys.update(footprint(cls) or ())
            except FluenceError as error:
                cls.refusal = cls.refusal or _refusal(error)
        cls.footprint = frozenset(keys)

    def _key(self, pod: Pod, own: object) -> ClassKey:
        spec, meta = pod.spec, pod.metadata
        labels = self._reads.of(meta.namespace, meta.labels)
        containers = [*spec.init_containers, *spec.containers]
        encode = _encoder.encode
        return ClassKey(
            encode(
                (
                    meta.namespace, spec.scheduler_name, len(spec.containers),
                    [(c.ports, c.image, c.restart_policy_rules, c.restart_policy) for c in containers],
                    spec.node_selector, spec.affinity, spec.tolerations, spec.topology_spread_constraints,
                    _volumes(pod), spec.host_network, spec.host_users, _wanted_node(pod), labels, own, pod.unreadable,
                    self.reads.values(pod), (meta.name, meta.uid) if has_ephemeral_claims(pod) else None,
                )
            ),
            encode(([c.resources for c in containers], spec.overhead, spec.resources)),
            encode((spec.resource_claims, meta.name, meta.uid, pod.status.resource_claim_statuses))
            if spec.resource_claims else b"",
        )  # fmt: skip

    def forget_unused(self, in_use: Iterable[TaskClass]) -> None:
        """Drop all other classes, with their terms and counters."""
        self._forgotten_at = self._next
        self._classes = {cls.key: cls for cls in in_use}
        classes = self._classes.values()
        self._table.terms.keep(held for cls in classes for held in cls.terms.held)
        self._table.keep_counters({key for cls in classes for key in cls.footprint})

    @property
    def crowded(self) -> bool:
        """Whether terms of unused classes may be in the place of others (`TermTable.crowded`)."""
        return self._table.terms.crowded and self._next - self._forgotten_at >= max(_CROWDED_SPARE, len(self) // 4)

    def __len__(self) -> int:
        return len(self._classes)


def _refusal(error: FluenceError) -> Refusal:
    return Refusal(str(error), getattr(error, "plugin", ""))


def _wanted_node(pod: Pod) -> str:
    """spec.nodeName: empty for pods of the cache, which clears it; `explain` and tests may set it."""
    return pod.spec.node_name
