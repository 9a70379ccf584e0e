"""Random fragmented clusters with the matcher: a moved pod has its share of the graph again, under every policy."""

from __future__ import annotations

import pytest

from session_scheduler.testing import FakeCluster

from ...tools.examples import first
from ..session_scheduler.actions.consolidating_world import World, check_that_moved_pods_run_again


@pytest.mark.parametrize("policy", ["first", "low", "high"])
@pytest.mark.parametrize("seed", first(range(8, 25)))
def test_a_moved_pod_runs_again_with_its_share_of_the_graph(seed: int, policy: str) -> None:
    def prepare(cluster: FakeCluster) -> None:
        cluster.use("fluence", {"matchPolicy": policy})

    world = World(seed, prepare)
    check_that_moved_pods_run_again(world)
    live = world.cluster.plugin("fluence").live
    running = {task.uid for task in world.cluster.scheduler.cache.bound_tasks()}
    assert set(live.holdings.shares) == running, "expected a share for exactly the running pods"
    assert not live.holdings.missing
