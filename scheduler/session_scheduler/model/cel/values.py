"""CEL values: types that Python lacks, and the equality and order of all values.

The other types are Python's own: int (64 bits), float, bool, str, bytes, None, list, dict.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Any, Final, TypeVar

import msgspec

from session_scheduler.model.cel.errors import EvaluationError
from session_scheduler.model.cel.work import Work

Value = Any
_Kind = TypeVar("_Kind")
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_TOO_LARGE: Final = 2**64
_LONGEST_VERSION: Final = 256
_NO_DIGIT: Final = re.compile(r"[^0-9]")
_NO_IDENTIFIER: Final = re.compile(r"[^0-9A-Za-z-]")


class UInt(int):
    """An unsigned integer."""


class QuantityValue(msgspec.Struct, frozen=True, order=True):
    """A Kubernetes quantity, in billionths."""

    billionths: int


class Duration(msgspec.Struct, frozen=True, order=True):
    """A length of time."""

    nanoseconds: int


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A point in time."""

    nanoseconds: int
    """Since 1970, in UTC."""
    offset: int = field(default=0, compare=False)
    """The offset of its time zone, in seconds east of UTC."""


class IP(msgspec.Struct, frozen=True):
    """An IP address."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address


class CIDR(msgspec.Struct, frozen=True):
    """A network, with the address in its text."""

    interface: ipaddress.IPv4Interface | ipaddress.IPv6Interface


class URL(msgspec.Struct, frozen=True):
    """A URL: its text without the fragment, and its undecoded parts."""

    text: str
    scheme: str
    host: str
    path: str
    query: str


class OptionalValue(msgspec.Struct, frozen=True):
    """A value that may be absent."""

    value: Value = None
    present: bool = False


class TypeValue(msgspec.Struct, frozen=True):
    """The type of a value."""

    name: str


@total_ordering
class Semver:
    """A semantic version (2.0.0); comparisons ignore its build metadata (after a plus)."""

    __slots__ = ("_order", "numbers")

    def __init__(self, text: str) -> None:
        major, minor, rest = _three(text)
        rest, plus, build = rest.partition("+")
        patch, dash, pre = rest.partition("-")
        named = (("Major", major), ("Minor", minor), ("Patch", patch))
        self.numbers = tuple(_version_number(name, part) for name, part in named)
        parts = pre.split(".") if dash else []
        for part in parts:
            _check_identifier("Prerelease", "prerelease", part)
            if part.isdigit() and part[0] == "0" and part != "0":
                raise EvaluationError(f'Numeric PreRelease version must not contain leading zeroes "{part}"')
        for part in build.split(".") if plus else ():
            _check_identifier("Build meta data", "build meta data", part)
        kinds = tuple((0, _unsigned(part), "") if part.isdigit() else (1, 0, part) for part in parts)
        self._order = (self.numbers, not dash, kinds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self._order == other._order

    def __lt__(self, other: Semver) -> bool:
        return self._order < other._order

    def __hash__(self) -> int:
        return hash(self._order)


def _three(text: str) -> list[str]:
    parts = text.split(".", 2)
    if len(text) > _LONGEST_VERSION or len(parts) != 3:
        raise EvaluationError("No Major.Minor.Patch elements found" if text else "Version string empty")
    return parts


def _version_number(name: str, text: str) -> int:
    if _NO_DIGIT.search(text) is not None:
        raise EvaluationError(f'Invalid character(s) found in {name.lower()} number "{text}"')
    if len(text) > 1 and text[0] == "0":
        raise EvaluationError(f'{name} number must not contain leading zeroes "{text}"')
    return _unsigned(text)


def _unsigned(text: str) -> int:
    if not text or int(text) >= _TOO_LARGE:
        raise EvaluationError(
            f'strconv.ParseUint: parsing "{text}": {"value out of range" if text else "invalid syntax"}'
        )
    return int(text)


def _check_identifier(name: str, inside: str, text: str) -> None:
    if not text:
        raise EvaluationError(f"{name} is empty")
    if _NO_IDENTIFIER.search(text) is not None:
        raise EvaluationError(f'Invalid character(s) found in {inside} "{text}"')


class Record(dict[str, Any]):
    """A map that returns an empty map for missing keys: the attributes and capacities by domain."""

    def __missing__(self, key: str) -> dict[str, Any]:
        return {}


# ------------------------------------------------------------------ comparing

_NUMBERS = (int, float)
_OWN_ONLY = (QuantityValue, Semver, IP, CIDR, URL)


def is_number(value: Value) -> bool:
    """Whether the value is an int, a uint or a double."""
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def equal(left: Value, right: Value, work: Work) -> bool:
    """Whether `equality` is True."""
    return equality(left, right, work) is True


def equality(left: Value, right: Value, work: Work) -> bool | None:
    """Whether two values are equal: numbers of all types by value, other values of different types never.

    None if the left value is only comparable with its own type: then `==` is an error and `!=` is true, and lists and
    maps count such parts as equal, as in Kubernetes. Each visit of a part costs work: a short expression can create
    lists with billions of parts.
    """
    work.spend(1)
    if left is None or right is None:
        return left is right
    if is_number(left) and is_number(right):
        return bool(left == right)
    if isinstance(left, str | bytes) and type(left) is type(right):
        work.spend(min(len(left), len(right)) // 10)
    if isinstance(left, list) and isinstance(right, list):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(equality(a, b, work) is not False for a, b in pairs)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            equality(value, right[key], work) is not False for key, value in left.items()
        )
    if isinstance(left, OptionalValue) and isinstance(right, OptionalValue):
        return left.present == right.present and equality(left.value, right.value, work)
    if isinstance(left, _OWN_ONLY) and type(left) is not type(right):
        return None
    return type(left) is type(right) and bool(left == right)


def less(left: Value, right: Value, work: Work) -> bool:
    """Whether the left value is less than the right one. Raises EvaluationError if they are not comparable."""
    comparable = (is_number(left) and is_number(right)) or (
        type(left) is type(right) and isinstance(left, str | bytes | bool | Duration | Timestamp)
    )
    if not comparable:
        raise no_overload()
    if isinstance(left, str | bytes):
        work.spend(min(len(left), len(right)) // 10)
    return bool(left < right)


def map_key(value: Value) -> Value:
    """The key for a value in a Python map, where True would equal 1. Raises EvaluationError if it cannot be a key."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, str) or is_number(value):
        return value
    raise EvaluationError(f"unsupported key type: {type_name(value)}")


