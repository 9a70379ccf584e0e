from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.hookspecs import SKIP

PLUGIN = BUILTIN["NodePorts"](None)


def containers(*ports: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "c", "ports": list(ports)}]


@pytest.mark.parametrize(
    ("taken", "wanted", "fits"),
    [
        ({"hostPort": 80}, {"hostPort": 80}, False),
        ({"hostPort": 80}, {"hostPort": 81}, True),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, True),
        ({"hostPort": 80}, {"hostPort": 80, "hostIP": "10.0.0.1"}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80}, False),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.1"}, False),
        ({"hostPort": 80, "hostIP": "0.0.0.0"}, {"hostPort": 80, "protocol": "TCP"}, False),
        ({"containerPort": 80}, {"hostPort": 80}, True),
    ],
)
def test_a_port_conflicts_on_its_address_or_on_all(world: Any, taken: Any, wanted: Any, fits: bool) -> None:
    world.node("n")
    world.run(PLUGIN, "n", world.pod(containers=containers(taken)))
    assert world.fitting(PLUGIN, world.pod(containers=containers(wanted))) == (["n"] if fits else [])


def test_a_port_is_free_again_after_its_last_pod_is_removed(world: Any) -> None:
    world.node("n")
    pod = world.pod(containers=containers({"hostPort": 80}, {"hostPort": 80, "hostIP": "10.0.0.1"}))
    world.run(PLUGIN, "n", pod, 2)
    for left in (1, 0):
        world.table.add_usage(0, world.cls(PLUGIN, pod), -1)
        assert world.fitting(PLUGIN, pod) == (["n"] if left == 0 else [])


def test_ports_of_sidecars_count_and_those_of_other_init_containers_do_not(world: Any) -> None:
    world.node("n")
    init = {"name": "i", "ports": [{"hostPort": 80}]}
    assert world.prepared(PLUGIN, world.pod(initContainers=[init])) is SKIP
    world.run(PLUGIN, "n", world.pod(initContainers=[{**init, "restartPolicy": "Always"}]))
    assert world.fitting(PLUGIN, world.pod(containers=containers({"hostPort": 80}))) == []


def test_one_pod_with_a_port_fits_on_a_node(world: Any) -> None:
    world.node("n")
    pod = world.pod(containers=containers({"hostPort": 80}))
    assert world.how_many_more(PLUGIN, pod, "n") == 1
    world.run(PLUGIN, "n", pod)
    assert world.how_many_more(PLUGIN, pod, "n") == 0
    assert world.reasons(PLUGIN, pod, "n") == [["node(s) didn't have free ports for the requested pod ports"]]
