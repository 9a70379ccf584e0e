"""Reads YAML and JSON to plain values, with limits, and locates every mistake. Public, for plugins.

Unlike general loaders it rejects duplicate keys and recursive aliases; it limits size, nesting and the expansion of
aliases; and keys are always text (`on:`). The caller chooses how to read other scalars. JSON goes through the json
module, since YAML has no surrogate pairs and no long keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec
import yaml

from session_scheduler.config.yaml_scalars import PLAIN, Scalars
from session_scheduler.errors import plain, shown

__all__ = ["Limits", "Scalars", "YamlError", "read_value"]

_TAG = "tag:yaml.org,2002:"
_JSON_START = re.compile(rb"[ \t\r\n]*[{\[]")
_JSON_SPACE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Limits(msgspec.Struct, frozen=True):
    """Limits of the input."""

    bytes: int = 1 << 20
    """The size as UTF-8."""
    depth: int = 100
    """The nesting of mappings and sequences."""
    aliased: int = 100_000
    """The values that all aliases of a document expand to; 256 characters of text count as one."""


DEFAULT_LIMITS = Limits()


class YamlError(ValueError):
    """The text is not valid YAML or JSON, or exceeds a limit.

    `problem` is "problem; remedy"; `line` and `column` count from 1 and are None if unknown.
    """

    def __init__(self, problem: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(problem if line is None else f"line {line}, column {column}: {problem}")
        self.problem = problem
        self.line = line
        self.column = column


class NotJsonError(YamlError):
    """The input is not valid JSON; it may be YAML."""


def read_value(text: str | bytes, scalars: Scalars = "json", limits: Limits = DEFAULT_LIMITS) -> Any:
    """The value of a single YAML or JSON document; None for an empty one. Raises YamlError."""
    data = _encoded(text, limits)
    if _JSON_START.match(data):
        try:
            values = read_json(data, scalars, limits)
        except NotJsonError:
            values = []  # YAML's flow style also starts with a bracket
        if len(values) == 1:
            return values[0]
    with _loading(data, scalars, limits) as loader:
        return loader.get_single_data()


def read_documents(
    text: str | bytes, scalars: Scalars = "kubernetes", limits: Limits = DEFAULT_LIMITS
) -> Iterator[Any]:
    """The documents in YAML (or the values in JSON), in order; an empty one is None. Raises YamlError."""
    data = _encoded(text, limits)
    if _JSON_START.match(data):
        try:
            values = read_json(data, scalars, limits)
        except NotJsonError:
            pass
        else:
            yield from values
            return
    with _loading(data, scalars, limits) as loader:
        while loader.check_data():
            yield loader.get_data()


def read_json(text: str | bytes, scalars: Scalars = "json", limits: Limits = DEFAULT_LIMITS) -> list[Any]:
    """The values of a JSON text in order. Raises NotJsonError for a syntax error, else YamlError."""
    data = _encoded(text, limits)
    try:
        return _json_values(data, scalars, limits)
    except NotJsonError:
        raise
    except YamlError as error:
        raise _placed(error, data, scalars, limits) from None


def _encoded(text: str | bytes, limits: Limits) -> bytes:
    try:
        data = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        line = error.object.count("\n", 0, error.start) + 1
        column = error.start - error.object.rfind("\n", 0, error.start)
        raise YamlError("contains half a character (a lone surrogate); save it as UTF-8", line, column) from None
    if len(data) > limits.bytes:
        raise YamlError(f"is larger than {limits.bytes >> 20} MiB; split or shorten it")
    return data


# ------------------------------------------------------------------ errors of both formats


def _too_deep(limits: Limits) -> str:
    return f"is nested deeper than {limits.depth} levels; flatten it"


def _repeated(key: str) -> str:
    return f"key {shown(key)} appears twice in one mapping; remove one"


def _fail(event: yaml.Event | None, problem: str) -> NoReturn:
    mark = event.start_mark if event is not None else None
    raise YamlError(problem, mark.line + 1, mark.column + 1) if mark is not None else YamlError(problem)


# ------------------------------------------------------------------ JSON


def _json_values(data: bytes, scalars: Scalars, limits: Limits) -> list[Any]:
    values = []
    try:
        text = data.decode()
        decoder = _TEXT_DECODER if scalars == "text" else _DECODER
        at = _end_of_space(text, 0)
        while at < len(text):
            value, end = decoder.raw_decode(text, at)
            if (
                text.count("{", at, end) + text.count("[", at, end) > limits.depth
            ):  # fewer brackets cannot nest too deep
                _check_depth(value, limits.depth, limits)
            values.append(_bools_as_written(value) if scalars == "text" else value)
            at = _end_of_space(text, end)
    except YamlError:
        raise
    except json.JSONDecodeError as error:
        raise NotJsonError(f"is not valid JSON: {error.msg}; correct it", error.lineno, error.colno) from None
    except ValueError as error:  # the encoding, a constant, or a number with too many digits
        raise NotJsonError(f"is not valid JSON: {error}; correct it") from None
    except RecursionError:
        raise YamlError(_too_deep(limits)) from None
    if _SURROGATE.search(data):
        _check_surrogates(values)
    return values


def _end_of_space(text: str, at: int) -> int:
    space = _JSON_SPACE.match(text, at)
    return space.end() if space else at


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise YamlError(_repeated(key))
            seen.add(key)
    return values


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"expected a JSON number, got {text}")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
_TEXT_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=str, parse_float=str)


def _check_depth(value: Any, depth: int, limits: Limits) -> None:
    if isinstance(value, dict | list):
        if not depth:
            raise YamlError(_too_deep(limits))
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, dict | list):
                _check_depth(item, depth - 1, limits)


def _bools_as_written(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bools_as_written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_bools_as_written(item) for item in value]
    return value if not isinstance(value, bool) else "true" if value else "false"


def _check_surrogates(values: list[Any]) -> None:
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise YamlError("contains half a character (a lone surrogate); write the whole character") from None


def _placed(error: YamlError, data: bytes, scalars: Scalars, limits: Limits) -> YamlError:
    """The error with line and column: YAML's events have them, the json module does not."""
    try:
        with _loading(data, scalars, limits) as loader:
            while loader.check_data():
                loader.get_data()
    except YamlError as found:
        if found.problem == error.problem:
            return found
    return error


