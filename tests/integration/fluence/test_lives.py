"""A pod's end frees its allocation, and a restart recovers the allocations of live pods."""

from __future__ import annotations

import json

import msgspec
import pytest

from fluence_plugins.fluence.graph.accounting import Accounting, Amounts
from fluence_plugins.fluence.graph.foreign_load import ForeignLoad
from fluence_plugins.fluence.matching import pod_requests
from fluence_plugins.fluence.matching.pod_requests import PodRequests
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.objects import Node, NodeStatus, ObjectMeta, Pod, PodStatus

from .conftest import World, device, gang, node, pod

HELD = "fluence.flux-framework.org/held"


async def test_a_pod_that_ends_frees_only_its_own_share(world: World) -> None:
    await world.place(node("n1"), gang("g", 2), pod("a", group="g"), pod("b", device("qpu"), group="g"))
    assert world.free_cores() == 2
    ended = msgspec.structs.replace(await world.live_pod("b"), status=PodStatus(phase="Succeeded"))
    await world.scheduler.event_handlers.apply("MODIFIED", ended)
    assert world.free_cores() == 3
    await world.scheduler.event_handlers.apply("DELETED", await world.live_pod("a"))
    assert world.free_cores() == 4
    assert world.plugin.live.holdings.shares == {}


async def test_ending_twice_frees_once(world: World) -> None:
    await world.place(node("n1"), pod("a"), pod("b"))
    ended = msgspec.structs.replace(await world.live_pod("a"), status=PodStatus(phase="Failed"))
    for change in ("MODIFIED", "MODIFIED", "DELETED"):
        await world.scheduler.event_handlers.apply(change, ended)
    assert world.free_cores() == 3


async def test_a_start_counts_each_hosts_load_once_after_what_pods_hold_is_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = pod("foreign", schedulerName="other", nodeName="n2")
    await world.place(node("n1"), node("n2"), foreign, pod("ours", nodeSelector={"none": "none"}), pod("placed"))
    counted: list[tuple[str, bool]] = []
    whole = ForeignLoad.set

    def count(self: ForeignLoad, name: str, load: Amounts | None) -> None:
        counted.append((name, load is not None))
        whole(self, name, load)

    monkeypatch.setattr(ForeignLoad, "set", count)
    await world.restarted()
    assert sorted(counted) == [("n1", False), ("n2", True)]


async def test_a_start_reads_the_requests_of_a_class_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.place(node("n1"), node("n2"), *(pod(f"p{number}") for number in range(6)))
    read: list[TaskClass] = []
    whole = pod_requests.requests_of

    def count(cls: TaskClass, accounting: Accounting) -> PodRequests:
        read.append(cls)
        return whole(cls, accounting)

    monkeypatch.setattr(pod_requests, "requests_of", count)
    await world.restarted()
    assert len(read) == 1
    assert len(world.plugin.live.holdings.shares) == 6


async def test_a_restart_recovers_the_allocations_of_live_pods(world: World) -> None:
    await world.place(
        node("n1"),
        node("n2"),
        gang("g", 3),
        *(pod(f"p{i}", device("qpu") | {"memory": "1Gi"}, group="g") for i in range(3)),
    )
    before = {
        task.key: share
        for task in world.scheduler.cache.tasks.values()
        for share in [world.plugin.live.holdings.shares[task.uid]]
    }
    free, last = world.free_cores(), world.plugin.live.allocations.next_jobid
    await world.restarted()
    after = {
        task.key: share
        for task in world.scheduler.cache.tasks.values()
        for share in [world.plugin.live.holdings.shares[task.uid]]
    }
    assert after == before
    assert world.free_cores() == free
    assert world.plugin.live.allocations.next_jobid == last


async def test_a_restart_allocates_nothing_twice(world: World) -> None:
    await world.place(node("n1", cpu="2"), pod("a"), pod("b"))
    scheduler = await world.restarted()
    fresh = msgspec.convert(pod("c"), Pod)
    fresh = msgspec.structs.replace(fresh, metadata=ObjectMeta(name="c", namespace="default", uid="c"))
    await scheduler.event_handlers.apply("ADDED", await scheduler.cluster.create(fresh))
    assert await scheduler.cycle() == []


async def test_a_forged_record_counts_as_foreign_load(world: World) -> None:
    await world.place(node("n1"), node("n2"), pod("a"))
    home = world.pod("a")["node"]
    other = "n2" if home == "n1" else "n1"
    live = await world.live_pod("a")
    held = json.loads(live.metadata.annotations[HELD])
    held["plugins"]["fluence"]["jobs"]["1"]["host"] = other
    await world.scheduler.cluster.patch_metadata(live, annotations={HELD: json.dumps(held)})
    await world.restarted()
    assert world.plugin.live.holdings.shares == {}
    assert world.free_cores() == 7


async def test_a_record_that_claims_another_pods_devices_is_ignored(world: World) -> None:
    await world.place(node("n1"), pod("a", device("qpu", 2)))
    live = await world.live_pod("a")
    record = live.metadata.annotations[HELD].replace(live.metadata.uid, "zz")
    forger = msgspec.convert(pod("thief", device("qpu", 2), nodeName="n1"), Pod)
    metadata = ObjectMeta(name="thief", namespace="default", uid="zz", annotations={HELD: record})
    await world.scheduler.cluster.create(msgspec.structs.replace(forger, metadata=metadata))
    await world.restarted()
    assert len(world.plugin.live.holdings.shares) <= 1


