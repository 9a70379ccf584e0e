"""CEL operators and functions: the standard ones, and Kubernetes' libraries for strings, lists, regex and quantities.

The first argument of each is the remaining work. Kubernetes' named formats, format strings and authorisation are not
supported: an expression that uses them does not compile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import re2

from session_scheduler.model.cel import times
from session_scheduler.model.cel.errors import EvaluationError
from session_scheduler.model.cel.lists import LIST_FUNCTIONS, LIST_METHODS, addable
from session_scheduler.model.cel.networks import NETWORK_FUNCTIONS, NETWORK_METHODS
from session_scheduler.model.cel.texts import TEXT_METHODS
from session_scheduler.model.cel.urls import URL_FUNCTIONS, URL_METHODS
from session_scheduler.model.cel.values import (
    CIDR,
    IP,
    Duration,
    OptionalValue,
    QuantityValue,
    Semver,
    Timestamp,
    TypeValue,
    UInt,
    Value,
    accepts,
    checked,
    equal,
    equality,
    is_number,
    less,
    map_key,
    method_of,
    no_overload,
    type_name,
)
from session_scheduler.model.cel.work import Work
from session_scheduler.model.quantity import QuantityError, billionths

Function = Callable[..., Value]
_UNIT: Final = 10**9
_WHOLE: Final = re.compile(r"[-+]?\d{1,64}", re.ASCII)
_DIGITS: Final = re.compile(r"\d{1,64}", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|inf(?:inity)?)|nan", re.ASCII | re.IGNORECASE)
_LEAST_PLAIN, _TOO_LONG = -4, 6
"""The text of a double has no exponent if its power of ten is at least the first and below the second."""
_NONE: Final = OptionalValue()
_QUANTITY: Final = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"

# ------------------------------------------------------------------ access


def item(value: Value, key: Value, work: Work, *, optional: bool = False, field: bool = False) -> Value:
    """A field, an entry or an element. Raises EvaluationError if it does not exist, unless it is optional."""
    work.over(*((key,) if isinstance(key, str) and not field else ()))
    if isinstance(value, OptionalValue):
        return item(value.value, key, work, optional=True, field=field) if value.present else _NONE
    if optional:
        try:
            return OptionalValue(_item(value, key, field=field), present=True)
        except _MissingError:
            return _NONE
    return _item(value, key, field=field)


class _MissingError(EvaluationError):
    """The field, entry or element does not exist."""


def _item(value: Value, key: Value, *, field: bool) -> Value:
    if isinstance(value, dict):
        try:
            return value[map_key(key)]
        except KeyError:
            raise _MissingError(f"no such key: {key}") from None
    if isinstance(value, list) and not field:
        if not is_number(key):
            raise no_overload()
        if not math.isfinite(key) or key != int(key):
            raise EvaluationError(f"unsupported index value {_float_text(key)} in list")
        if not 0 <= key < len(value):
            raise _MissingError(f"index out of bounds: {int(key)}")
        return value[int(key)]
    if isinstance(value, list):
        raise no_overload()
    raise _MissingError(f"no such key: {key}")


def contains(work: Work, needle: Value, value: Value, *, of_maps: bool = False) -> bool:
    """`in`: whether a list has an element, or a map a key."""
    if isinstance(value, dict):
        work.over(*((needle,) if isinstance(needle, str) else ()))
        return map_key(needle) in value
    if isinstance(value, list) and not of_maps:
        return any(equal(needle, one, work) for one in value)
    if of_maps and not isinstance(value, list):
        return False
    raise no_overload()


def size_of(_: Work, value: Value) -> int:
    """`size`: the number of characters, bytes, elements or entries."""
    if not isinstance(value, str | bytes | list | dict):
        raise no_overload()
    return len(value)


# ------------------------------------------------------------------ arithmetic


def _same_numbers(left: Value, right: Value) -> None:
    if not is_number(left) or type(left) is not type(right):
        raise no_overload()


def _add(work: Work, left: Value, right: Value) -> Value:
    if isinstance(left, str | bytes) and type(left) is type(right):
        work.over(left, right)
        return left + right  # type: ignore[operator]  # both are of one type
    if isinstance(left, list) and isinstance(right, list):
        work.spend(len(left) + len(right))
        return left + right
    time = times.add(left, right)
    if time is not None:
        return time
    _same_numbers(left, right)
    return left + right if isinstance(left, float) else checked(int(left) + int(right), left)


def _subtract(_: Work, left: Value, right: Value) -> Value:
    time = times.subtract(left, right)
    if time is not None:
        return time
    _same_numbers(left, right)
    return left - right if isinstance(left, float) else checked(int(left) - int(right), left)


def _multiply(_: Work, left: Value, right: Value) -> Value:
    _same_numbers(left, right)
    return left * right if isinstance(left, float) else checked(int(left) * int(right), left)


def _divide(_: Work, left: Value, right: Value) -> Value:
    _same_numbers(left, right)
    if isinstance(left, float):
        return left / right if right else math.copysign(math.inf, left) if left == left and left else math.nan
    if not right:
        raise EvaluationError("division by zero")
    quotient = abs(int(left)) // abs(int(right))
    return checked(quotient if (left < 0) == (right < 0) else -quotient, left)


def _modulo(_: Work, left: Value, right: Value) -> Value:
    _same_numbers(left, right)
    if isinstance(left, float):
        raise no_overload()
    if not right:
        raise EvaluationError("modulus by zero")
    rest = abs(int(left)) % abs(int(right))
    return checked(rest if left >= 0 else -rest, left)


def _negate(_: Work, value: Value) -> Value:
    if not is_number(value) or isinstance(value, UInt):
        raise no_overload()
    return -value if isinstance(value, float) else checked(-int(value), 0)


def _equal(work: Work, left: Value, right: Value) -> bool:
    found = equality(left, right, work)
    if found is None:
        raise no_overload()
    return found


# ------------------------------------------------------------------ conversions


def _int(_: Work, value: Value) -> int:
    if isinstance(value, Duration):
        return value.nanoseconds
    if isinstance(value, Timestamp):
        return value.nanoseconds // 10**9
    if isinstance(value, float):
        if not math.isfinite(value):
            raise EvaluationError("integer overflow")
        return checked(math.trunc(value), 0)
    if is_number(value):
        return checked(int(value), 0)
    if not isinstance(value, str):
        raise no_overload()
    if _WHOLE.fullmatch(value) is None or not -(2**63) <= int(value) < 2**63:
        raise EvaluationError("type conversion error from 'string' to 'int'")
    return int(value)


def _uint(_: Work, value: Value) -> UInt:
    if isinstance(value, UInt):
        return value
    if isinstance(value, float):
        value = math.trunc(value) if math.isfinite(value) else -1
    elif isinstance(value, str):
        if _DIGITS.fullmatch(value) is None or int(value) >= 2**64:
            raise EvaluationError("type conversion error from 'string' to 'uint'")
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise no_overload()
    return UInt(checked(value, UInt(0)))


def _double(work: Work, value: Value) -> float:
    if is_number(value):
        return float(value)
    if not isinstance(value, str):
        raise no_overload()
    work.over(value)
    number = float(value) if _FLOAT.fullmatch(value) is not None else math.nan
    if (math.isinf(number) and value[-1] in "0123456789.") or (math.isnan(number) and value.lower() != "nan"):
        raise EvaluationError("type conversion error from 'string' to 'double'")
    return number


def _float_text(value: float) -> str:
    """The shortest text of the number, with an exponent where Go writes one."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    first = len(digits) + int(exponent) - 1 if value else 0
    minus = "-" if sign else ""
    if value and not _LEAST_PLAIN <= first < _TOO_LONG:
        fraction = f".{shown[1:]}" if len(shown) > 1 else ""
        return f"{minus}{shown[0]}{fraction}e{'-' if first < 0 else '+'}{abs(first):02}"
    plain = f"{Decimal(repr(abs(value))):f}"
    return minus + (plain.rstrip("0").rstrip(".") if "." in plain else plain)


