"""A small soak run: it ends, and reports missed goals."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import new_control_plane
from .soak_live import Found, soak
from .workloads import HIGH


async def test_pods_groups_and_nodes_come_and_go_and_nothing_is_lost(tmp_path: Path) -> None:
    with new_control_plane(tmp_path) as plane:
        plane.create(HIGH)
        found = await soak(plane, tmp_path, nodes=6, pods=60, seconds=12, rate=10)
    assert found.problems == []
    assert found.rest is not None
    assert found.created > 120
    assert found.bound >= found.created - 60  # pods that were deleted while pending were never bound


def test_goals_that_are_missed_are_named() -> None:
    found = Found(1, 1, 1.0, memory=[90.0, 100.0, 120.0], problems=["pod p is not bound"])
    assert [met for _, met in found.goals()] == [False, False, False]


@pytest.mark.parametrize("last", [100.0, 112.9])
def test_memory_that_stays_and_a_quick_rest_are_met(last: float) -> None:
    found = Found(1, 1, 1.0, memory=[50.0, 100.0, last], rest=1.0)
    assert [met for _, met in found.goals()] == [True, True, True]
