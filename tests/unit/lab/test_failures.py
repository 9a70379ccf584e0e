"""Errors of one piece of work: logged once, and the others go on."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from fluence_lab.dashboard.failures import MOST, Failures


def fail(failures: Failures, error: Exception | None, name: str = "a") -> None:
    with failures.logged("it failed", name=name):
        if error is not None:
            raise error


def test_an_error_is_logged_again_only_after_a_success() -> None:
    failures = Failures()
    with capture_logs() as logs:
        for error in (ValueError("one"), ValueError("two"), None, ValueError("a\nthree")):
            fail(failures, error)
        fail(failures, TimeoutError(), "b")
    assert [(log["name"], log["why"]) for log in logs] == [("a", "one"), ("a", "a three"), ("b", "TimeoutError")]
    assert all(log["exc_info"] is not None for log in logs)


def test_the_end_of_the_process_is_not_caught() -> None:
    with pytest.raises(KeyboardInterrupt), Failures().logged("it failed"):
        raise KeyboardInterrupt


def test_the_number_of_different_errors_is_limited() -> None:
    failures = Failures()
    with capture_logs() as logs:
        for number in range(2 * MOST):
            failures.report("it failed", ValueError(str(number // 2)))
        failures.report("it failed", ValueError("new"))
    assert [log["why"] for log in logs] == [str(number) for number in range(MOST)]
