"""Pods share GPUs, by fraction or by memory: which nodes have room, and which GPUs a pod is given.

A node's GPUs are had whole or shared, not both: whole ones are given out by the kubelet, and nothing else knows which.
What a pod is given is counted on its node from the moment it is placed in a session, undone with it, and written as an
annotation by the request that binds it: from there it is read back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import structlog
from pydantic import Field

from session_scheduler.builtin.gpu_columns import HAD_SHARERS, GpuColumns, pack
from session_scheduler.config.settings import PluginArguments
from session_scheduler.framework.bindings import Holding
from session_scheduler.framework.callbacks import Event
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import SKIP, Normalise, Prepared, Refusal, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.gpu_shares import (
    EVERY,
    GIVEN,
    GPU,
    GPU_COUNT,
    GPU_FRACTION,
    GPU_MEMORY,
    MEMORY_SUFFIX,
    SHARERS,
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
_A_WHOLE_ONE = Share(WHOLE, 0)
"""What a pod counts as that runs although its annotations say nothing that there is."""


class GpuSharingArguments(PluginArguments):
    """Which resources are GPUs."""

    resources: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = ("nvidia.com/gpu",)
    """Of these the first that a node offers is what its GPUs are; with `.memory` behind, the label of their memory."""


class GpuSharing:
    """Refuses nodes without room for a share, prefers those that are shared already, and chooses the GPUs."""

    Arguments = GpuSharingArguments
    name = "GpuSharing"
    weight = 1
    filter_scope = Scope.NODE
    score_scope = Scope.NODE
    normalise = Normalise.NONE

    def __init__(self, arguments: GpuSharingArguments | None = None) -> None:
        self._resources = (arguments or GpuSharingArguments()).resources
        self._active = False
        """Whether a pod was ever seen that asks for a part of a GPU: until then nothing is done."""
        self._highest = -1
        """The highest index of a GPU that was given."""
        self._to_read: dict[Task, None] = {}
        """Pods on nodes of which it is not known yet which GPUs they have."""
        self._in_flight: dict[Task, None] = {}
        """Those that were given some here, until they are heard of as bound."""

    # ------------------------------------------------------------------ classes, and what requeues

    @hookimpl
    def class_key(self, pod: Pod) -> Hashable | None:
        """Pods that ask for different shares are of different classes."""
        metadata = pod.metadata
        if not shares_gpus(metadata):
            return None
        return tuple(metadata.annotations.get(name) for name in (GPU_FRACTION, GPU_MEMORY, GPU_COUNT))

    @hookimpl
    def footprint(self, cls: TaskClass) -> Iterable[Hashable] | None:
        """That it is a sharer, and its share."""
        if not shares_gpus(cls.pod.metadata):
            return None
        self._active = True
        try:
            share = share_of(cls.pod.metadata)
        except ShareError:
            share = _A_WHOLE_ONE
        return SHARERS, share

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """A pod that had GPUs ends, whole or shared ones; a node, its GPUs or its labels; the pod's own annotations."""
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

    # ------------------------------------------------------------------ who has which

    @hookimpl
    def on_nodes_changed(self, changes: Sequence[NodeChange]) -> None:
        """Which GPUs pods have that were not placed here is read when the next session opens."""
        for change in changes if self._active else ():
            for task in change.tasks:
                if GIVEN in task.counts:
                    self._highest = max(self._highest, *gpus_of(task.counts))
                elif share_held(task.cls) is not None:
                    self._to_read[task] = None

    @hookimpl
    def recover(self, holdings: Sequence[Holding]) -> dict[str, str] | None:
        """Report the bound pods of which it is not known which GPUs they use."""
        if not self._active:
            return None
        lost = {}
        for holding in holdings:
            share, pod = share_held(holding.task.cls), holding.task.pod
            if share is not None and pod.spec.node_name and given_to(pod.metadata, share) is None:
                text = pod.metadata.annotations.get(GPU)
                says = (
                    f"its annotation {GPU} says nothing that can be, {text[:32]!r}"
                    if text
                    else f"it has no annotation {GPU}"
                )
                lost[holding.task.uid] = f"{says}: {share} is kept for it of each GPU of its node, whichever it uses"
        return lost

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Read what others were given; follow what is placed, and write it down."""
        if not self._active:
            return
        to_read, self._to_read = self._to_read, {}
        for task in to_read:
            if task.node is not None and GIVEN not in task.counts:
                self._read(session, task)
        for task in list(self._in_flight):
            if task.node is None or GIVEN not in task.counts:
                del self._in_flight[task]
            elif task.pod.spec.node_name:
                del self._in_flight[task]
                self._compare(session, task)
        session.add_event_handler(partial(self._placed, session))
        session.add_bind_mutation(_annotations)

    def _read(self, session: Session, task: Task) -> None:
        """Count a pod with the GPUs that it says it has."""
        share = share_held(task.cls)
        if share is not None:
            self._count(session, task, share, given_to(task.pod.metadata, share))

    def _compare(self, session: Session, task: Task) -> None:
        """Another replica may have bound it meanwhile, with others than it was given here: those are what it has."""
        share = share_held(task.cls)
        if share is None:
            return
        given, chosen = given_to(task.pod.metadata, share), gpus_of(task.counts)
        if given != chosen:
            _log.warning("a pod was bound with other GPUs", pod=task.key, gpus=task.pod.metadata.annotations.get(GPU))
            session.count(task, dict.fromkeys(counted(share, chosen), 0))
            self._count(session, task, share, given)

    def _count(self, session: Session, task: Task, share: Share, gpus: tuple[int, ...] | None) -> None:
        session.count(task, counted(share, gpus))
        self._highest = max(self._highest, *gpus) if gpus else self._highest

    def _placed(self, session: Session, event: Event) -> None:
        """Give a task its GPUs; one whose end was undone has its own still."""
        task = event.task
        share = share_held(task.cls)
        if share is None or GIVEN in task.counts or task.row < 0:
            return
        gpus = self._choose(session, task, share)
        if gpus is not None:
            self._count(session, task, share, gpus)
            self._in_flight[task] = None

    def _choose(self, session: Session, task: Task, share: Share) -> tuple[int, ...] | None:
        """The GPUs for a task on its node, in the order of the plugins', or the fullest that have room.

        What nominated pods are to have there is left to them where that is possible.
        """
        columns = self._columns(NodeView(session.table, np.array([task.row], np.int64)))
        free, per = columns.free_on(0), int(columns.per_thousandth[0])
        need = share.units(per)
        left = list(free)
        coming = session.yields_to((task,), (task.node or "",))
        for other in (one for tasks in coming.values() for one in tasks):
            theirs = share_held(other.cls)
            if theirs is not None:
                pack(left, theirs.units(per), theirs.count)
        for room in (left, free):
            if sum(there >= need for there in room) >= share.count:
                return self._best(session, task, room, need, share.count)
        return None

    def _best(self, session: Session, task: Task, free: list[int], need: int, count: int) -> tuple[int, ...] | None:
        if not session.orders_gpus:
            return pack(free, need, count)
        fitting = [str(gpu) for gpu, there in enumerate(free) if there >= need]
        ordered = session.gpu_order(task, task.node or "", fitting)
        return tuple(sorted(map(int, ordered[:count])))

    # ------------------------------------------------------------------ evaluation

    @hookimpl
    def prepare(self, session: Session, cls: TaskClass) -> Skip | Refusal | Prepared:
        """The share of the class, None for whole GPUs; skipped where no pod shares, and for pods without GPUs."""
        if not self._active:
            return SKIP
        whole = self._wants_whole(cls)
        try:
            share = share_of(cls.pod.metadata)
        except ShareError as error:
            return Refusal(str(error))
        if share is None:
            return Prepared(None, Scope.NODE, SKIP) if whole else SKIP
        if whole:
            asked = next(name for name in (GPU_FRACTION, GPU_MEMORY) if name in cls.pod.metadata.annotations)
            resource = next(name for name in self._resources if name in cls.requests)
            return Refusal(f"annotation {asked}: the pod requests {resource} as well: remove one of the two, for "
                           "a pod has whole GPUs or parts of them")  # fmt: skip
        # which of several GPUs callbacks choose decides how many more fit: virtual rows cannot tell
        scope = Scope.ANY if share.count > 1 and session.orders_gpus else Scope.NODE
        return Prepared(share, scope, Scope.NODE)

    @hookimpl
    def filter(self, session: Session, nodes: NodeView, mask: BoolColumn, state: Share | None) -> None:
        """Clear the nodes without room for the share; for pods with whole GPUs, those with sharers."""
        fits = nodes.counter(SHARERS) == 0 if state is None else self._fits(session, nodes, state)
        np.logical_and(mask, fits, out=mask)

    def _fits(self, session: Session, nodes: NodeView, share: Share) -> BoolColumn:
        columns = self._columns(nodes)

        def expected(place: int) -> Iterable[Share]:
            waiting = session.nominations.waiting((nodes.node(place).metadata.name,))
            shares = {found for _, tasks in waiting for task in tasks if (found := share_held(task.cls)) is not None}
            for one in sorted(shares):
                yield from [one] * columns.to_come(one, place, own=one == share)

        return columns.fits(share, expected)

    @hookimpl
    def score(self, nodes: NodeView, state: Share | None) -> IntColumn | None:
        """Nodes whose GPUs are shared already, so that others keep whole ones; the fuller ones first."""
        return None if state is None else self._columns(nodes).worth(state)

    @hookimpl
    def why(self, nodes: NodeView, state: Share | None) -> Sequence[Sequence[str]]:
        """That the node has none, too few, too little memory, whole ones that are used, or no room."""
        if state is None:
            return [[HAD_SHARERS]] * len(nodes)
        columns = self._columns(nodes)
        return [[columns.reason(place, state)] for place in range(len(nodes))]

    @hookimpl
    def fits_if(self, nodes: NodeView, state: Share | None) -> Sequence[Sequence[str] | None]:
        """Where pods could end, or a label is missing."""
        if state is None:
            return [[f"no pod shared a GPU of {nodes.node(place).metadata.name}"] for place in range(len(nodes))]
        columns = self._columns(nodes)
        texts = (columns.fits_if(place, state) for place in range(len(nodes)))
        return [None if text is None else [text] for text in texts]

    @hookimpl
    def unresolvable(self, nodes: NodeView, state: Share | None) -> BoolColumn:
        """Where there are no such GPUs, whoever uses them."""
        return np.zeros(len(nodes), np.bool_) if state is None else self._columns(nodes).never(state)

    def _columns(self, nodes: NodeView) -> GpuColumns:
        return GpuColumns(nodes, self._resources, self._highest)

    # ------------------------------------------------------------------ what people see

    @hookimpl
    def report(self, pod: Pod) -> Mapping[str, Any] | None:
        """Which GPUs of its node a pod shares; nothing of any pod where none shares."""
        return {"gpus": _gpus_written(pod)} if self._active else None

    @hookimpl
    def shown_holding(self, pod: Pod) -> Mapping[str, Any] | None:
        """The GPUs that a pod shares, as devices."""
        gpus = _gpus_written(pod) if self._active else None
        return {"devices": [f"gpu {gpu}" for gpu in gpus.split(",")]} if gpus else None


def share_held(cls: TaskClass) -> Share | None:
    """What a pod of the class counts as; None where it shares no GPU."""
    return next((key for key in cls.footprint if isinstance(key, Share)), None)


def _gpus_written(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(GPU) if pod.spec.node_name and shares_gpus(pod.metadata) else None


def _annotations(task: Task, _: str) -> Mapping[str, str] | None:
    """Which GPUs the pod has. Raises ShareError where that is not known: unguarded it must not run."""
    if share_held(task.cls) is None:
        return None
    gpus = gpus_of(task.counts)
    if not gpus or EVERY in gpus:
        raise ShareError(f"no GPU of {task.node} was found for {task.key}: it is tried again")
    return {GPU: written(gpus)}
