"""Messages for msgspec's type errors: the field, the error and a remedy, for authors of manifests.

msgspec writes `[...]` for a mapping's key; this module looks up the value again to name the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from session_scheduler.errors import shown as shown_value

_AT = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<expected>.+?)`, got `(?P<got>\w+)`")
_MISSING = re.compile(r"Object missing required field `(?P<field>.+)`")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_LONG = re.compile(r"-?[0-9]{20,}…?")
"""A whole number that the readers of YAML and JSON left as a string."""
_WORDS = {"str": "a string", "int": "a whole number", "float": "a number", "bool": "true or false",
          "object": "a mapping", "array": "a list", "null": "null", "quantity": "a quantity such as 500m or 1Gi",
          "int-or-string": "a whole number or a string", "time": "a time such as 2030-01-31T12:00:00Z",
          "number": "a number", "[]string": "a list of strings", "[]object": "a list of mappings"}  # fmt: skip
_OF_OPENAPI = {"string": "str", "int32": "int", "int64": "int", "boolean": "bool"}
_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "object": dict, "array": list,
                           "null": type(None)}  # fmt: skip


def explain_type_error(message: str, tree: object) -> tuple[str, str]:
    """(field, error and remedy) of a msgspec error about this value."""
    match = _AT.fullmatch(message)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    expected = _EXPECTED.match(what)
    field, value = _locate(tree, path, _TYPES.get(expected["got"]) if expected else None)
    missing = _MISSING.match(what)
    if missing:
        return f"{field}.{missing['field']}".lstrip("."), "is missing; add it"
    if expected is None:
        return field, what
    return field, _mismatch(expected["expected"], expected["got"], value)


def mismatch(expected: str, value: object) -> str:
    """Error and remedy of a value that is not of a type of OpenAPI: a scalar, "object" or a list ("[]string")."""
    got = next(name for name, type_ in _TYPES.items() if type(value) is type_)
    if expected in ("int32", "int64") and (got == "int" or (isinstance(value, str) and _LONG.fullmatch(value))):
        return f"is a number with more than {expected[3:]} bits; write a smaller one"
    return _mismatch(_OF_OPENAPI.get(expected, expected), got, value)


def _mismatch(expected: str, got: str, value: object) -> str:
    wanted = " or ".join(_WORDS.get(word, word) for word in expected.split(" | ") if word != "null")
    shown = _WORDS.get(got, got) if got in ("object", "array", "null") else _as_written(value)
    if expected.startswith("str") and got in ("int", "float", "bool"):
        return f'{shown} is not a string; quote it, as "{shown}"'
    if expected == "int" and isinstance(value, str) and _INTEGER.fullmatch(value):
        return f"{shown} is a string, not a whole number; write it without quotes"
    return f"must be {wanted}, not {shown}"


def child(path: str, key: str) -> str:
    """The path of a mapping's entry, such as spec.replicas or labels[app.kubernetes.io/name]."""
    return f"{path}[{key}]" if "." in key or "/" in key else f"{path}.{key}".lstrip(".")


def _as_written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else shown_value(value)


def _locate(tree: object, path: str, type_: type | None) -> tuple[str, object]:
    """The field at the path, and its value. If the path omits a key, the first value of that type."""
    steps = [(m[1], m[2]) for m in _STEP.finditer(path)]
    found = [(field, value) for field, value in _walk(tree, steps, "") if type_ is None or type(value) is type_]
    return found[0] if found else (path.lstrip("."), "?")


def _walk(value: Any, steps: list[tuple[str | None, str | None]], field: str) -> Iterator[tuple[str, object]]:
    if not steps:
        yield field, value
        return
    (name, index), rest = steps[0], steps[1:]
    if name is not None and isinstance(value, dict) and name in value:
        yield from _walk(value[name], rest, child(field, name))
    elif index == "..." and isinstance(value, dict):
        for key, inner in value.items():
            yield from _walk(inner, rest, child(field, key))
    elif index is not None and isinstance(value, list):
        numbers = range(len(value)) if index == "..." else (int(index),)
        for number in numbers:
            yield from _walk(value[number], rest, f"{field}[{number}]")
