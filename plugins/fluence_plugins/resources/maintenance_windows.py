"""Maintenance windows of resources.yaml: times in which nothing may run on some nodes, or use some backends.

    windows:
      - name: firmware            # optional
        nodes: [n1, n2]           # or backends: [aurora]
        start: 2026-11-23T08:00:00Z
        end: 2026-11-23T12:00:00Z

During a window the scheduler places nothing there, and before it nothing whose duration would reach into it (without a
duration, a pod runs forever). Running pods stay. A window of a node also closes the backends below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import msgspec

from fluence_plugins.resources.errors import listed
from session_scheduler.errors import plain, shown
from session_scheduler.model.times import parsed_time

MAX_WINDOWS: Final = 1000
"""The maximum number of windows of a file."""
MAX_NAMED: Final = 20_000
"""The maximum number of nodes and backends of all windows together."""
_FIELDS: Final = {"name", "nodes", "backends", "start", "end"}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,252}")

Fail = Callable[[str, str], NoReturn]
"""Raises the error for a field (its path) and its problem."""


class Window(msgspec.Struct, frozen=True):
    """A window; times in seconds since 1970."""

    start: float
    end: float
    nodes: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    name: str = ""

    def closes(self, start: float, end: float) -> bool:
        """Whether something that runs from `start` to `end` (infinite if unknown) overlaps the window."""
        return start < self.end and self.start < end

    def __str__(self) -> str:
        named = f" {self.name}" if self.name else ""
        return f"maintenance window{named} from {time_of(self.start)} to {time_of(self.end)}"


def time_of(seconds: float) -> str:
    """A time in RFC 3339, in whole seconds."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def windows_of(value: Any, known: Backends, fail: Fail) -> tuple[Window, ...]:
    """The windows in a file, in its order; `known` are its backends."""
    if value is None:
        return ()
    if not isinstance(value, list):
        fail("windows", "must be a list; start each window with `- nodes:` or `- backends:`")
    if len(value) > MAX_WINDOWS:
        fail("windows", f"has more than {MAX_WINDOWS} entries; remove past windows")
    found = tuple(_window(f"windows[{index}]", item, known, fail) for index, item in enumerate(value))
    if sum(len(window.nodes) + len(window.backends) for window in found) > MAX_NAMED:
        fail("windows", f"name more than {MAX_NAMED} nodes and backends; remove past windows")
    return found


def _window(path: str, data: Any, known: Backends, fail: Fail) -> Window:
    if not isinstance(data, dict):
        fail(path, "must be a mapping; write `nodes:` or `backends:`, `start:` and `end:`")
    for key in data:
        if key not in _FIELDS:
            fail(f"{path}.{plain(key)}", f"unknown field; use one of {', '.join(sorted(_FIELDS))}")
    name = data.get("name") or ""
    if name and (not isinstance(name, str) or not _NAME.fullmatch(name)):
        fail(f"{path}.name", f"{shown(name)} is not a valid name; use at most 253 letters, digits and . _ : @ + -, "
             "with a letter or digit first")  # fmt: skip
    nodes, backends = (_names(f"{path}.{field}", data.get(field), fail) for field in ("nodes", "backends"))
    if bool(nodes) is bool(backends):
        fail(path, "must have either `nodes:` or `backends:`, with at least one name")
    for index, backend in enumerate(backends):
        if backend not in known:
            fail(f"{path}.backends[{index}]", f"{shown(backend)} is not a backend of this file; the file has {known}")
    start, end = (_time(f"{path}.{field}", data.get(field), fail) for field in ("start", "end"))
    if end <= start:
        fail(f"{path}.end", f"{time_of(end)} is not after the start, {time_of(start)}; correct one of them")
    return Window(start, end, nodes, backends, name)


def _names(path: str, value: Any, fail: Fail) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        fail(path, "must be a list of names, such as [n1, n2]")
    for index, item in enumerate(value):
        if not isinstance(item, str) or not _NAME.fullmatch(item):
            fail(f"{path}[{index}]", f"{shown(item)} is not a valid name; use a name from the cluster or this file")
    return tuple(dict.fromkeys(value))


def _time(path: str, value: Any, fail: Fail) -> float:
    if value is None:
        fail(path, "is missing; write a time such as 2026-11-23T08:00:00Z")
    found = parsed_time(value) if isinstance(value, str) else None
    if found is None:
        fail(path, f"{shown(value)} is not a valid time; use RFC 3339, such as 2026-11-23T08:00:00Z")
    return found.timestamp()


class Backends(msgspec.Struct, frozen=True):
    """The names of a file's backends: literal ones (`named`), and names or types before a number (`numbered`)."""

    named: Collection[str]
    numbered: Collection[str]

    def __contains__(self, name: str) -> bool:
        cut = len(name)
        while cut > 1 and name[cut - 1].isdecimal():
            cut -= 1
            if name[:cut] in self.numbered:
                return True
        return name in self.named

    def __str__(self) -> str:
        return listed({*self.named, *(f"{name}0" for name in self.numbered)})


class Closed(msgspec.Struct, frozen=True):
    """The nodes and backends that are closed during a period, with the window of each."""

    nodes: Mapping[str, Window]
    backends: Mapping[str, Window]

    def __bool__(self) -> bool:
        return bool(self.nodes or self.backends)


NOTHING_CLOSED: Final = Closed({}, {})


def closed_for(windows: Collection[Window], start: float, end: float) -> Closed:
    """What is closed from `start` to `end`. If several windows close something, the one that ends last counts."""
    nodes: dict[str, Window] = {}
    backends: dict[str, Window] = {}
    for window in windows:
        if window.closes(start, end):
            for table, named in ((nodes, window.nodes), (backends, window.backends)):
                for name in named:
                    if name not in table or table[name].end < window.end:
                        table[name] = window
    return Closed(nodes, backends) if nodes or backends else NOTHING_CLOSED
