"""YAML and JSON texts as plain values, bounded, with every mistake placed. A public name for plugins.

Unlike general loaders: duplicate keys and self-referring aliases are refused; size, nesting and what aliases expand to
are bounded; keys are text whatever they look like (`on:`). The caller says how other scalars are read. Built from
events, because that costs a third of PyYAML's own constructor and cannot exhaust the stack. A text that is JSON goes
through the json module: YAML has no surrogate pairs and no long keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from session_scheduler.config.yaml_scalars import PLAIN, Scalars
from session_scheduler.errors import plain, shown

__all__ = ["Limits", "Scalars", "YamlError", "read_value"]

_TAG = "tag:yaml.org,2002:"
_JSON_START = re.compile(rb"[ \t\r\n]*[{\[]")
_JSON_SPACE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a text may hold."""

    bytes: int = 1 << 20
    """Its size as UTF-8."""
    depth: int = 100
    """How many mappings and sequences may lie in one another."""
    aliased: int = 100_000
    """How many values all aliases of a document may expand to; 256 characters of a text count as one."""


DEFAULT_LIMITS = Limits()


class YamlError(ValueError):
    """A text that is no YAML or JSON, or not what is read of it.

    `problem` is "what: remedy"; `line` and `column` count from 1 and are None where no place is known.
    """

    def __init__(self, problem: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(problem if line is None else f"line {line}, column {column}: {problem}")
        self.problem = problem
        self.line = line
        self.column = column


class NotJsonError(YamlError):
    """A text breaks the syntax of JSON; it may be YAML."""


def read_value(text: str | bytes, scalars: Scalars = "json", limits: Limits = DEFAULT_LIMITS) -> Any:
    """The value of a YAML or JSON text of one document; None for an empty one. Raises YamlError."""
    data = _encoded(text, limits)
    if _JSON_START.match(data):
        try:
            values = read_json(data, scalars, limits)
        except NotJsonError:
            values = []  # YAML's flow style also starts with a bracket
        if len(values) == 1:
            return values[0]
    documents = list(_yaml_documents(data, scalars, limits, single=True))
    return documents[0] if documents else None


def read_documents(
    text: str | bytes, scalars: Scalars = "kubernetes", limits: Limits = DEFAULT_LIMITS
) -> Iterator[Any]:
    """The documents of a YAML text (or the values of a JSON text) in order; an empty one is None. Raises YamlError."""
    data = _encoded(text, limits)
    if _JSON_START.match(data):
        try:
            values = read_json(data, scalars, limits)
        except NotJsonError:
            pass
        else:
            yield from values
            return
    yield from _yaml_documents(data, scalars, limits)


def read_json(text: str | bytes, scalars: Scalars = "json", limits: Limits = DEFAULT_LIMITS) -> list[Any]:
    """The values of a JSON text, one after the other. Raises NotJsonError for its syntax, else YamlError."""
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
        raise YamlError("holds half a character (a lone surrogate): save it as UTF-8", line, column) from None
    if len(data) > limits.bytes:
        raise YamlError(f"is larger than {limits.bytes >> 20} MiB: split or shorten it")
    return data


# ------------------------------------------------------------------ problems that both formats have


def _too_deep(limits: Limits) -> str:
    return f"is nested deeper than {limits.depth} levels: flatten it"


def _repeated(key: str) -> str:
    return f"key {shown(key)} appears twice in one mapping: remove one"


def _fail(event: yaml.Event, problem: str) -> NoReturn:
    mark = event.start_mark
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
            if text.count("{", at, end) + text.count("[", at, end) > limits.depth:  # else it cannot be too deep
                _check_depth(value, limits.depth, limits)
            values.append(_bools_as_written(value) if scalars == "text" else value)
            at = _end_of_space(text, end)
    except YamlError:
        raise
    except json.JSONDecodeError as error:
        raise NotJsonError(f"is not JSON: {error.msg}: correct it", error.lineno, error.colno) from None
    except ValueError as error:  # an encoding, a constant, a number of too many digits
        raise NotJsonError(f"is not JSON: {error}: correct it") from None
    except RecursionError:
        raise YamlError(_too_deep(limits)) from None
    if _SURROGATE.search(data):
        _refuse_half_characters(values)
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
    raise ValueError(f"{text} is no JSON number")


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


def _refuse_half_characters(values: list[Any]) -> None:
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise YamlError("holds half a character (a lone surrogate): write the whole character") from None


def _placed(error: YamlError, data: bytes, scalars: Scalars, limits: Limits) -> YamlError:
    """The error with its place, which YAML's events have and the json module has not."""
    try:
        for _ in _yaml_documents(data, scalars, limits):
            pass
    except YamlError as found:
        if found.problem == error.problem:
            return found
    return error


# ------------------------------------------------------------------ YAML


class _Frame:
    """A mapping or sequence under construction. `size` counts the values in it, aliases expanded."""

    __slots__ = ("items", "key", "keyed", "map", "merge", "merging", "size", "start")

    def __init__(self, start: yaml.CollectionStartEvent) -> None:
        self.map: dict[str, Any] | None = {} if isinstance(start, yaml.MappingStartEvent) else None
        self.items: list[Any] = []
        self.start = start
        self.keyed = False
        self.key = ""
        self.merge: list[dict[str, Any]] = []
        self.merging = False
        self.size = 1

    def value(self) -> Any:
        if self.map is None:
            return self.items
        for merged in self.merge:
            for key, value in merged.items():
                self.map.setdefault(key, value)
        return self.map

    def add(self, value: Any, event: yaml.Event, size: int) -> None:
        self.size += size
        if self.map is None:
            self.items.append(value)
        elif not self.keyed:
            self._start_key(value, event)
        else:
            self.keyed = False
            if self.merging:
                self._add_merge(value, event)
            else:
                self.map[self.key] = value

    def _start_key(self, value: Any, event: yaml.Event) -> None:
        if not isinstance(value, str):
            _fail(event, "a key must be a plain word: quote it")
        if self.map is not None and value in self.map:
            _fail(event, _repeated(value))
        self.key = value
        self.keyed = True
        self.merging = value == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]  # "<<" is a key

    def _add_merge(self, value: Any, event: yaml.Event) -> None:
        merged = value if isinstance(value, list) else [value]
        if not all(isinstance(part, dict) for part in merged):
            _fail(event, "<< takes a mapping or a list of mappings: name one by its alias")
        self.merge.extend(merged)


