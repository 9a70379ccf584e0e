"""Edge cases: every policy, types that must agree, reasons with numbers, invalid graphs, absurd sizes."""

from __future__ import annotations

import logging

import pytest

from session_scheduler.errors import InputError

from .conftest import World, device, gang, node, pod

POLICIES = (
    "first", "firstnodex", "high", "low", "lonode", "hinode", "lonodex", "hinodex", "locality", "variation", "pack",
)  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_policy_places_pods_and_devices_and_frees_them(world: World, policy: str) -> None:
    world.arguments["matchPolicy"] = policy
    pods = [pod("q", device("qpu") | {"memory": "1Gi"}), *(pod(f"g{i}", {"cpu": "2"}, group="g") for i in range(3))]
    result = await world.place(node("n1"), node("n2"), node("n3"), gang("g", 3), *pods)
    assert result["summary"]["scheduled"] == 4, result
    before = world.free_cores()
    await world.restarted()
    assert world.free_cores() == before
    for name in ("q", "g0", "g1", "g2"):
        await world.scheduler.event_handlers.apply("DELETED", await world.live_pod(name))
    assert world.free_cores() == 12
    assert world.plugin.live.holdings.shares == {}


@pytest.mark.parametrize("policy", ["firstnodex", "lonodex"])
async def test_a_policy_of_whole_nodes_shares_no_node_between_groups(world: World, policy: str) -> None:
    world.arguments["matchPolicy"] = policy
    system = pod("system", {"cpu": "100m"}, nodeName="n1", schedulerName="other")
    result = await world.place(node("n1"), node("n2"), system, *(pod(f"p{i}") for i in range(3)))
    placed = [entry["node"] for entry in result["pods"] if entry["node"]]
    assert sorted(placed) == ["n1", "n2"]


async def test_types_that_disagree_are_matched_with_one_value_for_all(world: World) -> None:
    for order in (("y", "z"), ("z", "y")):
        attributes = {"y": "a", "z": "b"}
        trees = [f"  - {{type: q, name: {name}, attributes: {{r: {attributes[name]}}}}}" for name in order]
        text = "\n".join(["resources:", *trees, "  - {type: l, name: l1, attributes: {r: a}}"])
        (world._folder / "resources.yaml").write_text(text)
        await world.place(node("n1"), pod("p", device("q") | device("l")))
        assert world.pod("p")["backend"] == "l1,y"
        assert len(world.plugin.live.holdings.shares) == 1


async def test_the_reason_for_a_shortage_of_devices_has_numbers(world: World) -> None:
    await world.place(node("n1", cpu="9"), gang("g", 4), *(pod(f"q{i}", device("qpu"), group="g") for i in range(4)))
    assert "3 of 4 pods fit: 4 pods request 4 qpus, and 3 of 3 are free" in world.pod("q0")["reason"]
    assert len({world.pod(f"q{i}")["reason"] for i in range(4)}) == 1


async def test_a_partly_allocated_device_is_not_free(world: World) -> None:
    await world.place(
        node("n1"),
        pod("a", device("qubit")),
        pod("b", device("qdevice", 1), annotations={"fluence.flux-framework.org/require-backend": "aurora"}),
    )
    assert "the pod requests 1 qdevice of backend aurora, and 0 of 1 is free" in world.pod("b")["reason"]


async def test_a_duplicate_name_fails_the_start(world: World) -> None:
    (world._folder / "resources.yaml").write_text("resources: [{type: fpga, name: n1}]")
    with pytest.raises(InputError, match="/cluster/n1: two vertices have this path"):
        await world.place(node("n1"), node("n2"), pod("p"))


