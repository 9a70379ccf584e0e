"""A pod keeps its allocation until it ends, through changes of nodes, records and answers."""

from __future__ import annotations

import msgspec
import pytest

from session_scheduler.model.objects import Node, NodeStatus, ObjectMeta, Pod

from .conftest import World, device, gang, node, pod

ONE_QPU = "resources: [{type: qpu, name: q}]"


def live_node(name: str, cpu: str) -> Node:
    return Node(
        metadata=ObjectMeta(name=name), status=NodeStatus(allocatable={"cpu": cpu, "memory": "8Gi", "pods": "9"})
    )


async def change(world: World, name: str, cpu: str | None) -> None:
    await world.scheduler.event_handlers.apply("DELETED" if cpu is None else "MODIFIED", live_node(name, cpu or "0"))
    await world.scheduler.cycle()


def shares(world: World) -> dict[str, set[str]]:
    """The devices and hosts that each pod holds."""
    names = {task.uid: task.name for task in world.scheduler.cache.tasks.values()}
    return {
        names[uid]: {thing.path for part in share.values() for things in (part.hosts, part.devices) for thing in things}
        for uid, share in world.plugin.live.holdings.shares.items()
    }


async def arrives(world: World, manifest: dict[str, object]) -> None:
    fresh = msgspec.convert(manifest, Pod)
    metadata = msgspec.structs.replace(fresh.metadata, namespace="default", uid=f"uid-{fresh.metadata.name}")
    created = await world.scheduler.cluster.create(msgspec.structs.replace(fresh, metadata=metadata))
    await world.scheduler.event_handlers.apply("ADDED", created)
    await world.scheduler.cycle()


async def test_a_gang_keeps_its_allocation_when_its_node_grows(world: World) -> None:
    members = [pod(f"g{i}", {"cpu": "2"}, group="g") for i in range(2)]
    await world.place(node("n1", cpu="2"), node("n2", cpu="2"), gang("g", 2), *members)
    before = shares(world)
    await change(world, "n1", "3")
    assert shares(world) == before
    assert world.plugin.live.holdings.missing == {}
    assert world.free_cores() == 1


@pytest.mark.parametrize("cpus", [["3"], [None, "4"], ["3", "4", None, "4"]])
async def test_a_live_pod_keeps_its_devices_when_its_node_changes(world: World, cpus: list[str | None]) -> None:
    (world._folder / "resources.yaml").write_text(ONE_QPU)
    await world.place(node("n1"), node("n2"), pod("a", device("qpu") | {"cpu": "4"}))
    home = world.pod("a")["node"]
    for turn, cpu in enumerate(cpus):
        await change(world, home, cpu)
        await arrives(world, pod(f"thief-{turn}", device("qpu")))
        assert "/cluster/q" in shares(world)["a"]
    assert all("/cluster/q" not in held for name, held in shares(world).items() if name != "a")
    if cpus[-1] == "4":
        assert shares(world)["a"] == {f"/cluster/{home}", "/cluster/q"}
        assert world.plugin.live.holdings.missing == {}


async def test_a_pod_that_ends_while_its_node_is_gone_frees_everything(world: World) -> None:
    await world.place(node("n1"), node("n2"), pod("a", device("qpu")))
    home = world.pod("a")["node"]
    await change(world, home, None)
    await world.scheduler.event_handlers.apply("DELETED", await world.live_pod("a"))
    await change(world, home, "4")
    assert world.plugin.live.holdings.missing == {}
    assert world.plugin.live.holdings.shares == {}
    assert world.free_cores() == 8


async def test_a_node_that_shrinks_counts_its_running_pods(world: World) -> None:
    await world.place(node("n1"), pod("a", {"cpu": "4"}))
    await change(world, "n1", "3")
    assert world.free_cores() == 0


async def test_a_pod_keeps_its_cores_when_the_node_above_its_device_is_deleted(world: World) -> None:
    (world._folder / "resources.yaml").write_text("resources: [{type: fpga, parent: n1, name: f}]")
    cordoned = node("n1")
    cordoned["spec"] = {"unschedulable": True}
    await world.place(cordoned, node("n2"), pod("a", device("fpga") | {"cpu": "4"}))
    assert world.pod("a")["node"] == "n2"
    await change(world, "n1", None)
    assert shares(world)["a"] == {"/cluster/n2"}
    assert world.free_cores() == 0


