"""Configuration text to plain values, and plain values to checked models, with every mistake as one line. A leaf."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from session_scheduler.errors import InputError

MAX_BYTES: Final = 1 << 20
"""The largest text that is read; more is a mistake."""
MAX_VALUES: Final = 100_000
"""The most values a text may hold, each use of an alias counted."""

_Model = TypeVar("_Model", bound=BaseModel)
_WRONG: Final = "wrong_value"
_BOOL, _TIMESTAMP = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"
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
    "greater_than": "use more than {gt:g}",
    "greater_than_equal": "use {ge:g} or more",
    "less_than": "use less than {lt:g}",
    "less_than_equal": "use {le:g} or less",
    "literal_error": "use {expected}",
    "enum": "use {expected}",
    "string_too_short": "use {min_length} characters or more",
    "too_short": "list {min_length} or more",
}


def wrong_value(problem: str, at: Sequence[str | int] = ()) -> PydanticCustomError:
    """The error for a validator to raise: `problem` is "what: remedy", `at` leads from the model to the wrong field."""
    return PydanticCustomError(_WRONG, "{problem}", {"problem": problem, "at": tuple(at)})


def read_values(text: str, source: str) -> Any:
    """The plain value of a YAML (or JSON) text; None for an empty one.

    `yes`, `no` and dates are strings, as in YAML 1.2. Raises InputError for wrong syntax, a duplicate key, or a text
    that is too large.
    """
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise InputError(f"{source}: is larger than {MAX_BYTES >> 20} MiB: shorten it")
    try:
        value = yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader
        json.dumps(value)  # finds what JSON has no word for, and values that hold themselves
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}:" if error.problem_mark else ""
        raise InputError(f"{source}:{line} {error.problem or error}: correct the YAML") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{source}: is not usable YAML ({reason}): use plain mappings, lists and scalars") from error
    return value


def validated(model: type[_Model], values: Any, source: str, path: str = "") -> _Model:
    """The values as a model. `path` is where they stand in `source`. Raises InputError, a line for each wrong field."""
    try:
        return model.model_validate_json(json.dumps(values), by_alias=True, by_name=False)
    except ValidationError as error:
        raise InputError(*findings(error, model, source, path)) from error


def findings(error: ValidationError, model: type[BaseModel], source: str, path: str = "") -> list[str]:
    """One line for each wrong field: source, path in the file's spelling, what is wrong, what to do."""
    lines = []
    details = error.errors(include_url=False)
    above = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
    for detail in details:
        if detail["type"] == "too_short" and detail["loc"] in above:
            continue  # pydantic does not count the items that are wrong themselves
        location = (*detail["loc"], *detail.get("ctx", {}).get("at", ()))
        where = _spelled(location, path)
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
        return "is missing: add it"
    if kind == "extra_forbidden":
        return _unknown_field(str(detail["loc"][-1]), _model_at(model, detail["loc"][:-1]))
    shown = json.dumps(detail["input"], default=repr)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    wanted = _WANTED.get(kind)
    return f"is {shown}: {wanted.format(**context) if wanted else detail['msg'].lower()}"


def _unknown_field(name: str, model: type[BaseModel] | None) -> str:
    known = sorted(_fields(model)) if model else []
    near = get_close_matches(name, known, 1, 0.6)
    if near:
        return f"is no field: did you mean {near[0]}?"
    return f"is no field: use one of {', '.join(known)}" if known else "is no field: remove it"


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


class _Loader(yaml.CSafeLoader):
    """Refuses duplicate keys and swollen aliases; knows only JSON's scalars."""

    def get_single_node(self) -> yaml.Node | None:
        document = super().get_single_node()
        if document is not None:
            _refuse_swollen(document)
        return document

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key is no scalar", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} appears twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _refuse_swollen(document: yaml.Node) -> None:
    left, waiting = MAX_VALUES, [document]
    while waiting:
        node = waiting.pop()
        left -= 1
        if left < 0:
            raise yaml.YAMLError(f"more than {MAX_VALUES} values, aliases counted")
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            waiting.extend(child for pair in node.value for child in pair)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_BOOL, _TIMESTAMP)]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("^(?:true|false)$"), ["t", "f"])
