"""Node table: one row per node and one NumPy array per property, so that a filter is one comparison.

The table belongs to the cache; plugins read it through `NodeView` only. A new node may reuse the row of a deleted one,
so results that must not depend on history (tie-breaking, output) use node names, never row numbers.
Units: cpu in millicores, everything else in the resource's base unit (bytes, devices), rounded up.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from session_scheduler.model.classes import TaskClass
from session_scheduler.model.domains import Domains
from session_scheduler.model.expressions import parse_integer
from session_scheduler.model.node_images import NodeImages
from session_scheduler.model.objects import Node, Taint
from session_scheduler.model.pod_counts import PodCounts, PodQuery
from session_scheduler.model.pod_terms import TermTable
from session_scheduler.model.quantity import LARGEST, QuantityError, parse_quantity

__all__ = ["ABSENT", "BoolColumn", "IntColumn", "NodeTable", "NodeView", "natural"]

IntColumn = NDArray[np.int64]
"""One integer per node."""
BoolColumn = NDArray[np.bool_]
"""One boolean per node."""
RowIndex = NDArray[np.int64]
_T = TypeVar("_T", bound=np.generic)

CPU, MEMORY, EPHEMERAL, PODS = 0, 1, 2, 3
_BASE_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")
ABSENT = -1
"""The value id of a label that a node does not have."""


class NodeQuantityError(QuantityError):
    """An allocatable amount of a node is not a valid quantity."""

    def __init__(self, node: str, field: str, problem: str) -> None:
        super().__init__(f"Node {node}: {field}: {problem}")
        self.node = node
        self.field = field


def node_amounts(node: Node) -> dict[str, int]:
    """The allocatable amounts of a node: cpu in millicores, the rest in base units. Raises NodeQuantityError."""
    amounts = {}
    for name, quantity in node.status.allocatable.items():
        field = f"status.allocatable.{name}"
        try:
            amount = min(LARGEST, parse_quantity(quantity, milli=name == "cpu"))
        except QuantityError as error:
            raise NodeQuantityError(node.metadata.name, field, str(error)) from None
        if amount < 0:
            raise NodeQuantityError(node.metadata.name, field, f"{quantity!r} is negative; write 0 or more")
        amounts[name] = amount
    return amounts


_DIGITS = re.compile(r"(\d+)")


def rows_since(touched: Sequence[int], begin: int) -> RowIndex:
    """The rows of the changes from this position of `touched` on, each once and in order."""
    return np.array(sorted(set(touched[begin:])), np.int64)


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """A sort key in natural order: n2 before n10."""
    parts = _DIGITS.split(name)
    return tuple((text, int(number)) for text, number in zip(parts[::2], [*parts[1::2], "-1"], strict=True))


class Interner:
    """Permanent integer ids of strings (resource names, label values)."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names: list[str] = []
        self._ids: dict[str, int] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> int:
        """The id of `name`; assigns the next one if it has none."""
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self.names)
            self.names.append(name)
        return found

    def get(self, name: str) -> int:
        """The id of `name`, or ABSENT."""
        return self._ids.get(name, ABSENT)

    def __len__(self) -> int:
        return len(self.names)


def tie_break(seed: int, name: str) -> int:
    """The key that orders nodes with equal total scores: a 63-bit hash of seed and name, equal in every process."""
    digest = hashlib.blake2b(name.encode(), digest_size=8, key=seed.to_bytes(8, "little", signed=False)).digest()
    return int.from_bytes(digest, "little") >> 1


