"""The graph's ranks as a column over the rows of a session."""

from __future__ import annotations

import numpy as np

from fluence_plugins.fluence.graph.live_graph import LiveGraph
from session_scheduler import Session
from session_scheduler.model.columns import IntColumn

_NO_RANK = 1 << 40
"""More than any rank."""


class RowRanks:
    """The column is recomputed when the nodes of the session or the graph change."""

    def __init__(self, live: LiveGraph) -> None:
        self._live = live
        self._known: tuple[tuple[int, int], IntColumn] | None = None

    def of(self, session: Session) -> IntColumn:
        """The rank of the host in each row, -1 if the graph lacks it."""
        version = (session.table.static_version, self._live.loaded.version)
        if self._known is None or self._known[0] != version:
            ranks = np.full(session.table.size, -1, np.int64)
            for name, row in session.table.row_of.items():
                ranks[row] = self._live.graph.host_ranks.get(name, -1)
            self._known = (version, ranks)
        return self._known[1]

    def order(self, session: Session, direction: int) -> IntColumn:
        """The order in which the policy allocates equal nodes; nodes that the graph lacks come last."""
        ranks = self.of(session)
        return np.where(ranks >= 0, direction * ranks, _NO_RANK + np.arange(len(ranks)))
