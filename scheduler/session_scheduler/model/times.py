"""Times of API objects. Source: RFC 3339, of which the API server uses a subset."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

__all__ = ["parsed_time", "time_text"]

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)")


def parsed_time(text: str) -> datetime | None:
    """The time of an RFC 3339 text; None if the text is invalid."""
    if _TIME.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def time_text(time: datetime) -> str:
    """The UTC time in the API server's format, to the second (metav1.Time)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time_text(time: datetime) -> str:
    """The UTC time to the microsecond, always with six digits after the point (metav1.MicroTime)."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
