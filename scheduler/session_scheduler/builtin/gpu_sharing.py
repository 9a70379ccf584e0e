"""The GpuSharing plugin: lets pods share GPUs by fraction or by memory, and assigns the GPUs of a node to them.

By default a node's GPUs are used either whole or shared, because the kubelet assigns whole GPUs and only the kubelet
knows which. With reservation pods (`gpu_reservations`) a node can have both. The plugin counts a pod's GPUs on its node
when a session places the pod, and undoes that with the placement. The request that binds the pod writes the GPUs in an
annotation; after a restart the plugin reads them back from there.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import structlog
from pydantic import Field

from session_scheduler.builtin.gpu_amounts import Gpus
from session_scheduler.builtin.gpu_columns import GpuColumns, pack
from session_scheduler.builtin.gpu_demand import kept_whole
from session_scheduler.builtin.gpu_in_flight import InFlight
from session_scheduler.builtin.gpu_reservation_pods import ReservationArguments, share_held
from session_scheduler.builtin.gpu_reservations import Reservations
from session_scheduler.builtin.gpu_visibility import refusal_text, visibility
from session_scheduler.config.settings import PluginArguments
from session_scheduler.framework.bindings import Binding, Holding, Runtime
from session_scheduler.framework.callbacks import Event
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Normalise, Prepared, Refusal, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.gpu_reservations import RESERVATION, Uncounted, reserved_gpu
from session_scheduler.model.gpu_shares import (
    EVERY,
    GIVEN,
    GPU,
    GPU_COUNT,
    GPU_DEVICE,
    GPU_FRACTION,
    GPU_MEMORY,
    MEMORY_SUFFIX,
    SHARERS,
    UNRESERVED,
    WHOLE,
    Share,
    ShareError,
    counted,
    given_to,
    gpus_of,
    share_of,
    shares_gpus,
    written,
)
from session_scheduler.model.groups import NodeChange, Task
from session_scheduler.model.objects import Node, Pod

_log = structlog.get_logger(__name__)
_WHOLE_GPU = Share(WHOLE, 0)
"""The share of a running pod with invalid annotations."""


_SPARE_SECONDS = 5.0
"""How much longer `prebind` may take than the wait for reservation pods."""


class GpuSharingArguments(PluginArguments):
    """The resources that are GPUs, and whether a node may have whole and shared GPUs at once."""

    resources: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = ("nvidia.com/gpu",)
    """A node's GPUs are the first of these that it offers. The label of their memory is this name with `.memory`."""
    whole_gpus: Literal["separate", "reserved"] = "separate"
    """`separate`: a node's GPUs are all whole or all shared. `reserved`: a reservation pod holds each shared GPU."""
    reservations: ReservationArguments = ReservationArguments()


class GpuFacts(NamedTuple):
    """What other plugins read of GpuSharing."""

    gpus: Gpus
    """The GPUs of all nodes."""
    mixed: bool
    """Whether a node may have whole and shared GPUs at once."""


