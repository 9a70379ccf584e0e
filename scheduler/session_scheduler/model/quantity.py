"""Kubernetes resource quantities as integers. Source: apimachinery's resource.Quantity.

Amounts are exact, then rounded away from zero and capped at 64 Pi, far above real amounts: scores multiply amounts by
100, which must fit 64 bits.
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Context, Decimal
from functools import lru_cache
from typing import Final

from session_scheduler.errors import InputError

__all__ = ["LARGEST", "QuantityError", "billionths", "parse_quantity", "quantity_text", "thousandths"]

LARGEST: Final = 2**56
"""The cap: larger amounts are treated as this one."""

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,3}))?")
_SUFFIX = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(10**3), "M": Decimal(10**6),
    "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}  # fmt: skip
_LONGEST = 64
_SHOWN = 32
_EXACT = Context(prec=128, rounding=ROUND_UP)


class QuantityError(InputError, ValueError):
    """The text is not a quantity, or its field does not allow it."""


def _exact(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        remedy = "write a number with an optional suffix, such as 500m, 2 or 4Gi"
        raise QuantityError(f"{shown!r} is not a valid quantity; {remedy}")
    number, suffix, exponent = match.groups()
    scale = _SUFFIX[suffix] if suffix else Decimal(10) ** int(exponent or 0)
    return _EXACT.multiply(Decimal(number), scale)


@lru_cache(maxsize=65536)
def _thousandths(text: str) -> int:
    rounded = int(_EXACT.multiply(_exact(text), Decimal(1000)).to_integral_value(ROUND_UP))
    return max(-1000 * LARGEST, min(1000 * LARGEST, rounded))


@lru_cache(maxsize=65536)
def _billionths(text: str) -> int:
    return int(_EXACT.multiply(_exact(text), Decimal(10**9)).to_integral_value(ROUND_UP))


def billionths(quantity: str | int | float) -> int:
    """The quantity in billionths, Kubernetes' finest unit, without a cap. Raises QuantityError."""
    return _billionths(quantity if isinstance(quantity, str) else str(quantity))


def thousandths(quantity: str | int | float) -> int:
    """The quantity in thousandths of its base unit, rounded away from zero. Raises QuantityError with the text."""
    return _thousandths(quantity if isinstance(quantity, str) else str(quantity))


def whole(amount: int) -> int:
    """Thousandths as base units, rounded away from zero."""
    return -(-amount // 1000) if amount >= 0 else amount // 1000


def parse_quantity(quantity: str | int | float, *, milli: bool = False) -> int:
    """The quantity in base units, or with `milli` in thousandths; at most LARGEST base units, positive or negative.

    It is rounded away from zero. Raises QuantityError, which quotes the text.
    """
    amount = thousandths(quantity)
    return amount if milli else whole(amount)


def quantity_text(amount: int, *, milli: bool = False) -> str:
    """An amount in short form: bytes as 3Gi; with `milli`, thousandths as 1500m or 2."""
    if milli:
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    for bits, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        size = 1 << bits
        if abs(amount) >= size and amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)
