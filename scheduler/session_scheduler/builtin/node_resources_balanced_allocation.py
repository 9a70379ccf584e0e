"""The NodeResourcesBalancedAllocation plugin: prefers nodes whose resources are used more evenly with the pod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from session_scheduler.builtin.scored_resources import (
    DEFAULT_RESOURCES,
    ResourceWeight,
    ScoredResource,
    ScoredResources,
    on_every_node,
    scored_resources,
)
from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.settings import PluginArguments
from session_scheduler.hookspecs import SKIP, Normalise, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView

Floats = NDArray[np.float64]


def _unweighted_and_distinct(resources: tuple[ResourceWeight, ...]) -> tuple[ResourceWeight, ...]:
    names = [resource.name for resource in resources]
    for index, resource in enumerate(resources):
        if resource.weight != 1:
            raise wrong_value("expected 1: this score uses no weights", at=(index, "weight"))
        if resource.name in names[:index]:
            raise wrong_value(f"duplicate {resource.name!r}; keep one", at=(index, "name"))
    return resources


class NodeResourcesBalancedAllocationArguments(PluginArguments):
    """kube-scheduler's NodeResourcesBalancedAllocationArgs."""

    resources: Annotated[ScoredResources, AfterValidator(_unweighted_and_distinct)] = DEFAULT_RESOURCES


class NodeResourcesBalancedAllocation:
    """Scores how the pod changes the balance of a node: 100 minus the standard deviation of its used fractions.

    A score of 75 means no change. Up to 100 the pod improves the balance; down to 50 it worsens it.
    """

    Arguments = NodeResourcesBalancedAllocationArguments
    name = "NodeResourcesBalancedAllocation"
    weight = 1
    score_scope = Scope.NODE
    normalise = Normalise.NONE

    def __init__(self, arguments: NodeResourcesBalancedAllocationArguments | None = None) -> None:
        self._resources = (arguments or NodeResourcesBalancedAllocationArguments()).resources

    @hookimpl
    def prepare(self, cls: TaskClass) -> Skip | Sequence[ScoredResource]:
        """The resources that count. Skips pods that request none of them."""
        resources = scored_resources(self._resources, cls.requests)
        return resources if any(resource.request for resource in resources) else SKIP

    @hookimpl
    def score(self, nodes: NodeView, state: Sequence[ScoredResource]) -> IntColumn:
        """50 to 100, by kube-scheduler's formula in its own arithmetic: doubles truncated to integers."""
        before, after, present = [], [], []
        for resource in state:
            capacity, used = nodes.allocatable(resource.name), nodes.used(resource.name)
            has = None if on_every_node(capacity) else capacity != 0
            divisor = (capacity if has is None else np.maximum(capacity, 1)).astype(np.float64)
            before.append(np.minimum(used, capacity) / divisor)
            after.append(np.minimum(used + resource.request, capacity) / divisor)
            present.append(has)
        deviation = _deviation_of_two if len(state) == 2 else _deviation
        change = _balance(deviation(after, present))
        change -= _balance(deviation(before, present))
        change += 50
        change >>= 1
        change += 50
        return change


def _balance(deviation: Floats) -> IntColumn:
    np.subtract(1, deviation, out=deviation)
    deviation *= 100
    return deviation.astype(np.int64)


def _deviation_of_two(fractions: Sequence[Floats], present: Sequence[BoolColumn | None]) -> Floats:
    """The standard deviation of two fractions; 0 for nodes with only one of the resources. None: all nodes have it."""
    deviation: Floats = fractions[0] - fractions[1]
    deviation /= 2
    np.abs(deviation, out=deviation)
    for has in present:
        if has is not None:
            deviation *= has
    return deviation


def _deviation(fractions: Sequence[Floats], present: Sequence[BoolColumn | None]) -> Floats:
    """The standard deviation over the resources that each node has; 0 for fewer than two."""
    has = np.array([np.ones(len(f), np.bool_) if p is None else p for f, p in zip(fractions, present, strict=True)])
    stacked = np.array(fractions)
    count = has.sum(axis=0)
    divisor = np.maximum(count, 1)
    mean = _in_order(stacked * has) / divisor
    deviation: Floats = np.sqrt(_in_order((stacked - mean) * (stacked - mean) * has) / divisor)
    highest, lowest = np.max(np.where(has, stacked, 0.0), axis=0), np.min(np.where(has, stacked, 1.0), axis=0)
    deviation = np.where(count == 2, (highest - lowest) / 2, deviation)  # kube-scheduler's rounding for two
    deviation *= count > 1
    return deviation


def _in_order(summands: Floats) -> Floats:
    """The sum from the first to the last. The order of additions decides how a double is rounded."""
    total = np.zeros(summands.shape[1])
    for summand in summands:
        total += summand
    return total
