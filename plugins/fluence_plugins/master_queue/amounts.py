"""Quotas: exact amounts of the resources that pools offer, in the form in which the API server writes them.

In this form, equal amounts are equal strings, so comparing actual with desired objects finds no false difference.
"""

from __future__ import annotations

from typing import Final

from session_scheduler.errors import shown
from session_scheduler.model.meta import Quantity
from session_scheduler.model.quantity import QuantityError, billionths

RESOURCES: Final = ("cpu", "memory", "pods", "nvidia.com/gpu")
"""The resources for which a pool has quotas, in the order in which queues cover them."""
_UNIT: Final = 10**9
_MILLI: Final = 10**6
_LARGEST: Final = {"memory": 2**60}
_LARGEST_COUNT: Final = 10**9
_BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = ("k", "M", "G", "T", "P", "E")


def amount(resource: str, value: object) -> int:
    """A quota in thousandths of the resource's unit. It is rounded down to whole units, except for cpu.

    Raises QuantityError with the problem if the value is not a valid quota.
    """
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise QuantityError(
            f"{shown(value)} is not a valid quantity; write a number or a string, such as 8, 500m or 4Gi"
        )
    if isinstance(value, int) and abs(value) >= 2**63:
        raise QuantityError("is larger than any quantity; write the actual amount")
    exact = billionths(value)
    if exact < 0:
        raise QuantityError(f"{shown(value)} is negative; write 0 or more")
    if exact > _LARGEST.get(resource, _LARGEST_COUNT) * _UNIT:
        raise QuantityError(f"{shown(value)} is larger than the limit; write the actual amount")
    return exact // _MILLI if resource == "cpu" else exact // _UNIT * 1000


def amount_text(resource: str, thousandths: int) -> str:
    """The amount in the API server's form."""
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
    """The valid amounts of known resources, in the order of RESOURCES."""
    found: dict[str, int] = {}
    for resource in RESOURCES:
        if resource in values:
            try:
                found[resource] = amount(resource, values[resource])
            except QuantityError:
                continue
    return found
