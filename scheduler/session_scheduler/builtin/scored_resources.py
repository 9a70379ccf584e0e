"""What the two resource scores share: which resources count, by arguments and by what the pod requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from session_scheduler.config.settings import PluginArguments
from session_scheduler.model.columns import IntColumn
from session_scheduler.model.requests import is_scalar


class ResourceWeight(PluginArguments):
    """A resource that counts in a score, and how much."""

    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[int, Field(ge=1, le=100)] = 1


ScoredResources = Annotated[tuple[ResourceWeight, ...], Field(min_length=1)]
DEFAULT_RESOURCES: Final = (ResourceWeight(name="cpu"), ResourceWeight(name="memory"))


@dataclass(frozen=True, slots=True)
class ScoredResource:
    """A resource of a score with what the pod asks of it."""

    name: str
    weight: int
    request: int


def scored_resources(resources: Sequence[ResourceWeight], requests: Mapping[str, int]) -> tuple[ScoredResource, ...]:
    """The resources that count for a pod: extended ones only where it requests them."""
    return tuple(
        ScoredResource(resource.name, resource.weight, requests.get(resource.name, 0))
        for resource in resources
        if requests.get(resource.name, 0) or not is_scalar(resource.name)
    )


def on_every_node(capacity: IntColumn) -> bool:
    """Whether no node lacks the resource; for few rows and for many this is the cheapest way to ask."""
    return int(np.count_nonzero(capacity)) == len(capacity)