class _Document:
    """Builds one document's value from its events."""

    def __init__(self, plain: Callable[[str], object], limits: Limits) -> None:
        self._plain = plain
        self._limits = limits
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int] | None] = {}  # None: begun, not yet complete
        self._aliased = 0
        self.root: Any = None

    def scalar(self, event: yaml.ScalarEvent) -> None:
        top = self._stack[-1] if self._stack else None
        as_key = top is not None and top.map is not None and not top.keyed
        if event.tag is not None:
            value = self._tagged(event, as_key)
        else:
            value = event.value if as_key or not event.implicit[0] else self._plain(event.value)
        size = 1 + (len(event.value) >> 8)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, size)
        if top is None:
            self.root = value
        else:
            top.add(value, event, size)

    def _tagged(self, event: yaml.ScalarEvent, as_key: bool) -> object:
        name = (event.tag or "").removeprefix(_TAG)
        if name not in ("!", "str", "binary", "int", "float", "bool", "null"):
            _unsupported(event)
        return event.value if as_key or name in ("!", "str", "binary") else self._plain(event.value)

    def alias(self, event: yaml.AliasEvent) -> None:
        if event.anchor not in self._anchors:
            _fail(event, f"the alias *{plain(event.anchor or '')} names nothing above it: correct its name")
        anchored = self._anchors[event.anchor]
        if anchored is None:
            _fail(event, f"the alias *{plain(event.anchor or '')} refers to what contains it: write it out")
        value, size = anchored
        self._aliased += size
        if self._aliased > self._limits.aliased:
            _fail(event, f"aliases expand to more than {self._limits.aliased} values: use fewer")
        self._put(value, event, size)

    def start(self, event: yaml.CollectionStartEvent) -> None:
        if len(self._stack) >= self._limits.depth:
            _fail(event, _too_deep(self._limits))
        frame = _Frame(event)
        if event.tag is not None and event.tag not in ("!", _TAG + ("seq" if frame.map is None else "map")):
            _unsupported(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._stack.append(frame)

    def end(self) -> None:
        frame = self._stack.pop()
        value = frame.value()
        if frame.start.anchor is not None:
            self._anchors[frame.start.anchor] = (value, frame.size)
        self._put(value, frame.start, frame.size)

    def _put(self, value: Any, event: yaml.Event, size: int) -> None:
        if self._stack:
            self._stack[-1].add(value, event, size)
        else:
            self.root = value


def _unsupported(event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> NoReturn:
    _fail(event, f"tag {plain(event.tag or '')} is not supported: remove it")


def _events(data: bytes) -> Iterator[yaml.Event]:
    loader = yaml.CSafeLoader(data)
    try:
        while True:
            event = loader.get_event()
            if event is None or isinstance(event, yaml.StreamEndEvent):
                return
            yield event
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problem = f"is not valid YAML: {error.problem or error.context}: correct it"
        raise (YamlError(problem, mark.line + 1, mark.column + 1) if mark is not None else YamlError(problem)) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise YamlError(f"is not valid YAML: {' '.join(str(error).split())}: correct it") from None
    finally:
        loader.dispose()


def _yaml_documents(data: bytes, scalars: Scalars, limits: Limits, single: bool = False) -> Iterator[Any]:
    document = _Document(PLAIN[scalars], limits)
    begun = 0
    for event in _events(data):
        if isinstance(event, yaml.ScalarEvent):  # the commonest first
            document.scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            document.start(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            document.end()
        elif isinstance(event, yaml.AliasEvent):
            document.alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            begun += 1
            if single and begun > 1:
                _fail(event, "a second document begins: keep one")
            document = _Document(PLAIN[scalars], limits)
        elif isinstance(event, yaml.DocumentEndEvent):
            yield document.root
