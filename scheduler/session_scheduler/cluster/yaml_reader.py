"""YAML as Kubernetes means it, read event by event into plain values.

Unlike a general loader: duplicate keys are refused; nesting and what aliases expand to are bounded; timestamps stay
text; keys are text whatever they look like (`on:`). Built from events because that costs a third of PyYAML's own
constructor and cannot exhaust the stack.
Source: YAML 1.1, as sigs.k8s.io/yaml reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

MAX_DEPTH = 100
MAX_ALIASED = 1_000_000
"""How many values all aliases of a document may expand to."""

_INT = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*|0)")
_FLOAT = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.[\d_]*\d)(?:[eE][-+]?\d+)?")
_SPECIAL: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}
_NUMBER_STARTS = frozenset("0123456789+-.")
_TAGS = {"tag:yaml.org,2002:" + name: name for name in ("str", "int", "float", "bool", "null", "seq", "map", "binary")}


class YamlError(ValueError):
    """A text that is no YAML, or more of it than is read; says the line and column, counted from 1."""


def _at(event: yaml.Event) -> str:
    mark = event.start_mark
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "an unknown place"


def _number(text: str) -> object:
    digits = text.replace("_", "")
    try:
        if _INT.fullmatch(text):
            unsigned = digits.lstrip("+-")
            octal = len(unsigned) > 1 and unsigned[0] == "0" and unsigned[1].isdigit()
            return int(digits, 8) if octal else int(digits, 0)
        return float(digits) if _FLOAT.fullmatch(text) else text
    except ValueError:  # as 0x_, or more digits than Python converts
        return text


def _plain(text: str) -> object:
    """The value of a scalar without quotes."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    return _number(text) if text[0] in _NUMBER_STARTS else text


def _scalar(event: yaml.ScalarEvent) -> object:
    if event.tag is None or event.tag == "!":
        return _plain(event.value) if event.implicit[0] and event.tag is None else event.value
    name = _TAGS.get(event.tag)
    if name is None or name in ("seq", "map"):
        raise YamlError(f"{_at(event)}: the tag {event.tag} is not supported: leave it out")
    return event.value if name in ("str", "binary") else _plain(event.value)


class _Frame:
    """A mapping or sequence under construction. `size` counts the values in it, aliases expanded."""

    __slots__ = ("anchor", "items", "key", "keyed", "map", "merge", "merging", "size")

    def __init__(self, mapping: bool, anchor: str | None) -> None:
        self.map: dict[str, Any] | None = {} if mapping else None
        self.items: list[Any] = []
        self.anchor = anchor
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
            self._take_key(value, event)
        else:
            self.keyed = False
            if self.merging:
                self._take_merge(value, event)
            else:
                self.map[self.key] = value

    def _take_key(self, value: Any, event: yaml.Event) -> None:
        if not isinstance(value, str):
            raise YamlError(f"{_at(event)}: a key must be text")
        if self.map is not None and value in self.map:
            raise YamlError(f"{_at(event)}: the key {value!r} is there twice: remove one")
        self.key = value
        self.keyed = True
        self.merging = value == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]  # "<<" is a key

    def _take_merge(self, value: Any, event: yaml.Event) -> None:
        merged = value if isinstance(value, list) else [value]
        if not all(isinstance(part, dict) for part in merged):
            raise YamlError(f"{_at(event)}: << takes a mapping or a list of mappings")
        self.merge.extend(merged)


class _Document:
    """Builds one document's value from its events."""

    def __init__(self) -> None:
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._aliased = 0
        self.root: Any = None

    def scalar(self, event: yaml.ScalarEvent) -> None:
        top = self._stack[-1] if self._stack else None
        as_key = top is not None and top.map is not None and not top.keyed
        value = event.value if as_key else _scalar(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, 1)
        self._put(value, event, 1)

    def alias(self, event: yaml.AliasEvent) -> None:
        if event.anchor not in self._anchors:
            raise YamlError(f"{_at(event)}: the alias *{event.anchor} names nothing that is complete above it")
        value, size = self._anchors[event.anchor]
        self._aliased += size
        if self._aliased > MAX_ALIASED:
            raise YamlError(f"{_at(event)}: aliases expand to more than {MAX_ALIASED} values: write fewer of them")
        self._put(value, event, size)

    def start(self, event: yaml.CollectionStartEvent) -> None:
        if len(self._stack) >= MAX_DEPTH:
            raise YamlError(f"{_at(event)}: nested deeper than {MAX_DEPTH} levels")
        self._stack.append(_Frame(isinstance(event, yaml.MappingStartEvent), event.anchor))

    def end(self, event: yaml.CollectionEndEvent) -> None:
        frame = self._stack.pop()
        value = frame.value()
        if frame.anchor is not None:
            self._anchors[frame.anchor] = (value, frame.size)
        self._put(value, event, frame.size)

    def _put(self, value: Any, event: yaml.Event, size: int) -> None:
        if self._stack:
            self._stack[-1].add(value, event, size)
        else:
            self.root = value


def _events(text: bytes) -> Iterator[yaml.Event]:
    loader = yaml.CSafeLoader(text)
    try:
        while True:
            event = loader.get_event()
            if event is None or isinstance(event, yaml.StreamEndEvent):
                return
            yield event
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise YamlError(f"{where}{error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise YamlError(str(error)) from None
    finally:
        loader.dispose()


def read_yaml(text: bytes) -> Iterator[Any]:
    """The documents of a YAML text, one after the other; an empty document is None. Raises YamlError."""
    document = _Document()
    for event in _events(text):
        if isinstance(event, yaml.ScalarEvent):
            document.scalar(event)
        elif isinstance(event, yaml.CollectionStartEvent):
            document.start(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            document.end(event)
        elif isinstance(event, yaml.AliasEvent):
            document.alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            document = _Document()
        elif isinstance(event, yaml.DocumentEndEvent):
            yield document.root
