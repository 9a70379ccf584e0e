"""Field validation of manifests: unknown fields, wrong types and misspelt kinds and values, as the API server
reports them.

`api_fields.json` has the fields and types of each kind. `python -m tests.tools.api_fields` generates it from an API
server's OpenAPI document and the CustomResourceDefinitions of deploy/. A type in it is a scalar, the name of an entry
in `types`, `[]TYPE` for a list or `{}TYPE` for a mapping.
Source: fieldValidation of the Kubernetes API, and the decoders of k8s.io/apimachinery (Quantity, IntOrString, Time).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from session_scheduler.model.field_checks import FieldError, check_time
from session_scheduler.model.quantity import QuantityError, thousandths
from session_scheduler.model.type_errors import child, mismatch

FILE: Final = Path(__file__).with_name("api_fields.json")
_MOST_NAMED: Final = 12
"""The maximum number of fields that a message lists."""
_MOST_LEVELS: Final = 3
"""How many levels too high a field may be written for a message to name its place."""
_MOST_REMEMBERED: Final = 4096
"""The maximum number of valid fields to remember."""
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_INT32, _INT64 = 2**31, 2**63
_ACCESS_MODES: Final = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
_PREEMPTION_POLICIES: Final = ("PreemptLowerPriority", "Never")
_VOLUME_MODES: Final = ("Filesystem", "Block")
_VALUES: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("core.v1.PersistentVolumeClaimSpec", "accessModes"): _ACCESS_MODES,
    ("core.v1.PersistentVolumeClaimSpec", "volumeMode"): _VOLUME_MODES,
    ("core.v1.PersistentVolumeSpec", "accessModes"): _ACCESS_MODES,
    ("core.v1.PersistentVolumeSpec", "volumeMode"): _VOLUME_MODES,
    ("core.v1.PodSpec", "preemptionPolicy"): _PREEMPTION_POLICIES,
    ("core.v1.PodSpec", "restartPolicy"): ("Always", "OnFailure", "Never"),
    ("scheduling.v1.PriorityClass", "preemptionPolicy"): _PREEMPTION_POLICIES,
    ("storage.v1.StorageClass", "volumeBindingMode"): ("Immediate", "WaitForFirstConsumer"),
}
"""The values of enumerations, by type and field. `object_checks` has those that are invalid in any object."""


@cache
def api_fields() -> ApiFields:
    """The table that the package ships."""
    return ApiFields(json.loads(FILE.read_text(encoding="utf-8")))


class ApiFields:
    """The kinds of an API server, and the fields of those that commands read."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._kinds: Mapping[str, Mapping[str, str]] = table["kinds"]
        """The type of each kind by apiVersion; empty for a kind that no command reads."""
        self._types: Mapping[str, Mapping[str, str]] = table["types"]
        self._valid: set[tuple[str, str, bytes]] = set()
        """Fields without a problem: the type of their kind, their name and their JSON."""

    def nearest_kind(self, api_version: str, kind: str) -> str:
        """What is meant by a misspelt kind: KIND, or "KIND of APIVERSION". Empty for others, such as custom kinds."""
        known = self._kinds.get(api_version, {})
        if not known or kind in known:
            return ""
        elsewhere = {name: version for version, names in self._kinds.items() for name in names}
        near = [] if kind in elsewhere else get_close_matches(kind, known, 1, 0.6)
        far = [] if kind in elsewhere or near else get_close_matches(kind, elsewhere, 1, 0.8)
        return "".join([*near, *(f"{name} of {elsewhere[name]}" for name in far)])

    def is_valid(self, api_version: str, kind: str, text: bytes) -> bool:
        """Whether the JSON of an object has no `problems`. Equal fields of many objects are validated once."""
        type_ = self._kinds.get(api_version, {}).get(kind, "")
        try:
            for name, part in _fields.decode(text).items():
                field = (type_, name, bytes(part))
                if field in self._valid:
                    continue
                if any(True for _ in self.problems(api_version, kind, {name: msgspec.json.decode(part)})):
                    return False
                if name != "metadata":  # no other object has the same
                    self._remember(field)
        except msgspec.DecodeError:  # such as a number with more than 64 bits
            return False
        return True

    def _remember(self, field: tuple[str, str, bytes]) -> None:
        if len(self._valid) >= _MOST_REMEMBERED:
            self._valid.clear()
        self._valid.add(field)

    def problems(self, api_version: str, kind: str, tree: object) -> Iterator[tuple[str, str]]:
        """(field, problem and remedy) for each unknown field, wrong type and misspelt value. Nulls count as absent."""
        type_ = self._kinds.get(api_version, {}).get(kind)
        if type_:
            yield from self._problems(tree, type_, "", ())

    def _problems(
        self, value: Any, expected: str, path: str, parents: tuple[tuple[str, str], ...]
    ) -> Iterator[tuple[str, str]]:
        """`parents` has the type and the path of each mapping around the value."""
        if value is None or expected == "any":
            return
        fields = self._types.get(expected)
        if fields is not None and isinstance(value, dict):
            around = (*parents, (expected, path))
            for name, inner in value.items():
                if name in fields:
                    yield from self._problems(inner, fields[name], child(path, name), around)
                    if isinstance(inner, list) == fields[name].startswith("[]"):  # else its type is wrong
                        yield from _wrong_values(inner, _VALUES.get((expected, name), ()), child(path, name))
                elif inner is not None:
                    yield child(path, name), self._unknown(name, path, fields, parents)
        elif expected.startswith("[]") and isinstance(value, list):
            for number, inner in enumerate(value):
                yield from self._problems(inner, expected[2:], f"{path}[{number}]", parents)
        elif expected.startswith("{}") and isinstance(value, dict):
            for name, inner in value.items():
                yield from self._problems(inner, expected[2:], child(path, name), parents)
        elif problem := _text_problem(value, expected):
            yield path, problem
        elif not _fits(value, expected):
            yield path, mismatch(self._shape(expected), value)

    def _below(self, name: str, path: str, fields: Mapping[str, str]) -> str:
        """The path of the mapping below `path` that may have the field; empty for none, or for several as deep."""
        level = {path: fields}
        for _ in range(_MOST_LEVELS):
            level = {
                child(above, field): self._types[type_]
                for above, known in level.items()
                for field, type_ in known.items()
                if type_ in self._types
            }
            if found := [where for where, known in level.items() if name in known]:
                return found[0] if len(found) == 1 else ""
        return ""

    def _shape(self, expected: str) -> str:
        """The type without names of types."""
        if expected.startswith("[]"):
            inner = self._shape(expected[2:])
            return f"[]{inner}" if inner in ("string", "object") else "array"
        return "object" if expected.startswith("{}") or expected in self._types else expected

    def _unknown(self, name: str, path: str, fields: Mapping[str, str], parents: tuple[tuple[str, str], ...]) -> str:
        for type_, above in reversed(parents):
            if name in self._types[type_]:
                return f"unknown field: {name} is a field of {above or 'the object'}, so indent it less"
        if below := self._below(name, path, fields):
            return f"unknown field: {name} is a field of {below}, so indent it more"
        if near := get_close_matches(name, fields, 1, 0.6):
            return f"unknown field; did you mean {near[0]}?"
        if len(fields) > _MOST_NAMED:
            return "unknown field; correct its name, or remove it"
        return f"unknown field; use one of {', '.join(sorted(fields))}" if fields else "unknown field; remove it"


