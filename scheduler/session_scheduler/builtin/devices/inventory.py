"""The inventory of devices: the pools of each node, from the ResourceSlices that drivers publish.

Slices of an older generation than their pool's newest are obsolete. A pool is incomplete while slices of its
generation are missing, and invalid if its slices contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.devices import ResourceSlice
from session_scheduler.model.meta import NodeSelector, Quantity
from session_scheduler.model.quantity import QuantityError, billionths
from session_scheduler.model.selectors import selected_nodes

PoolId = tuple[str, str]
"""(driver, name)."""
Counters = dict[str, dict[str, int]]
"""By counter set and name, in billionths."""
_encoder: Final = msgspec.json.Encoder(order="sorted")


class Pool(msgspec.Struct, frozen=True):
    """A pool as one node sees it."""

    id: PoolId
    incomplete: bool = False
    invalid: bool = False
    slices: tuple[ResourceSlice, ...] = ()
    """The slices with devices for the node, by name."""
    elsewhere: tuple[ResourceSlice, ...] = ()
    """The other slices of the same generation, whose devices share its counters."""
    counters: Counters | None = None
    local: bool = False
    """Whether the whole pool belongs to one node: then its name does not affect the result."""

    @property
    def binds_with_conditions(self) -> bool:
        """Whether a device has binding conditions: such pools come last."""
        return any(device.binding_conditions for part in self.slices for device in part.spec.devices)


class NodePools(msgspec.Struct):
    """The pools of one node in the order of the search."""

    pools: tuple[Pool, ...]
    shape: tuple[object, ...]
    """Equal for nodes with equal pools, regardless of usage."""


class Inventory:
    """The pools of all nodes. It is valid until slices or nodes change."""

    def __init__(self, slices: Iterable[ResourceSlice], view: NodeView) -> None:
        self._view = view
        self._on_node: dict[str, list[ResourceSlice]] = {}
        self._shared: list[ResourceSlice] = []
        self._of_pool: dict[PoolId, list[ResourceSlice]] = {}
        self._masks: dict[NodeSelector, BoolColumn] = {}
        self._found: dict[int, NodePools] = {}
        self._contents: dict[str, bytes] = {}
        for part in slices:
            spec = part.spec
            self._of_pool.setdefault((spec.driver, spec.pool.name), []).append(part)
            if spec.node_name and not spec.shared_counters:
                self._on_node.setdefault(spec.node_name, []).append(part)
            else:
                self._shared.append(part)

    def of(self, row: int) -> NodePools:
        """The pools of the node in a row."""
        found = self._found.get(row)
        if found is None:
            pools = self._gathered(row)
            found = self._found[row] = NodePools(pools, tuple(self._shape(pool, row) for pool in pools))
        return found

    def has_computed(self, row: int) -> bool:
        """Whether `of` has already been called for the row."""
        return row in self._found

    def name_of(self, row: int) -> str:
        """The name of the node in a row."""
        return self._view.node(row).metadata.name

    # ------------------------------------------------------------------ gathering

    def _gathered(self, row: int) -> tuple[Pool, ...]:
        name = self.name_of(row)
        newest: dict[PoolId, list[ResourceSlice]] = {}
        for part in (*self._on_node.get(name, ()), *self._shared):
            if not self._relevant(part, row, name):
                continue
            known = newest.setdefault((part.spec.driver, part.spec.pool.name), [])
            generation = part.spec.pool.generation
            if known and generation > known[0].spec.pool.generation:
                known.clear()
            if not known or generation == known[0].spec.pool.generation:
                known.append(part)
        found = [pool for id_, parts in newest.items() if (pool := self._pool(id_, parts, name)) is not None]
        return tuple(sorted(found, key=lambda pool: (pool.binds_with_conditions, pool.id)))

    def _relevant(self, part: ResourceSlice, row: int, name: str) -> bool:
        spec = part.spec
        if spec.shared_counters:
            return True
        if spec.node_name or spec.all_nodes or spec.node_selector is not None:
            return self.reached(row, name, spec.node_name, spec.all_nodes, spec.node_selector)
        return bool(spec.per_device_node_selection) and any(
            self.reached(row, name, device.node_name, device.all_nodes, device.node_selector) for device in spec.devices
        )

    def reached(
        self, row: int, name: str, node: str | None, all_nodes: bool | None, selector: NodeSelector | None
    ) -> bool:
        """Whether devices with this node name, flag and selector are available on this node."""
        if node:
            return node == name
        if all_nodes or selector is None:
            return bool(all_nodes)
        mask = self._masks.get(selector)
        if mask is None:
            mask = self._masks[selector] = selected_nodes(self._view, selector)
        return bool(mask[row])

    def _pool(self, id_: PoolId, parts: list[ResourceSlice], node: str) -> Pool | None:
        """The pool with these slices for the node; None if a newer generation has no slice for the node."""
        generation, count = parts[0].spec.pool.generation, parts[0].spec.pool.resource_slice_count
        local = all(part.spec.node_name == node for part in parts)
        if len(parts) == count:
            return _built(id_, parts, (), local=local)
        every = self._of_pool[id_]
        if any(part.spec.pool.generation > generation for part in every):
            return None
        every = [part for part in every if part.spec.pool.generation == generation]
        if len(every) != count:
            return Pool(id_, incomplete=True, local=local)
        names = {part.metadata.name for part in parts}
        return _built(id_, parts, tuple(part for part in every if part.metadata.name not in names))

    # ------------------------------------------------------------------ shapes

    def _shape(self, pool: Pool, row: int) -> object:
        flags = (pool.id[0], pool.incomplete, pool.invalid)
        if pool.local:
            return (*flags, _encoder.encode(pool.counters), tuple(map(self._content, pool.slices)))
        slices = tuple(map(self._content, pool.slices))
        own = row if any(part.spec.per_device_node_selection for part in pool.slices) else -1
        counters = _encoder.encode(pool.counters)
        return (*flags, pool.id[1], counters, slices, tuple(map(self._content, pool.elsewhere)), own)

    def _content(self, part: ResourceSlice) -> bytes:
        """The devices, counters and node binding of a slice, without its own node and pool name."""
        found = self._contents.get(part.metadata.name)
        if found is None:
            spec = part.spec
            binds = (spec.node_selector, spec.all_nodes, spec.per_device_node_selection)
            content = _encoder.encode((spec.devices, spec.shared_counters, binds))
            found = self._contents[part.metadata.name] = content
        return found


def _built(
    id_: PoolId, parts: list[ResourceSlice], elsewhere: tuple[ResourceSlice, ...], *, local: bool = False
) -> Pool:
    parts = sorted(parts, key=lambda part: part.metadata.name)
    slices = tuple(part for part in parts if not part.spec.shared_counters)
    names = [device.name for part in slices for device in part.spec.devices]
    counters = _counter_sets(part for part in parts if part.spec.shared_counters)
    known = counters is not None and all(
        consumed.counter_set in counters
        and consumed.counters.keys() <= counters[consumed.counter_set].keys()
        and all(_is_amount(counter.value) for counter in consumed.counters.values())
        for part in (*parts, *elsewhere)
        for device in part.spec.devices
        for consumed in device.consumes_counters
    )
    if len(set(names)) != len(names) or not known:
        return Pool(id_, invalid=True, local=local)
    return Pool(id_, slices=slices, elsewhere=elsewhere, counters=counters, local=local)


def _is_amount(value: Quantity) -> bool:
    try:
        billionths(value)
    except QuantityError:
        return False
    return True


def _counter_sets(parts: Iterable[ResourceSlice]) -> Counters | None:
    """All counter sets; None for a duplicate name or an invalid quantity."""
    found: Counters = {}
    for part in parts:
        for one in part.spec.shared_counters:
            if one.name in found:
                return None
            try:
                found[one.name] = {name: billionths(counter.value) for name, counter in one.counters.items()}
            except QuantityError:
                return None
    return found
