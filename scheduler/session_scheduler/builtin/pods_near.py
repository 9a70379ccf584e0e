"""The number of matching pods in each node's topology domain.

PodTopologySpread and InterPodAffinity use it, for queries and for the terms of running pods.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from session_scheduler.framework.session import Session
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeTable, NodeView
from session_scheduler.model.pod_counts import PodQuery
from session_scheduler.model.pod_terms import HeldTerm

Source = PodQuery | HeldTerm
_MANY = 64
"""After more changes than this NumPy recounts all rows, which is faster than Python's count of each changed row."""


class PodsNear:
    """The weighted number of pods in each domain. It follows the session's changes."""

    def __init__(
        self, session: Session, key: str, sources: Iterable[tuple[int, Source]], where: BoolColumn | None = None
    ) -> None:
        """`key` is the label of the domains; pods count on the rows in `where`, or on all rows without it."""
        self.key = key
        self._session = session
        self._sources = tuple(sources)
        self._columns = [(weight, _column(session.table, source)) for weight, source in self._sources]
        self._where = where
        self.domains = session.table.domains(key)
        self._count_all()

    def _count_all(self) -> None:
        self._cursor = len(self._session.ledger.touched)
        rows = self._session.table.size
        self._by_row = np.zeros(rows, np.int64)
        for weight, column in self._columns:
            self._by_row += weight * column[:rows]
        self._by_domain = self.domains.sums(self._by_row, self._where)

    def _sync(self) -> None:
        touched = self._session.ledger.touched
        behind = len(touched) - self._cursor
        if self._session.evaluator.naive or behind > _MANY:
            self._count_all()
        elif behind:
            for row in touched[self._cursor :]:
                self._count_row(row)
            self._cursor = len(touched)

    def _count_row(self, row: int) -> None:
        count = 0
        for weight, column in self._columns:
            count += weight * int(column[row])
        change = count - int(self._by_row[row])
        if change:
            self._by_row[row] = count
            domain = self.domains.numbers[row]
            if domain < self.domains.count and (self._where is None or self._where[row]):
                self._by_domain[domain] += change

    def by_domain(self) -> IntColumn:
        """The count for each domain; the last entry, for nodes without a domain, is 0. Read-only."""
        self._sync()
        return self._by_domain

    def domain_values(self) -> list[str]:
        """The label's value in each domain."""
        rows = np.flatnonzero(self.domains.present)
        _, first = np.unique(self.domains.numbers[rows], return_index=True)
        nodes = self._session.table.all_rows()
        return [nodes.node(int(row)).metadata.labels[self.key] for row in rows[first]]

    def counts(self, nodes: NodeView) -> IntColumn:
        """The count in the domain of each node of the view; 0 for nodes without a domain. Read-only.

        On virtual rows only pods on the node itself count, which is exact if no two nodes share a domain.
        """
        if nodes.rows is None:
            self._sync()
            return self._by_row * self.domains.present if self.domains.alone else self._by_domain[self.domains.numbers]
        if not self.domains.alone:
            self._sync()
            return self._by_domain[self.domains.numbers[nodes.rows]]
        counts = np.zeros(len(nodes), np.int64)
        for weight, source in self._sources:
            counts += weight * (nodes.pods(source) if isinstance(source, PodQuery) else nodes.counter(source))
        return counts * self.domains.present[nodes.rows]


def _column(table: NodeTable, source: Source) -> IntColumn:
    return table.pods.column(source).counts if isinstance(source, PodQuery) else table.counter(source)