class GpuSharing:
    """Rejects nodes where a share does not fit, prefers nodes where it fills a shared GPU, and chooses the GPUs."""

    Arguments = GpuSharingArguments
    name = "GpuSharing"
    weight = 1
    filter_scope = Scope.NODE
    score_scope = Scope.NODE
    normalise = Normalise.NONE

    def __init__(self, arguments: GpuSharingArguments | None = None) -> None:
        arguments = arguments or GpuSharingArguments()
        self._resources = arguments.resources
        self.single = self._reserved = arguments.whole_gpus == "reserved"
        """Whether a node may have whole and shared GPUs at once. Reservation pods need one owner."""
        self._namespace = arguments.reservations.namespace
        self.prebind_seconds = arguments.reservations.seconds + _SPARE_SECONDS
        self._live = False
        """Whether pods come from an API server, which calls the webhook."""
        self._active = self._reserved
        """Whether any pod has requested a share yet: until then the plugin does nothing."""
        self._gpus = Gpus(self._resources)
        self._to_read: dict[str, list[Task]] = {}
        """By changed node: its pods whose GPUs must still be read."""
        self._in_flight = InFlight()
        self._reservations = Reservations(arguments.reservations, self._resources, self._in_flight)
        self._closed: list[int] = []
        """The rows of nodes that are closed to pods that share GPUs in this session."""
        self._kept_whole: int | None = None
        """See `gpu_demand`: for this session. None if no pod shares GPUs, or a node may have whole and shared ones."""

    # ------------------------------------------------------------------ classes and queueing hints

    @hookimpl
    def class_key(self, pod: Pod) -> Hashable | None:
        """The annotations, and which containers see other GPUs. Reservation pods are in a class of their own."""
        metadata = pod.metadata
        if not shares_gpus(metadata):
            return RESERVATION if self._is_reservation(pod) else None
        key = tuple(metadata.annotations.get(name) for name in (GPU_FRACTION, GPU_MEMORY, GPU_COUNT))
        return (*key, *visibility(pod)) if self._reserved else key

    @hookimpl
    def footprint(self, cls: TaskClass) -> Iterable[Hashable] | None:
        """The counter of sharers, and that of the share. The GPU of a reservation pod counts only for its sharers."""
        if not shares_gpus(cls.pod.metadata):
            return map(Uncounted, self._resources) if self._is_reservation(cls.pod) else None
        self._active = True
        try:
            share = share_of(cls.pod.metadata)
        except ShareError:
            share = _WHOLE_GPU
        return SHARERS, share

    def _is_reservation(self, pod: Pod) -> bool:
        return self._reserved and reserved_gpu(pod, self._namespace) is not None

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when a pod with GPUs is deleted, a node offers more GPUs, or the pod's annotations change."""
        node = ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE | ActionType.UPDATE_NODE_LABEL
        return [
            ClusterEventWithHint(Pod, ActionType.DELETE, self._had_gpus),
            ClusterEventWithHint(Pod, ActionType.UPDATE_OTHER, lambda _, event: event.own),
            ClusterEventWithHint(Node, node, self._offers),
        ]

    def _had_gpus(self, _: TaskClass, event: ClusterEvent) -> bool:
        old = event.old_class
        return event.own or old is None or share_held(old) is not None or self._wants_whole(old)

    def _offers(self, _: TaskClass, event: ClusterEvent) -> bool:
        before, after = event.amounts()
        offered = [resource for resource in self._resources if after.get(resource)]
        if event.old is None:
            return bool(offered)
        old, new = event.old.metadata.labels, event.new.metadata.labels
        return any(
            after[one] > before.get(one, 0) or new.get(one + MEMORY_SUFFIX) != old.get(one + MEMORY_SUFFIX)
            for one in offered
        )

    def _wants_whole(self, cls: TaskClass) -> bool:
        return any(resource in cls.requests for resource in self._resources)

    # ------------------------------------------------------------------ assigned GPUs

    @hookimpl
    def on_nodes_changed(self, changes: Sequence[NodeChange]) -> None:
        """Note the pods that this replica did not place: the next session reads their GPUs."""
        for change in changes if self._active else ():
            self._to_read.pop(change.name, None)  # a replica that stands by never reads them
            for task in change.tasks:
                if GIVEN in task.counts:
                    self._gpus.note(gpus_of(task.counts))
                elif share_held(task.cls) is not None:
                    self._to_read.setdefault(change.name, []).append(task)
            if self._reserved:
                self._reservations.changed(change)

    @hookimpl
    def recover(self, holdings: Sequence[Holding]) -> dict[str, str] | None:
        """Report the bound pods whose GPUs are unknown."""
        if not self._active:
            return None
        lost = {}
        for holding in holdings:
            share, pod = share_held(holding.task.cls), holding.task.pod
            if share is not None and pod.spec.node_name and given_to(pod.metadata, share) is None:
                text = pod.metadata.annotations.get(GPU)
                problem = (
                    f"the annotation {GPU} is invalid: {text[:32]!r}" if text else f"the annotation {GPU} is missing"
                )
                lost[holding.task.uid] = (
                    f"{problem}; the scheduler reserves {share} for the pod on every GPU of its node"
                )
        return lost

    @hookimpl
    def facts(self) -> GpuFacts:
        """The arguments that other plugins need."""
        return GpuFacts(self._gpus, mixed=self._reserved)

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Read the GPUs of other pods; assign GPUs to placed pods and annotate them."""
        if not self._active:
            return
        to_read, self._to_read = self._to_read, {}
        for task in chain.from_iterable(to_read.values()):
            if task.node is not None and GIVEN not in task.counts:
                self._read(session, task)
        for task, node in self._in_flight.all():
            if task.node is None or GIVEN not in task.counts:
                self._in_flight.remove(task, node)
            elif task.pod.spec.node_name:
                self._in_flight.remove(task, node)
                self._correct(session, task)
                self._reservations.bound(task.node)
        for task, unreserved in self._reservations.unreserved():
            if task.row >= 0 and bool(task.counts.get(UNRESERVED)) is not unreserved:
                session.count(task, {UNRESERVED: int(unreserved)})
        rows = session.table.row_of
        self._closed = [rows[node] for node in self._reservations.open_session(session.now) if node in rows]
        if not self._reserved:
            amounts = self._gpus.of(session.table.all_rows())
            self._kept_whole = kept_whole(session.snapshot.cache.pods_of, self._resources, amounts)
        session.add_event_handler(partial(self._assign, session))
        session.add_bind_mutation(self._annotations)

    def _read(self, session: Session, task: Task) -> None:
        """Count a pod with the GPUs in its annotation."""
        share = share_held(task.cls)
        if share is not None:
            self._count(session, task, share, given_to(task.pod.metadata, share))

    def _correct(self, session: Session, task: Task) -> None:
        """Count the pod's annotated GPUs if another replica bound it with other GPUs than this one assigned."""
        share = share_held(task.cls)
        if share is None:
            return
        given, chosen = given_to(task.pod.metadata, share), gpus_of(task.counts)
        if given != chosen:
            gpus = task.pod.metadata.annotations.get(GPU)
            _log.warning("another replica bound the pod with other GPUs", pod=task.key, gpus=gpus)
            session.count(task, dict.fromkeys(counted(share, chosen), 0))
            self._count(session, task, share, given)

    def _count(self, session: Session, task: Task, share: Share, gpus: tuple[int, ...] | None) -> None:
        session.count(task, counted(share, gpus))
        self._gpus.note(gpus or ())

    def _assign(self, session: Session, event: Event) -> None:
        """Assign GPUs to a placed task; an undone eviction keeps its GPUs."""
        task = event.task
        share = share_held(task.cls)
        if share is None or GIVEN in task.counts or task.row < 0:
            return
        gpus = self._choose(session, task, share)
        if gpus is not None:
            self._count(session, task, share, gpus)
            self._in_flight.add(task, task.node or "")

    def _choose(self, session: Session, task: Task, share: Share) -> tuple[int, ...] | None:
        """The GPUs for a task on its node, by the plugins' GPU order, else the fullest that fit.

        It leaves GPUs to the pods nominated for the node if possible.
        """
        columns = self._columns(NodeView(session.table, np.array([task.row], np.int64)))
        free, per = columns.free_on(0), int(columns.amounts.per_thousandth[0])
        need = share.units(per)
        left, later = list(free), self._free_later(session, task, free, per)
        nominated = session.yields_to((task,), (task.node or "",))
        for other in (one for tasks in nominated.values() for one in tasks):
            other_share = share_held(other.cls)
            if other_share is None:
                continue
            units = other_share.units(per)
            chosen = pack(left, units, other_share.count)
            if chosen is None:  # it waits for pods that terminate on its GPUs
                for gpu in pack(later, units, other_share.count) or ():
                    left[gpu] = 0
            for gpu in chosen or ():
                later[gpu] -= units
        for amounts in (left, free):
            if sum(amount >= need for amount in amounts) >= share.count:
                return self._best(session, task, amounts, need, share.count)
        return None

    @staticmethod
    def _free_later(session: Session, task: Task, free: Sequence[int], per: int) -> list[int]:
        """The free amounts of the GPUs of a task's node once the terminating pods there are gone."""
        later = list(free)
        for other in session.snapshot.cache.tasks_on(task.node or ""):
            share = share_held(other.cls) if session.is_ending(other) else None
            if share is None:
                continue
            for gpu in gpus_of(other.counts):
                if 0 <= gpu < len(later):
                    later[gpu] = min(later[gpu] + share.units(per), WHOLE * per)
        return later

    def _best(self, session: Session, task: Task, free: list[int], need: int, count: int) -> tuple[int, ...] | None:
        if not session.orders_gpus:
            return pack(free, need, count)
        fitting = [str(gpu) for gpu, amount in enumerate(free) if amount >= need]
        ordered = session.gpu_order(task, task.node or "", fitting)
        return tuple(sorted(map(int, ordered[:count])))

    def _annotations(self, task: Task, _: str) -> Mapping[str, str] | None:
        """The annotations with the pod's GPUs. Raises ShareError if they are unknown: the pod must not run then."""
        if share_held(task.cls) is None:
            return None
        gpus = gpus_of(task.counts)
        if not gpus or EVERY in gpus:
            raise ShareError(f"no GPU of node {task.node} fits pod {task.key}: the scheduler retries the pod")
        text = written(gpus)
        return {GPU: text} if self._reserved else {GPU: text, GPU_DEVICE: text}

    # ------------------------------------------------------------------ evaluation

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Skip | Refusal | Prepared:
        """The share of the class, or its number of whole GPUs. Skips pods without GPUs.

        Skips all pods until one shares a GPU, except with reservation pods.
        """
        if not self._active:
            return SKIP
        whole = sum(cls.requests.get(resource, 0) for resource in self._resources)
        try:
            share = share_of(cls.pod.metadata)
        except ShareError as error:
            return Refusal(str(error))
        if share is None:
            scored = SKIP if self._kept_whole is None else Scope.NODE
            return Prepared(whole, Scope.NODE, scored) if whole else SKIP
        if whole:
            annotation = next(name for name in (GPU_FRACTION, GPU_MEMORY) if name in cls.pod.metadata.annotations)
            resource = next(name for name in self._resources if name in cls.requests)
            return Refusal(f"annotation {annotation}: the pod also requests {resource}; remove one of the two, because "
                           "a pod uses either whole GPUs or shares")  # fmt: skip
        if self._reserved and (unseen := refusal_text(cls.pod, live=self._live)) is not None:
            return Refusal(unseen)
        # how many more pods fit depends on the GPUs that the callbacks choose, which virtual rows do not know
        # a node is closed for some time without a change of its row
        scope = Scope.ANY if self._closed or (share.count > 1 and session.orders_gpus) else Scope.NODE
        return Prepared(share, scope, Scope.NODE)

    @hookimpl
    def filter(self, session: Session, nodes: NodeView, mask: BoolColumn, state: Share | int) -> None:
        """Clear the nodes where the share, or the number of whole GPUs beside the shared ones, does not fit."""
        share = state if isinstance(state, Share) else None

        def expected(index: int) -> Iterable[Share]:
            waiting = session.nominations.waiting((nodes.node(index).metadata.name,))
            shares = {found for _, tasks in waiting for task in tasks if (found := share_held(task.cls)) is not None}
            for one in sorted(shares):
                yield from [one] * columns.expected_with(one, index, own=one == share)

        columns = self._columns(nodes)
        fits = columns.fits(state, expected) if isinstance(state, Share) else columns.fits_whole(state, expected)
        np.logical_and(mask, fits, out=mask)

    @hookimpl
    def score(self, cls: TaskClass, nodes: NodeView, mask: BoolColumn, state: Share | int) -> IntColumn:
        """Higher where the pod fills a shared GPU, and where similar fractions of the node's CPU and GPUs are used.

        If a node's GPUs are all whole or all shared: for whole GPUs, higher where the pod fills a node. Nodes that do
        not fit get 0.
        """
        fitting = nodes if nodes.extra is not None or mask.all() else nodes.some(nodes.row_numbers[mask])
        columns, cpu = self._columns(fitting), cls.requests.get("cpu", 0)
        scores = columns.scores(state, cpu) if isinstance(state, Share) else columns.scores_whole(state, cpu)
        if fitting is nodes:
            return scores
        found = np.zeros(len(nodes), np.int64)
        found[mask] = scores
        return found

    @hookimpl
    def reasons(self, nodes: NodeView, state: Share | int) -> Mapping[str, BoolColumn] | str:
        """The reason: no GPUs, too few, too little memory, GPUs in use whole, or not enough free."""
        columns = self._columns(nodes)
        return columns.reasons(state) if isinstance(state, Share) else columns.reasons_whole()

    @hookimpl
    def fits_if(self, nodes: NodeView, state: Share | int) -> Sequence[Sequence[str] | None]:
        """The free amount, the absence of other pods, or the label that each node needs."""
        columns = self._columns(nodes)
        if not isinstance(state, Share):
            return columns.whole_if(state)
        return [None if text is None else [text] for text in columns.fits_if(state)]

    @hookimpl
    def unresolvable(self, nodes: NodeView, state: Share | int) -> BoolColumn:
        """The nodes where the share does not fit even without other pods."""
        if isinstance(state, Share):
            return self._columns(nodes).never(state)
        return np.zeros(len(nodes), np.bool_)

    @hookimpl
    def prebind_needed(self, binding: Binding) -> bool:
        """Whether reservation pods must be created, reported or deleted before the pod is bound."""
        if not self._reserved:
            return False
        return share_held(binding.task.cls) is not None or (
            self._wants_whole(binding.task.cls)
            and not binding.cluster.simulated
            and self._reservations.concerns(binding.node)
        )

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        """For a pod that shares GPUs: reserve them, and annotate the pod with the devices.

        For a pod with whole GPUs: wait until reservation pods that no pod needs are gone. Raises ReservationError.
        """
        if share_held(binding.task.cls) is None:
            await self._reservations.make_way(binding)
        else:
            devices = await self._reservations.reserve(binding, gpus_of(binding.task.counts))
            if devices:
                binding.annotations[GPU_DEVICE] = ",".join(devices)

    @hookimpl
    def serve(self, runtime: Runtime) -> AbstractAsyncContextManager[None] | None:
        """Delete the reservation pods that no pod needs, and replace those that disappear.

        From now on pods must have the webhook's variable; pods from manifests, in a simulation, need not.
        """
        self._live = True
        return self._reservations.serve(runtime, self.name) if self._reserved else None

    def _columns(self, nodes: NodeView) -> GpuColumns:
        return GpuColumns(
            nodes, self._gpus, reserved=self._reserved, closed=self._closed, kept_whole=self._kept_whole or 0
        )

    # ------------------------------------------------------------------ reports

    @hookimpl
    def offered(self, requested: Collection[str], nodes: NodeView) -> dict[str, int]:
        """All GPUs and their memory, if pods of queues request parts: queues share GPUs, whole or in parts."""
        if not {GPU_FRACTION, GPU_MEMORY} & set(requested):
            return {}
        amounts = self._gpus.of(nodes)
        memory = int((amounts.gpus * amounts.memory).sum())
        return {GPU_FRACTION: int(amounts.gpus.sum()) * WHOLE, GPU_MEMORY: memory * 2**20}

    @hookimpl
    def report(self, pod: Pod) -> Mapping[str, Any] | None:
        """The GPUs that a pod shares; None for all pods until one shares GPUs."""
        return {"gpus": _annotated_gpus(pod), "devices": _devices(pod)} if self._active else None

    @hookimpl
    def shown_holding(self, pod: Pod) -> Mapping[str, Any]:
        """The GPUs that a pod shares, as devices."""
        return {"devices": _devices(pod)}


def _annotated_gpus(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(GPU) if pod.spec.node_name and shares_gpus(pod.metadata) else None


def _devices(pod: Pod) -> list[str]:
    gpus = _annotated_gpus(pod)
    return [f"gpu {gpu}" for gpu in gpus.split(",")] if gpus else []
