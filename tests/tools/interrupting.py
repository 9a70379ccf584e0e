"""Fault injection: the watchdog's interruption at any line of a plugin."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import pytest

from session_scheduler.framework import watchdog
from session_scheduler.framework.hooks import HookCall, PluginError
from session_scheduler.framework.watchdog import running

Line = tuple[str, str, int]
"""A hook, a file and the number of a line that it executes."""
Moment = tuple[Line, int]
"""The nth time that a line is executed."""
ALWAYS: Final[Moment] = (("", "", 0), 0)
"""Every moment."""


@dataclass
class Run:
    """What a plugin executed."""

    lines: Counter[Line] = field(default_factory=Counter)
    """How often it executed each line in hooks."""
    interrupted: list[str] = field(default_factory=list)
    """The hooks that were interrupted."""

    @property
    def moments(self) -> set[Moment]:
        """The first and the last time of each line."""
        return {(line, time) for line, times in self.lines.items() for time in (1, times)}


@contextmanager
def time_over_at(
    at: Moment | None, package: str, plugin: str, state: Callable[[], str], patch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """Let the time of a plugin's call be over at a moment; None for never.

    As with the watchdog's signal, the signal handler decides at each later line whether to interrupt. Asserts that an
    interrupted call has changed nothing.
    """
    run = Run()
    over = [False]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not str(frame.f_globals.get("__name__", "")).startswith(package):
            return None
        if event == "line" and isinstance(call := running.call, HookCall):
            line = (call.hook, frame.f_code.co_filename, frame.f_lineno)
            run.lines[line] += 1
            over[0] = over[0] or at in (ALWAYS, (line, run.lines[line]))
            watchdog._interrupt(0, frame)
        return trace

    def call(self: HookCall, *args: Any) -> Any:
        if self.plugin != plugin:
            return call_hook(self, *args)
        before, traced = state(), sys.gettrace()
        sys.settrace(trace)
        try:
            return call_hook(self, *args)
        except PluginError as error:
            sys.settrace(traced)
            if error.late:
                run.interrupted.append(self.hook)
                assert state() == before, f"{self.hook} was interrupted at {at} after it had changed something"
            raise
        finally:
            sys.settrace(traced)
            over[0] = False

    call_hook = HookCall.__call__
    with patch.context() as patched:
        patched.setattr(watchdog, "perf_counter", lambda: 1e12 if over[0] else -math.inf)
        patched.setattr(HookCall, "__call__", call)
        yield run