async def test_a_copied_record_is_not_allocated_twice(world: World) -> None:
    await world.place(node("n1"), pod("a", device("qpu", 2)))
    live = await world.live_pod("a")
    copy = msgspec.convert(pod("thief", device("qpu", 2), nodeName="n1"), Pod)
    metadata = ObjectMeta(name="thief", namespace="default", uid="zz", annotations=dict(live.metadata.annotations))
    await world.scheduler.cluster.create(msgspec.structs.replace(copy, metadata=metadata))
    await world.restarted()
    assert len(world.plugin.live.holdings.shares) == 1
    assert world.free_cores() == 2


async def test_a_node_that_grows_keeps_its_pods_shares(world: World) -> None:
    await world.place(node("n1", cpu="2"), pod("a"), pod("b"))
    shares = dict(world.plugin.live.holdings.shares)
    bigger = Node(
        metadata=ObjectMeta(name="n1"), status=NodeStatus(allocatable={"cpu": "4", "memory": "8Gi", "pods": "9"})
    )
    await world.scheduler.event_handlers.apply("MODIFIED", bigger)
    await world.scheduler.cycle()
    assert world.plugin.live.holdings.shares == shares
    assert world.free_cores() == 2


async def test_a_deleted_node_frees_only_its_own_resources(world: World) -> None:
    await world.place(node("n1", cpu="2"), node("n2", cpu="2"), *(pod(f"p{i}", device("qpu")) for i in range(3)))
    gone = Node(metadata=ObjectMeta(name="n1"))
    on_it = sum(entry["node"] == "n1" for entry in world.result["pods"])
    await world.scheduler.event_handlers.apply("DELETED", gone)
    await world.scheduler.cycle()
    held_of = [part.hosts for share in world.plugin.live.holdings.shares.values() for part in share.values()]
    assert sum(bool(hosts) for hosts in held_of) == 3 - on_it
    assert "n1" not in world.plugin.live.graph.host_ranks


# ---------------------------------------------------------------------- pods of another scheduler

BOARDS = """
resources:
  - {type: fpga, name: board, parent: n1}
  - {type: fpga, name: outside}
"""


async def of_another_scheduler(world: World, backend: str) -> tuple[Node, Pod, Pod]:
    """A node, a pod that another scheduler gave this device before the node moved, and a new pod for a device."""
    (world._folder / "resources.yaml").write_text(BOARDS)
    await world.place(
        node("n1", **device("fpga", 9)),
        pod("one", device("fpga"), annotations={"fluence.flux-framework.org/require-backend": backend}),
        pod("two", device("fpga"), nodeSelector={"none": "none"}),
    )
    one, two = await world.live_pod("one"), await world.live_pod("two")
    assert (one.spec.node_name, one.metadata.annotations["fluence.flux-framework.org/backend"]) == ("n1", backend)
    one = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, scheduler_name="other"))
    two = msgspec.structs.replace(two, spec=msgspec.structs.replace(two.spec, node_selector={}))
    (world._folder / "resources.yaml").write_text("resources: [{type: fpga, name: board, parent: n1}]")
    return (await world.scheduler.cluster.list(Node)).items[0], one, two


async def started_beside_another_scheduler(world: World, backend: str) -> tuple[Scheduler, Pod]:
    """The scheduler, after its first cycle with that node and those pods, and the other scheduler's pod."""
    joined, one, two = await of_another_scheduler(world, backend)
    world.scheduler.cluster = MemoryCluster([joined, one, two])
    scheduler = await world.restarted()
    await scheduler.cycle()
    return scheduler, one


async def test_devices_that_another_scheduler_gave_to_pods_of_a_node_are_held_at_a_start(world: World) -> None:
    scheduler, one = await started_beside_another_scheduler(world, "board")
    assert (await world.live_pod("two")).spec.node_name == ""
    await scheduler.event_handlers.apply("DELETED", one)
    world.advance(60)
    await scheduler.cycle()
    assert (await world.live_pod("two")).spec.node_name == "n1"


async def test_devices_that_another_scheduler_gave_to_pods_of_a_node_are_held_when_it_joins(world: World) -> None:
    joined, one, two = await of_another_scheduler(world, "board")
    world.scheduler.cluster = MemoryCluster([two])
    scheduler = await world.restarted()
    for obj in (one, joined):
        await scheduler.event_handlers.apply("ADDED", obj)
    await scheduler.cycle()
    assert (await world.live_pod("two")).spec.node_name == ""
    assert world.free_cores() == 3
    await scheduler.event_handlers.apply("DELETED", joined)
    await scheduler.event_handlers.apply("DELETED", one)
    await scheduler.cycle()
    assert not world.plugin.live.holdings.shares
    assert not world.plugin.live.holdings.missing


async def test_of_another_schedulers_devices_only_those_of_the_node_are_held(world: World) -> None:
    await started_beside_another_scheduler(world, "outside")
    assert (await world.live_pod("two")).spec.node_name == "n1"
    assert not world.plugin.live.holdings.missing
