"""The score of PodTopologySpread: weighs the ScheduleAnyway constraints over the feasible nodes, in floating point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from session_scheduler.builtin.pods_near import PodsNear
from session_scheduler.framework.session import Session
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.pod_counts import PodQuery

HOSTNAME: Final = "kubernetes.io/hostname"
_Floats = np.ndarray[Any, np.dtype[np.float64]]


class SoftConstraint:
    """One ScheduleAnyway constraint, with the counts of the matching pods."""

    def __init__(self, session: Session, key: str, query: PodQuery, max_skew: int, where: BoolColumn) -> None:
        """`where`: the rows whose pods count."""
        table = session.table
        self._values = table.all_rows().label(key)
        self.by_node = key == HOSTNAME
        self._query = query
        self._skew = float(max_skew - 1)
        self.domains = table.domains(key)
        self._everywhere = bool(self.domains.present.all())
        self._near = None if self.by_node else PodsNear(session, key, [(1, query)], where)
        # if nodes may lack the label, they share a domain with the nodes whose label is empty
        self._empty = table.label_values.get("") if not self.by_node else -1
        self._unlabelled = None
        if self._empty >= 0 and (self._values == self._empty).any():
            self._unlabelled = where & ~self.domains.present
        self._column = table.pods.column(query)

    def size(self, rows: BoolColumn) -> int:
        """The number of domains of these rows. Nodes without the label count as nodes with an empty one."""
        if self.by_node:
            return int(np.count_nonzero(rows))
        found = self.domains.inhabited(rows)
        outside = bool((rows & ~self.domains.present).any())
        if outside and self._unlabelled is not None and (rows & (self._values == self._empty)).any():
            outside = False
        return int(np.count_nonzero(found)) + outside

    def add_points(self, points: _Floats, nodes: NodeView, weight: float) -> None:
        """Add the points for the pods in each node's domain to `points`, in place."""
        if self._near is None:
            own = nodes.pods(self._query) * weight
            own += self._skew
            points += own if self._everywhere else np.where(self.domains.present, own, 0.0)
            return
        by_domain = self._near.by_domain() * weight
        by_domain += self._skew
        by_domain[-1] = 0.0
        points += by_domain.take(self.domains.numbers)
        if self._unlabelled is not None:  # pods on nodes without the label count for nodes whose label is empty
            outside = int(self._column.counts[: len(points)][self._unlabelled].sum())
            points[self._values == self._empty] += outside * weight


class SpreadScoring:
    """The soft constraints of a class. `labelled`: the rows to score; the others get 0."""

    def __init__(self, constraints: Sequence[SoftConstraint], labelled: BoolColumn) -> None:
        self._constraints = constraints
        self._labelled = labelled
        self._mask: BoolColumn | None = None

    def score(self, nodes: NodeView, mask: BoolColumn) -> IntColumn:
        """0 to 100 for each row of the table; `mask` has the feasible rows."""
        if self._mask is None or not np.array_equal(mask, self._mask):
            self._weigh(mask)
        points = np.zeros(len(nodes), np.float64)
        for one, weight in zip(self._constraints, self._weights, strict=True):
            one.add_points(points, nodes, weight)
        return self._normalised(_rounded(points))

    def _weigh(self, mask: BoolColumn) -> None:
        """Compute, for these feasible rows, which rows count and the weight of each constraint."""
        self._mask = mask.copy()
        self._counting = mask & self._labelled
        self._all_count = bool(self._counting.all())
        self._weights = [math.log(one.size(self._counting) + 2) for one in self._constraints]

    def _normalised(self, raw: IntColumn) -> IntColumn:
        counting = raw if self._all_count else raw[self._counting]
        if not len(counting):
            return np.zeros(len(raw), np.int64)
        low, high = int(counting.min()), int(counting.max())
        if not high:
            return np.where(self._counting, 100, 0)
        if high <= len(raw):  # a lookup is cheaper than a division
            points = (100 * (high + low - np.arange(high + 1)) // high).take(raw, mode="clip")
        else:
            points = 100 * (high + low - raw) // high
        if not self._all_count:
            points[~self._counting] = 0
        return points


def _rounded(values: _Floats) -> IntColumn:
    """The nearest integers of non-negative values; halves round up."""
    whole = np.floor(values)
    whole += values - whole >= 0.5
    return whole.astype(np.int64)
