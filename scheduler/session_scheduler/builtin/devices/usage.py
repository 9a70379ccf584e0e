"""Which devices are taken, and how much of those that several claims may share."""

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
    """What all allocations take together; kept by adding and removing them."""

    def __init__(self) -> None:
        self._taken: dict[PoolId, Counter[str]] = {}
        self._shares: dict[PoolId, Counter[str]] = {}
        self._consumed: dict[DeviceId, dict[str, int]] = {}
        self._changed: dict[PoolId, None] = {}
        self._tokens: dict[PoolId, object] = {}

    def add(self, allocation: Allocation, sign: int = 1) -> None:
        """Count an allocation (`sign` 1), or no more (-1). What admins look at is not taken."""
        for result in allocation.devices.results:
            if result.admin_access:
                continue
            pool = (result.driver, result.pool)
            self._tokens.pop(pool, None)
            self._changed[pool] = None
            if result.share_id is None:
                _count(self._taken.setdefault(pool, Counter()), result.device, sign)
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
                continue  # the API server lets none through
        if not any(of_device.values()):
            del self._consumed[device]

    def changed(self) -> list[PoolId]:
        """The pools of which something was taken or given back since this was last asked."""
        found, self._changed = list(self._changed), {}
        return found

    # ------------------------------------------------------------------ reading

    def is_exclusive(self, device: DeviceId) -> bool:
        """Whether a claim has the device for itself."""
        taken = self._taken.get(device[:2])
        return taken is not None and device[2] in taken

    def consumed(self, device: DeviceId) -> dict[str, int]:
        """What of a shared device's capacities is consumed, in billionths."""
        return self._consumed.get(device, _NOTHING)

    def is_allocated(self, device: DeviceId) -> bool:
        """Whether a claim has the device, or a share of it."""
        shares = self._shares.get(device[:2])
        return self.is_exclusive(device) or (shares is not None and device[2] in shares)

    def token(self, pool: PoolId) -> object:
        """Equal for pools of which the devices of the same names are taken alike; None for nothing."""
        if pool in self._tokens:
            return self._tokens[pool]
        taken, shares = self._taken.get(pool), self._shares.get(pool)
        token: object = None
        if taken or shares:
            consumed = [(name, tuple(sorted(self.consumed((*pool, name)).items()))) for name in sorted(shares or ())]
            token = (tuple(sorted(taken or ())), tuple(consumed))
        self._tokens[pool] = token
        return token


def _count(counter: Counter[str], name: str, sign: int) -> None:
    counter[name] += sign
    if not counter[name]:
        del counter[name]
