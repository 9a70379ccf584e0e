"""The scores of nodes: normalises the plugins' raw scores as kube-scheduler does, and sums them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from session_scheduler.framework.answers import Normalise
from session_scheduler.framework.evaluation import Evaluation
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.groups import Task

Bounds = tuple[int, int]
"""Lowest and highest raw score over the feasible nodes; (0, 0) if no node is feasible."""


def bounds(raw: IntColumn, mask: BoolColumn, how: Normalise) -> Bounds:
    """Return the bounds that `normalised` needs."""
    if how is Normalise.NONE or not mask.any():
        return (0, 0)
    highest = int(np.max(raw, initial=np.iinfo(np.int64).min, where=mask))
    if how is not Normalise.SPREAD:
        return (0, highest)
    return (int(np.min(raw, initial=np.iinfo(np.int64).max, where=mask)), highest)


def normalised(raw: IntColumn, limits: Bounds, how: Normalise) -> IntColumn:
    """Normalise raw scores to 0 to 100 (kube-scheduler's integer arithmetic)."""
    low, high = limits
    if how is Normalise.NONE:
        return raw
    if how is Normalise.MAX:
        return raw * 100 // high if high > 0 else np.zeros_like(raw)
    if how is Normalise.MAX_REVERSED:
        return 100 - raw * 100 // high if high > 0 else np.full_like(raw, 100)
    return (raw - low) * 100 // (high - low) if high > low else np.zeros_like(raw)


def totals(
    evaluation: Evaluation, view: NodeView, mask: BoolColumn, task: Task | None
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the weighted sum of normalised scores; undefined for cleared rows of the mask."""
    total: np.ndarray[Any, np.dtype[Any]] = np.zeros(len(view), np.int64)
    for part in score_parts(evaluation, view, mask, task):
        total = total + part.weight * part.normalised
    return total


@dataclass(frozen=True, slots=True)
class ScorePart:
    """One plugin's part of the totals: columns over the view."""

    plugin: str
    weight: int
    raw: IntColumn
    normalised: IntColumn


def score_parts(evaluation: Evaluation, view: NodeView, mask: BoolColumn, task: Task | None) -> list[ScorePart]:
    """Return the parts of `totals`, before they are multiplied by their weights."""
    parts = []
    for scoring in evaluation.scores:
        raw = scoring.run(view, mask, task)
        scored = normalised(raw, bounds(raw, mask, scoring.normalise), scoring.normalise)
        parts.append(ScorePart(scoring.plugin, scoring.weight, raw, scored))
    return parts