def _string(work: Work, value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        work.over(value)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, Duration | Timestamp):
        return times.text_of(value)
    if isinstance(value, IP | CIDR):
        return str(value.address if isinstance(value, IP) else value.interface)
    if isinstance(value, str | int):
        work.spend(1)
        return str(value)
    raise no_overload()


def _bool(_: Work, value: Value) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in _TRUTHS:
        return _TRUTHS[value]
    raise no_overload()


_TRUTHS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def _bytes(work: Work, value: Value) -> bytes:
    if not isinstance(value, str | bytes):
        raise no_overload()
    work.over(value)
    return value.encode() if isinstance(value, str) else value


def _type(_: Work, value: Value) -> TypeValue:
    return TypeValue(type_name(value))


# ------------------------------------------------------------------ quantities and versions


def _quantity(_: Work, text: Value) -> QuantityValue:
    if not isinstance(text, str):
        raise no_overload()
    try:
        return QuantityValue(billionths(text))
    except QuantityError:
        raise EvaluationError(f"quantities must match the regular expression '{_QUANTITY}'") from None


def _semver(work: Work, text: Value, normalize: Value = False) -> Semver:
    if not isinstance(text, str) or not isinstance(normalize, bool):
        raise no_overload()
    work.over(text)
    return Semver(_normalized(text) if normalize else text)


