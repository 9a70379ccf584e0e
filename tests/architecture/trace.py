"""Follows a call through the core: which files it enters, and how often it climbs into a file above the caller's.

    python -m tests.architecture.trace TEST --start MODULE:NAME --end MODULE:NAME

runs one test and prints the way from the first call of `start` to the first return of `end` in it. The values in
`model/` and the plugins (`builtin/`, and all outside of the core) are left out: they are called on every level. A
*climb* is a call into a file that imports the caller's file, directly or through others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.architecture.import_graph import PACKAGES, above, import_graph, module_of

CORE = "session_scheduler"
LEFT_OUT = ("model", "builtin", "errors", "testing")
"""Packages of the core that do not count."""


@dataclass(frozen=True)
class Point:
    """A function by module and qualified name, `session_scheduler.actions.allocate:allocate`."""

    module: str
    name: str

    @classmethod
    def of(cls, text: str) -> Point:
        """Raises ValueError where the text is not MODULE:NAME."""
        module, colon, name = text.partition(":")
        if not (module and colon and name):
            raise ValueError(f"{text!r}: write MODULE:NAME")
        return cls(module, name)

    def is_at(self, frame: FrameType) -> bool:
        """Whether a frame runs this function."""
        return frame.f_code.co_qualname == self.name and _module(frame.f_code.co_filename) == self.module


@dataclass
class Way:
    """The files that were entered, in order, and the climbs between them: (from, to)."""

    files: list[str] = field(default_factory=list)
    climbs: list[tuple[str, str]] = field(default_factory=list)
    complete: bool = False
    """Whether the way's end was reached."""


class Tracer:
    """Records the way from the first call of `start` to the first return of `end`."""

    def __init__(self, start: Point, end: Point) -> None:
        self.way = Way()
        self._start = start
        self._end = end
        self._on = False

    @contextmanager
    def tracing(self) -> Iterator[Way]:
        """Record what happens in the block."""
        before = sys.getprofile()
        sys.setprofile(self._seen)
        try:
            yield self.way
        finally:
            sys.setprofile(before)

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if self.way.complete or event not in ("call", "return"):
            return
        if event == "return":
            self.way.complete = self._on and self._end.is_at(frame)
            return
        self._on = self._on or self._start.is_at(frame)
        module = _counted(frame)
        if not self._on or module is None:
            return
        if module not in self.way.files:
            self.way.files.append(module)
        caller = _caller(frame, self._start)
        if (
            caller not in (None, module)
            and module in _above()[caller or ""]
            and (caller, module) not in self.way.climbs
        ):
            self.way.climbs.append((caller or "", module))


def _caller(frame: FrameType, start: Point) -> str | None:
    """The counted file that the call came from, not looking beyond the start; None where it is the same file."""
    own = _counted(frame)
    while not start.is_at(frame) and frame.f_back is not None:
        frame = frame.f_back
        module = _counted(frame)
        if module is not None:
            return module if module != own else None
    return None


def _counted(frame: FrameType) -> str | None:
    """The module that a frame runs in; None where that does not count. Class bodies and comprehensions are no calls."""
    if frame.f_code.co_name in ("<module>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"):
        return None
    return _counts(frame.f_code.co_filename)


@cache
def _counts(filename: str) -> str | None:
    module = _module(filename)
    if module is None or not module.startswith(f"{CORE}."):
        return None
    return None if module.split(".")[1] in LEFT_OUT else module


@cache
def _module(filename: str) -> str | None:
    return module_of(Path(filename))


@cache
def _above() -> dict[str, frozenset[str]]:
    return above(import_graph(CORE, PACKAGES[CORE]))


class _Traced:
    """A pytest plugin that traces the one test."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self) -> Iterator[Any]:
        """Trace while the test runs."""
        with self._tracer.tracing():
            return (yield)  # type: ignore[return-value]


def main(arguments: list[str], show: Callable[[str], None] = print) -> int:
    """Trace one test. Returns the exit status: 0, or 1 where the test failed or the way was not found in it."""
    parser = argparse.ArgumentParser(prog="python -m tests.architecture.trace", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("test", help="the test's id, PATH::NAME")
    parser.add_argument("--start", type=Point.of, required=True, metavar="MODULE:NAME")
    parser.add_argument("--end", type=Point.of, required=True, metavar="MODULE:NAME")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    tracer = Tracer(given.start, given.end)
    status = pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", given.test], plugins=[_Traced(tracer)])
    way = tracer.way
    if given.json:
        show(json.dumps(asdict(way)))
    else:
        show(f"{len(way.files)} files: {' '.join(way.files)}")
        show(f"{len(way.climbs)} climbs: {' '.join(f'{one} -> {other}' for one, other in way.climbs)}")
    return 0 if status == 0 and way.complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
