"""Amounts of devices in queues: what a ResourceClaim counts with, by DeviceClass. Pure functions.

The names are those of ResourceQuota: `<class>.deviceclass.resource.k8s.io/devices`.
"""

from __future__ import annotations

from typing import Final

from session_scheduler.model.devices import ALL, RESULTS_LIMIT, Allocation, DeviceClaim, ExactRequest, ResourceClaim

_SUFFIX: Final = ".deviceclass.resource.k8s.io/devices"


def amount_name(device_class: str) -> str:
    """The name under which queues count the devices of a class."""
    return f"{device_class}{_SUFFIX}"


def device_class_of(amount: str) -> str | None:
    """The class whose devices an amount of this name counts; None for other amounts."""
    return amount.removesuffix(_SUFFIX) if amount.endswith(_SUFFIX) else None


def claim_amounts(claim: ResourceClaim) -> dict[str, int]:
    """What a claim counts with: the devices that it has, or the most that it requests if it is not allocated.

    Of the alternatives of a request, each class counts with the largest one. A request for all devices counts as one
    device until it is allocated. Devices with admin access do not count: they stay free for other claims.
    """
    found: dict[str, int] = {}
    for alternatives in claim_alternatives(claim):
        for name in dict.fromkeys(name for one in alternatives for name in one):
            found[name] = found.get(name, 0) + max(one.get(name, 0) for one in alternatives)
    return found


def claim_alternatives(claim: ResourceClaim) -> list[list[dict[str, int]]]:
    """By request of a claim: what each of its alternatives counts with. If it is allocated: only what it has."""
    devices, allocation = claim.spec.devices, claim.status.allocation
    if allocation is not None:
        return [[_allocated(devices, allocation)]]
    return [list(map(_requested, request.first_available or (request.exactly,))) for request in devices.requests]


def most_devices(claim: ResourceClaim) -> int:
    """The most devices that a claim may get."""
    return sum(
        max((RESULTS_LIMIT if one.allocation_mode == ALL else one.count for one in request.first_available
             or (request.exactly,) if one is not None), default=0)
        for request in claim.spec.devices.requests
    )  # fmt: skip


def _allocated(devices: DeviceClaim, allocation: Allocation) -> dict[str, int]:
    classes = {request.name: request.exactly.device_class_name for request in devices.requests if request.exactly}
    classes |= {f"{request.name}/{one.name}": one.device_class_name
                for request in devices.requests for one in request.first_available}  # fmt: skip
    found: dict[str, int] = {}
    for result in allocation.devices.results:
        if not result.admin_access and classes.get(result.request):
            name = amount_name(classes[result.request])
            found[name] = found.get(name, 0) + 1
    return found


def _requested(one: ExactRequest | None) -> dict[str, int]:
    if one is None or not one.device_class_name or one.admin_access:
        return {}
    return {amount_name(one.device_class_name): 1 if one.allocation_mode == ALL else one.count}