class NodeTable:
    """The columns of all nodes. `size` counts used and free rows; `valid` marks the rows that hold a node."""

    def __init__(self, seed: int = 0, capacity: int = 64) -> None:
        self.seed = seed
        self.size = 0
        self.row_of: dict[str, int] = {}
        self.nodes: list[Node | None] = []
        self.resources = Interner(_BASE_RESOURCES)
        self.label_values = Interner()
        self._label_numbers = np.zeros(0, np.int64)
        self._label_is_number = np.zeros(0, np.bool_)
        self.static_version = 0
        """Incremented whenever a node is added, deleted or changed: what was computed from static columns is stale."""
        self.usage_version = 0
        """Incremented whenever the usage of a row changes."""
        self._free: list[int] = []
        self._capacity = capacity
        self._allocatable = np.zeros((8, capacity), np.int64)
        self._used = np.zeros((8, capacity), np.int64)
        self._nonzero = np.zeros((2, capacity), np.int64)
        self._usage_versions = np.zeros(capacity, np.int64)
        self._valid = np.zeros(capacity, np.bool_)
        self._unschedulable = np.zeros(capacity, np.bool_)
        self._tie = np.zeros(capacity, np.int64)
        self._labels: dict[str, NDArray[np.int32]] = {}
        self._taints: dict[tuple[str, str, str], BoolColumn] = {}
        self._taint_users: dict[tuple[str, str, str], int] = {}
        self._counters: dict[Hashable, NDArray[np.int64]] = {}
        self._domains: dict[str, Domains] = {}
        self._domains_version = 0
        self.pods = PodCounts(capacity)
        """The pods on each row, by namespace and labels."""
        self.terms = TermTable()
        """The inter-pod terms of all classes; a HeldTerm is the key of a counter."""
        self.images = NodeImages()

    # ------------------------------------------------------------------ nodes

    def put(self, node: Node) -> int:
        """Add or replace a node, and keep the usage of its row. Returns the row.

        Raises QuantityError if the node is invalid; the table is then unchanged.
        """
        name = node.metadata.name
        if node.unreadable:
            raise QuantityError(f"Node {name}: {node.unreadable}")
        amounts = node_amounts(node)
        row = self.row_of.get(name)
        if row is None:
            row = self._assign_row(name)
        self._clear_static(row)
        self.nodes[row] = node
        self._write_static(row, node, amounts)
        self.images.put(row, node)
        self.static_version += 1
        return row

    def remove(self, name: str) -> int:
        """Remove a node and clear its row, which another node may reuse. Returns the row."""
        row = self.row_of.pop(name)
        self._clear_static(row)
        self.nodes[row] = None
        self._valid[row] = False
        self._used[:, row] = 0
        self._nonzero[:, row] = 0
        for counter in self._counters.values():
            counter[row] = 0
        self.pods.clear_row(row)
        self.images.remove(row)
        self._free.append(row)
        self.static_version += 1
        return row

    def _assign_row(self, name: str) -> int:
        if self._free:
            row = self._free.pop()
        else:
            row = self.size
            self.size += 1
            self.nodes.append(None)
            if self.size > self._capacity:
                self._grow_rows(2 * self._capacity)
        self.row_of[name] = row
        self._valid[row] = True
        self._tie[row] = tie_break(self.seed, name)
        return row

    def _clear_static(self, row: int) -> None:
        """Clear what `_write_static` wrote for the row's node."""
        node = self.nodes[row]
        if node is None:
            return
        self._allocatable[:, row] = 0
        self._unschedulable[row] = False
        for key in node.metadata.labels:
            self._labels[key][row] = ABSENT
        for taint in dict.fromkeys(map(_taint_key, node.spec.taints)):
            self._taint_users[taint] -= 1
            if self._taint_users[taint]:
                self._taints[taint][row] = False
            else:
                del self._taint_users[taint], self._taints[taint]

    def _write_static(self, row: int, node: Node, amounts: dict[str, int]) -> None:
        for name, amount in amounts.items():
            number = self.resource(name)  # may replace the arrays
            self._allocatable[number, row] = amount
        self._unschedulable[row] = node.spec.unschedulable
        for key, value in node.metadata.labels.items():
            column = self._labels.get(key)
            if column is None:
                column = self._labels[key] = np.full(self._capacity, ABSENT, np.int32)
            column[row] = self.label_values.add(value)
        for taint in dict.fromkeys(map(_taint_key, node.spec.taints)):
            self._taint_users[taint] = self._taint_users.get(taint, 0) + 1
            if taint not in self._taints:
                self._taints[taint] = np.zeros(self._capacity, np.bool_)
            self._taints[taint][row] = True

    def label_numbers(self) -> tuple[IntColumn, BoolColumn]:
        """By value id: the value as an integer (0 if it is not one), and whether it is one."""
        known = len(self._label_numbers)
        if known < len(self.label_values):
            parsed = [parse_integer(value) for value in self.label_values.names[known:]]
            numbers = np.array([number or 0 for number in parsed], np.int64)
            is_number = np.array([number is not None for number in parsed], np.bool_)
            self._label_numbers = np.append(self._label_numbers, numbers)
            self._label_is_number = np.append(self._label_is_number, is_number)
        return self._label_numbers, self._label_is_number

    def resource(self, name: str) -> int:
        """The number of a resource's columns; adds them on first use."""
        number = self.resources.add(name)
        if number >= len(self._allocatable):
            self._allocatable = _more(self._allocatable, axis=0, to=2 * len(self._allocatable))
            self._used = _more(self._used, axis=0, to=2 * len(self._used))
        return number

    def _grow_rows(self, capacity: int) -> None:
        self._allocatable = _more(self._allocatable, axis=1, to=capacity)
        self._used = _more(self._used, axis=1, to=capacity)
        self._nonzero = _more(self._nonzero, axis=1, to=capacity)
        self._usage_versions = _more(self._usage_versions, axis=0, to=capacity)
        self._valid = _more(self._valid, axis=0, to=capacity)
        self._unschedulable = _more(self._unschedulable, axis=0, to=capacity)
        self._tie = _more(self._tie, axis=0, to=capacity)
        self._labels = {k: _more(v, axis=0, to=capacity, fill=ABSENT) for k, v in self._labels.items()}
        self._taints = {k: _more(v, axis=0, to=capacity) for k, v in self._taints.items()}
        self._counters = {k: _more(v, axis=0, to=capacity) for k, v in self._counters.items()}
        self.pods.grow_rows(capacity)
        self._capacity = capacity

    # ------------------------------------------------------------------ usage

    def add_usage(self, row: int, cls: TaskClass, sign: int) -> None:
        """Add one task of the class to a row (`sign` 1), or remove it (-1)."""
        self._use(row)
        used = self._used
        for number, amount in cls.usage:
            used[number, row] += sign * amount
        nonzero = self._nonzero
        nonzero[0, row] += sign * cls.nonzero_cpu
        nonzero[1, row] += sign * cls.nonzero_memory
        for key in cls.footprint:
            self.counter(key)[row] += sign

    def add_counts(self, row: int, counts: Mapping[Hashable, int], sign: int) -> None:
        """Add the counts of one task alone to its row (`sign` 1), or remove them (-1)."""
        if counts:
            self._use(row)
        for key, amount in counts.items():
            self.counter(key)[row] += sign * amount

    def _use(self, row: int) -> None:
        self.usage_version += 1
        self._usage_versions[row] = self.usage_version

    def used_since(self, version: int, rows: RowIndex) -> RowIndex:
        """Those of these rows whose usage has changed since that `usage_version`."""
        found: RowIndex = rows[self._usage_versions[rows] > version]
        return found

    def keep_counters(self, keys: Collection[Hashable]) -> None:
        """Drop every counter that is 0 on all rows, except those with these keys."""
        self._counters = {key: column for key, column in self._counters.items() if key in keys or column.any()}

    def counter(self, key: Hashable) -> IntColumn:
        """The column of a counter, not a copy: per row, the tasks with `key` in their footprint, plus the counts of
        single tasks. Its length is the table's capacity.

        It stays current until the nodes change. Do not write to it.
        """
        column = self._counters.get(key)
        if column is None:
            column = self._counters[key] = np.zeros(self._capacity, np.int64)
        return column

    # ------------------------------------------------------------------ what views read

    def domains(self, key: str) -> Domains:
        """The topology domains of a label, over all rows; cached until a node changes."""
        if self._domains_version != self.static_version:
            self._domains, self._domains_version = {}, self.static_version
        found = self._domains.get(key)
        if found is None:
            found = self._domains[key] = Domains(self.all_rows().label(key))
        return found

    def all_rows(self) -> NodeView:
        """A view of every row, free ones included. Start its mask from `valid()`."""
        return NodeView(self, None)

    def valid(self) -> BoolColumn:
        """A new mask of the rows that hold a node, shape [size]."""
        return self._valid[: self.size].copy()

    def offered(self) -> dict[str, tuple[int, int]]:
        """By resource: the allocatable amount of all nodes together, and how much of it pods request."""
        some = len(self.resources)
        amounts = self._allocatable[:some, : self.size].sum(axis=1).tolist()
        used = self._used[:some, : self.size].sum(axis=1).tolist()
        return dict(zip(self.resources.names, zip(amounts, used, strict=True), strict=True))

    def free(self, rows: RowIndex) -> NDArray[np.int64]:
        """What the pods on these rows leave of each resource, shape [resources, rows]; negative if overcommitted."""
        some = len(self.resources)
        free: NDArray[np.int64] = self._allocatable[:some, rows] - self._used[:some, rows]
        return free

    def names(self) -> list[str]:
        """The nodes' names, sorted."""
        return sorted(self.row_of)

    def ties(self) -> IntColumn:
        """The tie-break keys (`tie_break`), shape [size]; the smaller one wins. Do not write to them."""
        return self._tie[: self.size]

    def digest(self) -> str:
        """A hash over all columns: equal before a statement and after its rollback."""
        h = hashlib.blake2b(digest_size=16)
        for name in self.names():
            row = self.row_of[name]
            counters = sorted((repr(k), int(c[row])) for k, c in self._counters.items() if c[row])
            amounts = [self._named(columns, row) for columns in (self._allocatable, self._used)]
            pods = self.pods.of_row(row)
            h.update(repr((name, amounts, self._nonzero[:, row].tolist(), counters, pods)).encode())
        return h.hexdigest()

    def _named(self, columns: NDArray[np.int64], row: int) -> list[tuple[str, int]]:
        """The row's non-zero amounts by resource: a new resource, which is 0 everywhere, does not change the digest."""
        names = self.resources.names
        return sorted((names[number], int(columns[number, row])) for number in np.flatnonzero(columns[:, row]))


