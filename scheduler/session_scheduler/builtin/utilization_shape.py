"""The scoring function of the strategy RequestedToCapacityRatio: a score for each utilization of a resource.

Source: kube-scheduler's RequestedToCapacityRatioParam and helper.BuildBrokenLinearFunction, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final

import numpy as np
from pydantic import AfterValidator, Field

from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.settings import PluginArguments
from session_scheduler.model.columns import IntColumn

FULL: Final = 100
"""The utilization of a resource whose capacity is requested, in percent; also the best score of a node."""
_BEST: Final = 10
"""The best score of a point."""


class UtilizationShapePoint(PluginArguments):
    """A point of the function: the score at a utilization in percent."""

    utilization: Annotated[int, Field(ge=0, le=FULL)]
    score: Annotated[int, Field(ge=0, le=_BEST)]


def _in_order(shape: tuple[UtilizationShapePoint, ...]) -> tuple[UtilizationShapePoint, ...]:
    for index, (before, point) in enumerate(pairwise(shape), 1):
        if before.utilization >= point.utilization:
            text = f"is {point.utilization}; list the points by increasing utilization, without duplicates"
            raise wrong_value(text, (index, "utilization"))
    return shape


class RequestedToCapacityRatio(PluginArguments):
    """The points of the function. It is linear between two points, and constant before the first and after the last."""

    shape: Annotated[tuple[UtilizationShapePoint, ...], Field(min_length=1), AfterValidator(_in_order)]


def scores_of(shape: Sequence[UtilizationShapePoint]) -> IntColumn:
    """The score of a node, 0 to 100, at each utilization from 0 to 100."""
    points = [(point.utilization, point.score * (FULL // _BEST)) for point in shape]
    return np.array([_score(points, utilization) for utilization in range(FULL + 1)], np.int64)


def _score(points: Sequence[tuple[int, int]], utilization: int) -> int:
    before: tuple[int, int] | None = None
    for end, score in points:
        if utilization <= end:
            if before is None:
                return score
            start, first = before
            rise = (score - first) * (utilization - start)
            part = abs(rise) // (end - start)  # rounded toward zero, as in Go
            return first + (part if rise > 0 else -part)
        before = end, score
    return points[-1][1]
