"""The contents of devices as far as a search depends on them: devices with equal contents are interchangeable.

`search` uses this module, so that it tries only one of them at a place. Names and attributes such as UUIDs differ
between devices that are otherwise equal, so only the attributes that constraints and limits read are compared. The
search itself compares what selectors match.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from session_scheduler.builtin.devices.inventory import PoolId
from session_scheduler.model.devices import Device

_encoder: Final = msgspec.json.Encoder(order="sorted")


class Contents:
    """The contents of devices. The attributes (qualified names) are those that constraints and limits read."""

    def __init__(self, attributes: Iterable[str]) -> None:
        self._attributes = tuple(attributes)
        self._known: dict[tuple[PoolId, str], bytes] = {}

    def of(self, pool: PoolId, device: Device) -> bytes:
        """A value that is equal for interchangeable devices."""
        key = (pool, device.name)
        found = self._known.get(key)
        if found is None:
            driver = pool[0]
            read = [device.attribute(name, driver) for name in self._attributes]
            counters = (pool, device.consumes_counters) if device.consumes_counters else ()
            flags = driver, bool(device.allow_multiple_allocations)
            found = self._known[key] = _encoder.encode((flags, read, device.capacity, device.taints, counters))
        return found
