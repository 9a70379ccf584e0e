"""The NodeResourcesFit plugin: rejects nodes without enough free resources, and prefers emptier (or fuller) nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, model_validator

from session_scheduler.builtin.devices.extended import ExtendedResources
from session_scheduler.builtin.scored_resources import (
    DEFAULT_RESOURCES,
    ScoredResource,
    ScoredResources,
    on_every_node,
    scored_resources,
)
from session_scheduler.builtin.utilization_shape import FULL, RequestedToCapacityRatio, scores_of
from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.settings import PluginArguments
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import Normalise, Prepared, Scope, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.devices import CLASS_PREFIX, DeviceClass
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.quantity import quantity_text
from session_scheduler.model.requests import containers_requests, is_scalar

_FIRST = ("cpu", "memory", "ephemeral-storage")


def _without_slash(group: str) -> str:
    if "/" in group:
        raise wrong_value(f"{group!r} contains a slash; use the part of the resource name before the slash")
    return group


class ScoringStrategy(PluginArguments):
    """How resource usage becomes a score."""

    type: Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"] = "LeastAllocated"
    resources: ScoredResources = DEFAULT_RESOURCES
    requested_to_capacity_ratio: RequestedToCapacityRatio | None = None

    @model_validator(mode="after")
    def _check_ratio(self) -> ScoringStrategy:
        field = ("requestedToCapacityRatio",)
        if self.type == "RequestedToCapacityRatio":
            if self.requested_to_capacity_ratio is None:
                raise wrong_value("is missing; add it with its shape, or choose another type", field)
        elif self.requested_to_capacity_ratio is not None:
            text = f"the type {self.type} does not use it; remove it, or choose the type RequestedToCapacityRatio"
            raise wrong_value(text, field)
        return self


class NodeResourcesFitArguments(PluginArguments):
    """kube-scheduler's NodeResourcesFitArgs."""

    ignored_resources: tuple[str, ...] = ()
    """Extended resources that the filter ignores."""
    ignored_resource_groups: tuple[Annotated[str, AfterValidator(_without_slash)], ...] = ()
    """Domains of extended resources that the filter ignores."""
    scoring_strategy: ScoringStrategy = ScoringStrategy()


class FitState:
    """A class's requests, prepared for the filter and the score."""

    __slots__ = ("as_devices", "requests", "scored")

    def __init__(
        self,
        requests: Sequence[tuple[str, int]],
        scored: Sequence[ScoredResource],
        as_devices: Collection[str] = (),
    ) -> None:
        self.requests = requests
        self.scored = scored
        self.as_devices = as_devices
        """Resources that a node can offer as devices instead: DynamicResources checks those."""


