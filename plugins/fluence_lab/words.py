"""Amounts, times and counts as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from fluence_lab.view import Column, Table

MOST_ROWS: Final = 200
"""The number of rows that a table of a page shows."""
MOST_REPORT_ROWS: Final = 5_000
"""The number of rows that a report's table of pods shows."""
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_Row = TypeVar("_Row", bound=tuple[Any, ...])


def count(number: int, noun: str, nouns: str = "") -> str:
    """A number with its noun: "1 pod", "3,000 pods"."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def verb(number: int, one: str, many: str) -> str:
    """The verb's form for a number."""
    return one if number == 1 else many


def plain(number: float) -> str:
    """A number with a separator of thousands and at most two decimals."""
    text = f"{number:,.2f}"
    return text.rstrip("0").rstrip(".")


def amount(resource: str, value: float) -> str:
    """An amount of a resource with its unit: "4 cores", "64 Gi", "8"."""
    if resource == "cpu":
        return f"{plain(value)} {'core' if value == 1 else 'cores'}"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return _bytes(value)
    return plain(value)


def _bytes(value: float) -> str:
    power = min(len(_BINARY) - 1, int(math.log2(abs(value)) // 10)) if abs(value) >= 1 else 0
    return f"{plain(value / 1024**power)} {_BINARY[power]}B" if _BINARY[power] else f"{plain(value)} B"


def share(part: float, whole: float) -> float:
    """A part of the whole, 0 to 1 or more; 0 if the whole is 0."""
    return part / whole if whole > 0 else 0.0


def percent(fraction: float) -> str:
    """A fraction in per cent: "62 %"."""
    return f"{100 * fraction:.0f} %"


def span(seconds: float) -> str:
    """A span of time as kubectl writes ages: 45s, 12m, 3h, 2d. An empty text for NaN."""
    if math.isnan(seconds):
        return ""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    if whole < 2 * 3600:
        return f"{whole // 60}m"
    if whole < 48 * 3600:
        return f"{whole // 3600}h"
    return f"{whole // 86400}d"


def listed(texts: Sequence[str], most: int = 3) -> str:
    """Texts as a list in a sentence: "a, b and c", "a, b, c and 4 more"."""
    if len(texts) > most:
        return f"{', '.join(texts[:most])} and {len(texts) - most:,} more"
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def short(text: str, most: int = 90) -> str:
    """A text of at most this many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def sentence(text: str) -> str:
    """A text with a capital first letter and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if not text or text[-1] in ".!?…" else ".")


def table(
    name: str,
    title: str,
    columns: Iterable[Column],
    rows: Sequence[_Row],
    *,
    of: int | None = None,
    most: int = MOST_ROWS,
    optional: bool = False,
) -> Table:
    """A table of the first rows. `of`: how many there are, if `rows` has not all."""
    shown = rows[:most]
    return Table(name, title, tuple(columns), tuple(shown), (len(rows) if of is None else of) - len(shown), optional)
