"""Tests of the clocks."""

from __future__ import annotations

import time

import pytest

from session_scheduler.base.clock import StoppedClock, SystemClock


def test_the_machines_clock_counts_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    counts_always = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has no other one, and counts always
    times = {time.CLOCK_MONOTONIC: 10.0, counts_always: 130.0}
    monkeypatch.setattr(time, "clock_gettime", times.__getitem__)

    assert SystemClock().now() == 130.0


def test_the_stopped_clock_moves_both_times() -> None:
    clock = StoppedClock(5.0, wall=1000.0)
    clock.advance(2.5)

    assert (clock.now(), clock.wall()) == (7.5, 1002.5)
