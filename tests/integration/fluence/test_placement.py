"""Gangs and devices placed through the resource graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import World, device, gang, node, pod


async def test_a_gang_is_placed_completely(world: World) -> None:
    result = await world.place(
        node("n1"), node("n2"), gang("g", 4), *(pod(f"p{i}", {"cpu": "2"}, group="g") for i in range(4))
    )
    assert result["summary"]["scheduled"] == 4
    assert result["groups"] == [{"namespace": "default", "name": "g", "minCount": 4, "scheduled": 4}]
    assert world.free_cores() == 0


async def test_a_gang_that_does_not_fit_leaves_no_trace_in_the_graph(world: World) -> None:
    pods = [pod(f"p{i}", {"cpu": "2"}, group="g") for i in range(5)]
    result = await world.place(node("n1"), node("n2"), gang("g", 5), *pods)
    assert result["summary"] == {"scheduled": 0, "unschedulable": 5, "leftOut": 0, "problems": {}}
    assert world.free_cores() == 8
    assert world.plugin.live.holdings.shares == {}


async def test_members_of_different_shapes_are_matched_class_by_class(world: World) -> None:
    small = [pod(f"s{i}", {"cpu": "1"}, group="g") for i in range(4)]
    result = await world.place(node("big"), node("other"), gang("g", 5), *small, pod("large", {"cpu": "4"}, group="g"))
    assert result["summary"]["scheduled"] == 5
    nodes = {entry["name"]: entry["node"] for entry in result["pods"]}
    assert len({nodes[f"s{i}"] for i in range(4)} | {nodes["large"]}) == 2
    assert nodes["large"] not in {nodes[f"s{i}"] for i in range(4)}


async def test_with_cores_a_pod_uses_whole_ones_and_at_least_one(world: World) -> None:
    world.arguments["cpuAccounting"] = "cores"
    result = await world.place(node("n1", cpu="4"), *(pod(f"p{i}", {"cpu": "10m"}) for i in range(5)))
    assert result["summary"]["scheduled"] == 4
    refused = next(entry for entry in result["pods"] if entry["node"] is None)
    assert "core" in refused["reason"]


async def test_memory_is_shared_between_the_pods_of_a_node(world: World) -> None:
    result = await world.place(node("n1", cpu="8", memory="8Gi"), *(pod(f"p{i}", {"memory": "3Gi"}) for i in range(3)))
    assert result["summary"]["scheduled"] == 2


async def test_a_device_pod_gets_its_backend_and_attributes(world: World) -> None:
    await world.place(node("n1"), pod("q", device("qubit", 3)))
    found = world.pod("q")
    assert (found["node"], found["backend"]) == ("n1", "aurora")
    assert found["attributes"] == {"region": "east", "vendor": "a"}
    assert found["env"] == {"FLUXION_BACKEND": "aurora", "FLUXION_REGION": "east", "FLUXION_VENDOR": "a"}
    annotations = (await world.live_pod("q")).metadata.annotations
    assert annotations["fluence.flux-framework.org/jobid"] == "1,2"
    held = json.loads(annotations["fluence.flux-framework.org/held"])["plugins"]["fluence"]["jobs"]
    assert held["1"]["host"] == "n1"
    assert len(held["2"]["devices"]) == 3


async def test_required_attributes_and_backends_are_constraints(world: World) -> None:
    await world.place(
        node("n1", cpu="8"),
        pod("west", device("qpu"), annotations={"fluence.flux-framework.org/require-region": "west"}),
        pod("east", device("qpu"), annotations={"fluence.flux-framework.org/require-backend": "aurora"}),
        pod("none", device("qpu"), annotations={"fluence.flux-framework.org/require-region": "north"}),
    )
    assert world.pod("west")["backend"] == "borealis"
    assert world.pod("east")["backend"] == "aurora"
    assert world.pod("none")["node"] is None
    assert "region=north" in world.pod("none")["reason"]


async def test_devices_run_out(world: World) -> None:
    result = await world.place(node("n1", cpu="8"), *(pod(f"q{i}", device("qpu")) for i in range(4)))
    assert result["summary"]["scheduled"] == 3
    assert sorted(entry["backend"] for entry in result["pods"] if entry["node"]) == ["aurora", "borealis", "borealis"]


async def test_a_gang_with_devices_in_several_trees_is_placed(world: World) -> None:
    result = await world.place(
        node("n1", cpu="8"), gang("g", 3), *(pod(f"q{i}", device("qpu"), group="g") for i in range(3))
    )
    assert result["summary"]["scheduled"] == 3


async def test_a_gang_with_one_device_too_many_allocates_nothing(world: World) -> None:
    result = await world.place(
        node("n1", cpu="8"), gang("g", 4), *(pod(f"q{i}", device("qpu"), group="g") for i in range(4))
    )
    assert result["summary"]["scheduled"] == 0
    assert world.free_cores() == 8
    assert world.plugin.live.holdings.shares == {}


async def test_the_devices_of_one_pod_come_from_one_tree(world: World) -> None:
    await world.place(node("n1"), pod("two", device("qpu", 2)), pod("three", device("qpu", 3)))
    assert world.pod("two")["backend"] == "borealis"
    assert world.pod("three")["node"] is None


async def test_several_types_are_listed_and_must_agree(world: World) -> None:
    borealis = {"fluence.flux-framework.org/require-vendor": "b"}
    await world.place(
        node("n1"),
        pod("both", device("qpu") | device("licence"), annotations=borealis),
        pod("clash", device("qubit") | device("licence")),
    )
    assert world.pod("both")["backend"].split(",") == sorted(world.pod("both")["backend"].split(","))
    assert "borealis" in world.pod("both")["backend"]
    assert len(world.pod("both")["backend"].split(",")) == 2
    assert world.pod("clash")["node"] is None
    assert "vendor" in world.pod("clash")["reason"]


async def test_a_type_in_no_tree_is_a_hard_error_on_the_pod(world: World) -> None:
    await world.place(node("n1"), pod("bad", device("warpcore")), pod("good"))
    assert world.pod("good")["node"] == "n1"
    assert "warpcore" in world.pod("bad")["reason"]
    assert "qpu" in world.pod("bad")["reason"]


async def test_candidates_are_the_nodes_that_pass_all_other_filters(world: World) -> None:
    tainted = node("tainted", cpu="64")
    tainted["spec"] = {"taints": [{"key": "k", "effect": "NoSchedule"}]}
    labelled = node("labelled")
    labelled["metadata"]["labels"] = {"disk": "ssd"}
    await world.place(tainted, labelled, node("plain"), pod("p", nodeSelector={"disk": "ssd"}), pod("q"))
    assert world.pod("p")["node"] == "labelled"
    assert world.pod("q")["node"] != "tainted"


async def test_host_ports_inside_a_gang_are_respected(world: World) -> None:
    ports: dict[str, Any] = {"container": {"ports": [{"containerPort": 80, "hostPort": 8080}]}}
    members = [pod(f"p{i}", group="g", **ports) for i in range(3)]
    result = await world.place(*(node(f"n{i}") for i in range(3)), gang("g", 3), *members)
    assert result["summary"]["scheduled"] == 3
    assert len({entry["node"] for entry in result["pods"]}) == 3


async def test_foreign_pods_are_summed_in_millicores_and_rounded_up_once(world: World) -> None:
    foreign = [pod(f"f{i}", {"cpu": "300m"}, nodeName="n1", schedulerName="other") for i in range(3)]
    result = await world.place(node("n1", cpu="4"), *foreign, *(pod(f"p{i}") for i in range(4)))
    assert result["summary"]["scheduled"] == 3  # 900m are one core


async def test_an_overcommitted_node_fits_no_pod_and_causes_no_error(world: World) -> None:
    foreign = pod("f", {"cpu": "9"}, nodeName="n1", schedulerName="other")
    result = await world.place(node("n1", cpu="4"), node("n2", cpu="1"), foreign, pod("p"), pod("q"))
    assert [entry["node"] for entry in result["pods"]] == ["n2", None]


async def test_without_a_resources_file_pods_are_placed_by_ordinary_resources(world: World) -> None:
    world.arguments["resources"] = None
    await world.place(node("n1"), pod("p"), pod("q", device("qpu")))
    assert world.pod("p")["node"] == "n1"
    assert (
        "no resource tree has type 'qpu' (fluxion.flux-framework.org/qpu): there are no resource trees; pass "
        "resources.yaml with --resources, or as the cluster's ConfigMap fluence-resources"
    ) in world.pod("q")["reason"]


PREFIX = "fluence.flux-framework.org/"


async def test_preferred_devices_are_used_first_then_others(world: World) -> None:
    east = {PREFIX + "prefer-region": "east"}
    await world.place(node("n1", cpu="8"), *(pod(f"q{i}", device("qpu"), annotations=east) for i in range(4)))
    assert [world.pod(f"q{i}")["backend"] for i in range(4)] == ["aurora", "borealis", "borealis", None]
    assert world.pod("q0")["attributes"] == {"region": "east", "vendor": "a"}
    assert world.pod("q3")["reason"] == (await reason_of_the_last(world))


async def reason_of_the_last(world: World) -> str:
    """The reason for the last pod if no pod has a preference."""
    await world.place(node("n1", cpu="8"), *(pod(f"q{i}", device("qpu")) for i in range(4)))
    return str(world.pod("q3")["reason"])


async def test_a_gang_gets_the_available_preferred_devices(world: World) -> None:
    west = {PREFIX + "prefer-backend": "borealis"}
    members = [pod(f"q{i}", device("qpu"), group="g", annotations=west) for i in range(3)]
    result = await world.place(node("n1", cpu="8"), gang("g", 3), *members)
    assert sorted(entry["backend"] for entry in result["pods"]) == ["aurora", "borealis", "borealis"]


async def test_a_member_that_requires_a_device_gets_it_before_one_that_prefers_it(world: World) -> None:
    prefers = pod("prefers", device("qpu"), group="g", annotations={PREFIX + "prefer-region": "east"})
    requires = pod("requires", device("qpu"), group="g", annotations={PREFIX + "require-region": "east"})
    await world.place(node("n1", cpu="8"), gang("g", 2), prefers, requires)
    assert (world.pod("prefers")["backend"], world.pod("requires")["backend"]) == ("borealis", "aurora")


async def test_devices_of_several_types_agree_on_the_preferred_value_if_possible(world: World) -> None:
    wanted = device("qdevice") | device("licence")
    await world.place(
        node("n1", cpu="8"),
        pod("can", wanted, annotations={PREFIX + "prefer-vendor": "b"}),
        pod("cannot", device("qpu") | device("licence"), annotations={PREFIX + "prefer-vendor": "a"}),
    )
    assert world.pod("can")["backend"] == "borealis,solver2"
    assert world.pod("cannot")["node"] is None  # borealis is allocated, and aurora's vendor has no licence


async def test_pods_with_different_preferences_have_different_classes(world: World) -> None:
    members = [
        pod(f"q{region}", device("qpu"), group="g", annotations={PREFIX + "prefer-region": region})
        for region in ("east", "west")
    ]
    await world.place(node("n1", cpu="8"), gang("g", 2), *members)
    assert [world.pod(f"q{region}")["attributes"]["region"] for region in ("east", "west")] == ["east", "west"]


async def test_a_gang_gets_preferred_devices_even_if_one_match_would_place_it_elsewhere(world: World) -> None:
    east = {PREFIX + "prefer-region": "east"}
    members = [pod(f"q{i}", device("qpu"), group="g", annotations=east) for i in range(2)]
    result = await world.place(node("n1", cpu="8"), gang("g", 2), *members)
    assert sorted(entry["backend"] for entry in result["pods"]) == ["aurora", "borealis"]


@pytest.mark.parametrize("licences", ["az", "za"])
@pytest.mark.parametrize("region", ["east", "west"])
async def test_types_that_must_agree_use_the_preferred_devices_value(
    world: World, tmp_path: Path, region: str, licences: str
) -> None:
    (tmp_path / "resources.yaml").write_text(
        f"""
        resources:
          - {{type: qpu, name: aurora, attributes: {{region: east, vendor: a}}}}
          - {{type: qpu, name: borealis, attributes: {{region: west, vendor: z}}}}
          - {{type: licence, name: first, attributes: {{vendor: {licences[0]}}}}}
          - {{type: licence, name: last, attributes: {{vendor: {licences[1]}}}}}
        """
    )
    wanted = device("qpu") | device("licence")
    await world.place(node("n1"), pod("q", wanted, annotations={PREFIX + "prefer-region": region}))
    assert world.pod("q")["attributes"] == {"region": region, "vendor": {"east": "a", "west": "z"}[region]}
