"""Consolidation where the resource graph places pods: the dry run of a move also places the moved pods in the graph."""

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


def fragmented(cluster: FakeCluster, **requests: str) -> None:
    """Use half of each node."""
    cluster.add(of_controller(pod(name, cpu="2", requests=requests)) for name in "ab").run()
    assert {cluster.node_of(name) for name in "ab"} == {"n1", "n2"}


def replace_moved(cluster: FakeCluster) -> None:
    for _ in range(4):
        replace_ended(cluster)
        cluster.advance(1.0).run()


def held(cluster: FakeCluster) -> object:
    live = cluster.plugin("fluence").live
    return dict(live.holdings.shares), dict(live.foreign.held), dict(live.holdings.missing)


def test_a_gang_fits_in_the_graph_after_a_move(cluster: FakeCluster) -> None:
    fragmented(cluster)
    cluster.nodes(1, prefix="m", cpu="2").gang("g", 2, cpu="3")
    cluster.run()
    assert not ended(cluster), "one of the two moved pods would not fit"
    cluster.nodes(2, prefix="m", cpu="2").advance(400.0).run()
    assert len(ended(cluster)) == 2
    replace_moved(cluster)
    cluster.assert_all_bound()


def test_a_moved_pod_gets_a_device_again(cluster: FakeCluster) -> None:
    fragmented(cluster, **{QPU: "1"})
    cluster.pod("big", cpu="4", requests={QPU: "1"}).run()
    assert len(ended(cluster)) == 1
    replace_moved(cluster)
    cluster.assert_all_bound()
    assert sum(bool(part.devices) for share in cluster.plugin("fluence").live.holdings.shares.values()
               for part in share.values()) == 3  # fmt: skip


def test_too_few_devices_move_no_pod_and_leave_the_graph_unchanged(cluster: FakeCluster) -> None:
    fragmented(cluster, **{QPU: "1"})
    before = held(cluster)
    cluster.pod("big", cpu="4", requests={QPU: "2"}).add(gang("g", 2, cpu="3")).run()
    assert not ended(cluster)
    assert held(cluster) == before


def test_a_failed_attempt_leaves_the_graph_unchanged(cluster: FakeCluster) -> None:
    cluster.add(of_controller(pod(name, cpu="1")) for name in "abcdef").run()
    before = held(cluster)
    cluster.add(pod("big", cpu="4"), gang("g", 2, cpu="3")).run(cycles=2)
    assert not ended(cluster)
    assert held(cluster) == before
    assert {one.metadata.name for one in cluster.memory.objects(Pod) if one.spec.node_name} == set("abcdef")
