"""Arrays over the rows of the node table that are computed from nodes and their pods, and kept while these are equal.

A plugin that reads many columns for one answer keeps the answer here: each row is computed once after a change, not
once for each class and evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from session_scheduler.model.columns import NodeView

_Arrays = Sequence[np.ndarray[Any, Any]]


class KeptRows:
    """What `compute` returns for a view: arrays with an entry per row. An entry depends on its own row only."""

    def __init__(self, compute: Callable[[NodeView], _Arrays], *, static: bool = False) -> None:
        """`static`: the arrays depend on the nodes only, not on their pods."""
        self._compute = compute
        self._static = static
        self._arrays: _Arrays = ()
        self._static_version = -1
        self._versions = np.zeros(0, np.int64)
        """By row: the version of the usage for which it was computed."""

    def forget(self) -> None:
        """Compute all rows again: something else has changed."""
        self._static_version = -1

    def of(self, nodes: NodeView) -> _Arrays:
        """The arrays for the rows of a view. Do not write to them."""
        if nodes.extra is not None and not self._static:
            return self._compute(nodes)  # virtual rows are not in the table
        if nodes.static_version != self._static_version:
            everything = nodes.all_rows()
            self._arrays = [np.array(one) for one in self._compute(everything)]
            self._versions = np.array(everything.usage_versions)
            self._static_version = nodes.static_version
        elif not self._static:
            self._catch_up(nodes)
        return self._arrays if nodes.rows is None else [one[nodes.rows] for one in self._arrays]

    def _catch_up(self, nodes: NodeView) -> None:
        rows, versions = nodes.row_numbers, nodes.usage_versions
        stale = np.flatnonzero(self._versions[rows] != versions)
        if len(stale):
            changed = rows[stale]
            for kept, computed in zip(self._arrays, self._compute(nodes.some(changed)), strict=True):
                kept[changed] = computed
            self._versions[changed] = versions[stale]
