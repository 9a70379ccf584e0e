"""Times of API objects. Source: RFC 3339; the API server uses a subset."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

__all__ = ["age_text", "parsed_time", "time_text"]

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)")


def parsed_time(text: str) -> datetime | None:
    """The time of an RFC 3339 string; None if the string is invalid."""
    if _TIME.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def time_text(time: datetime) -> str:
    """The UTC time in the API server's format, to the second (metav1.Time)."""
    return time.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def micro_time_text(time: datetime) -> str:
    """The UTC time to the microsecond, always with six digits after the point (metav1.MicroTime)."""
    return time.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def age_text(seconds: float) -> str:
    """A length of time as kubectl prints ages: 90s, 3m12s, 5h7m, 2d4h. A negative length is 0s.

    Source: HumanDuration of k8s.io/apimachinery/pkg/util/duration.
    """
    total = max(0, int(seconds))
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return _units((minutes, "m"), (total % 60, "s"))
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _units((hours, "h"), (minutes % 60, "m"))
    if days < 2:
        return f"{hours}h"
    if days < 8:
        return _units((days, "d"), (hours % 24, "h"))
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _units((days // 365, "y"), (days % 365, "d"))
    return f"{days // 365}y"


def _units(large: tuple[int, str], small: tuple[int, str]) -> str:
    return "".join(f"{count}{unit}" for count, unit in (large, small) if count)
