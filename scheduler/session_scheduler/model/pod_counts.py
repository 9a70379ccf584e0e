"""Pod counts: per query (namespaces and a label selector), a column with the number of matching pods on each node.

Topology spread and inter-pod affinity read them. Pods with equal namespace and labels are one *kind*. The first use of
a query compares columns over all kinds and needs one bincount over (node, kind) pairs. After that, each pod that is
placed or removed updates only the columns that count its kind. The counts are part of the node table, so a statement
applies and undoes them with everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from session_scheduler.model.label_selectors import Requirement, Selector, SelectorIndex
from session_scheduler.model.objects import Pod

_Entry = TypeVar("_Entry", bound=np.generic)
_encode = msgspec.json.Encoder(order="sorted").encode
_ABSENT = -1
_MAX_COLUMNS = 1000
"""How many columns are kept from one session to the next; with 5,000 nodes each takes 40 kB."""


class PodQuery(msgspec.Struct, frozen=True):
    """The pods to count: those in these namespaces (None: all) that the selector matches."""

    namespaces: frozenset[str] | None
    selector: Selector
    ending: bool = True
    """Whether to count pods that are being deleted."""

    @property
    def only_namespace(self) -> str | None:
        """The namespace of all pods to count; None if there may be others."""
        return next(iter(self.namespaces)) if self.namespaces is not None and len(self.namespaces) == 1 else None

    def picks(self, namespace: str, labels: Mapping[str, str], ending: bool = False) -> bool:
        """Whether a pod with this namespace and these labels counts."""
        if (ending and not self.ending) or (self.namespaces is not None and namespace not in self.namespaces):
            return False
        return self.selector.matches(labels)


class PodColumn:
    """The pods of one query, by row of the node table."""

    __slots__ = ("counts", "query")

    def __init__(self, query: PodQuery, counts: NDArray[np.int64]) -> None:
        self.query = query
        self.counts = counts
        """Its length is the table's capacity. When the table grows, a new array replaces it."""


class _Kind:
    """Pods with equal namespace, labels and deletion state: every query counts all of them, or none."""

    __slots__ = ("columns", "ending", "key", "labels", "namespace", "users")

    def __init__(self, key: bytes, namespace: str, labels: dict[str, str], ending: bool) -> None:
        self.key = key
        self.namespace = namespace
        self.labels = labels
        self.ending = ending
        self.users = 0
        self.columns: tuple[PodColumn, ...] = ()


