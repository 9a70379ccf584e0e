"""Backoff: doubled each time, bounded, ended by a wake-up, each group for itself."""

from __future__ import annotations

from session_scheduler.state.pending import PendingGroups


def test_a_group_that_keeps_failing_waits_twice_as_long_each_time_up_to_the_maximum():
    pending = PendingGroups(1.0, 10.0)
    assert [pending.failed("g", 0.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert not pending.is_due("g", 9.9)
    assert pending.is_due("g", 10.0)
    assert pending.is_due("other", 0.0)


def test_thousands_of_failures_do_not_overflow_the_backoff():
    pending = PendingGroups(1.0, 10.0)
    assert {pending.failed("g", 5.0) for _ in range(5000)} >= {15.0}


def test_a_wake_up_makes_due_at_once_but_forgets_no_attempt():
    pending = PendingGroups(1.0, 10.0)
    pending.failed("g", 0.0)
    pending.failed("g", 0.0)
    pending.wake("g", 0.5)
    assert pending.is_due("g", 0.5)
    assert pending.failed("g", 0.5) == 4.5
    pending.placed("g")
    assert pending.failed("g", 5.0) == 6.0


def test_waking_all_reaches_those_that_wait_and_not_who_fails_afterwards():
    pending = PendingGroups(1.0, 10.0)
    pending.failed("a", 0.0)
    pending.failed("b", 0.0)
    pending.wake_all()
    assert pending.is_due("a", 0.0)
    pending.failed("a", 0.0)
    assert not pending.is_due("a", 0.0)
    assert pending.is_due("b", 0.0)


def test_the_next_wait_to_end_is_told_and_none_that_has_ended():
    pending = PendingGroups(1.0, 10.0)
    assert pending.next_after(0.0) is None
    pending.failed("a", 3.0)
    pending.failed("b", 0.0)
    assert pending.next_after(0.5) == 1.0
    assert pending.next_after(2.0) == 4.0
    assert pending.next_after(4.0) is None
