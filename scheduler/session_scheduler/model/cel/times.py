"""CEL functions of durations and timestamps: conversions, arithmetic and getters.

Source: cel-go (common/types, timestamp.go and duration.go).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Final
from zoneinfo import ZoneInfo

from session_scheduler.model.cel.errors import EvaluationError
from session_scheduler.model.cel.values import Duration, Timestamp, UInt, Value, checked, no_overload
from session_scheduler.model.cel.work import Work

_SECOND: Final = 10**9
_UNITS: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": _SECOND, "m": 60 * _SECOND,
                 "h": 3600 * _SECOND}  # fmt: skip
_PART: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_DURATION: Final = re.compile(rf"([-+]?)(0|(?:{_PART.pattern})+)", re.ASCII)
_TIMESTAMP: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:[.,](\d+))?(?:Z|([-+])(\d\d):(\d\d))", re.ASCII)
_LONGEST: Final = 256
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -62_135_596_800, 253_402_300_799
"""The first second of year 1 and the last one of year 9999, in seconds since 1970."""


# ------------------------------------------------------------------ conversions


def duration(work: Work, value: Value) -> Duration:
    """`duration`: from a string such as 1h30m, or from nanoseconds."""
    if isinstance(value, Duration):
        return value
    if isinstance(value, int) and not isinstance(value, bool | UInt):
        return Duration(value)
    if not isinstance(value, str):
        raise no_overload()
    work.over(value)
    match = _DURATION.fullmatch(value) if len(value) <= _LONGEST else None
    if match is None:
        raise EvaluationError("type conversion error from 'string' to 'google.protobuf.Duration'")
    amount = sum(int(Decimal(number) * _UNITS[unit]) for number, unit in _PART.findall(match[2]))
    return of_nanoseconds(-amount if match[1] == "-" else amount)


def of_nanoseconds(amount: int) -> Duration:
    """A duration. Raises EvaluationError if it does not fit 64 bits."""
    return Duration(checked(amount, 0))


def timestamp(work: Work, value: Value) -> Timestamp:
    """`timestamp`: from a string in RFC 3339, or from seconds since 1970."""
    if isinstance(value, Timestamp):
        return value
    if isinstance(value, int) and not isinstance(value, bool | UInt):
        return _point(value * _SECOND, 0)
    if not isinstance(value, str):
        raise no_overload()
    work.over(value)
    match = _TIMESTAMP.fullmatch(value) if len(value) <= _LONGEST else None
    if match is None:
        raise _invalid_timestamp()
    day, clock, fraction, sign, hours, minutes = match.groups()
    offset = (int(hours) * 60 + int(minutes)) * (-60 if sign == "-" else 60) if sign else 0
    if sign and (int(hours) > 24 or int(minutes) > 59):
        raise _invalid_timestamp()
    try:
        whole = (datetime.fromisoformat(f"{day}T{clock}+00:00") - _EPOCH) // timedelta(seconds=1)
    except ValueError:
        raise _invalid_timestamp() from None
    return _point((whole - offset) * _SECOND + int((fraction or "0")[:9].ljust(9, "0")), offset)


def _invalid_timestamp() -> EvaluationError:
    return EvaluationError("type conversion error from 'string' to 'google.protobuf.Timestamp'")


def _point(nanoseconds: int, offset: int) -> Timestamp:
    if not _FIRST <= nanoseconds // _SECOND <= _LAST:
        raise EvaluationError("timestamp overflow")
    return Timestamp(nanoseconds, offset)


# ------------------------------------------------------------------ arithmetic and text


def add(left: Value, right: Value) -> Value | None:
    """The sum; None unless it is of durations, or of a timestamp and a duration."""
    match left, right:
        case Duration(), Duration():
            return of_nanoseconds(left.nanoseconds + right.nanoseconds)
        case Timestamp(), Duration():
            return _point(left.nanoseconds + right.nanoseconds, left.offset)
        case Duration(), Timestamp():
            return _point(left.nanoseconds + right.nanoseconds, right.offset)
    return None


def subtract(left: Value, right: Value) -> Value | None:
    """The difference; None unless it is of durations, of timestamps, or of a timestamp and a duration."""
    match left, right:
        case (Duration(), Duration()) | (Timestamp(), Timestamp()):
            return of_nanoseconds(left.nanoseconds - right.nanoseconds)
        case Timestamp(), Duration():
            return _point(left.nanoseconds - right.nanoseconds, left.offset)
    return None


def text_of(value: Duration | Timestamp) -> str:
    """`string`: a duration in seconds, a timestamp in RFC 3339."""
    if isinstance(value, Duration):
        digits = f"{Decimal(repr(value.nanoseconds / _SECOND)):f}"
        return (digits.rstrip("0").rstrip(".") if "." in digits else digits) + "s"
    seconds, rest = divmod(value.nanoseconds, _SECOND)
    try:
        local = _EPOCH + timedelta(seconds=seconds + value.offset)
    except OverflowError:
        raise EvaluationError("timestamp overflow") from None
    minutes = abs(value.offset) // 60
    zone = f"{'-' if value.offset < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}" if value.offset else "Z"
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{local:%Y-%m-%dT%H:%M:%S}".zfill(19) + fraction + zone


# ------------------------------------------------------------------ getters


def _getter(of_time: Callable[[datetime], int] | None, of_duration: int | None = None) -> Callable[..., Value]:
    """A method of timestamps, in UTC or the named zone, and of durations: how many units of `of_duration` they have."""

    def method(work: Work, value: Value, zone: Value = "UTC") -> int:
        work.spend(1)
        if isinstance(value, Duration) and of_duration is not None and zone == "UTC":
            count = abs(value.nanoseconds) // of_duration
            return count if value.nanoseconds >= 0 else -count
        if not isinstance(value, Timestamp) or of_time is None or not isinstance(zone, str):
            raise no_overload()
        seconds, rest = divmod(value.nanoseconds, _SECOND)
        try:
            local = (_EPOCH + timedelta(seconds=seconds)).astimezone(_zone(zone))
        except OverflowError:
            raise EvaluationError("timestamp overflow") from None
        return of_time(local.replace(microsecond=rest // 1000))

    return method


def _zone(name: str) -> tzinfo:
    if name in ("", "UTC"):
        return UTC
    hours, colon, minutes = name.partition(":")
    if not colon:
        try:
            return ZoneInfo(name)
        except (ValueError, OSError, LookupError):
            raise EvaluationError(f"unknown time zone {name[:_LONGEST]}") from None
    for part in (hours, minutes):
        if re.fullmatch(r"[-+]?\d{1,9}", part, re.ASCII) is None:
            raise EvaluationError(f'strconv.Atoi: parsing "{part[:_LONGEST]}": invalid syntax')
    offset = int(hours) * 60 + (-int(minutes) if name[0] == "-" else int(minutes))
    try:
        return timezone(timedelta(minutes=offset))
    except ValueError:
        raise EvaluationError(f"unknown time zone {name[:_LONGEST]}") from None


_GETTERS: Final = {
    "getFullYear": _getter(lambda time: time.year),
    "getMonth": _getter(lambda time: time.month - 1),
    "getDate": _getter(lambda time: time.day),
    "getDayOfMonth": _getter(lambda time: time.day - 1),
    "getDayOfWeek": _getter(lambda time: time.isoweekday() % 7),
    "getDayOfYear": _getter(lambda time: time.timetuple().tm_yday - 1),
    "getHours": _getter(lambda time: time.hour, 3600 * _SECOND),
    "getMinutes": _getter(lambda time: time.minute, 60 * _SECOND),
    "getSeconds": _getter(lambda time: time.second, _SECOND),
    "getMilliseconds": _getter(lambda time: time.microsecond // 1000, 10**6),
}
TIME_METHODS: Final[dict[tuple[str, int], Callable[..., Value]]] = {
    (name, count): method for name, method in _GETTERS.items() for count in (0, 1)
}
"""By name and number of arguments, without the time itself."""