def _wrong_values(value: object, allowed: tuple[str, ...], path: str) -> Iterator[tuple[str, str]]:
    """(field, problem and remedy) for each string that is not allowed; if no strings are listed, all are allowed."""
    found = enumerate(value) if isinstance(value, list) else [(None, value)]
    for number, text in found if allowed else ():
        if isinstance(text, str) and text and text not in allowed:
            near = get_close_matches(text, allowed, 1, 0.6)
            remedy = f"did you mean {near[0]}?" if near else f"use {' or '.join(allowed)}"
            yield path if number is None else f"{path}[{number}]", f"{text!r} is not a valid value; {remedy}"


def _text_problem(value: object, expected: str) -> str:
    """What is wrong with a string that stands for a time or a quantity; empty for other values and types."""
    try:
        if expected == "time" and isinstance(value, str):
            check_time(value, "")
        if expected == "quantity" and isinstance(value, str):
            thousandths(value)
    except FieldError as error:
        return error.problem
    except QuantityError as error:
        return str(error)
    return ""


def _fits(value: object, expected: str) -> bool:
    """Whether the API server decodes a JSON value as this scalar type."""
    if isinstance(value, bool):
        return expected == "boolean"
    if isinstance(value, str):
        return expected in ("string", "quantity", "time", "int-or-string")
    if isinstance(value, int | float):
        size = {"int32": _INT32, "int-or-string": _INT32, "int64": _INT64}.get(expected)
        if size is not None:
            return -size <= value < size and value == int(value)
        return expected in ("quantity", "number")
    return False
