"""How many pods run near each node: in the same domain of one label, by queries and by the terms that pods hold."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from session_scheduler.framework.session import Session
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeTable, NodeView
from session_scheduler.model.pod_counts import PodQuery
from session_scheduler.model.pod_terms import HeldTerm

Source = PodQuery | HeldTerm
_MANY = 64
"""After more changes than this all rows are looked at again: NumPy's cost is the call, Python's the row."""


class PodsNear:
    """The weighted number of some sources' pods by domain, brought up to date by what the session has touched."""

    def __init__(
        self, session: Session, key: str, sources: Iterable[tuple[int, Source]], where: BoolColumn | None = None
    ) -> None:
        """`key` is the domains' label; only pods on the rows in `where`, all unless given, count."""
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
        """By domain; the last entry, of no domain, is 0. To be read only."""
        self._sync()
        return self._by_domain

    def domain_values(self) -> list[str]:
        """The label's value in each domain."""
        rows = np.flatnonzero(self.domains.present)
        _, first = np.unique(self.domains.numbers[rows], return_index=True)
        nodes = self._session.table.all_rows()
        return [nodes.node(int(row)).metadata.labels[self.key] for row in rows[first]]

    def counts(self, nodes: NodeView) -> IntColumn:
        """In the domain of each node of the view; 0 where a node is in none. To be read only.

        On virtual rows what runs on the node itself counts: right where no two nodes share a domain.
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
