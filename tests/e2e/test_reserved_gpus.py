"""Whole and shared GPUs on one real node: the kubelet gives a shared GPU to no pod with whole ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from ..tools.deploying import DEPLOY
from .deployed import DEVICE_PLUGIN, SCHEDULER, SYSTEM, Deployed, Object
from .fake_gpus import GIVEN, NVIDIA, FakeGpus
from .node import PLUGINS

PREFIX = "fluence.flux-framework.org/"
IMAGE = "registry.local/pause:3.10"
"""The image that the node has, in place of the one of the policy."""
DEVICES = ("GPU-0", "GPU-1")
PLUGIN = {"name": "GpuSharing", "args": {"wholeGpus": "reserved", "reservations": {"image": IMAGE}}}


@pytest.fixture
def mixed(deployed: Deployed) -> Iterator[Deployed]:
    """The cluster with two GPUs on its node, the option applied, and the scheduler configured."""
    cluster = deployed.cluster
    option = (DEPLOY / "options/reserved-gpus.yaml").read_text().replace("registry.k8s.io/pause:3.10", IMAGE)
    before = cluster.get("configmap", "fluence", "-n", SYSTEM)["data"]["config.yaml"]
    with FakeGpus(PLUGINS, DEVICES):
        cluster.until(cluster.allocatable, lambda found: found.get(NVIDIA) == "2")
        cluster.kubectl("apply", "--server-side", "-f", "-", text=option)
        cluster.kubectl("apply", "--server-side", "-f", str(DEPLOY / "options/gpu-device-plugin.yaml"))
        config = yaml.safe_load(before)
        config["profiles"][0]["plugins"].append(PLUGIN)
        configure(deployed, yaml.safe_dump(config))
        try:
            yield deployed
        finally:
            deployed.tidy()
            configure(deployed, before)
            cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(DEPLOY / "device-plugin.yaml"))
            cluster.kubectl("delete", "-f", "-", text=option)
            deployed.wait_ready()


def configure(deployed: Deployed, config: str) -> None:
    """Replace the scheduler's configuration, and restart it."""
    patch = yaml.safe_dump({"data": {"config.yaml": config}})
    deployed.cluster.kubectl("patch", "configmap", "fluence", "-n", SYSTEM, "--type=merge", "-p", patch)
    deployed.cluster.kubectl("rollout", "restart", f"deployment/{SCHEDULER}", "-n", SYSTEM)
    deployed.wait_ready(SCHEDULER, DEVICE_PLUGIN)


def create(deployed: Deployed, name: str, *, whole: int = 0, fraction: str = "") -> None:
    limits = {NVIDIA: str(whole)} if whole else {}
    main = {"name": "main", "image": "busybox:1.36", "command": ["sleep", "3600"],
            "resources": {"requests": {"cpu": "100m"}, "limits": limits}}  # fmt: skip
    annotations = {PREFIX + "gpu-fraction": fraction} if fraction else {}
    deployed.apply(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations},
        "spec": {"schedulerName": "fluence", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                 "containers": [main]},
    }))  # fmt: skip


def variable(deployed: Deployed, name: str, key: str) -> str:
    """A variable of a running container."""
    lines = deployed.cluster.kubectl("exec", name, "--", "env").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)[key]


def reservations(deployed: Deployed) -> list[Object]:
    found: list[Object] = deployed.cluster.get("pods", "-n", SYSTEM, "-l", f"{PREFIX}gpu-reservation")["items"]
    return found


def test_sharers_and_a_pod_with_a_whole_gpu_run_on_one_node_with_different_devices(mixed: Deployed) -> None:
    create(mixed, "a", fraction="0.5")
    create(mixed, "b", fraction="0.5")
    mixed.wait_phase("Running", "a", "b")
    shared = mixed.pod("a")["metadata"]["annotations"][PREFIX + "gpu-device"]
    assert shared in DEVICES
    assert {variable(mixed, name, "NVIDIA_VISIBLE_DEVICES") for name in ("a", "b")} == {shared}
    (held,) = reservations(mixed)
    assert held["metadata"]["annotations"][PREFIX + "reserved-device"] == shared

    create(mixed, "whole", whole=1)
    mixed.wait_phase("Running", "whole")
    (other,) = set(DEVICES) - {shared}
    assert variable(mixed, "whole", GIVEN) == other

    create(mixed, "waits", whole=1)
    mixed.wait_refused("waits", "node(s) had GPUs shared by other pods")
    mixed.cluster.kubectl("delete", "pod", "a")
    mixed.wait_refused("waits", "node(s) had GPUs shared by other pods")
    assert len(reservations(mixed)) == 1
    mixed.cluster.kubectl("delete", "pod", "b")
    mixed.wait_phase("Running", "waits")
    assert variable(mixed, "waits", GIVEN) == shared, "the GPU is free again after its last sharer"
    assert not reservations(mixed)
