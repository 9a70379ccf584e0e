"""The GpuFragmentation plugin: prefers the node where a pod leaves the most of the GPUs usable for other pods.

It is off by default. GpuSharing filters nodes and chooses the GPUs; this plugin scores nodes, for all pods: one without
GPUs takes CPU that GPUs need. It does nothing until a pod shares a GPU, so the scores are kube-scheduler's before.

The workload is that of all pods that exist, pending ones included: their requests for GPUs and required node affinity,
by number. So a restarted scheduler has the same workload. Its weights change when a session opens, and only if the
number of pods has changed by a quarter, a node was added or changed, or ten minutes have passed. In between, a
placement changes the losses of its own node alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from pydantic import Field

from session_scheduler.builtin.gpu_columns import GpuColumns
from session_scheduler.builtin.gpu_reservations import share_held
from session_scheduler.builtin.gpu_usability import (
    CPU,
    GPUS,
    MEMORY,
    TAKES_SHARES,
    TAKES_WHOLE,
    GpuRequest,
    Losses,
    Workload,
    weights_of,
)
from session_scheduler.config.settings import PluginArguments
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Normalise, Prepared, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.gpu_reservations import Uncounted
from session_scheduler.model.gpu_shares import EVERY, SHARERS, WHOLE, GpuUse, shares_gpus
from session_scheduler.model.objects import PodSpec
from session_scheduler.model.selectors import required_nodes

_SECONDS: Final = 600.0
_encoder: Final = msgspec.json.Encoder(order="sorted")


class GpuFragmentationArguments(PluginArguments):
    """The same as the arguments of GpuSharing."""

    resources: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = ("nvidia.com/gpu",)
    whole_gpus: Literal["separate", "reserved"] = "separate"


class GpuFragmentation:
    """Scores nodes by how much of their GPUs the workload can use after the pod is placed."""

    Arguments = GpuFragmentationArguments
    name = "GpuFragmentation"
    by_default = False
    weight = 1
    score_scope = Scope.NODE
    normalise = Normalise.SPREAD

    def __init__(self, arguments: GpuFragmentationArguments | None = None) -> None:
        arguments = arguments or GpuFragmentationArguments()
        self._resources = arguments.resources
        self._mixed = arguments.whole_gpus == "reserved"
        self._active = False
        """Whether any pod has requested a share yet."""
        self._losses: Losses | None = None
        """None if no pod that requests GPUs exists, or none of them fits anywhere."""
        self._gpus: IntColumn = np.zeros(0, np.int64)
        self._memory: IntColumn = np.zeros(0, np.int64)
        """By row: the number of GPUs, and the MiB of one (1 if unknown)."""
        self._pods = 0
        self._nodes_version = -1
        self._time = 0.0
        """Of the last change of the weights: the number of pods, the version of the nodes, and the time."""

    @hookimpl
    def footprint(self, cls: TaskClass) -> Iterable[Hashable] | None:
        """No counters: it notes whether any pod shares GPUs."""
        self._active |= shares_gpus(cls.pod.metadata)
        return None

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Weigh the requests of all pods again, if that is due."""
        if not self._active:
            return
        pods, nodes = len(session.snapshot.cache.tasks), session.table.static_version
        is_due = abs(pods - self._pods) * 4 > self._pods or session.now - self._time >= _SECONDS
        if is_due or nodes != self._nodes_version:
            self._pods, self._nodes_version, self._time = pods, nodes, session.now
            self._losses = self._weighed(session)

    def _weighed(self, session: Session) -> Losses | None:
        nodes = session.table.all_rows()
        columns = GpuColumns(nodes, self._resources, EVERY)
        self._gpus, self._memory = columns.gpus, columns.per_thousandth
        pods, specs = self._workload(session)
        if not pods:
            return None
        requests = sorted({request for request, _ in pods})
        selectors = sorted(specs)
        accepted = np.array([required_nodes(nodes, specs[one]) for one in selectors])
        kinds, groups = np.unique(np.vstack([columns.memory, accepted]), axis=1, return_inverse=True)
        workload = Workload(requests, kinds[0].tolist(), mixed=self._mixed)
        groups = groups.reshape(-1)
        states = self._states(nodes)
        numbers = {(requests.index(one), selectors.index(selector)): number for (one, selector), number in pods.items()}
        weights = weights_of(numbers, workload.amounts, workload.usable(states, groups), accepted, groups)
        return Losses(workload, weights, groups, states.shape[1]) if weights.any() else None

    def _workload(self, session: Session) -> tuple[Counter[tuple[GpuRequest, bytes]], dict[bytes, PodSpec]]:
        """The number of pods by request and by what selects their nodes; for each of these a spec with it."""
        classes = Counter(task.cls for task in session.snapshot.cache.tasks.values())
        pods: Counter[tuple[GpuRequest, bytes]] = Counter()
        specs: dict[bytes, PodSpec] = {}
        for cls, number in classes.items():
            request = request_of(cls, self._resources)
            if request.count:
                spec = cls.pod.spec
                affinity = spec.affinity.node_affinity if spec.affinity is not None else None
                selector = _encoder.encode((spec.node_selector, affinity.required if affinity is not None else None))
                pods[request, selector] += number
                specs.setdefault(selector, spec)
        return pods, specs

    @hookimpl
    def prepare(self, cls: TaskClass) -> Skip | Prepared:
        """The class's request. Skips all classes while no pod shares a GPU."""
        return SKIP if self._losses is None else Prepared(request_of(cls, self._resources), SKIP, Scope.NODE)

    @hookimpl
    def score(self, nodes: NodeView, mask: BoolColumn, state: GpuRequest) -> IntColumn | None:
        """Higher where the workload loses less."""
        if self._losses is None:
            return None
        return -self._losses.of(state, nodes.row_numbers, self._states(nodes), mask)

    def _states(self, nodes: NodeView) -> IntColumn:
        """What is free on each node: see `gpu_usability`."""
        rows = nodes.row_numbers
        gpus, full = self._gpus[rows], WHOLE * self._memory[rows]
        used = self._used(nodes)
        exists = np.arange(used.shape[1]) < gpus[:, None]
        shared = (used > 0) & exists
        whole: IntColumn = sum((nodes.used(one) for one in self._resources), np.zeros(len(rows), np.int64))
        untouched = np.cumsum(exists & ~shared, axis=1) <= (gpus - whole - shared.sum(axis=1))[:, None]
        left = np.maximum(full[:, None] - used, 0) // self._memory[rows][:, None]
        found = np.zeros((len(rows), GPUS + used.shape[1]), np.int64)
        found[:, CPU] = np.maximum(nodes.allocatable("cpu") - nodes.used("cpu"), 0)
        found[:, MEMORY] = np.maximum(nodes.allocatable("memory") - nodes.used("memory"), 0)
        found[:, TAKES_WHOLE] = (nodes.counter(SHARERS) == 0) | self._mixed
        found[:, TAKES_SHARES] = (whole == 0) | self._mixed
        found[:, GPUS:] = np.sort(np.where(shared, left, np.where(exists & untouched, WHOLE, 0)), axis=1)
        return found

    def _used(self, nodes: NodeView) -> IntColumn:
        """What sharers use of each GPU, in thousandths of a MiB (or of a GPU): shape [node, GPU]."""
        most = int(self._gpus.max(initial=0))
        thousandths = np.array([nodes.counter(GpuUse(gpu, in_mib=False)) for gpu in range(EVERY, most)])
        mib = np.array([nodes.counter(GpuUse(gpu, in_mib=True)) for gpu in range(EVERY, most)])
        used = thousandths * self._memory[nodes.row_numbers] + mib * WHOLE
        on_each, on_one = used[0], used[1:]
        found: IntColumn = (on_one + on_each).T
        return found


def request_of(cls: TaskClass, resources: Iterable[str]) -> GpuRequest:
    """What a pod of the class requests; a reservation pod requests no GPU, because its sharers do."""
    cpu, memory = cls.requests.get("cpu", 0), cls.requests.get("memory", 0)
    whole = sum(cls.requests.get(resource, 0) for resource in resources if Uncounted(resource) not in cls.footprint)
    if whole:
        return GpuRequest(cpu, memory, whole, WHOLE)
    share = share_held(cls)
    if share is None:
        return GpuRequest(cpu, memory)
    return GpuRequest(cpu, memory, share.count, share.thousandths, share.mib)