# ------------------------------------------------------------------ YAML


class BoundedLoader(yaml.CSafeLoader):
    """PyYAML's C loader that builds documents from the parser's events.

    A subclass of the C composer cannot reject an alias or a size. Building from events also takes only a third of the
    time that PyYAML's constructor takes.
    """

    def __init__(self, stream: bytes, scalars: Scalars = "kubernetes", limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(stream)
        self._plain = PLAIN[scalars]
        self._limits = limits
        self._anchors: dict[str, tuple[Any, int] | None] = {}
        """By anchor the value and its size; None until the value is complete."""
        self._size = 0
        """The number of values so far, with aliases expanded."""
        self._aliased = 0

    def check_data(self) -> bool:
        """Whether another document follows."""
        if self.check_event(yaml.StreamStartEvent):
            self.get_event()
        return not self.check_event(yaml.StreamEndEvent)

    def get_data(self) -> Any:
        """The next document's value."""
        self.get_event()
        self._anchors = {}
        self._size = self._aliased = 0
        value = self._value(self.get_event(), 0)
        self.get_event()
        return value

    def get_single_data(self) -> Any:
        """The only document's value; None for empty input."""
        value = self.get_data() if self.check_data() else None
        if self.check_data():
            _fail(self.peek_event(), "contains a second document; keep only one")
        return value

    def _value(self, event: Any, depth: int, is_key: bool = False) -> Any:
        """The value that starts with this event, at nesting `depth`; a key is always text."""
        if isinstance(event, yaml.ScalarEvent):  # the most frequent first
            value: Any = event.value
            size = 1 + (len(event.value) >> 8)
            self._size += size
            if event.tag is not None:
                value = self._tagged(event, is_key)
            elif event.implicit[0] and not is_key:
                value = self._plain(value)
        elif isinstance(event, yaml.AliasEvent):
            return self._expanded(event)
        else:
            before = self._size
            value = self._collection(event, depth)
            size = self._size - before
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, size)
        return value

    def _tagged(self, event: yaml.ScalarEvent, is_key: bool) -> object:
        name = (event.tag or "").removeprefix(_TAG)
        if name not in ("!", "str", "binary", "int", "float", "bool", "null"):
            _unsupported(event)
        return event.value if is_key or name in ("!", "str", "binary") else self._plain(event.value)

    def _expanded(self, event: yaml.AliasEvent) -> Any:
        if event.anchor not in self._anchors:
            _fail(event, f"the alias *{plain(event.anchor or '')} is not defined above it; correct its name")
        anchored = self._anchors[event.anchor]
        if anchored is None:
            _fail(
                event, f"the alias *{plain(event.anchor or '')} refers to a value that contains it; write the value out"
            )
        value, size = anchored
        self._aliased += size
        if self._aliased > self._limits.aliased:
            _fail(event, f"aliases expand to more than {self._limits.aliased} values; use fewer")
        self._size += size
        return value

    def _collection(self, event: yaml.CollectionStartEvent, depth: int) -> Any:
        if depth >= self._limits.depth:
            _fail(event, _too_deep(self._limits))
        is_map = isinstance(event, yaml.MappingStartEvent)
        if event.tag is not None and event.tag not in ("!", _TAG + ("map" if is_map else "seq")):
            _unsupported(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._size += 1
        if is_map:
            return self._mapping(depth + 1)
        items = []
        while not isinstance(item := self.get_event(), yaml.SequenceEndEvent):
            items.append(self._value(item, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: list[dict[str, Any]] = []
        while not isinstance(event := self.get_event(), yaml.MappingEndEvent):
            key = self._value(event, depth, is_key=True)
            if not isinstance(key, str):
                _fail(event, "expected a string as the key; quote it")
            if key in values:
                _fail(event, _repeated(key))
            begin = self.get_event()
            value = self._value(begin, depth)
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:  # "<<" is a key
                parts = value if isinstance(value, list) else [value]
                if not all(isinstance(part, dict) for part in parts):
                    _fail(begin, "<< expects a mapping or a list of mappings; use an alias of one")
                merged += parts
            else:
                values[key] = value
        for part in merged:
            for key, value in part.items():
                values.setdefault(key, value)
        return values


def _unsupported(event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> NoReturn:
    _fail(event, f"tag {plain(event.tag or '')} is not supported; remove it")


@contextmanager
def _loading(data: bytes, scalars: Scalars, limits: Limits) -> Iterator[BoundedLoader]:
    """A loader of the text; its errors are raised as YamlError."""
    loader = BoundedLoader(data, scalars, limits)
    try:
        yield loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problem = f"is not valid YAML: {error.problem or error.context}; correct it"
        raise (YamlError(problem, mark.line + 1, mark.column + 1) if mark is not None else YamlError(problem)) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise YamlError(f"is not valid YAML: {' '.join(str(error).split())}; correct it") from None
    finally:
        loader.dispose()
