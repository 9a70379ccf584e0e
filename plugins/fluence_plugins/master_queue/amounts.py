"""Quotas: amounts of the resources that pools have, exact, and written as Kubernetes itself would write them.

An amount that is written as the API server rewrites it stays as it is, so that comparing what is there with what
should be there finds no difference.
"""

from __future__ import annotations

from typing import Final

from session_scheduler.errors import shown
from session_scheduler.model.meta import Quantity
from session_scheduler.model.quantity import QuantityError, billionths

RESOURCES: Final = ("cpu", "memory", "pods", "nvidia.com/gpu")
"""What a pool has quotas of, in the order in which queues cover it."""
_UNIT: Final = 10**9
_MILLI: Final = 10**6
_LARGEST: Final = {"memory": 2**60}
_LARGEST_COUNT: Final = 10**9
_BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = ("k", "M", "G", "T", "P", "E")


def amount(resource: str, value: object) -> int:
    """A quota in thousandths of the resource's unit, rounded down: to whole units of what cannot be divided.

    Raises QuantityError, which says what is wrong with the value, where it is none that a pool could have.
    """
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise QuantityError(f"{shown(value)} is no quantity: write a number or a text, as 8, 500m or 4Gi")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise QuantityError("is larger than any quantity: write what there is")
    exact = billionths(value)
    if exact < 0:
        raise QuantityError(f"{shown(value)} is negative: write 0 or more")
    if exact > _LARGEST.get(resource, _LARGEST_COUNT) * _UNIT:
        raise QuantityError(f"{shown(value)} is more than anybody has: write what there is")
    return exact // _MILLI if resource == "cpu" else exact // _UNIT * 1000


def amount_text(resource: str, thousandths: int) -> str:
    """The amount in the form that Kubernetes gives it."""
    if thousandths % 1000:
        return f"{thousandths}m"
    number = thousandths // 1000
    if resource == "memory" and number and number % 1024 == 0:
        return _scaled(number, 1024, _BINARY)
    return _scaled(number, 1000, _DECIMAL)


def _scaled(number: int, step: int, suffixes: tuple[str, ...]) -> str:
    suffix = ""
    for larger in suffixes:
        if not number or number % step:
            break
        number, suffix = number // step, larger
    return f"{number}{suffix}"


def amounts(values: dict[str, Quantity]) -> dict[str, int]:
    """The amounts of those known resources that can be read, in the order of RESOURCES."""
    found: dict[str, int] = {}
    for resource in RESOURCES:
        if resource in values:
            try:
                found[resource] = amount(resource, values[resource])
            except QuantityError:
                continue
    return found
