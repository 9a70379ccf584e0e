"""A kubelet that is started again, a device plugin that dies, another configuration: with pods running meanwhile."""

from __future__ import annotations

import signal

import pytest
import yaml

from . import node
from .deployed import ALL, DEVICE_PLUGIN, SYSTEM, Deployed, backend_of, containers_of

NONE: dict[str, int] = {}


def registrations(deployed: Deployed) -> float:
    """How often the kubelet has taken a type from the device plugin."""
    metrics = deployed.metrics(deployed.servers(DEVICE_PLUGIN)[0])
    return sum(
        value
        for name, value in metrics.items()
        if name.startswith("fluence_device_plugin_registrations_total") and 'result="ok"' in name
    )


def test_a_killed_kubelet_finds_its_devices_again_and_pods_run_on(deployed: Deployed) -> None:
    deployed.create_pods("runs")
    before = deployed.wait_phase("Running", "runs")
    known = registrations(deployed)
    deployed.cluster.node.kill_kubelet()
    deployed.cluster.node.start_kubelet()
    # The node's status is that of before: pods that are bound before the kubelet has its devices again fail.
    deployed.cluster.until(lambda: registrations(deployed), lambda count: count >= known + len(ALL))
    deployed.wait_offered(ALL)
    deployed.create_pods("next")
    (after,) = deployed.wait_phase("Running", "next")
    assert containers_of([deployed.pod("runs")]) == containers_of(before)
    assert {backend_of(after), backend_of(before[0])} == {"ibm_marrakesh", "rigetti_cepheus"}
    deployed.wait_ready()
    assert list(node.PLUGINS.glob("fluence-*.sock"))


def test_a_killed_device_plugin_comes_back_and_pods_run_on(deployed: Deployed) -> None:
    deployed.create_pods("runs")
    before = deployed.wait_phase("Running", "runs")
    (plugin,) = deployed.servers(DEVICE_PLUGIN)
    deployed.signal(plugin, signal.SIGKILL)
    # It may be back before the kubelet reports that it offers none.
    deployed.cluster.until(
        lambda: containers_of(deployed.servers(DEVICE_PLUGIN)), lambda found: found != containers_of([plugin])
    )
    deployed.wait_ready(DEVICE_PLUGIN)
    assert registrations(deployed) >= len(ALL)
    deployed.wait_offered(ALL)
    deployed.create_pods("next")
    deployed.wait_phase("Running", "next")
    assert containers_of([deployed.pod("runs")]) == containers_of(before)


def test_a_device_plugin_that_is_replaced_leaves_no_socket_and_no_gap_for_long(deployed: Deployed) -> None:
    deployed.create_pods("runs")
    before = deployed.wait_phase("Running", "runs")
    deployed.cluster.kubectl("rollout", "restart", f"daemonset/{DEVICE_PLUGIN}", "-n", SYSTEM)
    deployed.wait_ready(DEVICE_PLUGIN)
    deployed.wait_offered(ALL)
    assert len(list(node.PLUGINS.glob("fluence-*.sock"))) == len(ALL)
    deployed.create_pods("next")
    deployed.wait_phase("Running", "next")
    assert containers_of([deployed.pod("runs")]) == containers_of(before)


def test_a_removed_device_plugin_takes_its_sockets_with_it(deployed: Deployed) -> None:
    deployed.cluster.kubectl("patch", "daemonset", DEVICE_PLUGIN, "-n", SYSTEM, "--type=merge", "-p",
                             '{"spec":{"template":{"spec":{"nodeSelector":{"nowhere":"true"}}}}}')  # fmt: skip
    try:
        deployed.cluster.until(lambda: deployed.servers(DEVICE_PLUGIN), lambda found: not found)
        assert not list(node.PLUGINS.glob("fluence-*.sock"))
        deployed.wait_offered(NONE)
    finally:
        deployed.cluster.kubectl("patch", "daemonset", DEVICE_PLUGIN, "-n", SYSTEM, "--type=json", "-p",
                                 '[{"op":"remove","path":"/spec/template/spec/nodeSelector/nowhere"}]')  # fmt: skip
        deployed.wait_ready(DEVICE_PLUGIN)
    deployed.wait_offered(ALL)


@pytest.mark.parametrize("broken", [False, True])
def test_types_follow_the_configuration_without_a_restart(deployed: Deployed, broken: bool) -> None:
    original = deployed.cluster.get("configmap", "fluence-resources", "-n", SYSTEM)["data"]["resources.yaml"]
    (plugin,) = deployed.servers(DEVICE_PLUGIN)
    changed = yaml.safe_load(original)
    changed["resources"].append({"type": "fpga", "name": "board", "attributes": {"vendor": "acme"}})
    try:
        if broken:  # then what held before goes on to hold
            configure(deployed, "resources: 3")
            deployed.cluster.until(
                lambda: deployed.metrics(deployed.servers(DEVICE_PLUGIN)[0]),
                lambda found: found["fluence_device_plugin_config_last_load_successful"] == 0, 90,
            )  # fmt: skip
            deployed.wait_offered(ALL)
        configure(deployed, yaml.safe_dump(changed))
        deployed.wait_offered(ALL | {"fpga": 1000}, seconds=90)
    finally:
        configure(deployed, original)
    deployed.wait_offered(ALL, seconds=90)
    assert containers_of(deployed.servers(DEVICE_PLUGIN)) == containers_of([plugin])


def configure(deployed: Deployed, resources: str) -> None:
    """Replace the resources file."""
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fluence-resources"},
                "data": {"resources.yaml": resources}}  # fmt: skip
    deployed.cluster.kubectl("apply", "-n", SYSTEM, "--server-side", "--force-conflicts", "-f", "-",
                             text=yaml.safe_dump(manifest))  # fmt: skip
