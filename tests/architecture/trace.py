"""Follows a call through the core: the files that it enters, and its climbs into a file above the caller's.

    python -m tests.architecture.trace
    python -m tests.architecture.trace TEST --start MODULE:NAME --end MODULE:NAME

The first form traces the tests of `CALL_PATHS`, and fails if one enters more files, or climbs more often, than its
limit. The second form traces any one test. A path goes from the first call of `start` to the first return of `end`
after it. A *climb* is a call into a file that imports the caller's file, directly or through others.

The trace leaves out the values in `model/` and the plugins (`builtin/`, and all outside the core), because every
level calls them. It also leaves out the cluster in memory, which replaces an API server.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from inspect import CO_COROUTINE, CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.architecture.import_graph import PACKAGES, above, import_graph, module_of

CORE = "session_scheduler"
LEFT_OUT = ("model", "builtin", "errors", "testing")
"""The packages of the core that the trace leaves out."""
API_SERVER = frozenset(f"{CORE}.cluster.{name}" for name in ("memory", "watch_history", "write_rules"))
"""The modules of the cluster in memory."""


@dataclass(frozen=True)
class Point:
    """A function by module and qualified name, `session_scheduler.actions.allocate:allocate`."""

    module: str
    name: str

    @classmethod
    def of(cls, text: str) -> Point:
        """Raises ValueError if the text is not MODULE:NAME."""
        module, colon, name = text.partition(":")
        if not (module and colon and name):
            raise ValueError(f"{text!r}: write MODULE:NAME")
        return cls(module, name)

    def is_at(self, frame: FrameType) -> bool:
        """Whether a frame runs this function."""
        return frame.f_code.co_qualname == self.name and _module(frame.f_code.co_filename) == self.module


@dataclass(frozen=True)
class Limit:
    """A test that takes a call path, and the greatest length of that path."""

    test: str
    start: Point
    end: Point
    files: int
    climbs: int


def _limit(test: str, start: str, end: str, files: int, climbs: int) -> Limit:
    points = Point.of(f"{CORE}.{start}"), Point.of(f"{CORE}.{end}")
    return Limit(f"tests/architecture/test_call_paths.py::{test}", *points, files, climbs)


CALL_PATHS = {
    "a group, from allocate to the committed statement": _limit(
        "test_a_gang_is_allocated_and_committed",
        "actions.allocate:allocate", "framework.statement:Statement.commit", files=9, climbs=3),
    "a watched object, from the port into cache and queue": _limit(
        "test_a_watched_pod_enters_the_cache_and_the_queue",
        "cluster.mirror:KnownObjects.apply", "state.scheduling_queue:SchedulingQueue.requeue", files=6, climbs=2),
    "a decision, until its pods are bound": _limit(
        "test_a_gangs_decision_is_carried_out_until_its_pods_are_bound",
        "binding.binder:Binder.carry_out", "binding.binder:Binder.carry_out", files=5, climbs=0),
}  # fmt: skip


@dataclass
class CallPath:
    """The files that a call entered, in order, and the climbs between them: (from, to)."""

    files: list[str] = field(default_factory=list)
    climbs: list[tuple[str, str]] = field(default_factory=list)
    complete: bool = False
    """Whether the call reached the path's end."""

    def __str__(self) -> str:
        climbs = [f"{one} -> {other}" for one, other in self.climbs]
        return f"  {len(self.files)} files: {' '.join(self.files)}\n  {len(climbs)} climbs: {' '.join(climbs)}"


class Tracer:
    """Records the call path from the first call of `start` to the first return of `end`."""

    def __init__(self, start: Point, end: Point) -> None:
        self.path = CallPath()
        self._start = start
        self._end = end
        self._on = False
        self._ending: FrameType | None = None
        """A coroutine or generator that is the path's end, while it may still continue."""
        self._length = (0, 0)
        """The number of files and climbs when it last paused or returned."""

    @contextmanager
    def tracing(self) -> Iterator[CallPath]:
        """Record the calls in the block."""
        before = sys.getprofile()
        sys.setprofile(self._seen)
        try:
            yield self.path
        finally:
            sys.setprofile(before)
            if self._ending is not None:
                files, climbs = self._length
                del self.path.files[files:], self.path.climbs[climbs:]
                self.path.complete, self._ending = True, None

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if self.path.complete:
            return
        if event == "call":
            self._called(frame)
        elif event == "return" and self._on and self._ending in (None, frame) and self._end.is_at(frame):
            if frame.f_code.co_flags & (CO_COROUTINE | CO_GENERATOR):  # a pause looks the same
                self._ending, self._length = frame, (len(self.path.files), len(self.path.climbs))
            else:
                self.path.complete = True

    def _called(self, frame: FrameType) -> None:
        self._on = self._on or self._start.is_at(frame)
        module = _counted(frame)
        if not self._on or module is None:
            return
        if module not in self.path.files:
            self.path.files.append(module)
        climb = (_caller(frame, self._start) or module, module)
        if module in _above()[climb[0]] and climb not in self.path.climbs:
            self.path.climbs.append(climb)


def _caller(frame: FrameType, start: Point) -> str | None:
    """The counted file of the caller, at most as far as the start; None if it is the same file."""
    own = _counted(frame)
    while not start.is_at(frame) and frame.f_back is not None:
        frame = frame.f_back
        module = _counted(frame)
        if module is not None:
            return module if module != own else None
    return None


def _counted(frame: FrameType) -> str | None:
    """The module that a frame runs in; None if it does not count. Class bodies and comprehensions are not calls."""
    if frame.f_code.co_name in ("<module>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"):
        return None
    return _counts(frame.f_code.co_filename)


@cache
def _counts(filename: str) -> str | None:
    module = _module(filename)
    if module is None or not module.startswith(f"{CORE}.") or module in API_SERVER:
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
    def pytest_pyfunc_call(self) -> Generator[None, Any, Any]:
        """Trace while the test runs."""
        with self._tracer.tracing():
            return (yield)


def follow(test: str, start: Point, end: Point) -> CallPath | None:
    """The call path of one test; None if the test failed."""
    tracer = Tracer(start, end)
    status = pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", test], plugins=[_Traced(tracer)])
    return tracer.path if status == 0 else None


def excess(limit: Limit, path: CallPath | None) -> list[str]:
    """How the path of a limit's test exceeds the limit; None is a test that failed."""
    if path is None or not path.complete:
        return [f"{limit.test} {'failed' if path is None else 'does not take this path'}"]
    counts = (("files", limit.files, len(path.files)), ("climbs", limit.climbs, len(path.climbs)))
    return [f"{limit.test}: {found} {what}, expected at most {most}" for what, most, found in counts if found > most]


def main(arguments: list[str]) -> int:
    """Trace the tests of `CALL_PATHS`, or one named test. Returns the exit status: 1 if any fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.architecture.trace", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("test", nargs="?", help="the test's id, PATH::NAME; without it, the tests with limits")
    parser.add_argument("--start", type=Point.of, metavar="MODULE:NAME")
    parser.add_argument("--end", type=Point.of, metavar="MODULE:NAME")
    given = parser.parse_args(arguments)
    if given.test is None:
        wrong = []
        for name, limit in CALL_PATHS.items():
            path = follow(limit.test, limit.start, limit.end)
            print(f"{name}\n{path}")
            wrong += excess(limit, path)
        print(*wrong, sep="\n", file=sys.stderr)
        return 1 if wrong else 0
    if given.start is None or given.end is None:
        parser.error("a test needs --start and --end")
    path = follow(given.test, given.start, given.end)
    print(path)
    return 0 if path is not None and path.complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
