"""The first reason of each node, for plugins that give one of several, as kube-scheduler's do."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from session_scheduler.model.columns import BoolColumn


def first_reasons(rows: int, reasons: Iterable[tuple[str, BoolColumn]], otherwise: str) -> dict[str, BoolColumn]:
    """For each text the rows that have no earlier reason. `otherwise` is the text of rows without any."""
    left = np.ones(rows, np.bool_)
    found: dict[str, BoolColumn] = {}
    for text, holds in reasons:
        new = left & holds
        found[text] = found[text] | new if text in found else new
        left &= ~holds
    found[otherwise] = found[otherwise] | left if otherwise in found else left
    return found