class NodeView:
    """A plugin's view of the columns: all rows, some rows, or virtual rows.

    A *virtual* row is a node on which `extra[i]` more tasks of the class `cls` already run. The core filters such rows
    to find out how many more tasks fit. Arrays have one entry per row of the view; treat them as read-only.
    """

    __slots__ = ("_cls_usage", "_footprint", "_table", "cls", "extra", "rows")

    def __init__(
        self,
        table: NodeTable,
        rows: RowIndex | None,
        cls: TaskClass | None = None,
        extra: IntColumn | None = None,
    ) -> None:
        self._table = table
        self.rows = rows
        self.cls = cls
        self.extra = extra
        self._cls_usage = dict(cls.usage) if cls is not None and extra is not None else {}
        self._footprint = cls.footprint if cls is not None and extra is not None else frozenset()

    def __len__(self) -> int:
        return self._table.size if self.rows is None else len(self.rows)

    def _pick(self, column: NDArray[_T]) -> NDArray[_T]:
        if self.rows is not None:
            return column[self.rows]
        live = column[: self._table.size]
        live.flags.writeable = False
        return live

    def some(self, rows: RowIndex) -> NodeView:
        """A view of these rows of the table, without extra tasks."""
        return NodeView(self._table, rows)

    def all_rows(self) -> NodeView:
        """A view of all rows of the table, without extra tasks."""
        return NodeView(self._table, None)

    @property
    def static_version(self) -> int:
        """The version of the table's nodes: `NodeTable.static_version`."""
        return self._table.static_version

    @property
    def usage_versions(self) -> IntColumn:
        """The version of each row's usage: it differs after each change of a resource or counter of the row."""
        return self._pick(self._table._usage_versions)

    @property
    def row_numbers(self) -> RowIndex:
        """The table row of each entry."""
        return np.arange(self._table.size) if self.rows is None else self.rows

    def allocatable(self, resource: str) -> IntColumn:
        """The allocatable amount of a resource on each node; 0 where it has none."""
        number = self._table.resources.get(resource)
        if number == ABSENT:
            return np.zeros(len(self), np.int64)
        return self._pick(self._table._allocatable[number])

    def used(self, resource: str) -> IntColumn:
        """How much of a resource the pods on each node request, the view's extra tasks included."""
        number = self._table.resources.get(resource)
        if number == ABSENT:
            return np.zeros(len(self), np.int64)
        column: IntColumn = self._pick(self._table._used[number])
        amount = self._cls_usage.get(number, 0)
        return column + self.extra * amount if amount and self.extra is not None else column

    def nonzero_used(self, resource: str) -> IntColumn:
        """Like `used`, for scores: a container without a cpu or memory request counts as 100m and 200Mi."""
        index = ("cpu", "memory").index(resource)
        column: IntColumn = self._pick(self._table._nonzero[index])
        if self.extra is None or self.cls is None:
            return column
        return column + self.extra * (self.cls.nonzero_cpu, self.cls.nonzero_memory)[index]

    def counter(self, key: Hashable) -> IntColumn:
        """How many tasks on each node have `key` in their footprint, the view's extra tasks included."""
        found = self._table._counters.get(key)
        column = np.zeros(len(self), np.int64) if found is None else self._pick(found)
        return column + self.extra if self.extra is not None and key in self._footprint else column

    def counters(self, keys: Sequence[Hashable]) -> NDArray[np.int64]:
        """The columns of several counters, shape [row, key]."""
        found = np.zeros((len(self), len(keys)), np.int64)
        for place, key in enumerate(keys):
            if key in self._table._counters:
                found[:, place] = self.counter(key)
        return found

    def pods(self, query: PodQuery) -> IntColumn:
        """How many pods that match the query run on each node, the view's extra tasks included."""
        column: IntColumn = self._pick(self._table.pods.column(query).counts)
        if self.extra is None or self.cls is None:
            return column
        metadata = self.cls.pod.metadata
        return column + self.extra if query.picks(metadata.namespace, metadata.labels) else column

    def label(self, key: str) -> NDArray[np.int32]:
        """The value id of a label on each node, ABSENT (-1) where it has none; `label_value` returns the text."""
        column = self._table._labels.get(key)
        if column is None:
            return np.full(len(self), ABSENT, np.int32)
        return self._pick(column)

    def label_id(self, value: str) -> int:
        """The id of a label value, or ABSENT if no node has ever had it under any key.

        Check for ABSENT before you compare a column with the id: ABSENT matches the nodes without the label.
        """
        return self._table.label_values.get(value)

    def label_value(self, number: int) -> str:
        """The text of a label value's id."""
        return self._table.label_values.names[number]

    def label_numbers(self) -> tuple[IntColumn, BoolColumn]:
        """By value id, not by node: the value as a 64-bit integer (0 if it is not one), and whether it is one."""
        return self._table.label_numbers()

    def label_among(self, key: str, values: BoolColumn) -> BoolColumn:
        """Which nodes have the label with one of the `values`, a mask over all value ids."""
        return np.append(values, False).take(self.label(key), mode="wrap")  # ABSENT (-1) is the appended entry

    def taints(self) -> Iterator[tuple[tuple[str, str, str], BoolColumn]]:
        """Each distinct taint as (key, value, effect), with the nodes that have it."""
        for taint, column in self._table._taints.items():
            yield taint, self._pick(column)

    @property
    def unschedulable(self) -> BoolColumn:
        """spec.unschedulable of each node."""
        return self._pick(self._table._unschedulable)

    def named(self, name: str) -> BoolColumn:
        """Which entries are the node of that name: none, one, or several if the rows are virtual."""
        row = self._table.row_of.get(name, -1)
        found = np.zeros(len(self), np.bool_)
        if self.rows is not None:
            np.equal(self.rows, row, out=found)
        elif row >= 0:
            found[row] = True
        return found

    def row_of(self, name: str) -> int:
        """The position of the node of that name in this view, or -1; O(1) for a view of all rows."""
        row = self._table.row_of.get(name, -1)
        if row < 0 or self.rows is None:
            return row
        found = np.flatnonzero(self.rows == row)
        return int(found[0]) if len(found) else -1

    def node(self, index: int) -> Node:
        """The Node object of one entry. Use it for reasons and per-node functions, never in a loop over all nodes."""
        row = index if self.rows is None else int(self.rows[index])
        node = self._table.nodes[row]
        if node is None:
            raise LookupError(f"row {row} holds no node")
        return node


def _taint_key(taint: Taint) -> tuple[str, str, str]:
    return (taint.key, taint.value, taint.effect)


def _more(array: NDArray[_T], axis: int, to: int, fill: int = 0) -> NDArray[_T]:
    shape = list(array.shape)
    shape[axis] = to
    grown = np.full(shape, fill, array.dtype)
    grown[tuple(slice(n) for n in array.shape)] = array
    return grown
