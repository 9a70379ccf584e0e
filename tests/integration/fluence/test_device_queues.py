"""Virtual devices in queues: limits, deserved amounts and fair shares use the graph's number of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.resources.config import load_resources
from session_scheduler.model.objects import Pod
from session_scheduler.model.queues import QUEUE_LABEL
from session_scheduler.testing import FakeCluster

QPU = "fluxion.flux-framework.org/qpu"
FOUR = "resources: [{type: qpu, name: q, count: 4}]"
SHARED = "resources: [{type: qpu, name: q, count: 2, sharing: 2}]"


def cluster_of(folder: Path, text: str = FOUR) -> FakeCluster:
    """Two nodes that advertise far more devices than exist, as the device plugin does."""
    file = folder / "resources.yaml"
    file.write_text(text)
    return FakeCluster().use("fluence", {"resources": str(file)}).nodes(2, cpu="32", offers={QPU: 1000})


def asking(cluster: FakeCluster, queue: str, count: int, number: int = 1) -> None:
    cluster.pods(count, prefix=queue, requests={QPU: str(number)}, labels={QUEUE_LABEL: queue})


def on_nodes(cluster: FakeCluster, queue: str) -> int:
    return sum(node is not None for name, node in found(cluster).items() if name.startswith(queue))


def found(cluster: FakeCluster) -> dict[str, str | None]:
    return {pod.metadata.name: pod.spec.node_name or None for pod in cluster.memory.objects(Pod)}


def run_cycles(cluster: FakeCluster) -> None:
    for _ in range(4):
        cluster.schedule()
        cluster.finish_deletions()
        cluster.advance(60)
    cluster.schedule()


@pytest.mark.parametrize("text", [FOUR, SHARED])
def test_a_queue_never_exceeds_its_limit_of_devices(tmp_path: Path, text: str) -> None:
    cluster = cluster_of(tmp_path, text).queue("a", limit={QPU: "3"})
    asking(cluster, "a", 4)
    run_cycles(cluster)
    assert on_nodes(cluster, "a") == 3
    waiting = next(name for name, node in found(cluster).items() if not node)
    cluster.assert_pending(
        waiting, reason=f"queue 'a' has reached its limit of {QPU}: limit 3, allocated 3, requested 1"
    )
    cluster.end(next(name for name, node in found(cluster).items() if node))
    run_cycles(cluster)
    cluster.assert_bound(waiting)


@pytest.mark.parametrize("text", [FOUR, SHARED])
def test_a_queue_reclaims_its_deserved_devices(tmp_path: Path, text: str) -> None:
    cluster = cluster_of(tmp_path, text).queue("a", deserved={QPU: "1"}).queue("b", deserved={QPU: "3"})
    asking(cluster, "a", 4)
    run_cycles(cluster)
    assert on_nodes(cluster, "a") == 4
    asking(cluster, "b", 3)
    run_cycles(cluster)
    assert (on_nodes(cluster, "a"), on_nodes(cluster, "b")) == (1, 3)


def test_equal_queues_share_the_devices_that_are_up_equally(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path).queue("a").queue("b")
    asking(cluster, "a", 4)
    run_cycles(cluster)
    asking(cluster, "b", 4)
    run_cycles(cluster)
    assert (on_nodes(cluster, "a"), on_nodes(cluster, "b")) == (2, 2)
    plugin = cluster.plugin("fluence")
    assert isinstance(plugin, FluencePlugin)
    assert plugin.offered() == {QPU: 4}
    down = "resources: [{type: qpu, name: q, count: 4}, {type: qpu, name: x, status: down}]"
    plugin.set_resources(load_resources(down, "resources.yaml"))
    assert plugin.offered() == {QPU: 4}
