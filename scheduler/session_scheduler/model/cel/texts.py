"""CEL methods of strings: the standard ones, and those of cel-go's strings extension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from session_scheduler.model.cel.errors import EvaluationError
from session_scheduler.model.cel.values import UInt, Value, no_overload
from session_scheduler.model.cel.work import Work

_WHITE: Final = (
    " \t\n\r\v\f\x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)


def _of_texts(function: Callable[..., Value]) -> Callable[..., Value]:
    """A method whose arguments are all strings; its cost grows with their length."""

    def method(work: Work, *texts: Value) -> Value:
        if not all(isinstance(text, str) for text in texts):
            raise no_overload()
        work.over(*texts)
        return function(*texts)

    return method


def _text_and_numbers(function: Callable[..., Value], texts: int = 1) -> Callable[..., Value]:
    """A method whose first `texts` arguments are strings, and the others integers."""

    def method(work: Work, *given: Value) -> Value:
        if not all(isinstance(text, str) for text in given[:texts]):
            raise no_overload()
        if not all(isinstance(number, int) and not isinstance(number, bool | UInt) for number in given[texts:]):
            raise no_overload()
        work.over(*given[:texts])
        return function(*given)

    return method


def _ascii(text: str, change: Callable[[str], str]) -> str:
    return "".join(change(c) if c.isascii() else c for c in text)


def _index_of(text: str, part: str, start: int) -> int:
    if start < 0:
        raise EvaluationError(f"index out of range: {start}")
    return text.find(part, start)


def _last_index_of(text: str, part: str, start: int) -> int:
    if start < 0:
        raise EvaluationError(f"index out of range: {start}")
    return text.rfind(part, 0, start + len(part)) if start < len(text) else -1


def _char_at(text: str, at: int) -> str:
    if not 0 <= at <= len(text):
        raise EvaluationError(f"index out of range: {at}")
    return text[at : at + 1]


def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not (0 <= start <= len(text) and 0 <= end <= len(text)):
        raise EvaluationError(f"index out of range: {start if not 0 <= start <= len(text) else end}")
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    return text[start:end]


def _split(text: str, by: str, limit: int = -1) -> list[Any]:
    if limit == 0:
        return []
    if not by:
        parts = list(text)
        return parts if limit < 0 or len(parts) <= limit else [*parts[: limit - 1], "".join(parts[limit - 1 :])]
    return list(text.split(by, limit - 1 if limit > 0 else -1))


def _join(work: Work, texts: Value, by: Value = "") -> str:
    if not isinstance(texts, list) or not isinstance(by, str) or not all(isinstance(text, str) for text in texts):
        raise no_overload()
    work.spend(1 + (sum(map(len, texts)) + len(by) * len(texts)) // 10)  # before the text exists: it may be very long
    return by.join(texts)


def _replace(work: Work, text: Value, old: Value, new: Value, limit: Value = -1) -> str:
    if not all(isinstance(one, str) for one in (text, old, new)):
        raise no_overload()
    if not isinstance(limit, int) or isinstance(limit, bool | UInt):
        raise no_overload()
    places = text.count(old) if limit < 0 else min(limit, text.count(old))
    work.spend(1 + (len(text) + places * len(new)) // 10)  # before the text exists: it may be very long
    return str(text.replace(old, new, max(-1, limit)))


TEXT_METHODS: Final[dict[tuple[str, int], Callable[..., Value]]] = {
    ("startsWith", 1): _of_texts(str.startswith), ("endsWith", 1): _of_texts(str.endswith),
    ("contains", 1): _of_texts(lambda text, part: part in text), ("charAt", 1): _text_and_numbers(_char_at),
    ("indexOf", 1): _of_texts(str.find), ("indexOf", 2): _text_and_numbers(_index_of, 2),
    ("lastIndexOf", 1): _of_texts(str.rfind),
    ("lastIndexOf", 2): _text_and_numbers(_last_index_of, 2),
    ("lowerAscii", 0): _of_texts(lambda text: _ascii(text, str.lower)),
    ("upperAscii", 0): _of_texts(lambda text: _ascii(text, str.upper)),
    ("trim", 0): _of_texts(lambda text: text.strip(_WHITE)),
    ("substring", 1): _text_and_numbers(_substring), ("substring", 2): _text_and_numbers(_substring),
    ("split", 1): _of_texts(_split), ("split", 2): _text_and_numbers(_split, 2),
    ("join", 0): _join, ("join", 1): _join, ("replace", 2): _replace, ("replace", 3): _replace,
}  # fmt: skip
"""By name and number of arguments, without the text itself."""
