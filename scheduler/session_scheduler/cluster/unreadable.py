"""What can be had of objects that are not what they should be, so that one of them stops nothing else.

Anybody who may create a claim for devices decides how deep a part of it nests, and decoders go only so deep. Pods and
nodes are typed by the API server itself; what stands before one, or an older one, may hand out others.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.type_errors import explain_type_error

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding ends in: the last where a text nests too deep."""
_MOST_PARTS: Final = 20
"""So many parts of an object may be wrong."""
_SIGNS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_PATH: Final = re.compile(r" - at `\$(?P<path>.*)`\Z", re.DOTALL)
_Read = TypeVar("_Read", Pod, Node)


def outline(text: bytes, depth: int) -> tuple[bytes, list[bytes]]:
    """The JSON text with nulls for the objects and lists within so many others, and these; nothing is decoded."""
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
    """A pod or node without its parts that are none; its `unreadable` tells the first. Raises DecodeError."""
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
    """Take out what is at a path, or the nearest around it that is named; whether that is anything."""
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
