"""Partial decoding of invalid objects, so that one of them does not affect the others.

Anyone who may create a ResourceClaim can nest a part of it deeper than decoders go. The API server validates pods and
nodes, but a proxy in front of it, or another version, may return invalid ones.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.type_errors import explain_type_error

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of a decoder; RecursionError means too deep nesting."""
_MOST_PARTS: Final = 20
"""Maximum number of invalid parts in an object."""
_SIGNS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_PATH: Final = re.compile(r" - at `\$(?P<path>.*)`\Z", re.DOTALL)
_Read = TypeVar("_Read", Pod, Node)


def outline(text: bytes, depth: int) -> tuple[bytes, list[bytes]]:
    """Replace objects and lists at this depth with nulls; return the text and those parts. Decodes nothing."""
    rest, parts = [], []
    open_ = end = start = 0
    for sign in _SIGNS.finditer(text):
        if sign.group() in _OPENING:
            if open_ == depth:
                start = sign.start()
                rest += [text[end:start], b"null"]
            open_ += 1
        elif sign.group() in _CLOSING:
            open_ -= 1
            if open_ == depth:
                end = sign.end()
                parts.append(text[start:end])
    return b"".join([*rest, text[end:]]), parts


def salvaged(text: bytes, kind: type[_Read]) -> _Read:
    """Decode a pod or node without its invalid parts; `unreadable` describes the first. Raises DecodeError."""
    tree = msgspec.json.decode(text)
    problem = ""
    for _ in range(_MOST_PARTS):
        try:
            found = msgspec.convert(tree, kind)
        except msgspec.ValidationError as error:
            problem = problem or "{}: {}".format(*explain_type_error(str(error), tree))
            path = _PATH.search(str(error))
            if not _without(tree, path["path"] if path is not None else ""):
                raise
        else:
            if not found.metadata.name or not found.metadata.uid:
                raise msgspec.ValidationError(problem)
            return replace(found, unreadable=problem)
    raise msgspec.ValidationError(problem)


def _without(tree: Any, path: str) -> bool:
    """Remove the value at a path, or the nearest named one around it. Return whether there is one."""
    steps: list[str | int] = []
    for match in _STEP.finditer(path):
        if match[2] == "...":  # some entry of a mapping, or of a list
            break
        steps.append(match[1] if match[1] is not None else int(match[2]))
    if not steps:
        return False
    for step in steps[:-1]:
        tree = tree[step]
    del tree[steps[-1]]
    return True
