"""Pods that form a group by label, without a PodGroup."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.errors import shown

from .conftest import World, device, gang, node, pod

PREFIX = "fluence.flux-framework.org/"
SIZE = PREFIX + "group-size"


def member(name: str, size: str | None, *, group: str = "g", cpu: str = "2", **more: Any) -> dict[str, Any]:
    made = pod(name, {"cpu": cpu, **more.pop("asks", {})}, annotations={} if size is None else {SIZE: size}, **more)
    made["metadata"]["labels"] = {PREFIX + "group": group}
    return made


async def test_a_group_by_label_starts_all_or_nothing(world: World) -> None:
    result = await world.place(
        node("n1"),
        *(member(f"fits-{i}", "2", group="fits") for i in range(2)),
        *(member(f"large-{i}", "3", group="large") for i in range(3)),
    )
    assert [world.pod(f"fits-{i}")["node"] for i in range(2)] == ["n1", "n1"]
    assert [world.pod(f"large-{i}")["node"] for i in range(3)] == [None] * 3
    assert {group["name"]: (group["minCount"], group["scheduled"]) for group in result["groups"]} == {
        "fits": (2, 2),
        "large": (3, 0),
    }
    assert world.free_cores() == 0


async def test_a_group_by_label_waits_for_all_its_members(world: World) -> None:
    await world.place(node("n1"), member("a", "2"))
    assert world.pod("a")["reason"] == "pod group default/g needs 2 pods to start and has 1"


async def test_members_beyond_the_size_start_as_they_fit(world: World) -> None:
    result = await world.place(node("n1"), *(member(f"p{i}", "2") for i in range(3)))
    assert result["summary"]["scheduled"] == 2


async def test_members_without_a_size_start_one_by_one(world: World) -> None:
    result = await world.place(node("n1"), *(member(f"p{i}", None) for i in range(3)))
    assert result["summary"]["scheduled"] == 2


async def test_a_group_by_label_gets_all_its_devices_or_none(world: World) -> None:
    await world.place(node("n1", cpu="8"), *(member(f"p{i}", "4", cpu="1", asks=device("qpu")) for i in range(4)))
    assert [world.pod(f"p{i}")["node"] for i in range(4)] == [None] * 4
    assert world.plugin.live.holdings.shares == {}


async def test_groups_of_one_name_in_two_namespaces_are_two(world: World) -> None:
    there = member("a", "2")
    there["metadata"]["namespace"] = "other"
    await world.place(node("n1"), member("b", "2"), there)
    assert [world.pod(name)["node"] for name in "ab"] == [None, None]


@pytest.mark.parametrize("wrong", ["0", "-1", "two", "2.0", "", "1000001", "٣"])
async def test_the_error_for_an_invalid_size_names_the_pod_and_the_annotation(world: World, wrong: str) -> None:
    await world.place(node("n1"), member("a", "2"), member("b", wrong))
    for name in "ab":
        reason = world.pod(name)["reason"]
        assert reason.startswith(f"pod default/b: metadata.annotations[{SIZE}]: ")
        assert reason.endswith(f"expected a number of pods from 1 to 1000000, got {shown(wrong)}; correct or remove it")


async def test_the_error_for_members_with_different_sizes_names_both(world: World) -> None:
    await world.place(node("n1"), member("a", "2"), member("b", "2"), member("c", None))
    assert world.pod("a")["reason"] == (
        f"pod default/c: metadata.annotations[{SIZE}] is 1, but pod default/a of the same group default/g has 2 "
        "(a missing size counts as 1); set the same size on all pods"
    )
    assert world.pod("c")["node"] is None


async def test_a_podgroup_of_the_same_name_is_another_group(world: World) -> None:
    result = await world.place(node("n1"), gang("g", 1), pod("native", group="g"), member("a", "2", cpu="1"))
    assert world.pod("native")["node"] == "n1"
    assert "needs 2 pods" in world.pod("a")["reason"]
    assert [(group["minCount"], group["scheduled"]) for group in result["groups"]] == [(2, 0), (1, 1)]


async def test_a_podgroup_takes_precedence_over_the_label(world: World) -> None:
    await world.place(node("n1"), gang("g", 1), member("a", "2", group="other", schedulingGroup={"podGroupName": "g"}))
    assert world.pod("a")["node"] == "n1"