async def test_a_tree_without_its_parent_node_waits_and_is_the_reason(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fluence")
    (world._folder / "resources.yaml").write_text("resources: [{type: fpga, parent: nope}]")
    await world.place(node("n1"), pod("p"), pod("f", device("fpga")))
    assert world.pod("p")["node"] == "n1"
    assert "the requested resource is below node 'nope'" in world.pod("f")["reason"]
    assert any("resource fpga: waits for its parent, node 'nope'" in record.getMessage() for record in caplog.records)


async def test_memory_below_one_mib_is_refused_with_a_reason(world: World) -> None:
    await world.place(node("n1", memory="1000Ki"), pod("p", {"memory": "1000Ki"}))
    assert world.pod("p")["node"] is None
    assert "memory" in world.pod("p")["reason"]
    assert "plugin fluence failed" not in world.pod("p")["reason"]


async def test_an_absurd_request_is_refused_with_a_reason(world: World) -> None:
    world.arguments["cpuAccounting"] = "cores"
    await world.place(node("n1", cpu="9e99"), pod("p", {"cpu": "9e99"}))
    assert "more than 8192 cores" in world.pod("p")["reason"]


async def test_an_absurd_node_is_modelled_partly(world: World) -> None:
    world.arguments["cpuAccounting"] = "cores"
    await world.place(node("n1", cpu="10000000000", **{"nvidia.com/gpu": "9223372036854775807"}), pod("p"))
    assert world.pod("p")["node"] == "n1"
    assert world.free_cores() == 8191


@pytest.mark.parametrize("record", ["garbage", "[]", '{"uid": 1}', '{"uid": "another", "plugins": {}}'])
async def test_an_invalid_record_is_logged(world: World, caplog: pytest.LogCaptureFixture, record: str) -> None:
    annotations = {"fluence.flux-framework.org/held": record}
    await world.place(node("n1"), pod("p", nodeName="n1", annotations=annotations))
    assert world.plugin.live.holdings.shares == {}
    assert world.free_cores() == 3


async def test_each_pod_of_a_gang_may_agree_on_its_own_value(world: World) -> None:
    trees = [("q", "y", "a"), ("q", "z", "b"), ("l", "m", "b"), ("l", "n", "a")]
    lines = [f"  - {{type: {kind}, name: {name}, attributes: {{r: {value}}}}}" for kind, name, value in trees]
    for order in (lines, lines[::-1]):
        (world._folder / "resources.yaml").write_text("\n".join(["resources:", *order]))
        asked = device("q") | device("l")
        result = await world.place(node("n1"), gang("g", 2), *(pod(f"p{i}", asked, group="g") for i in range(2)))
        assert result["summary"]["scheduled"] == 2, result["pods"]
        assert {entry["backend"] for entry in result["pods"]} == {"n,y", "m,z"}


async def test_a_large_gang_whose_pods_must_each_agree_is_within_the_budget(world: World) -> None:
    lines = [f"  - {{type: {kind}, name: {kind}{i}, attributes: {{r: v{i}}}}}" for kind in "ql" for i in range(40)]
    (world._folder / "resources.yaml").write_text("\n".join(["resources:", *lines[:40], *lines[40:][::-1]]))
    asked = device("q") | device("l")
    members = [pod(f"p{i}", asked, group="g") for i in range(20)]
    result = await world.place(node("n1", cpu="40"), gang("g", 20), *members)
    assert result["summary"]["scheduled"] == 20


@pytest.mark.parametrize(("budget", "fits"), [(2, False), (9, True)])
async def test_the_values_tried_for_one_pod_are_bounded(world: World, budget: int, fits: bool) -> None:
    world.arguments["matchBudget"] = budget
    lines = [f"  - {{type: q, name: q{i}, attributes: {{r: v{i}}}}}" for i in range(5)]
    lines.append("  - {type: l, name: only, attributes: {r: v2}}")
    (world._folder / "resources.yaml").write_text("\n".join(["resources:", *lines]))
    await world.place(node("n1"), pod("p", device("q") | device("l")))
    assert (world.pod("p")["node"] is not None) is fits
    if not fits:
        assert "the match budget ran out before every value was tried" in world.pod("p")["reason"]
