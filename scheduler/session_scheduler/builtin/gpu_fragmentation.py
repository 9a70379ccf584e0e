"""The GpuFragmentation plugin: prefers the node where a pod leaves the most of the GPUs usable for other pods.

It is off by default. GpuSharing filters nodes and chooses the GPUs; this plugin scores nodes, for all pods: one without
GPUs takes CPU that GPUs need. It does nothing while no pod shares a GPU, so the scores are kube-scheduler's then.

The workload is that of all pods that exist, pending ones included: their requests for GPUs and required node affinity,
by number. Each session weighs it by the pods and nodes that exist when it opens, and by nothing else, so a restarted
scheduler has the same scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
import numpy as np

from session_scheduler.builtin.gpu_amounts import Gpus
from session_scheduler.builtin.gpu_reservation_pods import share_held
from session_scheduler.builtin.gpu_sharing import GpuFacts, GpuSharing
from session_scheduler.builtin.gpu_usability import (
    CPU,
    GPUS,
    MEMORY,
    TAKES_SHARES,
    TAKES_WHOLE,
    GpuRequest,
    Losses,
    most_frequent,
)
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Normalise, Prepared, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.gpu_shares import SHARERS, WHOLE, shares_gpus
from session_scheduler.model.kept_rows import KeptRows
from session_scheduler.model.selectors import required_nodes

_encoder: Final = msgspec.json.Encoder(order="sorted")


class _ClassFacts(NamedTuple):
    """The properties of a class that the workload counts."""

    request: GpuRequest
    selector: bytes
    """What selects its nodes, as JSON; empty if it requests no GPUs."""
    shares: bool


class GpuFragmentation:
    """Scores nodes by how much of their GPUs the workload can use after the pod is placed."""

    name = "GpuFragmentation"
    by_default = False
    weight = 1
    score_scope = Scope.NODE
    normalise = Normalise.SPREAD

    def __init__(self, _: None = None) -> None:
        self._facts = GpuFacts(Gpus(()), mixed=False)
        """Of GpuSharing."""
        self._scores = False
        """Whether it scores in this session."""
        self._gpus: IntColumn = np.zeros(0, np.int64)
        self._memory: IntColumn = np.zeros(0, np.int64)
        """By row: the number of GPUs, and the MiB of one (0 if unknown)."""
        self._states = KeptRows(self._computed)
        """What is free on each node: see `gpu_usability`."""
        self._nodes_version = -1
        self._losses = self._nothing_kept()
        self._classes: dict[TaskClass, _ClassFacts] = {}
        self._accepted: dict[bytes, BoolColumn] = {}
        """By selector: the rows that it accepts."""

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Weigh the requests of all pods."""
        facts = session.facts(GpuSharing.name)
        self._scores = facts is not None and self._weigh(session, facts)

    def _weigh(self, session: Session, facts: GpuFacts) -> bool:
        if facts != self._facts:
            self._facts, self._nodes_version, self._classes = facts, -1, {}
            self._states.forget()
            self._losses = self._nothing_kept()
        numbers, known = session.snapshot.cache.pods_of, self._classes
        self._classes = {cls: known.get(cls) or _facts_of(cls, facts.gpus.resources) for cls in numbers}
        if not any(one.shares for one in self._classes.values()):
            return False
        nodes = session.table.all_rows()
        self._follow(nodes, session.table.static_version)
        pods: Counter[tuple[GpuRequest, bytes]] = Counter()
        classes: dict[bytes, TaskClass] = {}
        for cls, one in self._classes.items():
            if one.request.count:
                pods[one.request, one.selector] += numbers[cls]
                classes[one.selector] = cls
        weighed = most_frequent(pods)
        selectors = sorted({selector for _, selector in weighed})
        known_rows = self._accepted
        self._accepted = {
            one: known_rows[one] if one in known_rows else required_nodes(nodes, classes[one].pod.spec)
            for one in selectors
        }
        places = {selector: place for place, selector in enumerate(selectors)}
        indexed = {(request, places[selector]): number for (request, selector), number in weighed.items()}
        accepted = np.array([self._accepted[one] for one in selectors], np.bool_).reshape(len(selectors), len(nodes))
        return self._losses.weigh(indexed, self._states.of(nodes)[0], accepted)

    def _follow(self, nodes: NodeView, version: int) -> None:
        """Read the nodes if they have changed."""
        if version == self._nodes_version:
            return
        self._nodes_version, self._accepted = version, {}
        amounts = self._facts.gpus.of(nodes)
        if not (np.array_equal(amounts.gpus, self._gpus) and np.array_equal(amounts.memory, self._memory)):
            self._gpus, self._memory = amounts.gpus, amounts.memory
            self._losses = self._nothing_kept()

    def _nothing_kept(self) -> Losses:
        return Losses(self._memory, GPUS + int(self._gpus.max(initial=0)), mixed=self._facts.mixed)

    @hookimpl
    def prepare(self, cls: TaskClass) -> Skip | Prepared:
        """The class's request. Skips all classes while no pod shares a GPU."""
        return Prepared(request_of(cls, self._facts.gpus.resources), SKIP, Scope.NODE) if self._scores else SKIP

    @hookimpl
    def score(self, nodes: NodeView, mask: BoolColumn, state: GpuRequest) -> IntColumn:
        """Higher where the workload loses less. Undefined for nodes that do not fit."""
        fitting = np.flatnonzero(mask)
        rows = nodes.row_numbers[fitting]
        found = np.zeros(len(nodes), np.int64)
        found[fitting] = -self._losses.of(state, rows, self._states.of(nodes.some(rows))[0])
        return found

    def _computed(self, nodes: NodeView) -> tuple[IntColumn]:
        gpus = self._facts.gpus.of(nodes)
        found = np.zeros((len(nodes), GPUS + gpus.ascending.shape[1]), np.int64)
        found[:, CPU] = np.maximum(nodes.allocatable("cpu") - nodes.used("cpu"), 0)
        found[:, MEMORY] = np.maximum(nodes.allocatable("memory") - nodes.used("memory"), 0)
        found[:, TAKES_WHOLE] = (nodes.counter(SHARERS) == 0) | self._facts.mixed
        found[:, TAKES_SHARES] = (gpus.whole == 0) | self._facts.mixed
        found[:, GPUS:] = gpus.ascending // gpus.per_thousandth[:, None]
        return (found,)


def _facts_of(cls: TaskClass, resources: Iterable[str]) -> _ClassFacts:
    request, spec = request_of(cls, resources), cls.pod.spec
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required if affinity is not None else None
    selector = _encoder.encode((spec.node_selector, required)) if request.count else b""
    return _ClassFacts(request, selector, shares_gpus(cls.pod.metadata))


def request_of(cls: TaskClass, resources: Iterable[str]) -> GpuRequest:
    """What a pod of the class requests; a reservation pod requests no GPU, because its sharers do."""
    cpu, memory = cls.requests.get("cpu", 0), cls.requests.get("memory", 0)
    whole = sum(cls.requests.get(resource, 0) for resource in resources)
    if whole:
        return GpuRequest(cpu, memory, whole, WHOLE)
    share = share_held(cls)
    if share is None:
        return GpuRequest(cpu, memory)
    return GpuRequest(cpu, memory, share.count, share.thousandths, share.mib)
