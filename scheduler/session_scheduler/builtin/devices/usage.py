"""Device usage: which devices are allocated, and the consumed capacity of devices that several claims share."""

from __future__ import annotations

from collections import Counter
from typing import Final

from session_scheduler.builtin.devices.inventory import PoolId
from session_scheduler.model.devices import AllocatedDevice, Allocation
from session_scheduler.model.quantity import QuantityError, billionths

DeviceId = tuple[str, str, str]
"""(driver, pool, device)."""
_NOTHING: Final[dict[str, int]] = {}


class Usage:
    """The usage of all allocations together, updated by adding and removing them."""

    def __init__(self) -> None:
        self._exclusive: dict[PoolId, Counter[str]] = {}
        self._shares: dict[PoolId, Counter[str]] = {}
        self._consumed: dict[DeviceId, dict[str, int]] = {}
        self._changed: dict[PoolId, None] = {}
        self._tokens: dict[PoolId, object] = {}

    def add(self, allocation: Allocation, sign: int = 1) -> None:
        """Add (`sign` 1) or remove (-1) an allocation. Admin access does not count."""
        for result in allocation.devices.results:
            if result.admin_access:
                continue
            pool = (result.driver, result.pool)
            self._tokens.pop(pool, None)
            self._changed[pool] = None
            if result.share_id is None:
                _count(self._exclusive.setdefault(pool, Counter()), result.device, sign)
            else:
                _count(self._shares.setdefault(pool, Counter()), result.device, sign)
                self._consume((*pool, result.device), result, sign)

    def _consume(self, device: DeviceId, result: AllocatedDevice, sign: int) -> None:
        if not result.consumed_capacity:
            return
        of_device = self._consumed.setdefault(device, {})
        for name, quantity in result.consumed_capacity.items():
            try:
                of_device[name] = of_device.get(name, 0) + sign * billionths(quantity)
            except QuantityError:
                continue  # the API server admits only valid quantities
        if not any(of_device.values()):
            del self._consumed[device]

    def changed(self) -> list[PoolId]:
        """The pools whose usage changed since the last call."""
        found, self._changed = list(self._changed), {}
        return found

    # ------------------------------------------------------------------ reading

    def is_exclusive(self, device: DeviceId) -> bool:
        """Whether a claim has the device exclusively."""
        exclusive = self._exclusive.get(device[:2])
        return exclusive is not None and device[2] in exclusive

    def consumed(self, device: DeviceId) -> dict[str, int]:
        """The consumed capacities of a shared device, in billionths."""
        return self._consumed.get(device, _NOTHING)

    def is_allocated(self, device: DeviceId) -> bool:
        """Whether a claim has the device or a share of it."""
        shares = self._shares.get(device[:2])
        return self.is_exclusive(device) or (shares is not None and device[2] in shares)

    def token(self, pool: PoolId) -> object:
        """A value that is equal for pools whose used devices have equal names and usage; None for an unused pool."""
        if pool in self._tokens:
            return self._tokens[pool]
        exclusive, shares = self._exclusive.get(pool), self._shares.get(pool)
        token: object = None
        if exclusive or shares:
            consumed = [(name, tuple(sorted(self.consumed((*pool, name)).items()))) for name in sorted(shares or ())]
            token = (tuple(sorted(exclusive or ())), tuple(consumed))
        self._tokens[pool] = token
        return token


def _count(counter: Counter[str], name: str, sign: int) -> None:
    counter[name] += sign
    if not counter[name]:
        del counter[name]
