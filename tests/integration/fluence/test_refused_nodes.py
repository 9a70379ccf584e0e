"""A node that the graph chose and another filter refuses: the group is matched elsewhere, and the node is left out only
for those whom it can never take, and only as long as that is so.
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
async def test_a_port_that_is_taken_refuses_the_node_to_whom_it_concerns_and_to_nobody_else(
    world: World, policy: str
) -> None:
    """Whichever node the policy likes best has the port taken, once each."""
    world.arguments["matchPolicy"] = policy
    taken = [with_port(f"old{index}", nodeName=f"n{index}") for index in (1, 3)]
    group = [with_port("server", group="g"), *(pod(f"w{index}", {"cpu": "3"}, group="g") for index in range(3))]
    await world.place(*(node(f"n{index}") for index in (1, 2, 3)), *taken, gang("g", 4), *group)
    found = nodes_of(world)
    assert found["server"] == "n2"
    assert {found[f"w{index}"] for index in range(3)} == {"n1", "n2", "n3"}, "the three cores beside each port"


@pytest.mark.parametrize("policy", ["first", "low", "high"])
async def test_members_that_keep_apart_do_where_the_graph_would_have_put_them_together(
    world: World, policy: str
) -> None:
    world.arguments["matchPolicy"] = policy
    members = [labelled(pod(f"a{i}", group="g", **apart("a")), app="a") for i in range(3)]
    beside = [pod(f"b{i}", {"cpu": "3"}, group="h") for i in range(3)]
    cluster = [named(node(f"n{index}")) for index in (1, 2, 3)]
    await world.place(*cluster, gang("g", 3), gang("h", 3), *members, *beside)
    found = nodes_of(world)
    assert {found[f"a{i}"] for i in range(3)} == {"n1", "n2", "n3"}
    assert {found[f"b{i}"] for i in range(3)} == {"n1", "n2", "n3"}, "no node was left out for the others"


@pytest.mark.parametrize("home", ["n1", "n2", "n3"])
async def test_a_volume_that_is_on_one_node_brings_the_member_there_and_the_others_where_there_is_room(
    world: World, home: str
) -> None:
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


async def test_a_node_that_is_merely_busy_is_tried_again_as_soon_as_it_is_free(world: World) -> None:
    group = [with_port(f"g{i}", group="g") for i in range(2)]
    await world.place(node("n1"), node("n2"), with_port("old", nodeName="n1"), gang("g", 2), *group)
    assert nodes_of(world) == {"g0": None, "g1": None}
    await arrives(world, pod("other"))
    assert (await world.live_pod("other")).spec.node_name, "nothing of the gang is in the way"
    await world.scheduler.event_handlers.apply("DELETED", await world.live_pod("old"))
    world.advance(60)
    await world.scheduler.cycle()
    assert {(await world.live_pod(f"g{i}")).spec.node_name for i in range(2)} == {"n1", "n2"}