def from_key(key: Value) -> Value:
    """The value of a key that `map_key` returned."""
    return key[1] if isinstance(key, tuple) else key


def checked(number: int, like: Value) -> int:
    """The number in the type of `like`. Raises EvaluationError if it does not fit in 64 bits."""
    if isinstance(like, UInt):
        if not 0 <= number < 2**64:
            raise EvaluationError("unsigned integer overflow")
        return UInt(number)
    if not _SMALLEST <= number <= _LARGEST:
        raise EvaluationError("integer overflow")
    return number


def no_overload() -> EvaluationError:
    """The error for argument types that an operator or function does not support."""
    return EvaluationError("no such overload")


def method_of(kind: type[_Kind], read: Callable[[_Kind], Value]) -> Callable[[Work, Value], Value]:
    """A method without arguments, for values of one type."""

    def method(_: Work, value: Value) -> Value:
        if not isinstance(value, kind):
            raise no_overload()
        return read(value)

    return method


def accepts(make: Callable[..., Value]) -> Callable[..., bool]:
    """The function that checks whether a string is valid for `make`: `isIP`, `isQuantity`."""

    def function(work: Work, text: Value, *options: Value) -> bool:
        if not isinstance(text, str):
            raise no_overload()
        try:
            make(work, text, *options)
        except EvaluationError:
            return False
        return True

    return function


def type_name(value: Value) -> str:
    """The name of a value's type."""
    names: tuple[tuple[type[Any], str], ...] = (
        (bool, "bool"), (UInt, "uint"), (int, "int"), (float, "double"), (str, "string"), (bytes, "bytes"),
        (list, "list"), (dict, "map"), (type(None), "null_type"), (QuantityValue, "kubernetes.Quantity"),
        (Semver, "kubernetes.Semver"), (OptionalValue, "optional_type"), (TypeValue, "type"),
        (Duration, "google.protobuf.Duration"), (Timestamp, "google.protobuf.Timestamp"),
        (IP, "net.IP"), (CIDR, "net.CIDR"), (URL, "kubernetes.URL"),
    )  # fmt: skip
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)
