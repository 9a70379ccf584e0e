"""The checks that `prebind` adds to a binding, which the binder calls directly before the Binding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from session_scheduler import hookimpl
from session_scheduler.framework.bindings import Binding
from session_scheduler.testing import FakeCluster, gang, pod


class Checking:
    """Adds a check for the pod `a` and the gang's first member."""

    name = "checking"

    def __init__(self, check: Callable[[], Any]) -> None:
        self._check = check

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        if binding.task.name in ("a", "g-0"):
            binding.checks.append(self._check)


def failing() -> None:
    raise RuntimeError("gone")


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (lambda: "not any more", "not any more"),
        (lambda: 3, "3"),
        (failing, "plugin checking failed in a check of the binding: RuntimeError: gone"),
    ],
)
def test_a_reason_or_a_failure_stops_the_bind_and_no_other(check: Callable[[], Any], reason: str) -> None:
    cluster = FakeCluster().nodes(2)
    cluster.add(pod("a"), pod("b"), gang("g", 2))
    cluster.run(Checking(check))
    cluster.assert_pending("a", reason)
    cluster.assert_bound("b")
    cluster.assert_pending("g-0", reason)


def test_a_check_without_a_reason_changes_nothing() -> None:
    cluster = FakeCluster().nodes(2)
    cluster.add(pod("a"), pod("b"), gang("g", 2))
    cluster.run(Checking(lambda: None))
    cluster.assert_all_bound()
