"""How much of a device's capacities a request consumes, by the policy of each, and whether so much is left.

Amounts are kept as they are written, and compared in billionths.
"""

from __future__ import annotations

from collections.abc import Mapping

from session_scheduler.model.devices import CapacityRequirements, Device, DeviceCapacity, RequestPolicy
from session_scheduler.model.meta import Quantity
from session_scheduler.model.quantity import billionths

_UNIT = 10**9


def consumption(asked: CapacityRequirements | None, device: Device) -> dict[str, Quantity]:
    """What a request takes of each capacity of a device."""
    requests = asked.requests if asked is not None else {}
    return {name: _consumed(requests.get(name), capacity) for name, capacity in device.capacity.items()}


def fits(
    asked: CapacityRequirements | None, device: Device, consumed: Mapping[str, int], more: Mapping[str, int]
) -> bool:
    """Whether a device has so much beside what is consumed of it, and what is more of it in this allocation.

    Raises QuantityError for an amount that is none.
    """
    if asked is not None and not asked.requests.keys() <= device.capacity.keys():
        return False
    for name, quantity in consumption(asked, device).items():
        capacity = device.capacity[name]
        amount = billionths(quantity)
        if _against(amount, capacity.request_policy):
            return False
        if consumed.get(name, 0) + amount + more.get(name, 0) > billionths(capacity.value):
            return False
    return True


def _consumed(asked: Quantity | None, capacity: DeviceCapacity) -> Quantity:
    policy = capacity.request_policy
    if asked is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return asked
    limits = policy.valid_range
    if limits is None or limits.min is None:
        enough = (value for value in policy.valid_values if billionths(value) >= billionths(asked))
        return next(enough, asked)
    # rounded up to the least, or to a step above it
    if billionths(asked) < billionths(limits.min):
        return limits.min
    if limits.step is None:
        return asked
    least, step = _whole(limits.min), max(1, _whole(limits.step))
    return str(least + -(-(_whole(asked) - least) // step) * step)


def _against(amount: int, policy: RequestPolicy | None) -> bool:
    """Whether the policy has no such share."""
    if policy is None or (policy.default is not None and billionths(policy.default) == amount):
        return False
    limits = policy.valid_range
    if limits is not None:
        if limits.max is not None and amount > billionths(limits.max):
            return True
        if limits.step is None:
            return False
        least = _whole(limits.min) if limits.min is not None else 0
        return (-(-amount // _UNIT) - least) % max(1, _whole(limits.step)) != 0
    return bool(policy.valid_values) and all(billionths(value) != amount for value in policy.valid_values)


def _whole(quantity: Quantity) -> int:
    """The quantity in whole units, rounded up."""
    return -(-billionths(quantity) // _UNIT)