def _normalized(text: str) -> str:
    """The version without a leading v and leading zeros, and with its missing parts as 0."""
    text = text.removeprefix("v")
    end = min((at for at in (text.find("-"), text.find("+")) if at >= 0), default=len(text))
    parts = [part.lstrip("0") or "0" if part.isdigit() else part for part in text[:end].split(".")]
    lacking = 3 - len(parts)
    if lacking > 0 and end < len(text):
        raise EvaluationError("short version cannot contain PreRelease/Build meta data")
    return ".".join([*parts, *["0"] * lacking]) + text[end:]


def _compared(check: Callable[[int], Value]) -> Function:
    def function(_: Work, left: Value, right: Value) -> Value:
        if not isinstance(left, QuantityValue | Semver) or type(left) is not type(right):
            raise no_overload()
        return check((left > right) - (left < right))  # type: ignore[operator]  # both are of one type

    return function


def _of_quantity(operation: Callable[[int, int], int]) -> Function:
    def function(_: Work, left: Value, right: Value) -> QuantityValue:
        if not isinstance(left, QuantityValue):
            raise no_overload()
        other = right.billionths if isinstance(right, QuantityValue) else None
        if other is None and isinstance(right, int) and not isinstance(right, bool):
            other = right * _UNIT
        if other is None:
            raise no_overload()
        return QuantityValue(operation(left.billionths, other))

    return function


def _as_integer(_: Work, value: Value) -> int:
    if not isinstance(value, QuantityValue):
        raise no_overload()
    number, rest = divmod(value.billionths, _UNIT)
    if rest:
        raise EvaluationError("cannot convert value to integer")
    return checked(number, 0)


