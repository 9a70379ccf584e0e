"""A node must have room for what the pod requests; the emptier (or the fuller) it is, the better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import AfterValidator

from session_scheduler.builtin.scored_resources import (
    DEFAULT_RESOURCES,
    ScoredResource,
    ScoredResources,
    on_every_node,
    scored_resources,
)
from session_scheduler.config import PluginArguments
from session_scheduler.config_text import wrong_value
from session_scheduler.hookspecs import Normalise, Scope, hookimpl
from session_scheduler.model.requests import containers_requests, is_scalar

if TYPE_CHECKING:
    from session_scheduler.model.classes import TaskClass
    from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView

_FIRST = ("cpu", "memory", "ephemeral-storage")


def _without_slash(group: str) -> str:
    if "/" in group:
        raise wrong_value(f"{group!r} has a slash: write what stands before it in the resources' names")
    return group


class ScoringStrategy(PluginArguments):
    """How used resources become a score."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    resources: ScoredResources = DEFAULT_RESOURCES


class NodeResourcesFitArguments(PluginArguments):
    """kube-scheduler's NodeResourcesFitArgs, without RequestedToCapacityRatio."""

    ignored_resources: tuple[str, ...] = ()
    """Extended resources that the filter leaves to others."""
    ignored_resource_groups: tuple[Annotated[str, AfterValidator(_without_slash)], ...] = ()
    """The same for all extended resources with this domain."""
    scoring_strategy: ScoringStrategy = ScoringStrategy()


class FitState:
    """A class's requests, as the filter and the score need them."""

    __slots__ = ("requests", "scored")

    def __init__(self, requests: Sequence[tuple[str, int]], scored: Sequence[ScoredResource]) -> None:
        self.requests = requests
        self.scored = scored


class NodeResourcesFit:
    """Refuses nodes without room for the pod's requests; LeastAllocated (default) or MostAllocated score."""

    Arguments = NodeResourcesFitArguments
    name = "NodeResourcesFit"
    weight = 1
    filter_scope = Scope.NODE
    score_scope = Scope.NODE
    normalise = Normalise.NONE

    def __init__(self, arguments: NodeResourcesFitArguments | None = None) -> None:
        self._arguments = arguments or NodeResourcesFitArguments()
        self._most = self._arguments.scoring_strategy.type == "MostAllocated"

    @hookimpl
    def prepare(self, cls: TaskClass) -> FitState:
        """What is compared and what is scored."""
        compared = [("pods", 1), *((name, amount) for name, amount in cls.requests.items() if not self._ignores(name))]
        # kube-scheduler scores the new pod by its containers, even where the pod as a whole requests something else
        amounts: Mapping[str, int] = {**cls.requests, **containers_requests(cls.pod)}
        resources = self._arguments.scoring_strategy.resources
        return FitState(sorted(compared, key=_place), scored_resources(resources, amounts))

    def _ignores(self, name: str) -> bool:
        if not is_scalar(name) or "kubernetes.io/" in name:
            return False
        group = name.partition("/")[0]
        return name in self._arguments.ignored_resources or group in self._arguments.ignored_resource_groups

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn, state: FitState) -> None:
        """Clear the nodes where less is free than requested."""
        for name, amount in state.requests:
            np.logical_and(mask, nodes.used(name) <= nodes.allocatable(name) - amount, out=mask)

    @hookimpl
    def why(self, nodes: NodeView, state: FitState) -> Sequence[Sequence[str]]:
        """Every resource that is short, in kube-scheduler's wording."""
        short = [
            ("Too many pods" if name == "pods" else f"Insufficient {name}",
             nodes.used(name) > nodes.allocatable(name) - amount)
            for name, amount in state.requests
        ]  # fmt: skip
        return [[text for text, column in short if column[index]] for index in range(len(nodes))]

    @hookimpl
    def score(self, nodes: NodeView, state: FitState) -> IntColumn | None:
        """The weighted mean, over the resources that a node has, of the share (0 to 100) that is left or is used."""
        if not state.scored:
            return None
        total = np.zeros(len(nodes), np.int64)
        weights: int | IntColumn = 0
        for resource in state.scored:
            capacity = nodes.allocatable(resource.name)
            share = self._counted(nodes, resource, capacity)  # in place from here: a new array costs like arithmetic
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

    def _counted(self, nodes: NodeView, resource: ScoredResource, capacity: IntColumn) -> IntColumn:
        """How much of the capacity is left, or used, with the pod on the node: a new array, 0 to the capacity."""
        counted = used_with_defaults(nodes, resource.name) + resource.request
        if self._most:
            return np.minimum(counted, capacity, out=counted)
        np.subtract(capacity, counted, out=counted)
        return np.maximum(counted, 0, out=counted)


def used_with_defaults(nodes: NodeView, resource: str) -> IntColumn:
    """What is used; of cpu and memory as if containers that request none requested a little."""
    return nodes.nonzero_used(resource) if resource in ("cpu", "memory") else nodes.used(resource)


def _place(request: tuple[str, int]) -> tuple[int, str]:
    """kube-scheduler's order: pods, its own resources, then the others (by name here; it has none)."""
    name = request[0]
    if name == "pods":
        return (0, name)
    return (1 + _FIRST.index(name) if name in _FIRST else len(_FIRST) + 1, name)
