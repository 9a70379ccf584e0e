"""YAML and JSON as plain values, with the mistakes refused that loaders let through.

Duplicate keys, tags, several documents, deep nesting, large files and alias bombs are errors. Scalars are resolved as
YAML 1.2 does it (`no` is a word, not false), or kept as the text that was written.
"""

import json
import sys
from collections.abc import Hashable
from typing import Any, Literal, NoReturn

import yaml

from fluence_plugins.fluence.errors import DocumentError

MAX_BYTES = 1 << 20
MAX_NODES = 200_000
MAX_DEPTH = 64

Scalars = Literal["text", "typed"]
_TAG = "tag:yaml.org,2002:"
_KINDS = {"map", "seq", "str", "null", "bool", "int", "float", "timestamp", "merge", "value"}


def load(text: str, source: str, scalars: Scalars = "typed", limited: bool = True) -> Any:
    """Return the value of a YAML or JSON text; None for an empty one.

    `scalars="text"` keeps every scalar but null as it was written (`80` is "80", `1.10` is "1.10"); `limited=False`
    is for texts of our own making, however large. Raises DocumentError with `source` and the line.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise DocumentError(f"{source}: holds half a character (a lone surrogate); save it as UTF-8") from None
    if limited and size > MAX_BYTES:
        raise DocumentError(f"{source}: is larger than {MAX_BYTES >> 20} MiB; split or shorten it")
    if text.lstrip().startswith("{"):
        try:
            return _from_json(text, source, scalars)
        except ValueError:
            pass  # flow-style YAML also starts with a brace
        except RecursionError:
            raise DocumentError(f"{source}: is nested deeper than {MAX_DEPTH} levels; flatten it") from None
    return _from_yaml(text, source, scalars, limited)


def dump_yaml(value: Any) -> str:
    """Render a plain value as block-style YAML that `load` reads back to an equal value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=100)


class _Dumper(yaml.SafeDumper):
    """Writes a value out each time it occurs; readers need not know aliases."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _from_json(text: str, source: str, scalars: Scalars) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise DocumentError(f"{source}: key {key!r} appears twice in one object; remove one")
            found[key] = value
        return found

    if scalars == "typed":
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=str)
    else:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=str, parse_int=str, parse_float=str)
    return _checked(value, source, scalars, MAX_DEPTH)


def _checked(value: Any, source: str, scalars: Scalars, depth: int) -> Any:
    if isinstance(value, list | dict) and not depth:
        raise DocumentError(f"{source}: is nested deeper than {MAX_DEPTH} levels; flatten it")
    if isinstance(value, bool) and scalars == "text":
        return "true" if value else "false"
    if isinstance(value, list):
        return [_checked(item, source, scalars, depth - 1) for item in value]
    if isinstance(value, dict):
        return {key: _checked(item, source, scalars, depth - 1) for key, item in value.items()}
    return value


def _from_yaml(text: str, source: str, scalars: Scalars, limited: bool) -> Any:
    try:
        _check_depth(text, source)
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = source if mark is None else f"{source}:{mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise DocumentError(f"{where}: is not valid YAML: {problem}") from None
    return None if root is None else _Reader(source, scalars, limited).value(root)


def _check_depth(text: str, source: str) -> None:
    """Walk the events, which needs no stack, before anything recursive sees the text."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise DocumentError(f"{source}: is nested deeper than {MAX_DEPTH} levels; flatten it")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Reader:
    """Turns composed nodes into values, counting them as often as aliases repeat them."""

    def __init__(self, source: str, scalars: Scalars, limited: bool) -> None:
        self.limit = MAX_NODES if limited else sys.maxsize
        self.source = source
        self.scalars = scalars
        self.seen = 0
        self.open: set[int] = set()

    def fail(self, node: yaml.Node, problem: str) -> NoReturn:
        raise DocumentError(f"{self.source}:{node.start_mark.line + 1}: {problem}")

    def value(self, node: yaml.Node) -> Any:
        self.seen += 1
        if self.seen > self.limit:
            self.fail(node, f"holds more than {self.limit} values once its aliases are expanded; use fewer")
        if node.tag.removeprefix(_TAG) not in _KINDS:
            self.fail(node, f"tag {node.tag} is not supported; remove it")
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if id(node) in self.open:
            self.fail(node, "an alias refers to what contains it; write it out")
        self.open.add(id(node))
        found = self.mapping(node) if isinstance(node, yaml.MappingNode) else [self.value(item) for item in node.value]
        self.open.discard(id(node))
        return found

    def mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.fail(key_node, "a key must be a plain word; quote it")
            key = str(key_node.value)
            if key in found:
                self.fail(key_node, f"key {key!r} appears twice in one mapping; remove one")
            found[key] = self.value(value_node)
        return found

    def scalar(self, node: yaml.ScalarNode) -> Hashable:
        text = str(node.value)
        tag = node.tag.removeprefix(_TAG)
        if tag == "null":
            return None
        return text if self.scalars == "text" else _typed(tag, text)


def _typed(tag: str, text: str) -> Hashable:
    if tag == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if tag == "int":
            return int(text, 0) if text.startswith("0x") else int(text)
        if tag == "float":
            return float(text)
    except ValueError:
        return text  # YAML 1.1 spellings such as 1:30 and .inf are words in YAML 1.2 or of no use here
    return text
