"""What the devices of ResourceSlices count with in queues, by their attributes and capacities.

Slices of an older generation than their pool's newest are obsolete. A change of a slice costs as much as its pool has
devices. Without device resources that select devices, nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from session_scheduler.model.device_resources import DeviceResources
from session_scheduler.model.devices import AllocatedDevice, Device, ResourceSlice
from session_scheduler.model.quantity import QuantityError, billionths
from session_scheduler.model.queues import Amounts, add_each

PoolId = tuple[str, str]
"""(driver, name)."""
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class _Pool(msgspec.Struct):
    slices: dict[str, ResourceSlice] = msgspec.field(default_factory=dict)
    """By name, of all generations."""
    devices: dict[str, Device] = msgspec.field(default_factory=dict)
    total: Mapping[str, int] = _NOTHING


class CountedDevices:
    """The devices of all pools, and their totals."""

    def __init__(self) -> None:
        self.resources = DeviceResources()
        self._pools: dict[PoolId, _Pool] = {}
        self._pool_of: dict[str, PoolId] = {}
        """By slice."""
        self._largest: dict[str, int] | None = None
        self.total: Amounts = {}
        """By device resource: what all devices count with together, allocated or not."""

    def of(self, result: AllocatedDevice) -> Mapping[str, int]:
        """What an allocated device counts with; nothing if no slice has it."""
        pool = self._pools.get((result.driver, result.pool))
        device = pool.devices.get(result.device) if pool is not None else None
        consumed = result.consumed_capacity if result.share_id is not None else None
        return self.resources.of_device(device, result.driver, consumed) if device is not None else _NOTHING

    def largest(self, resource: str) -> int:
        """The most that one device counts with."""
        if self._largest is None:
            self._largest = {}
            for (driver, _), pool in self._pools.items():
                for device in pool.devices.values():
                    for name, amount in self.resources.of_device(device, driver).items():
                        self._largest[name] = max(amount, self._largest.get(name, 0))
        return self._largest.get(resource, 0)

    def put(self, part: ResourceSlice) -> set[PoolId]:
        """Add or replace a slice. Returns the pools whose devices may count with other amounts now."""
        if not self.resources.by_device:
            return set()
        id_ = part.spec.driver, part.spec.pool.name
        moved = self._pool_of.get(part.metadata.name, id_) != id_
        changed = self.remove(part) if moved else set()
        self._pool_of[part.metadata.name] = id_
        self._pools.setdefault(id_, _Pool()).slices[part.metadata.name] = part
        self._count(id_)
        return {*changed, id_}

    def remove(self, part: ResourceSlice) -> set[PoolId]:
        """Remove a deleted slice. Returns as `put` does."""
        id_ = self._pool_of.pop(part.metadata.name, None)
        if id_ is None:
            return set()
        del self._pools[id_].slices[part.metadata.name]
        self._count(id_)
        return {id_}

    def _count(self, id_: PoolId) -> None:
        pool = self._pools[id_]
        newest = max((part.spec.pool.generation for part in pool.slices.values()), default=0)
        parts = [part for part in pool.slices.values() if part.spec.pool.generation == newest]
        pool.devices = {device.name: device for part in parts for device in part.spec.devices}
        add_each(self.total, pool.total, -1)
        pool.total = _total(self.resources, id_[0], parts)
        add_each(self.total, pool.total)
        self._largest = None
        if not pool.slices:
            del self._pools[id_]


def _total(resources: DeviceResources, driver: str, parts: Iterable[ResourceSlice]) -> Mapping[str, int]:
    """What the devices of a pool count with together, by device resource.

    Partitions of a device share counters: together they count with no more than the counters suffice for. This bound
    is exact if one partition, such as the whole device, is the best use of each counter.
    """
    found: Amounts = {}
    parts = list(parts)
    sets = [one for part in parts for one in part.spec.shared_counters]
    available = {(one.name, name): _billionths(counter.value) for one in sets for name, counter in one.counters.items()}
    shared: dict[tuple[str, str], list[tuple[int, Mapping[tuple[str, str], int]]]] = {}
    """By device resource and counter set: amount and consumption of each device."""
    for device in (device for part in parts for device in part.spec.devices):
        amounts = resources.of_device(device, driver)
        if not device.consumes_counters:
            add_each(found, amounts)
            continue
        consumed = {(one.counter_set, name): _billionths(counter.value)
                    for one in device.consumes_counters for name, counter in one.counters.items()}  # fmt: skip
        for resource, amount in amounts.items():
            shared.setdefault((resource, device.consumes_counters[0].counter_set), []).append((amount, consumed))
    for (resource, _), devices in shared.items():
        bounds = [sum(amount for amount, _ in devices)]
        for counter, left in available.items():
            if all(consumed.get(counter) for _, consumed in devices):
                bounds.append(max(left * amount // consumed[counter] for amount, consumed in devices))
        add_each(found, {resource: min(bounds)})
    return found


def _billionths(quantity: str | int | float) -> int:
    try:
        return billionths(quantity)
    except QuantityError:
        return 0  # such a pool is invalid: no claim gets its devices
