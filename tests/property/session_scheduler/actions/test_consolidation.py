"""Random fragmented clusters: pods are moved only if a group then runs, and every moved pod runs again."""

from __future__ import annotations

import pytest

from .consolidating_world import World, check_that_moved_pods_run_again


@pytest.mark.parametrize("seed", [*range(100), 204, 310])
def test_a_moved_pod_runs_again_and_its_move_lets_a_group_run(seed: int) -> None:
    """The last two seeds detect a pod that does not get its intended node, and groups that do not take turns."""
    moved = check_that_moved_pods_run_again(World(seed))
    if seed in (204, 310):
        assert moved