def _is_integer(_: Work, value: Value) -> bool:
    if not isinstance(value, QuantityValue):
        raise no_overload()
    return not value.billionths % _UNIT and abs(value.billionths // _UNIT) < 2**63


def _approximate(_: Work, value: Value) -> float:
    if not isinstance(value, QuantityValue):
        raise no_overload()
    try:
        return value.billionths / _UNIT
    except OverflowError:
        return math.inf if value.billionths > 0 else -math.inf


def _sign(_: Work, value: Value) -> int:
    if not isinstance(value, QuantityValue):
        raise no_overload()
    return (value.billionths > 0) - (value.billionths < 0)


# ------------------------------------------------------------------ sums, optional values, patterns


def _sum(work: Work, values: Value) -> Value:
    total: Value = 0
    for index, one in enumerate(addable(values)):
        total = _add(work, total, one) if index else one
    return total


def _optional_of(value: Value) -> OptionalValue:
    if not isinstance(value, OptionalValue):
        raise no_overload()
    return value


def _is_zero(value: Value) -> bool:
    return not value or (isinstance(value, Duration) and not value.nanoseconds)


def _value_of(_: Work, value: Value) -> Value:
    if not _optional_of(value).present:
        raise EvaluationError("optional.none() dereference")
    return value.value


def _or_value(_: Work, value: Value, other: Value) -> Value:
    return value.value if _optional_of(value).present else other


@lru_cache(maxsize=256)
def _pattern(text: str) -> Any:
    try:
        options = re2.Options()
        options.max_mem = 1 << 20
        options.log_errors = False
        return re2.compile(text, options)
    except re2.error as error:
        why = error.args[0] if error.args else error
        raise EvaluationError(f"error parsing regexp: {why.decode() if isinstance(why, bytes) else why}") from None


def _searched(work: Work, text: Value, pattern: Value) -> Any:
    if not isinstance(text, str) or not isinstance(pattern, str):
        raise no_overload()
    work.spend((1 + len(text) // 10) * (1 + len(pattern) // 4))
    return _pattern(pattern)


def _matches(work: Work, text: Value, pattern: Value) -> bool:
    return _searched(work, text, pattern).search(text) is not None


def _find(work: Work, text: Value, pattern: Value) -> str:
    found = _searched(work, text, pattern).search(text)
    return str(found.group()) if found is not None else ""


def _find_all(work: Work, text: Value, pattern: Value, limit: Value = -1) -> list[Value]:
    if not isinstance(limit, int) or isinstance(limit, bool | UInt):
        raise no_overload()
    found = [match.group() for match in _searched(work, text, pattern).finditer(text)]
    return found if limit < 0 else found[:limit]


# ------------------------------------------------------------------ the tables

FUNCTIONS: Final[dict[tuple[str, int], Function]] = {
    **LIST_FUNCTIONS, **NETWORK_FUNCTIONS, **URL_FUNCTIONS,
    ("_+_", 2): _add, ("_-_", 2): _subtract, ("_*_", 2): _multiply, ("_/_", 2): _divide, ("_%_", 2): _modulo,
    ("-_", 1): _negate, ("_==_", 2): _equal,
    ("_!=_", 2): lambda work, a, b: not equal(a, b, work), ("_in_", 2): contains, ("size", 1): size_of,
    ("_<_", 2): lambda work, a, b: less(a, b, work), ("_>_", 2): lambda work, a, b: less(b, a, work),
    ("_<=_", 2): lambda work, a, b: less(a, b, work) or equal(a, b, work),
    ("_>=_", 2): lambda work, a, b: less(b, a, work) or equal(a, b, work),
    ("int", 1): _int, ("uint", 1): _uint, ("double", 1): _double, ("string", 1): _string, ("bool", 1): _bool,
    ("bytes", 1): _bytes, ("type", 1): _type, ("dyn", 1): lambda _, value: value, ("matches", 2): _matches,
    ("quantity", 1): _quantity, ("isQuantity", 1): accepts(_quantity), ("semver", 1): _semver, ("semver", 2): _semver,
    ("isSemver", 1): accepts(_semver), ("isSemver", 2): accepts(_semver),
    ("sign", 1): _sign, ("duration", 1): times.duration, ("timestamp", 1): times.timestamp,
    ("optional.of", 1): lambda _, value: OptionalValue(value, present=True), ("optional.none", 0): lambda _: _NONE,
    ("optional.ofNonZeroValue", 1): lambda _, value: _NONE if _is_zero(value) else OptionalValue(value, present=True),
}  # fmt: skip
"""By name and number of arguments."""
METHODS: Final[dict[tuple[str, int], Function]] = {
    **TEXT_METHODS, **LIST_METHODS, **NETWORK_METHODS, **URL_METHODS, **times.TIME_METHODS,
    ("size", 0): size_of, ("matches", 1): _matches, ("find", 1): _find, ("findAll", 1): _find_all,
    ("findAll", 2): _find_all,
    ("compareTo", 1): _compared(lambda order: order), ("isGreaterThan", 1): _compared(lambda order: order > 0),
    ("isLessThan", 1): _compared(lambda order: order < 0), ("add", 1): _of_quantity(lambda a, b: a + b),
    ("sub", 1): _of_quantity(lambda a, b: a - b), ("asInteger", 0): _as_integer, ("isInteger", 0): _is_integer,
    ("asApproximateFloat", 0): _approximate, ("sum", 0): _sum,
    ("major", 0): method_of(Semver, lambda value: value.numbers[0]),
    ("minor", 0): method_of(Semver, lambda value: value.numbers[1]),
    ("patch", 0): method_of(Semver, lambda value: value.numbers[2]),
    ("hasValue", 0): lambda _, value: _optional_of(value).present, ("value", 0): _value_of,
    ("orValue", 1): _or_value, ("or", 1): lambda _, value, other: value if _optional_of(value).present else other,
}  # fmt: skip
"""By name and number of arguments, without the receiver."""
TYPES: Final = {name: TypeValue(name) for name in (
    "bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type", "google.protobuf.Duration",
    "google.protobuf.Timestamp", "net.IP", "net.CIDR",
)}  # fmt: skip
