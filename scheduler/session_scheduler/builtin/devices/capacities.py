"""The consumable capacities of devices: how much a request consumes by each capacity's policy, and whether it is free.

Quantities keep their spelling and are compared in billionths. `search` uses this module.
"""

from __future__ import annotations

from collections.abc import Mapping

from session_scheduler.model.devices import CapacityRequirements, Device, DeviceCapacity, RequestPolicy
from session_scheduler.model.meta import Quantity
from session_scheduler.model.quantity import billionths

_UNIT = 10**9


def consumption(required: CapacityRequirements | None, device: Device) -> dict[str, Quantity]:
    """The amount that a request consumes of each capacity of a device."""
    requests = required.requests if required is not None else {}
    return {name: _consumed(requests.get(name), capacity) for name, capacity in device.capacity.items()}


def fits(
    required: CapacityRequirements | None, device: Device, consumed: Mapping[str, int], more: Mapping[str, int]
) -> bool:
    """Whether a device has enough free capacity, given what is consumed and what this allocation consumes in addition.

    Raises QuantityError for an invalid quantity.
    """
    if required is not None and not required.requests.keys() <= device.capacity.keys():
        return False
    for name, quantity in consumption(required, device).items():
        capacity = device.capacity[name]
        amount = billionths(quantity)
        if _violates(amount, capacity.request_policy):
            return False
        if consumed.get(name, 0) + amount + more.get(name, 0) > billionths(capacity.value):
            return False
    return True


def _consumed(requested: Quantity | None, capacity: DeviceCapacity) -> Quantity:
    policy = capacity.request_policy
    if requested is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return requested
    limits = policy.valid_range
    if limits is None or limits.min is None:
        enough = (value for value in policy.valid_values if billionths(value) >= billionths(requested))
        return next(enough, requested)
    # round up to the minimum, or to a step above it
    if billionths(requested) < billionths(limits.min):
        return limits.min
    if limits.step is None:
        return requested
    least, step = _whole(limits.min), max(1, _whole(limits.step))
    return str(least + -(-(_whole(requested) - least) // step) * step)


def _violates(amount: int, policy: RequestPolicy | None) -> bool:
    """Whether the policy does not allow this amount."""
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
