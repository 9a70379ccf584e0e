"""Kubernetes resource quantities as integers. Source: apimachinery's resource.Quantity."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,3}))?")
_SUFFIX = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(10**3), "M": Decimal(10**6),
    "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}  # fmt: skip
_LARGEST = 2**63 - 1


class QuantityError(ValueError):
    """A text that is no quantity."""


@lru_cache(maxsize=65536)
def _parse(text: str, milli: bool) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is no quantity: write a number with an optional suffix, as 500m, 2 or 4Gi")
    number, suffix, exponent = match.groups()
    scale = _SUFFIX[suffix] if suffix else Decimal(10) ** int(exponent or 0)
    amount = Decimal(number) * scale * (1000 if milli else 1)
    rounded = int(amount.to_integral_value(ROUND_CEILING))
    return max(-_LARGEST, min(_LARGEST, rounded))


def parse_quantity(quantity: str | int | float, *, milli: bool = False) -> int:
    """The quantity in base units (with `milli` in thousandths), rounded up, capped at 2^63-1.

    Raises QuantityError, which quotes the text.
    """
    return _parse(quantity if isinstance(quantity, str) else str(quantity), milli)
