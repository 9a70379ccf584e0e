"""Allocation, fragmentation and refusals against arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .fleet import Fleet
from .fragmentation import Fragmentation
from .trace import WHOLE, Shape


@dataclass(frozen=True, slots=True)
class Point:
    """The fleet when the pods that arrived requested `arrived` percent of all GPUs."""

    arrived: int
    allocated: float
    """In percent of all GPUs."""
    fragmented: float
    """In percent of all GPUs."""
    refused: int
    """The pods that fitted nowhere."""


class Progress:
    """Records a point for each percent of arrivals."""

    def __init__(self, fleet: Fleet, workload: Sequence[Shape]) -> None:
        self._fleet = fleet
        self._capacity = WHOLE * sum(node.gpus for node in fleet.nodes)
        self._fragmentation = Fragmentation(fleet, workload)
        self._of_nodes = self._fragmentation.now(np.arange(len(fleet.nodes)))
        self._changed: set[int] = set()
        self._arrived = self._allocated = self._refused = 0
        self._points: list[Point] = []

    def placed(self, pod: Shape, row: int) -> None:
        """Record that the pod was placed on the fleet's node at this index."""
        self._changed.add(row)
        self._allocated += pod.total
        self._advance(pod)

    def refused(self, pod: Shape) -> None:
        """Record that the pod fits nowhere."""
        self._refused += 1
        self._advance(pod)

    def points(self) -> list[Point]:
        """Return the points; the last one is the end."""
        end = self._point(round(self._percent(self._arrived)))
        return [point for point in self._points if point.arrived < end.arrived] + [end]

    def _advance(self, pod: Shape) -> None:
        before, self._arrived = self._arrived, self._arrived + pod.total
        for percent in range(int(self._percent(before)) + 1, int(self._percent(self._arrived)) + 1):
            self._points.append(self._point(percent))

    def _point(self, percent: int) -> Point:
        if self._changed:
            rows = np.array(sorted(self._changed))
            self._of_nodes[rows] = self._fragmentation.now(rows)
            self._changed.clear()
        fragmented = self._percent(float(self._of_nodes.sum()))
        return Point(percent, self._percent(self._allocated), fragmented, self._refused)

    def _percent(self, thousandths: float) -> float:
        return 100 * thousandths / self._capacity


def at(points: Sequence[Point], percent: int) -> Point:
    """Return the point at a percentage of arrivals, or the last one before it."""
    return next(point for point in reversed(points) if point.arrived <= percent)