async def test_only_a_node_named_like_a_backend_is_left_out(world: World) -> None:
    (world._folder / "resources.yaml").write_text(ONE_QPU)
    await world.place(node("n1"))
    await change(world, "q", "4")
    await arrives(world, pod("p"))
    assert shares(world) == {"p": {"/cluster/n1"}}


async def test_two_pods_with_one_record_never_share_its_device(world: World) -> None:
    await world.place(node("n1", cpu="8"), pod("part", device("qubit")), pod("q2", device("qpu", 2)))
    record = (await world.live_pod("part")).metadata.annotations["fluence.flux-framework.org/held"]
    for jobid in ("7", "0000003"):
        claim = record.replace('"1":', f'"{jobid}1":').replace('"2":', f'"{jobid}2":')
        claim = claim.replace("/cluster/aurora/qpu0/qubit3", "/cluster/aurora")
        claim = claim.replace("/cluster/aurora/qpu0/qubit0", "/cluster/aurora")
        claim = claim.replace((await world.live_pod("part")).metadata.uid, "forger")
        forger = msgspec.convert(pod("forger", nodeName="n1"), Pod)
        metadata = ObjectMeta(
            name="forger", namespace="default", uid="forger", annotations={"fluence.flux-framework.org/held": claim}
        )
        await world.scheduler.event_handlers.apply("ADDED", msgspec.structs.replace(forger, metadata=metadata))
        await world.scheduler.cluster.create(msgspec.structs.replace(forger, metadata=metadata))
        await world.restarted()
        holders = [name for name, held in shares(world).items() if any("/cluster/aurora" in path for path in held)]
        assert len(holders) == 1
        await world.scheduler.cluster.delete(await world.live_pod("forger"), grace_seconds=0)


@pytest.mark.parametrize("jobid", ["9" * 5000, str(2**62 - 1), "-1", "0"])
async def test_a_record_with_an_invalid_jobid_is_ignored(world: World, jobid: str) -> None:
    held = f'{{"jobs":{{"{jobid}":{{"host":"n1","cores":[0],"gpus":[],"memory":0}}}}}}'
    record = f'{{"uid":"u","plugins":{{"fluence":{held}}}}}'
    forged = pod("a", nodeName="n1", annotations={"fluence.flux-framework.org/held": record})
    forged["metadata"]["uid"] = "u"
    await world.place(node("n1"), forged, pod("b"))
    assert world.pod("b")["node"] == "n1"
    assert world.free_cores() == 2


async def test_a_record_below_the_pods_requests_frees_nothing(world: World) -> None:
    record = '{"uid":"u","plugins":{"fluence":{"jobs":{"1":{"host":"n1","cores":[0],"gpus":[],"memory":0}}}}}'
    understated = pod("a", {"cpu": "4"}, nodeName="n1", annotations={"fluence.flux-framework.org/held": record})
    understated["metadata"]["uid"] = "u"
    await world.place(node("n1"), understated)
    assert world.free_cores() == 0


async def test_a_backend_annotation_of_the_user_does_not_reach_the_workload(world: World) -> None:
    await world.place(node("n1"), pod("a", annotations={"fluence.flux-framework.org/backend": "fake"}))
    assert world.pod("a")["backend"] is None
    assert world.pod("a")["env"] == {}
    assert (await world.live_pod("a")).metadata.annotations["fluence.flux-framework.org/backend"] == ""


async def test_a_large_gang_with_a_device_tree_per_pod_is_within_the_budget(world: World) -> None:
    trees = "\n".join(f"  - {{type: qpu, name: q{i}}}" for i in range(80))
    (world._folder / "resources.yaml").write_text(f"resources:\n{trees}\n")
    members = [pod(f"g{i}", device("qpu"), group="g") for i in range(70)]
    result = await world.place(node("n1", cpu="80"), gang("g", 70), *members)
    assert result["summary"]["scheduled"] == 70


async def test_a_restart_without_a_pods_node_keeps_its_devices(world: World) -> None:
    (world._folder / "resources.yaml").write_text(ONE_QPU)
    await world.place(node("n1"), node("n2"), pod("a", device("qpu")))
    home = world.pod("a")["node"]
    await world.scheduler.cluster.delete(live_node(home, "4"))
    await world.restarted()
    await arrives(world, pod("thief", device("qpu")))
    assert shares(world)["a"] == {"/cluster/q"}
    await change(world, home, "4")
    assert shares(world) == {"a": {f"/cluster/{home}", "/cluster/q"}}
