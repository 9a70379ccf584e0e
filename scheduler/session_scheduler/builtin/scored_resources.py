"""What the two resource scores share: their arguments, and a resource's columns as a score sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from session_scheduler.config import PluginArguments
from session_scheduler.model.requests import is_scalar

if TYPE_CHECKING:
    from session_scheduler.model.columns import IntColumn, NodeView


class ResourceWeight(PluginArguments):
    """A resource that counts in a score, and how much."""

    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[int, Field(ge=1, le=100)] = 1


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


def used(nodes: NodeView, resource: str, *, with_defaults: bool) -> IntColumn:
    """What a score counts as used: for cpu and memory, on demand, with defaults for containers that request none."""
    if with_defaults and resource in ("cpu", "memory"):
        return nodes.nonzero_used(resource)
    return nodes.used(resource)
