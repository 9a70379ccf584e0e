"""Which events retry the groups that the plugin refused: capacity on a node that fits them, and devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.tools.attempts import Attempts
from tests.tools.observing import observe

from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, node, pod

QPU = "fluxion.flux-framework.org/qpu"
TREES = "resources:\n  - {type: qpu, name: aurora, count: 1}\n"


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    """Two nodes with whole cores, and one device, which a pod holds."""
    file = tmp_path / "resources.yaml"
    file.write_text(TREES)
    made = FakeCluster(checked=False).use("fluence", {"resources": str(file), "cpuAccounting": "cores"})
    made.add(*(node(f"n{number}", cpu=4, offers={QPU: "8"}) for number in (1, 2)))
    made.add(pod("holds", cpu=1, requests={QPU: 1}, node_selector={"kubernetes.io/hostname": "n1"}))
    made.add(*(pod(f"plain{number}", cpu="100m", node_selector={"kubernetes.io/hostname": f"n{number}"})
               for number in (1, 2)))  # fmt: skip
    made.run()
    return made


def refused(cluster: FakeCluster, *waiting: Any) -> Attempts:
    """Let the plugin refuse these. Returns a counter of their later attempts."""
    for some in waiting:
        cluster.add(some)
    cluster.run(cycles=2)
    queue = cluster.scheduler.queue
    rejectors = [plugins for groups in queue._rejections._groups for _, plugins in groups]
    assert rejectors
    assert all("fluence" in plugins for plugins in rejectors)
    cluster.advance(11)
    return observe(cluster.scheduler, Attempts())


def test_a_device_retries_the_pods_that_wait_for_one(cluster: FakeCluster) -> None:
    attempts = refused(cluster, pod("waits", cpu=1, requests={QPU: 1}))
    cluster.delete(Pod, "holds").run()
    assert attempts.of == {"waits": 1}
    assert cluster.node_of("waits")


def test_a_pod_without_devices_retries_those_that_fit_its_node_only(cluster: FakeCluster) -> None:
    attempts = refused(cluster, gang("g", 4, cpu=2), gang("h", 4, cpu="3500m"))
    cluster.delete(Pod, "plain2").run(cycles=2)
    assert attempts.of == {"g": 1, "h": 1}
    attempts.of.clear()
    cluster.advance(11).delete(Pod, "plain1").run(cycles=2)
    assert attempts.of == {"g": 1}, "beside the pod with the device, 3 cores are free"


def test_a_pod_that_waits_for_a_core_is_retried_when_one_is_free(cluster: FakeCluster) -> None:
    cluster.add(pod(f"p{number}", cpu="100m") for number in range(5)).run()  # a core each: both nodes are full
    attempts = refused(cluster, pod("waits", cpu="100m"))
    cluster.delete(Pod, "plain2").run(cycles=2)
    assert attempts.of == {"waits": 1}
    cluster.assert_bound("waits", "n2")
