"""Plugin failures: the place in the plugin's code that raised an exception, and the exception's line in the log.

`hooks` reports each exception of a plugin here. The place is in the reason too, so that events and reports show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from time import perf_counter
from types import TracebackType
from typing import Final, NamedTuple

import structlog

_log = structlog.get_logger(__name__)
_CORE: Final = "session_scheduler."
_BUILTIN: Final = "session_scheduler.builtin"
_IMPORTS: Final = "importlib"
_QUIET_SECONDS: Final = 60.0
"""After an exception is logged, equal ones are not logged for this time: a plugin may fail for each of many pods."""


class Place(NamedTuple):
    """A line of a plugin's code."""

    file: str
    line: int
    module: str

    def __str__(self) -> str:
        """The line with the file's path below the folder from which Python imports it: "acme/rack.py:12"."""
        path = PurePath(self.file)
        depth = self.module.count(".") + (2 if path.stem == "__init__" else 1)
        return f"{'/'.join(path.parts[-depth:])}:{self.line}"


def place_of(error: BaseException) -> Place | None:
    """The innermost line of the plugin's package in the traceback; None if no code of a plugin ran."""
    places = list(_places(error.__traceback__))
    first = next((place.module for place in places if _is_plugins(place)), None)
    if first is None:
        return None
    package = _BUILTIN if first.startswith(_CORE) else first.partition(".")[0]
    return next(place for place in reversed(places) if _within(place, package))


def _places(traceback: TracebackType | None) -> Iterator[Place]:
    while traceback is not None:
        frame = traceback.tb_frame
        yield Place(frame.f_code.co_filename, traceback.tb_lineno, str(frame.f_globals.get("__name__", "")))
        traceback = traceback.tb_next


def _is_plugins(place: Place) -> bool:
    """Whether it may be a plugin's first line: not the core that calls the plugin, nor Python that imports it."""
    return _within(place, _BUILTIN) or not (place.module.startswith(_CORE) or _within(place, _IMPORTS))


def _within(place: Place, package: str) -> bool:
    return place.module == package or place.module.startswith(f"{package}.")


class FailureLog:
    """Logs plugins' exceptions, each once a minute."""

    def __init__(self) -> None:
        self.tracebacks = False
        """Whether to log each exception, the first of each line with its traceback: the option `--debug`."""
        self._logged: dict[tuple[str, str, Place | None], float] = {}
        self._traced: set[tuple[str, str, Place | None]] = set()
        """The lines whose traceback is in the log."""

    def write(self, plugin: str, hook: str, problem: str, error: BaseException, place: Place | None) -> None:
        """Log an exception that a hook or callback of a plugin raised, or that interrupted it."""
        key, now = (plugin, hook, place), perf_counter()
        if not self.tracebacks and now - self._logged.get(key, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return
        self._logged[key] = now
        where = {} if place is None else {"file": place.file, "line": place.line}
        more = {"exc_info": error} if self.tracebacks and key not in self._traced else {}
        if more:
            self._traced.add(key)
        _log.error("a plugin failed", plugin=plugin, hook=hook, error=problem, **where, **more)


failure_log: Final = FailureLog()
"""The log of this process."""
