"""A node that the graph chose but another filter refuses: the scheduler matches the group elsewhere.

It leaves the node out only for pods that can never fit there, and only as long as that holds.
"""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import World, gang, node, pod
from .test_changes import arrives


def apart(app: str) -> dict[str, Any]:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def labelled(manifest: dict[str, Any], **labels: str) -> dict[str, Any]:
    manifest["metadata"]["labels"] = labels
    return manifest


def named(manifest: dict[str, Any]) -> dict[str, Any]:
    return labelled(manifest, **{"kubernetes.io/hostname": manifest["metadata"]["name"]})


def with_port(name: str, **more: Any) -> dict[str, Any]:
    manifest = pod(name, {"cpu": "1"}, **more)
    manifest["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    return manifest


def nodes_of(world: World) -> dict[str, str | None]:
    return {one["name"]: one["node"] for one in world.result["pods"]}


@pytest.mark.parametrize("policy", ["first", "low", "high"])
async def test_a_used_port_excludes_the_node_only_for_the_pod_that_needs_it(world: World, policy: str) -> None:
    """Each of two nodes has the port in use, one of them the policy's favourite."""
    world.arguments["matchPolicy"] = policy
    taken = [with_port(f"old{index}", nodeName=f"n{index}") for index in (1, 3)]
    group = [with_port("server", group="g"), *(pod(f"w{index}", {"cpu": "3"}, group="g") for index in range(3))]
    await world.place(*(node(f"n{index}") for index in (1, 2, 3)), *taken, gang("g", 4), *group)
    found = nodes_of(world)
    assert found["server"] == "n2"
    assert {found[f"w{index}"] for index in range(3)} == {"n1", "n2", "n3"}, (
        "expected a worker on the three cores beside each port"
    )


@pytest.mark.parametrize("policy", ["first", "low", "high"])
async def test_members_with_anti_affinity_are_separated_against_the_graphs_choice(world: World, policy: str) -> None:
    world.arguments["matchPolicy"] = policy
    members = [labelled(pod(f"a{i}", group="g", **apart("a")), app="a") for i in range(3)]
    beside = [pod(f"b{i}", {"cpu": "3"}, group="h") for i in range(3)]
    cluster = [named(node(f"n{index}")) for index in (1, 2, 3)]
    await world.place(*cluster, gang("g", 3), gang("h", 3), *members, *beside)
    found = nodes_of(world)
    assert {found[f"a{i}"] for i in range(3)} == {"n1", "n2", "n3"}
    assert {found[f"b{i}"] for i in range(3)} == {"n1", "n2", "n3"}, "expected no excluded node for the other gang"


@pytest.mark.parametrize("home", ["n1", "n2", "n3"])
async def test_a_volume_on_one_node_places_only_its_own_member_there(world: World, home: str) -> None:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [home]}]}
    volume = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "data"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                 "local": {"path": "/data"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                 "claimRef": {"namespace": "default", "name": "data", "uid": "claim"}},
        "status": {"phase": "Bound"},
    }  # fmt: skip
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default", "uid": "claim",
                     "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "data", "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    }  # fmt: skip
    mounts: dict[str, Any] = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
    members = [
        pod("reader", {"cpu": "2"}, group="g", **mounts),
        *(pod(f"w{i}", {"cpu": "2"}, group="g") for i in range(5)),
    ]
    await world.place(*(named(node(f"n{i}")) for i in (1, 2, 3)), volume, claim, gang("g", 6), *members)
    found = nodes_of(world)
    assert found["reader"] == home
    assert sorted(str(one) for one in found.values()) == ["n1", "n1", "n2", "n2", "n3", "n3"]


async def test_a_busy_node_is_tried_again_as_soon_as_it_is_free(world: World) -> None:
    group = [with_port(f"g{i}", group="g") for i in range(2)]
    await world.place(node("n1"), node("n2"), with_port("old", nodeName="n1"), gang("g", 2), *group)
    assert nodes_of(world) == {"g0": None, "g1": None}
    await arrives(world, pod("other"))
    assert (await world.live_pod("other")).spec.node_name, "expected no allocation of the gang"
    await world.scheduler.event_handlers.apply("DELETED", await world.live_pod("old"))
    world.advance(60)
    await world.scheduler.cycle()
    assert {(await world.live_pod(f"g{i}")).spec.node_name for i in range(2)} == {"n1", "n2"}
