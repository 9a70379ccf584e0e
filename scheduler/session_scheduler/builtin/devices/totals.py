"""The number of devices in the cluster by DeviceClass, which queues share. It evaluates each slice once for a class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from session_scheduler.builtin.devices.errors import AllocationError
from session_scheduler.builtin.devices.inventory import PoolId
from session_scheduler.builtin.devices.matching import Matching
from session_scheduler.model.devices import DeviceClass, ResourceSlice

_ANY_COST: Final = 2**62
"""Administrators write the classes, and each device is evaluated once."""


class DeviceTotals:
    """The devices of each class in the newest generation of all pools, whether they are allocated or not."""

    def __init__(self) -> None:
        self._matching = Matching()
        self._found: dict[str, dict[str, tuple[ResourceSlice, DeviceClass, int]]] = {}
        """By class and slice: what was evaluated, and the number of devices."""

    def of(self, classes: Iterable[DeviceClass], slices: Mapping[str, ResourceSlice]) -> dict[str, int]:
        """By class: the number of devices in these slices that match its selectors."""
        newest: dict[PoolId, int] = {}
        for part in slices.values():
            pool = part.spec.driver, part.spec.pool.name
            newest[pool] = max(newest.get(pool, 0), part.spec.pool.generation)
        current = [(name, part) for name, part in slices.items()
                   if part.spec.pool.generation == newest[part.spec.driver, part.spec.pool.name]]  # fmt: skip
        found, total = self._found, {}
        self._found = {}
        for one in classes:
            known = found.get(one.metadata.name, {})
            counted = self._found[one.metadata.name] = {}
            for name, part in current:
                entry = known.get(name)
                same = entry is not None and entry[0] is part and entry[1] is one
                counted[name] = entry if entry is not None and same else (part, one, self._count(one, part))
            total[one.metadata.name] = sum(number for _, _, number in counted.values())
        return total

    def _count(self, device_class: DeviceClass, part: ResourceSlice) -> int:
        """The number of a slice's devices that match; a device for which a selector fails does not."""
        self._matching.left, number = _ANY_COST, 0
        for device in part.spec.devices:
            try:
                number += self._matching.matches(device, part.spec.driver, device_class.spec.selectors, "", 0)
            except AllocationError:
                continue
        return number
