"""Consolidation where the resource graph places pods: what is moved is placed in the graph while it is tried, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, pod

from ...tools.preempting import ended
from ...tools.replacing import of_controller, replace_ended

QPU = "fluxion.flux-framework.org/qpu"
RESOURCES = "resources:\n  - {type: qpu, name: one, count: 3}\n"


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    file = tmp_path / "resources.yaml"
    file.write_text(RESOURCES)
    config = SchedulerConfig(bindings_in_flight=1_000, actions=("allocate", "consolidate"))
    return FakeCluster(config=config).use("fluence", {"resources": str(file)}).nodes(2, cpu="4", offers={QPU: "8"})


def in_pieces(cluster: FakeCluster, **requests: str) -> None:
    """Half of each node is used."""
    cluster.add(of_controller(pod(name, cpu="2", requests=requests)) for name in "ab").run()
    assert {cluster.node_of(name) for name in "ab"} == {"n1", "n2"}


def settle(cluster: FakeCluster) -> None:
    for _ in range(4):
        replace_ended(cluster)
        cluster.advance(1.0).run()


def held(cluster: FakeCluster) -> object:
    live = cluster.plugin("fluence").live
    return dict(live.holdings.shares), dict(live.foreign.held), dict(live.holdings.missing)


def test_a_gang_fits_in_the_graph_after_a_move(cluster: FakeCluster) -> None:
    in_pieces(cluster)
    cluster.nodes(1, prefix="m", cpu="2").gang("g", 2, cpu="3")
    cluster.run()
    assert not ended(cluster), "one of the two would have to go where there is no room"
    cluster.nodes(2, prefix="m", cpu="2").advance(400.0).run()
    assert len(ended(cluster)) == 2
    settle(cluster)
    cluster.assert_all_bound()


def test_what_holds_a_device_has_one_again(cluster: FakeCluster) -> None:
    in_pieces(cluster, **{QPU: "1"})
    cluster.pod("big", cpu="4", requests={QPU: "1"}).run()
    assert len(ended(cluster)) == 1
    settle(cluster)
    cluster.assert_all_bound()
    assert sum(bool(part.devices) for share in cluster.plugin("fluence").live.holdings.shares.values()
               for part in share.values()) == 3  # fmt: skip


def test_nothing_is_moved_where_there_are_too_few_devices_and_the_graph_is_as_it_was(cluster: FakeCluster) -> None:
    in_pieces(cluster, **{QPU: "1"})
    before = held(cluster)
    cluster.pod("big", cpu="4", requests={QPU: "2"}).add(gang("g", 2, cpu="3")).run()
    assert not ended(cluster)
    assert held(cluster) == before


def test_an_attempt_that_comes_to_nothing_leaves_no_trace_in_the_graph(cluster: FakeCluster) -> None:
    cluster.add(of_controller(pod(name, cpu="1")) for name in "abcdef").run()
    before = held(cluster)
    cluster.add(pod("big", cpu="4"), gang("g", 2, cpu="3")).run(cycles=2)
    assert not ended(cluster)
    assert held(cluster) == before
    assert {one.metadata.name for one in cluster.memory.objects(Pod) if one.spec.node_name} == set("abcdef")
