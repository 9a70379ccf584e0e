"""A pod should leave a node's resources as evenly used as it found them, or more so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from session_scheduler.builtin.scored_resources import ResourceWeight, ScoredResource, scored_resources
from session_scheduler.config import PluginArguments
from session_scheduler.config_text import wrong_value
from session_scheduler.hookspecs import SKIP, Normalise, Scope, Skip, hookimpl

if TYPE_CHECKING:
    from session_scheduler.model.classes import TaskClass
    from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView

Floats = NDArray[np.float64]


def _different_and_equal(resources: tuple[ResourceWeight, ...]) -> tuple[ResourceWeight, ...]:
    names = [resource.name for resource in resources]
    for index, resource in enumerate(resources):
        if resource.weight != 1:
            raise wrong_value("must be 1: balance knows no weights", at=(index, "weight"))
        if resource.name in names[:index]:
            raise wrong_value(f"{resource.name!r} is named twice: keep one", at=(index, "name"))
    return resources


class NodeResourcesBalancedAllocationArguments(PluginArguments):
    """kube-scheduler's NodeResourcesBalancedAllocationArgs."""

    resources: Annotated[tuple[ResourceWeight, ...], AfterValidator(_different_and_equal)] = (
        ResourceWeight(name="cpu"),
        ResourceWeight(name="memory"),
    )


class NodeResourcesBalancedAllocation:
    """Scores how the pod changes the standard deviation of the used fractions of a node's resources.

    100 minus the deviation in percent, with the pod and without it: 75 where they are equal, towards 100 where the pod
    brings balance, towards 50 where it takes it.
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
        """The resources that count; skipped for pods that request none of them."""
        resources = scored_resources(self._resources, cls.requests)
        return resources if any(resource.request for resource in resources) else SKIP

    @hookimpl
    def score(self, nodes: NodeView, state: Sequence[ScoredResource]) -> IntColumn:
        """50 to 100, kube-scheduler's formula in its own arithmetic: doubles cut to integers."""
        before, after, present = [], [], []
        for resource in state:
            capacity, taken = nodes.allocatable(resource.name), nodes.used(resource.name)
            divisor = np.maximum(capacity, 1)
            before.append(np.minimum(taken / divisor, 1.0))
            after.append(np.minimum((taken + resource.request) / divisor, 1.0))
            present.append(capacity != 0)
        deviation = _deviation_of_two if len(state) == 2 else _deviation
        change = _evenness(deviation(after, present)) - _evenness(deviation(before, present))
        return ((change + 50) >> 1) + 50


def _evenness(deviation: Floats) -> IntColumn:
    return ((1 - deviation) * 100).astype(np.int64)


def _deviation_of_two(fractions: Sequence[Floats], present: Sequence[BoolColumn]) -> Floats:
    """The standard deviation of two fractions, 0 where a node has but one of the resources."""
    deviation: Floats = np.abs((fractions[0] - fractions[1]) / 2)
    deviation *= present[0] & present[1]
    return deviation


def _deviation(fractions: Sequence[Floats], present: Sequence[BoolColumn]) -> Floats:
    """The standard deviation over the resources that each node has, 0 where it has fewer than two."""
    count = np.sum(present, axis=0)
    total = np.zeros(len(count))
    for fraction, has in zip(fractions, present, strict=True):
        total += fraction * has
    mean = total / np.maximum(count, 1)
    squares = np.zeros(len(count))
    for fraction, has in zip(fractions, present, strict=True):
        squares += (fraction - mean) * (fraction - mean) * has
    deviation: Floats = np.sqrt(squares / np.maximum(count, 1))
    two = count == 2
    if two.any():  # rounded as kube-scheduler does, which takes half the difference of two
        highest = np.max([np.where(has, f, 0.0) for f, has in zip(fractions, present, strict=True)], axis=0)
        lowest = np.min([np.where(has, f, 1.0) for f, has in zip(fractions, present, strict=True)], axis=0)
        deviation = np.where(two, (highest - lowest) / 2, deviation)
    deviation *= count > 1
    return deviation