class PodCounts:
    """The pods of a node table by row and kind. `rows` is the table's capacity."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._kinds: list[_Kind | None] = []
        self._number_of: dict[bytes, int] = {}
        self._free_kinds: list[int] = []
        self._namespace_ids: dict[str, int] = {}
        self._value_ids: dict[str, int] = {}
        self._namespace: NDArray[np.int32] = np.full(64, _ABSENT, np.int32)
        self._ending: NDArray[np.bool_] = np.zeros(64, np.bool_)
        self._labels: dict[str, NDArray[np.int32]] = {}
        """By label key that some query reads: the value id of each kind, absent for numbers without one."""
        self._place_of: dict[tuple[int, int], int] = {}
        self._free_places: list[int] = []
        self._place_row: NDArray[np.int64] = np.zeros(64, np.int64)
        self._place_kind: NDArray[np.int64] = np.zeros(64, np.int64)
        self._place_count: NDArray[np.int64] = np.zeros(64, np.int64)
        self._columns: dict[PodQuery, PodColumn] = {}
        """The least recently used first."""
        self._index: SelectorIndex[PodColumn] = SelectorIndex()

    # ------------------------------------------------------------------ kinds

    def acquire(self, pod: Pod) -> int:
        """The number of the pod's kind, valid until `release`."""
        metadata = pod.metadata
        ending = metadata.deletion_timestamp is not None
        key = _encode((metadata.namespace, metadata.labels, ending))
        number = self._number_of.get(key)
        if number is None:
            number = self._new_kind(_Kind(key, metadata.namespace, metadata.labels, ending))
        kind = self._kinds[number]
        assert kind is not None  # noqa: S101 (a number in use has a kind)
        kind.users += 1
        return number

    def release(self, number: int) -> None:
        """Release the kind of one pod, after `add` has removed the pod from its row."""
        kind = self._kinds[number]
        if kind is None:
            raise LookupError(f"no pod uses kind {number}")
        kind.users -= 1
        if not kind.users:
            self._kinds[number] = None
            for key in kind.labels.keys() & self._labels.keys():
                self._labels[key][number] = _ABSENT
            del self._number_of[kind.key]
            self._free_kinds.append(number)

    def _new_kind(self, kind: _Kind) -> int:
        if self._free_kinds:
            number = self._free_kinds.pop()
            self._kinds[number] = kind
        else:
            number = len(self._kinds)
            self._kinds.append(kind)
            self._grow_kinds()
        self._number_of[kind.key] = number
        self._namespace[number] = self._namespace_ids.setdefault(kind.namespace, len(self._namespace_ids))
        self._ending[number] = kind.ending
        for key, value in kind.labels.items():
            if key in self._labels:
                self._labels[key][number] = self._value_id(value)
        likely = self._index.likely(kind.namespace, kind.labels)
        kind.columns = tuple(one for one in likely if one.query.picks(kind.namespace, kind.labels, kind.ending))
        return number

    def _value_id(self, value: str) -> int:
        return self._value_ids.setdefault(value, len(self._value_ids))

    def _grow_kinds(self) -> None:
        if len(self._kinds) > len(self._namespace):
            self._namespace = _doubled(self._namespace)
            self._ending = _doubled(self._ending)
            self._labels = {key: _doubled(column, _ABSENT) for key, column in self._labels.items()}

    # ------------------------------------------------------------------ pods on nodes

    def add(self, row: int, number: int, sign: int) -> None:
        """Add one pod of the kind to a row (`sign` 1), or remove it (-1)."""
        place = self._place_of.get((row, number))
        if place is None:
            place = self._new_place(row, number)
        count = self._place_count
        count[place] += sign
        if not count[place]:
            del self._place_of[row, number]
            self._free_places.append(place)
        for column in self._kinds[number].columns:  # type: ignore[union-attr]
            column.counts[row] += sign

    def _new_place(self, row: int, number: int) -> int:
        if self._free_places:
            place = self._free_places.pop()
        else:
            place = len(self._place_of)  # no place is free, so this is the first unused one
            if place >= len(self._place_row):
                self._place_row, self._place_kind = _doubled(self._place_row), _doubled(self._place_kind)
                self._place_count = _doubled(self._place_count)
        self._place_row[place] = row
        self._place_kind[place] = number
        self._place_of[row, number] = place
        return place

    def clear_row(self, row: int) -> None:
        """Remove all pods from a row whose node is gone."""
        used = len(self._place_of) + len(self._free_places)
        for place in np.flatnonzero((self._place_row[:used] == row) & (self._place_count[:used] != 0)).tolist():
            del self._place_of[row, int(self._place_kind[place])]
            self._place_count[place] = 0
            self._free_places.append(place)
        for column in self._columns.values():
            column.counts[row] = 0

    def grow_rows(self, rows: int) -> None:
        """Extend the columns to the table's new capacity."""
        for column in self._columns.values():
            column.counts = np.append(column.counts, np.zeros(rows - self._rows, np.int64))
        self._rows = rows

    def of_row(self, row: int) -> list[tuple[str, tuple[tuple[str, str], ...], bool, int]]:
        """(namespace, labels, being deleted, count) of each kind on a row, sorted. It scans all (row, kind) pairs."""
        found = []
        for (at, number), place in self._place_of.items():
            kind = self._kinds[number] if at == row else None
            if kind is not None:
                labels = tuple(sorted(kind.labels.items()))
                found.append((kind.namespace, labels, kind.ending, int(self._place_count[place])))
        return sorted(found)

    # ------------------------------------------------------------------ queries

    def column(self, query: PodQuery) -> PodColumn:
        """The column of the query. It stays current until `trim` drops it."""
        found = self._columns.pop(query, None)
        self._columns[query] = found = found or self._counted(query)
        return found

    def trim(self, most: int = _MAX_COLUMNS) -> None:
        """Drop the least recently used columns. Call it between sessions only: a dropped column becomes stale."""
        if len(self._columns) <= most:
            return
        kept = dict(list(self._columns.items())[-(most // 2) or len(self._columns) :])
        read = {key for query in kept for key, _, _ in query.selector.requirements or ()}
        self._labels = {key: column for key, column in self._labels.items() if key in read}
        self._columns = {}
        self._index = SelectorIndex()
        for kind in self._kinds:
            if kind is not None:
                kind.columns = tuple(column for column in kind.columns if column.query in kept)
        for query, column in kept.items():
            self._columns[query] = column
            self._index.add(query.only_namespace, query.selector, column)

    def _counted(self, query: PodQuery) -> PodColumn:
        kinds = self._picked(query)
        used = len(self._place_of) + len(self._free_places)
        counted = np.flatnonzero(kinds[self._place_kind[:used]])
        weights = self._place_count[counted]
        counts = np.bincount(self._place_row[counted], weights=weights, minlength=self._rows).astype(np.int64)
        column = PodColumn(query, counts)
        self._index.add(query.only_namespace, query.selector, column)
        for number in np.flatnonzero(kinds).tolist():
            kind = self._kinds[number]
            if kind is not None:
                kind.columns += (column,)
        return column

    def _picked(self, query: PodQuery) -> NDArray[np.bool_]:
        """A mask, by number, of the kinds that the query counts."""
        mask = np.zeros(len(self._namespace), np.bool_)
        if query.selector.requirements is None:
            return mask
        mask[: len(self._kinds)] = True
        if query.namespaces is not None:
            wanted = [self._namespace_ids[name] for name in query.namespaces if name in self._namespace_ids]
            mask &= _among(self._namespace, wanted)
        if not query.ending:
            mask &= ~self._ending
        for requirement in query.selector.requirements:
            mask &= self._satisfied(requirement)
        return mask

    def _satisfied(self, requirement: Requirement) -> NDArray[np.bool_]:
        key, operator, values = requirement
        column = self._label(key)
        if operator in ("Exists", "DoesNotExist"):
            return np.not_equal(column, _ABSENT) if operator == "Exists" else np.equal(column, _ABSENT)
        found = _among(column, [self._value_ids[value] for value in values if value in self._value_ids])
        return found if operator == "In" else ~found

    def _label(self, key: str) -> NDArray[np.int32]:
        column = self._labels.get(key)
        if column is None:
            column = self._labels[key] = np.full(len(self._namespace), _ABSENT, np.int32)
            for number, kind in enumerate(self._kinds):
                if kind is not None and key in kind.labels:
                    column[number] = self._value_id(kind.labels[key])
        return column


def _among(column: NDArray[np.int32], ids: list[int]) -> NDArray[np.bool_]:
    if len(ids) == 1:
        return np.equal(column, ids[0])
    return np.isin(column, ids)


def _doubled(array: NDArray[_Entry], fill: int = 0) -> NDArray[_Entry]:
    grown = np.full(2 * len(array), fill, array.dtype)
    grown[: len(array)] = array
    return grown
