"""Random clusters in pieces: pods are moved only where a group then runs, and whatever was moved runs again."""

from __future__ import annotations

import pytest

from .consolidating_world import World, check_that_all_run_again


@pytest.mark.parametrize("seed", [*range(100), 204, 310])
def test_what_is_moved_runs_again_and_a_group_runs_for_it(seed: int) -> None:
    """With the last two seeds, too, which tell whether each goes where it was to go, and whether groups take turns."""
    moved = check_that_all_run_again(World(seed))
    if seed in (204, 310):
        assert moved
