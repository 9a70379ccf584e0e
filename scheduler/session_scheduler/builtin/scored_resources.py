"""The resources that count in the scores of NodeResourcesFit and NodeResourcesBalancedAllocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
from pydantic import Field

from session_scheduler.config.settings import PluginArguments
from session_scheduler.model.columns import IntColumn
from session_scheduler.model.requests import is_scalar


class ResourceWeight(PluginArguments):
    """A resource of a score, and its weight."""

    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[int, Field(ge=1, le=100)] = 1


ScoredResources = Annotated[tuple[ResourceWeight, ...], Field(min_length=1)]
DEFAULT_RESOURCES: Final = (ResourceWeight(name="cpu"), ResourceWeight(name="memory"))


class ScoredResource(msgspec.Struct, frozen=True):
    """A resource of a score, with its weight and the pod's request."""

    name: str
    weight: int
    request: int


def scored_resources(resources: Sequence[ResourceWeight], requests: Mapping[str, int]) -> tuple[ScoredResource, ...]:
    """The resources that count for a pod: extended ones only if the pod requests them."""
    return tuple(
        ScoredResource(resource.name, resource.weight, requests.get(resource.name, 0))
        for resource in resources
        if requests.get(resource.name, 0) or not is_scalar(resource.name)
    )


def on_every_node(capacity: IntColumn) -> bool:
    """Whether every node has the resource. This is the fastest check for few rows and for many."""
    return int(np.count_nonzero(capacity)) == len(capacity)
