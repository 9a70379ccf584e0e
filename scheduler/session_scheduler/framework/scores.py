"""The totals of nodes, and each plugin's part of them: for `explain`, which evaluates a class without a board."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from session_scheduler.framework.evaluation import Evaluation, bounds, normalised
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.groups import Task


def totals(
    evaluation: Evaluation, view: NodeView, mask: BoolColumn, task: Task | None
) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the weighted sum of normalised scores; undefined for cleared rows of the mask."""
    total: np.ndarray[Any, np.dtype[Any]] = np.zeros(len(view), np.int64)
    for part in score_parts(evaluation, view, mask, task):
        total = total + part.weight * part.normalised
    return total


class ScorePart(msgspec.Struct, frozen=True):
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
