"""Consolidation in random fragmented clusters: moved pods run again, and the group that they moved for runs."""

from __future__ import annotations

import pytest

from .consolidating_world import World, check_that_moved_pods_run_again


@pytest.mark.parametrize("seed", [*range(100), 204, 310])
def test_moved_pods_run_again_and_their_group_runs(seed: int) -> None:
    """The last two seeds fail if replacements go to other nodes, or if two groups get moves at once."""
    moved = check_that_moved_pods_run_again(World(seed))
    if seed in (204, 310):
        assert moved


@pytest.mark.parametrize("seed", range(60))
def test_moved_gangs_run_again_and_the_group_that_they_moved_for_runs(seed: int) -> None:
    check_that_moved_pods_run_again(World(seed, gangs=True))