class NodeResourcesFit:
    """Rejects nodes without enough free resources; scores by the configured strategy."""

    Arguments = NodeResourcesFitArguments
    name = "NodeResourcesFit"
    weight = 1
    filter_scope = Scope.NODE
    score_scope = Scope.NODE
    normalise = Normalise.NONE

    def __init__(self, arguments: NodeResourcesFitArguments | None = None) -> None:
        self._arguments = arguments or NodeResourcesFitArguments()
        self._extended = ExtendedResources()
        strategy = self._arguments.scoring_strategy
        self._most = strategy.type == "MostAllocated"
        ratio = strategy.requested_to_capacity_ratio
        self._shape = scores_of(ratio.shape) if ratio is not None else None

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when a node has enough free for the pod, after a pod on it is deleted or requests less, or after the
        node is added or offers more.
        """
        return [
            ClusterEventWithHint(Pod, ActionType.DELETE, None, self._required_free),
            ClusterEventWithHint(Pod, ActionType.UPDATE_POD_SCALE_DOWN, self._frees, self._required_free),
            ClusterEventWithHint(
                Node, ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE, self._offers, self._required_free
            ),
            ClusterEventWithHint(DeviceClass, ActionType.ADD | ActionType.UPDATE, _maps_requested_now),
        ]

    def _required_free(self, cls: TaskClass) -> Mapping[str, int]:
        """The requests, without those that a node's devices may satisfy."""
        return {name: amount for name, amount in self._compared(cls) if name not in self._extended}

    def _frees(self, cls: TaskClass, event: ClusterEvent) -> bool:
        old, new = event.old_class, event.new_class
        if old is None or new is None or event.own:
            return True
        return any(new.requests.get(name, 0) < old.requests.get(name, 0) for name, _ in self._compared(cls))

    def _offers(self, cls: TaskClass, event: ClusterEvent) -> bool:
        before, after = event.amounts()
        wanted = [
            (name, amount) for name, amount in self._compared(cls) if after.get(name) or name not in self._extended
        ]
        if any(after.get(name, 0) < amount for name, amount in wanted):
            return False
        return event.old is None or any(after.get(name, 0) > before.get(name, 0) for name, _ in wanted)

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Read which extended resources device classes map to devices."""
        self._extended.refresh(session)

    @hookimpl
    def prepare(self, cls: TaskClass) -> Prepared:
        """The requests to compare and the resources to score."""
        compared = self._compared(cls)
        resources = self._arguments.scoring_strategy.resources
        as_devices = self._extended.among(cls.requests)
        state = FitState(sorted(compared, key=_sort_key), scored_resources(resources, _as_scored(cls)), as_devices)
        return Prepared(state, Scope.NODE, Scope.NODE, None if as_devices else dict(compared))

    def _compared(self, cls: TaskClass) -> list[tuple[str, int]]:
        return [("pods", 1), *((name, amount) for name, amount in cls.requests.items() if not self._ignores(name))]

    def _ignores(self, name: str) -> bool:
        if not is_scalar(name) or "kubernetes.io/" in name:
            return False
        group = name.partition("/")[0]
        return name in self._arguments.ignored_resources or group in self._arguments.ignored_resource_groups

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn, state: FitState) -> None:
        """Clear the nodes where less is free than requested."""
        for name, amount in state.requests:
            if name in state.as_devices:
                np.logical_and(mask, ~_short(nodes, name, amount, state), out=mask)
            else:
                np.logical_and(mask, nodes.used(name) <= nodes.allocatable(name) - amount, out=mask)

    @hookimpl
    def filter_key(self, state: FitState) -> Hashable:
        """The amounts to compare."""
        return tuple(state.requests), frozenset(state.as_devices)

    @hookimpl
    def reasons(self, nodes: NodeView, state: FitState) -> Mapping[str, BoolColumn]:
        """Every insufficient resource, in kube-scheduler's words."""
        return {
            "Too many pods" if name == "pods" else f"Insufficient {name}": _short(nodes, name, amount, state)
            for name, amount in state.requests
        }

    @hookimpl
    def fits_if(self, nodes: NodeView, state: FitState) -> Sequence[Sequence[str]]:
        """The amounts that each node lacks, with what is free, and with its capacity if the request exceeds it."""
        short = [(name, amount, _short(nodes, name, amount, state)) for name, amount in state.requests]
        return [
            [_wanted(nodes, index, name, amount) for name, amount, column in short if column[index]]
            for index in range(len(nodes))
        ]

    @hookimpl
    def unresolvable(self, nodes: NodeView, state: FitState) -> BoolColumn:
        """The nodes whose allocatable is less than the request. The number of pods is not considered."""
        beyond = np.zeros(len(nodes), np.bool_)
        for name, amount in state.requests:
            if name != "pods":
                beyond |= nodes.allocatable(name) < amount
        return beyond

    @hookimpl
    def score(self, nodes: NodeView, state: FitState) -> IntColumn | None:
        """The weighted mean, over the node's resources, of the free or used share, or of the shape's score at the used
        share (0 to 100).
        """
        if not state.scored:
            return None
        if self._shape is not None:
            return _by_shape(nodes, state.scored, self._shape)
        total = np.zeros(len(nodes), np.int64)
        weights: int | IntColumn = 0
        for resource in state.scored:
            capacity = nodes.allocatable(resource.name)
            share = self._counted(nodes, resource, capacity)  # in place from here: a new array is expensive
            share *= 100
            if on_every_node(capacity):
                share //= capacity
                weights = weights + resource.weight
            else:
                share //= np.maximum(capacity, 1)
                weights = weights + resource.weight * (capacity != 0)
            if resource.weight != 1:
                share *= resource.weight
            total += share
        total //= np.maximum(weights, 1)
        return total

    @hookimpl
    def score_placement(self, tasks: Sequence[Task], nodes: NodeView) -> int:
        """The weighted mean of the used shares (0 to 100) of the domain, with the group on its nodes.

        It prefers fuller domains whatever the strategy for nodes, so that empty domains stay free for other groups. For
        each resource only nodes that have it count; extended resources count only if the group requests them.
        """
        requested: Counter[str] = Counter()
        for cls, count in Counter(task.cls for task in tasks).items():
            for name, amount in _as_scored(cls).items():
                requested[name] += count * amount
        total = weights = 0
        for resource in scored_resources(self._arguments.scoring_strategy.resources, requested):
            offered = nodes.allocatable(resource.name)
            capacity = _sum(offered)
            if capacity:
                used = resource.request + _sum(used_with_defaults(nodes, resource.name)[offered != 0])
                total += resource.weight * (min(used, capacity) * 100 // capacity)
                weights += resource.weight
        return total // weights if weights else 0

    def _counted(self, nodes: NodeView, resource: ScoredResource, capacity: IntColumn) -> IntColumn:
        """The free or used amount with the pod on the node, 0 to the capacity, as a new array."""
        counted = used_with_defaults(nodes, resource.name) + resource.request
        if self._most:
            return np.minimum(counted, capacity, out=counted)
        np.subtract(capacity, counted, out=counted)
        return np.maximum(counted, 0, out=counted)


def _by_shape(nodes: NodeView, scored: Sequence[ScoredResource], shape: IntColumn) -> IntColumn:
    """The weighted mean of the shape's scores, rounded to the nearest; resources with score 0 do not count."""
    total = np.zeros(len(nodes), np.int64)
    weights = np.zeros(len(nodes), np.int64)
    for resource in scored:
        capacity = nodes.allocatable(resource.name)
        used = np.minimum(used_with_defaults(nodes, resource.name) + resource.request, capacity)
        score = shape.take(used * FULL // np.maximum(capacity, 1)) * (capacity != 0)
        total += resource.weight * score
        weights += resource.weight * (score > 0)
    rounded: IntColumn = (2 * total + weights) // np.maximum(2 * weights, 1)
    return rounded


def _maps_requested_now(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether the device class maps a requested resource now and did not before."""
    names = (f"{CLASS_PREFIX}{event.new.metadata.name}", event.new.spec.extended_resource_name)
    before = () if event.old is None else (names[0], event.old.spec.extended_resource_name)
    return any(name in cls.requests and name not in before for name in names)


def _as_scored(cls: TaskClass) -> Mapping[str, int]:
    """The requests for scores: the containers' sum even if the pod sets pod-level requests."""
    return {**cls.requests, **containers_requests(cls.pod)}


def _sum(column: IntColumn) -> int:
    """The exact sum: the memory of many large nodes can exceed 64 bits."""
    return int(column.sum(dtype=object)) if len(column) else 0


def _short(nodes: NodeView, name: str, amount: int, state: FitState) -> BoolColumn:
    """The nodes where less is free than requested."""
    offered = nodes.allocatable(name)
    short = nodes.used(name) > offered - amount
    return short & (offered != 0) if name in state.as_devices else short


def _wanted(nodes: NodeView, index: int, name: str, amount: int) -> str:
    node = nodes.node(index).metadata.name
    offered = int(nodes.allocatable(name)[index])
    if name == "pods":
        return f"{node} allowed more than {offered} pods, or ran one pod fewer"
    free = max(0, offered - int(nodes.used(name)[index]))
    text = f"{quantity_text(amount, milli=name == 'cpu')} {name} were free on {node}"
    now = quantity_text(free, milli=name == "cpu")
    has = f" of {quantity_text(offered, milli=name == 'cpu')}" if amount > offered else ""
    return f"{text} ({now}{has} now)"


def used_with_defaults(nodes: NodeView, resource: str) -> IntColumn:
    """The used amount; containers without a cpu or memory request count with kube-scheduler's small default."""
    return nodes.nonzero_used(resource) if resource in ("cpu", "memory") else nodes.used(resource)


def _sort_key(request: tuple[str, int]) -> tuple[int, str]:
    """kube-scheduler's order: pods, its own resources, then the others, which kube-scheduler leaves unordered."""
    name = request[0]
    if name == "pods":
        return (0, name)
    return (1 + _FIRST.index(name) if name in _FIRST else len(_FIRST) + 1, name)
