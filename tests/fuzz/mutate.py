"""Mutations that keep a document well formed: a random byte mostly fails in the parser and tests nothing beyond it."""

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

# ruff: noqa: E501 - tables

JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**31, 2**32 - 1, 2**32, 2**53, 2**61, 2**62, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), "", "x", "0", "1", "-1", "0-1", "0-4294967295", "3-1", "node[0-1]", "[", "a[0-9][0-9]", "^a", "a|b",
    "core", "gpu", "node", "slot", "socket", "memory", "licence", "cluster", "rack", "/cluster0", "/cluster0/node0",
    "/cluster0/node0/socket0/core0", "/", "//", "containment", "+", "*", "^", "true", "false", "\udcff", "\x00", "ƒ", "é",
    [], {}, [[]], [{}], {"": ""}, [0], ["a"], {"min": 1}, {"min": 1, "max": 4, "operator": "*", "operand": 2},
    {"properties": ["a"]}, {"hostlist": ["node1"]}, {"ranks": ["0"]}, {"and": []}, {"or": []}, {"not": [{}]},
)  # fmt: skip
KEYS = (
    "graph", "nodes", "edges", "id", "metadata", "type", "paths", "containment", "rank", "size", "status", "divisible", "properties",
    "exclusive", "unit", "name", "basename", "uniq_id", "source", "target", "subsystem", "version", "resources", "tasks",
    "attributes", "system", "duration", "constraints", "with", "count", "label", "min", "max", "operator", "operand", "command", "slot",
    "execution", "R_lite", "children", "core", "starttime", "expiration", "nodelist", "scheduling", "hostlist", "ranks", "and", "or",
    "not", "queue", "user", "perf_class",
)  # fmt: skip
WORDS = (
    "policy=low", "policy=high", "node_centric=true", "node_exclusive=true", "stop_on_1_matches=true", "false", "first", "locality",
    "variation", "ALL:core", "node:memory", "cluster:gpu", ",", ":", "\n", " ", "status=up", "status=down", "sched-now=free",
    "sched-now=allocated", "sched-future=reserved", "jobid-alloc=1", "jobid-span=2", "jobid-tag=ƒ2", "jobid-reserved=0x2",
    "agfilter=true", "agfilter=f", "names=node[0-1]", "property=a", "and", "or", "not", "(", ")", "[", "]", "-", "0-1", "node",
    "[0-999]", "[00-99]", "999999", "4294967295", "4294967296", "=", "\t", "ƒ", "<node id='a'>", "</node>", "<edge source='a' target='b'>", "<data key='type'>", "</data>", "job.0000.0000.0000.0001",
)  # fmt: skip

Mutation = Callable[[bytes, Random], bytes]
_MARKUP = re.compile(rb"\"[^\"]*\"|'[^']*'|>[^<>]+<|<[^<>]*>")


def mutated(data: bytes, source: Random, other: bytes = b"") -> bytes:
    """One or a few mutations: of the document if the data are one, else of its words, else of its bytes.

    Parts of `other` may be inserted into a document.
    """
    rounds = source.choice((1, 1, 1, 2, 2, 4, 8))
    if source.random() < 0.9:
        document = _read(data)
        if document is not None:
            return _document(document, _read(other), rounds, source) or data
    changes: tuple[Mutation, ...] = (_markup, _markup, _words, _bytes) if data[:1] == b"<" else (_words, _words, _bytes)
    for _ in range(rounds):
        data = source.choice(changes)(data, source)
    return data


def _read(data: bytes) -> Any:
    """The mapping or list that the data encode as JSON, if it is not empty."""
    if data[:1] not in (b"{", b"["):
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) and value else None


def _document(value: Any, other: Any, rounds: int, source: Random) -> bytes:
    """The document with some parts altered; None if it cannot be encoded."""
    for _ in range(rounds):
        places: list[tuple[Any, Any]] = []
        _collect(value, places)
        if not places:
            break
        strange: list[tuple[Any, Any]] = []
        if other is not None and source.random() < 0.2:
            _collect(other, strange)
        holder, key = source.choice(places)
        _alter(holder, key, strange or places, source)
    try:
        return json.dumps(value).encode()
    except (ValueError, RecursionError):
        return b""


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    """Every (container, key or index) of a document, in order."""
    waiting = [value]
    while waiting and len(places) < 10_000:
        holder = waiting.pop()
        for key, item in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            places.append((holder, key))
            if isinstance(item, (dict, list)):
                waiting.append(item)


def _alter(holder: Any, key: Any, places: list[tuple[Any, Any]], source: Random) -> None:
    """Replaces an element by junk, another part or a neighbour; removes, doubles or renames it."""
    how = source.randrange(7)
    if how == 0:
        del holder[key]
    elif how == 1:
        other, there = source.choice(places)
        holder[key] = _copied(other[there])
    elif how == 2 and isinstance(holder, list):
        holder.insert(source.randrange(len(holder) + 1), _copied(holder[key]))
    elif how == 3 and isinstance(holder, dict):
        holder[source.choice(KEYS)] = holder.pop(key)
    elif how == 4 and isinstance(holder, dict):
        holder[source.choice(KEYS)] = _copied(source.choice(JUNK))
    elif how == 5 and isinstance(holder[key], int):
        holder[key] += source.choice((-1, 1, 2, 10, 1000))
    else:
        holder[key] = _copied(source.choice(JUNK))


def _copied(value: Any) -> Any:
    """A copy. Without it, a part that is inserted below itself would be infinite."""
    return json.loads(json.dumps(value)) if isinstance(value, (dict, list)) else value


def _markup(data: bytes, source: Random) -> bytes:
    """Removes, doubles or exchanges a value, a text or a tag of XML."""
    spots = [found.span() for found in _MARKUP.finditer(data)]
    if not spots:
        return _words(data, source)
    (start, end), (other, there) = source.choice(spots), source.choice(spots)
    first, last = data[start : start + 1], data[end - 1 : end]
    how = source.randrange(5)
    if how == 0:
        piece = b""
    elif how == 1:
        piece = data[start:end] * 2
    elif how == 2:
        piece = data[other:there]
    else:
        junk = source.choice((*JUNK, *WORDS))
        piece = first + (junk if isinstance(junk, str) else repr(junk)[:40]).encode("utf-8", "replace") + last
    return data[:start] + piece + data[end:]


def _words(data: bytes, source: Random) -> bytes:
    where = source.randrange(len(data) + 1)
    word = source.choice((*WORDS, *KEYS)).encode()
    return data[:where] + word * source.choice((1, 1, 1, 2, 50)) + data[where + source.choice((0, 0, 1, len(word))) :]


def _bytes(data: bytes, source: Random) -> bytes:
    where, end = sorted((source.randrange(len(data) + 1), source.randrange(len(data) + 1)))
    how = source.randrange(4)
    if how == 0:
        return data[:where] + data[end:]
    if how == 1:
        return data[:where] + data[where:end] * 2 + data[end:]
    if how == 2:
        return data[:where] + source.randbytes(source.choice((1, 1, 2, 8))) + data[where:]
    return (
        data[:where]
        + bytes((byte + source.choice((1, 128, 255))) % 256 for byte in data[where : where + 1])
        + data[where + 1 :]
    )
