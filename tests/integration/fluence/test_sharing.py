"""`sharing: N`: N pods hold one device at a time, through edits, restarts and devices that are down."""

from __future__ import annotations

from fluence_plugins.resources.names import without_places

from .conftest import World, device, gang, node, pod
from .test_changes import arrives, shares
from .test_resources_change import OFFERS, allocated, placed, set_resources, start

FOUR = "resources: [{type: qpu, name: a, sharing: 4, attributes: {region: east}}]"


def devices(world: World) -> dict[str, set[str]]:
    """The devices that each pod holds, without their places."""
    return {name: {without_places(p) for p in paths if not p.startswith("/cluster/n")}
            for name, paths in shares(world).items()}  # fmt: skip


async def ends(world: World, *names: str) -> None:
    for name in names:
        await world.scheduler.event_handlers.apply("DELETED", await world.live_pod(name))
    world.advance(60)
    await world.scheduler.cycle()


async def test_n_pods_share_one_device_and_the_next_one_gets_the_number_of_free_places(
    world: World,
) -> None:
    await start(world, FOUR, *(pod(f"p{i}", device("qpu")) for i in range(5)))
    got = [one for one in world.result["pods"] if one["node"]]
    assert [(one["backend"], one["attributes"]) for one in got] == [("a", {"region": "east"})] * 4
    assert len({path for paths in shares(world).values() for path in paths if "/a/" in path}) == 4
    refused = next(one["reason"] for one in world.result["pods"] if not one["node"])
    assert "the pod requests 1 qpu, and 0 of 4 places are free" in refused


async def test_a_pod_with_two_devices_never_gets_two_places_of_one(world: World) -> None:
    two = "resources: [{type: farm, name: f, with: [{type: qpu, name: x, sharing: 3}, {type: qpu, name: y}]}]"
    await start(world, two, pod("p", device("qpu", 2)))
    assert devices(world) == {"p": {"/cluster/f/x", "/cluster/f/y"}}
    await arrives(world, pod("q", device("qpu", 2)))
    reasons = next(outcome.reasons for key, outcome in world.scheduler.outcomes.items() if key.endswith("q"))
    why = (
        "no resource tree has 2 free qpus that one pod can use at the same time; 2 of 4 places are free, at most "
        "1 in one resource tree"
    )
    assert any(why in text for text in reasons.values())


async def test_the_parent_of_a_shared_device_is_available_only_without_shares(world: World) -> None:
    tree = "resources: [{type: farm, name: f, with: [{type: qpu, sharing: 2, with: [{type: qubit, count: 3}]}]}]"
    await start(world, tree, pod("p", device("qubit")))
    assert devices(world)["p"] < {f"/cluster/f/qpu0/qubit{i}" for i in range(3)}
    await arrives(world, pod("whole", device("farm")))
    assert not await placed(world, "whole")
    await arrives(world, pod("q", device("qpu")))
    assert await placed(world, "q"), "expected the other place to be free"
    await ends(world, "p", "q")
    assert await placed(world, "whole")
    await arrives(world, pod("late", device("qubit")))
    assert not await placed(world, "late")


async def test_after_a_lower_limit_holders_stay_and_new_pods_wait(
    world: World,
) -> None:
    await start(world, FOUR, *(pod(f"p{i}", device("qpu")) for i in range(4)))
    set_resources(world, FOUR.replace("4", "2"))
    await arrives(world, pod("late", device("qpu")))
    (reasons,) = (one.reasons.values() for key, one in world.scheduler.outcomes.items() if key.endswith("late"))
    assert "the pod requests 1 qpu, and 0 of 4 places are free" in next(iter(reasons))
    for name in ("p0", "p3"):
        await ends(world, name)
        assert not await placed(world, "late"), "two pods still hold the device"
        assert world.plugin.drift == {"unheld": 0, "ended": 0}
    await ends(world, "p1")
    assert await placed(world, "late")
    assert devices(world) == {"p2": {"/cluster/a"}, "late": {"/cluster/a"}}


async def test_holders_keep_a_device_when_its_sharing_starts_or_ends(world: World) -> None:
    alone = "resources: [{type: qpu, name: a}]"
    await start(world, alone, pod("p", device("qpu")))
    set_resources(world, FOUR)
    await arrives(world, pod("q", device("qpu")))
    assert devices(world) == {"p": {"/cluster/a"}, "q": {"/cluster/a"}}
    set_resources(world, alone)
    assert devices(world) == {"p": {"/cluster/a"}, "q": {"/cluster/a"}}
    assert world.plugin.live.holdings.missing == {}
    await ends(world, "p")
    await arrives(world, pod("r", device("qpu")))
    assert not await placed(world, "r")
    assert shares(world)["q"] >= {"/cluster/a"}, "expected the whole device after the last other holder"
    assert allocated(world) == {"/cluster/a"}


async def test_a_successor_recovers_shares_even_after_a_lower_limit(world: World) -> None:
    await start(world, FOUR, *(pod(f"p{i}", device("qpu")) for i in range(3)))
    before = shares(world)
    held = (await world.live_pod("p0")).metadata.annotations["fluence.flux-framework.org/held"]
    assert '"devices":["/cluster/a/@"]' in held, "expected a device without a numbered place"
    await world.restarted()
    assert shares(world).keys() == before.keys()
    assert devices(world) == {name: {"/cluster/a"} for name in ("p0", "p1", "p2")}
    assert world.plugin.live.graph.extra_places == {}
    (world._folder / "resources.yaml").write_text(FOUR.replace("4", "2"))
    await world.restarted()
    assert devices(world) == {name: {"/cluster/a"} for name in ("p0", "p1", "p2")}
    assert world.plugin.live.holdings.missing == {}
    await arrives(world, pod("late", device("qpu")))
    assert not await placed(world, "late")


async def test_a_shared_device_that_is_down_is_unavailable_and_named_once(world: World) -> None:
    await start(world, FOUR, pod("p", device("qpu")))
    set_resources(world, FOUR.replace("name: a", "name: a, status: down"))
    assert devices(world) == {"p": {"/cluster/a"}}
    await arrives(world, pod("q", device("qpu")))
    (reasons,) = (one.reasons.values() for key, one in world.scheduler.outcomes.items() if key.endswith("q"))
    assert "every qpu is down in the resources file: a" in next(iter(reasons))


async def test_a_gang_shares_a_device_and_is_not_placed_partly(world: World) -> None:
    (world._folder / "resources.yaml").write_text(FOUR)
    members = [pod(f"g{i}", device("qpu"), group="g") for i in range(3)]
    more = [pod(f"h{i}", device("qpu"), group="h") for i in range(3)]
    await world.place(node("n1", **OFFERS), node("n2", **OFFERS), gang("g", 3), gang("h", 3), *members, *more)
    assert sorted(one["group"] for one in world.result["pods"] if one["node"]) in (["g"] * 3, ["h"] * 3)
