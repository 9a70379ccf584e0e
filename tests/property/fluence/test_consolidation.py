"""Random clusters in pieces with the matcher: what is moved has its share of the graph again, whatever the policy."""

from __future__ import annotations

import pytest

from session_scheduler.testing import FakeCluster

from ...tools.examples import first
from ..session_scheduler.actions.consolidating_world import World, check_that_all_run_again


@pytest.mark.parametrize("policy", ["first", "low", "high"])
@pytest.mark.parametrize("seed", first(range(8, 25)))
def test_what_is_moved_runs_again_and_holds_what_it_needs(seed: int, policy: str) -> None:
    def prepare(cluster: FakeCluster) -> None:
        cluster.use("fluence", {"matchPolicy": policy})

    world = World(seed, prepare)
    check_that_all_run_again(world)
    live = world.cluster.plugin("fluence").live
    running = {task.uid for task in world.cluster.scheduler.cache.bound_tasks()}
    assert set(live.holdings.shares) == running, "each pod that runs holds its share, and no other pod holds any"
    assert not live.holdings.missing
