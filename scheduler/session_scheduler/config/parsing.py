"""Reads configuration text to plain values, and validates them as models. Every mistake is one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from session_scheduler.config.yaml_text import Limits, YamlError, read_value
from session_scheduler.errors import InputError

__all__ = ["read_text", "read_values", "validated", "wrong_value"]

_LIMITS: Final = Limits(bytes=1 << 20, aliased=100_000)
"""A larger configuration is a mistake."""

_Model = TypeVar("_Model", bound=BaseModel)
_WRONG: Final = "wrong_value"
_USER: Final = re.compile("([a-z][a-z0-9+.-]*://)[^/]*@", re.IGNORECASE)
_WANTED: Final = {
    "int_type": "use a whole number",
    "int_from_float": "use a whole number",
    "float_type": "use a number",
    "finite_number": "use a finite number",
    "bool_type": "use true or false",
    "string_type": "use a string (in quotes)",
    "tuple_type": "use a list",
    "list_type": "use a list",
    "model_type": "use a mapping",
    "model_attributes_type": "use a mapping",
    "dict_type": "use a mapping",
    "mapping_type": "use a mapping",
    "greater_than": "use a number greater than {gt:g}",
    "greater_than_equal": "use {ge:g} or more",
    "less_than": "use a number less than {lt}",
    "less_than_equal": "use {le} or less",
    "literal_error": "use {expected}",
    "enum": "use {expected}",
    "string_too_short": "use {min_length} or more characters",
    "too_short": "list {min_length} or more entries",
}


def without_users(text: str) -> str:
    """The text without the users, passwords and tokens of its URLs."""
    return _USER.sub(r"\1(not shown)@", text)


def wrong_value(problem: str, at: Sequence[str | int] = ()) -> PydanticCustomError:
    """An error that a validator raises: `problem` is "problem; remedy", `at` the path from the model to the field."""
    return PydanticCustomError(_WRONG, "{problem}", {"problem": problem, "at": tuple(at)})


def read_text(path: Path) -> str:
    """The text of a configuration file. Reads no more than one byte above the limit of `read_values`.

    Raises InputError.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LIMITS.bytes + 1)
        return data.decode(errors="strict" if len(data) <= _LIMITS.bytes else "replace")  # too large anyway
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"{path}: cannot be read ({reason}); name a readable configuration file") from error


def read_values(text: str, source: str) -> Any:
    """The plain value of a YAML or JSON document; None for an empty one.

    `yes`, `no` and dates are strings, as in YAML 1.2. Raises InputError for a syntax error, a duplicate key, or input
    that is too large.
    """
    try:
        return read_value(text, "json", _LIMITS)
    except YamlError as error:
        raise InputError(f"{source}: {error}") from error


def validated(model: type[_Model], values: Any, source: str, path: str = "") -> _Model:
    """The values as a model; `path` is their path in `source`. Raises InputError with a line for each invalid field."""
    try:
        return model.model_validate_json(json.dumps(values), by_alias=True, by_name=False)
    except ValidationError as error:
        raise InputError(*findings(error, model, source, path)) from error


def findings(error: ValidationError, model: type[BaseModel], source: str, path: str = "") -> list[str]:
    """One line for each invalid field: source, path in the file's spelling, problem, remedy."""
    lines = []
    details = error.errors(include_url=False)
    above = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
    for detail in details:
        if detail["type"] == "too_short" and detail["loc"] in above:
            continue  # pydantic does not count invalid items
        location = (*detail["loc"], *detail.get("ctx", {}).get("at", ()))
        where = without_users(_spelled(location, path))
        lines.append(f"{source}: {where + ': ' if where else ''}{_problem(detail, model)}")
    return lines


def _spelled(location: Sequence[str | int], start: str) -> str:
    text = start
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == _WRONG:
        return str(context["problem"])
    if kind == "missing":
        return "is missing; add it"
    if kind == "extra_forbidden":
        return _unknown_field(str(detail["loc"][-1]), _model_at(model, detail["loc"][:-1]))
    shown = without_users(json.dumps(detail["input"], default=repr))
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    wanted = _WANTED.get(kind)
    return f"is {shown}; {wanted.format(**context)}" if wanted else f"is {shown}: {detail['msg'].lower()}"


def _unknown_field(name: str, model: type[BaseModel] | None) -> str:
    known = sorted(_fields(model)) if model else []
    near = get_close_matches(name, known, 1, 0.6)
    if near:
        return f"unknown field; did you mean {near[0]}?"
    return f"unknown field; use one of {', '.join(known)}" if known else "unknown field; remove it"


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _model_at(model: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    found: type[BaseModel] | None = model
    for part in location:
        if found is None:
            return None
        if isinstance(part, str):
            found = next(_models(_fields(found).get(part)), None)
    return found


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
