"""A partition sees its nodes, all pods on them and its own pods, and follows nodes that join and leave."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from session_scheduler.cluster.errors import Unavailable
from session_scheduler.cluster.kube_lists import selectors
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.cluster.mirror import KnownObjects, Mirror
from session_scheduler.cluster.partition import SETTLE_SECONDS, Partition, partition_of
from session_scheduler.cluster.port import Change, WatchEvent
from session_scheduler.config.partition import PartitionConfig
from session_scheduler.config.settings import Profile, SchedulerConfig
from session_scheduler.model.devices import Device, ResourcePool, ResourceSlice, ResourceSliceSpec
from session_scheduler.model.objects import KubeObject, Node, ObjectMeta, Pod, PodSpec
from session_scheduler.model.queue_objects import Queue

from .mirror_world import FakeTime, Faulty, Meter, Receiver

KINDS = (Node, Queue, ResourceSlice, Pod)
CONFIG = PartitionConfig(node_selector={"pool": "a"}, device_pools=("driver/fabric",))


def node(name: str, pool: str | None) -> Node:
    return Node(metadata=ObjectMeta(name=name, labels={} if pool is None else {"pool": pool}))


def pod(name: str, on: str = "", scheduler: str = "other") -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="ns"), spec=PodSpec(node_name=on, scheduler_name=scheduler))


def a_slice(name: str, pool: str, **spec: object) -> ResourceSlice:
    described = ResourceSliceSpec(driver="driver", pool=ResourcePool(name=pool), **spec)  # type: ignore[arg-type]
    return ResourceSlice(metadata=ObjectMeta(name=name), spec=described)


class World:
    """A cluster, and the mirror of its partition `pool: a` with the schedulerName `mine`, in virtual time."""

    def __init__(
        self,
        *objects: KubeObject,
        labels: Mapping[str, str | None] | None = None,
        name: str = "mine",
        beside: World | None = None,
        seed: int = 1,
    ) -> None:
        """`beside`: the world of another partition of the same cluster."""
        self.time: FakeTime = FakeTime() if beside is None else beside.time
        self.cluster: Faulty = Faulty(self.time, objects) if beside is None else beside.cluster
        self.meter, self.reported = Meter(), Receiver()
        config = CONFIG if labels is None else PartitionConfig(node_selector=labels)
        self.partition = Partition(self.cluster, config, [name], self.reported.take, sleep=self.time.sleep)
        self.mirror = Mirror(
            self.partition, KINDS, self.partition.deliver, clock=self.time, sleep=self.time.sleep,
            chance=random.Random(seed), meter=self.meter,
        )  # fmt: skip

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        for obj in await self.mirror.start():
            self.reported.take(Change.ADDED, obj)
        self.reported.changes.clear()
        async with self.following():
            yield self

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        running = [asyncio.create_task(self.mirror.run()), asyncio.create_task(self.partition.run(self.mirror))]
        await self.time.run_pending()
        yield
        assert not any(task.done() for task in running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert not self.meter.lost

    async def begin_to_join(self) -> None:
        """The node n1 joins; its pods are not listed yet."""
        self.cluster.put(node("n1", "a"))
        await self.time.run_pending()

    @property
    def names(self) -> list[str]:
        return sorted(obj.metadata.name for obj in self.reported.objects.values())

    async def pass_settling(self) -> None:
        await self.time.advance(SETTLE_SECONDS)

    def bind(self, name: str, on: str) -> None:
        bound = self.cluster._get(Pod, ("", "ns", name))
        self.cluster.put(replace(bound, spec=replace(bound.spec, node_name=on)))


# ---------------------------------------------------------------------- what it keeps


async def test_it_has_its_nodes_all_pods_on_them_and_its_own_pods() -> None:
    world = World(
        node("mine-1", "a"), node("other-1", "b"), node("other-2", None), pod("bound-here", "mine-1"),
        pod("bound-there", "other-1"), pod("pending"), pod("mine-pending", "", "mine"),
        pod("mine-there", "other-1", "mine"),
    )  # fmt: skip
    async with world.running():
        assert world.names == ["bound-here", "mine-1", "mine-pending", "mine-there"]


async def test_null_selects_the_nodes_without_the_label() -> None:
    async with World(node("one", "a"), node("two", None), labels={"pool": None}).running() as world:
        assert world.names == ["two"]


async def test_queues_belong_to_it_by_the_same_labels() -> None:
    queues = [Queue(metadata=ObjectMeta(name=f"q-{pool}", labels={"pool": pool})) for pool in "ab"]
    async with World(*queues, Queue(metadata=ObjectMeta(name="q"))).running() as world:
        assert world.names == ["q-a"]


async def test_devices_that_are_not_on_one_node_need_a_named_pool() -> None:
    each = a_slice("each", "each", per_device_node_selection=True, devices=(Device(node_name="n1"),))
    mixed = a_slice("mixed", "x", per_device_node_selection=True, devices=(Device(all_nodes=True),))
    slices = [a_slice("local", "n1", node_name="n1"), a_slice("named", "fabric", all_nodes=True),
              a_slice("nameless", "other", all_nodes=True), each, mixed]  # fmt: skip
    async with World(*slices).running() as world:
        assert world.names == ["each", "local", "named"]


async def test_a_slice_whose_device_is_no_longer_on_one_node_goes_at_once() -> None:
    each = a_slice("each", "each", per_device_node_selection=True, devices=(Device(node_name="n1"),))
    async with World(each).running() as world:
        (there,) = world.cluster.objects(ResourceSlice)
        world.cluster.put(replace(there, spec=replace(there.spec, devices=(Device(all_nodes=True),))))
        await world.time.run_pending()
        assert world.reported.changes == [("DELETED", "each")]
        world.cluster.put(there)
        await world.time.run_pending()
        assert world.names == ["each"]


async def test_pods_of_other_partitions_leave_no_trace() -> None:
    async with World(node("mine-1", "a")).running() as world:
        for number in range(50):
            world.cluster.put(pod(f"p{number}", "other-1"))
            world.cluster.put(pod(f"q{number}"))
        await world.time.run_pending()
        known = next(follower for follower in world.mirror._followers if follower.type is Pod)
        assert len(known.known._objects) == 0
        assert world.reported.changes == []


async def test_a_pod_that_another_scheduler_binds_here_is_counted() -> None:
    async with World(node("mine-1", "a"), pod("p")).running() as world:
        world.bind("p", "mine-1")
        await world.time.run_pending()
        assert world.reported.changes == [("ADDED", "p")]


async def test_comparisons_with_new_lists_miss_nothing() -> None:
    async with World(node("mine-1", "a"), node("other-1", "b"), pod("p", "other-1"), pod("q", "mine-1")).running() as w:
        await w.time.advance(300)
        assert w.reported.changes == []
        assert w.cluster.lists[Pod] > 3


# ---------------------------------------------------------------------- nodes that join and leave


async def test_a_node_joins_after_its_pods() -> None:
    async with World(node("n1", "b"), pod("foreign", "n1"), pod("mine", "n1", "mine")).running() as world:
        await world.begin_to_join()
        assert world.reported.changes == []
        assert world.partition.serves("n1")
        await world.pass_settling()
        assert world.reported.changes == [("ADDED", "foreign"), ("ADDED", "n1")]


async def test_a_new_node_brings_pods_that_were_bound_before_its_event() -> None:
    async with World().running() as world:
        world.cluster.put(pod("early", "n1"))
        await world.time.run_pending()
        world.cluster.put(node("n1", "a"))
        await world.pass_settling()
        assert world.reported.changes == [("ADDED", "early"), ("ADDED", "n1")]


async def test_a_node_leaves_before_its_pods_and_pods_of_its_own_stay() -> None:
    async with World(node("n1", "a"), pod("foreign", "n1"), pod("mine", "n1", "mine")).running() as world:
        world.cluster.put(node("n1", "b"))
        await world.time.run_pending()
        assert world.reported.changes == [("DELETED", "n1"), ("DELETED", "foreign")]
        assert not world.partition.serves("n1")
        await world.time.advance(300)
        assert world.names == ["mine"]


async def test_a_node_that_leaves_while_it_joins_is_never_used() -> None:
    async with World(node("n1", "b"), pod("foreign", "n1")).running() as world:
        world.cluster.put(node("n1", "a"))
        await world.time.advance(SETTLE_SECONDS / 2)
        world.cluster.put(node("n1", "b"))
        await world.pass_settling()
        assert world.reported.changes == []


async def test_a_node_that_leaves_and_comes_back_waits_again() -> None:
    async with World(node("n1", "b")).running() as world:
        for pool in "aba":
            world.cluster.put(node("n1", pool))
            await world.time.advance(SETTLE_SECONDS * 0.6)
        assert world.reported.changes == []
        await world.pass_settling()
        assert world.reported.changes == [("ADDED", "n1")]


async def test_a_node_joins_as_it_is_by_then() -> None:
    async with World().running() as world:
        await world.begin_to_join()
        changed = replace(node("n1", "a"), metadata=ObjectMeta(name="n1", labels={"pool": "a", "new": "yes"}))
        world.cluster.put(changed)
        await world.pass_settling()
        assert world.reported.changes == [("ADDED", "n1")]
        (there,) = world.reported.objects.values()
        assert there.metadata.labels["new"] == "yes"


async def test_a_pod_that_is_deleted_while_the_pods_of_a_joining_node_are_listed_stays_away() -> None:
    async with World(node("n1", "b"), pod("gone", "n1"), pod("stays", "n1")).running() as world:
        await world.begin_to_join()
        world.cluster.seconds = lambda: 1.0  # the list's response is late
        await world.pass_settling()
        world.cluster.seconds = lambda: 0.0
        await world.cluster.delete(world.cluster._get(Pod, ("", "ns", "gone")), grace_seconds=0)
        await world.time.advance(2)
        assert world.reported.changes == [("ADDED", "stays"), ("ADDED", "n1")]


async def test_a_pod_that_the_watch_brought_during_the_list_is_delivered_once() -> None:
    async with World(node("n1", "b"), pod("p", "n1")).running() as world:
        await world.begin_to_join()
        world.bind("p", "n1")  # any change
        await world.pass_settling()
        assert world.reported.changes == [("ADDED", "p"), ("ADDED", "n1")]


def test_a_watch_that_is_behind_a_list_does_not_remove_what_the_list_has() -> None:
    """The list has a pod; the watch still brings the end of an older pod with this name."""

    def one(uid: str, version: str) -> Pod:
        return replace(pod("p", "n1"), metadata=ObjectMeta(name="p", namespace="ns", uid=uid, resource_version=version))

    known = KnownObjects()
    old, new = one("1", "10"), one("2", "20")
    assert known.add(new) == ((Change.ADDED, new),)
    assert not known.apply(WatchEvent(Change.MODIFIED, old, "10"))
    assert not known.apply(WatchEvent(Change.DELETED, old, "11"))
    assert not known.apply(WatchEvent(Change.ADDED, new, "20"))
    assert known.apply(WatchEvent(Change.DELETED, new, "21")) == ((Change.DELETED, new),)
    assert known.apply(WatchEvent(Change.ADDED, old, "22")) == ((Change.ADDED, old),)


async def test_a_failed_list_of_a_joining_node_is_retried() -> None:
    async with World(node("n1", "b"), pod("p", "n1")).running() as world:
        await world.begin_to_join()
        world.cluster.list_error = lambda: Unavailable("no answer")
        await world.pass_settling()
        assert world.reported.changes == []
        world.cluster.list_error = lambda: None
        await world.time.advance(1)
        assert world.reported.changes == [("ADDED", "p"), ("ADDED", "n1")]


async def test_no_node_joins_while_pods_are_listed() -> None:
    """Else pages from before and after it would disagree."""
    async with World(node("n1", "b"), pod("p", "n1")).running() as world:
        await world.begin_to_join()
        world.cluster.seconds = lambda: 5.0
        listing = asyncio.create_task(world.partition.list(Pod))
        await world.pass_settling()
        world.cluster.seconds = lambda: 0.0
        assert world.reported.changes == []
        await world.time.advance(5)
        assert listing.done()
        assert world.reported.changes == [("ADDED", "p"), ("ADDED", "n1")]


async def test_nodes_that_a_new_list_shows_join_like_others() -> None:
    async with World(node("n1", "b"), pod("p", "n1")).running() as world:
        world.cluster.loses = lambda event: isinstance(event.object, Node)
        world.cluster.put(node("n1", "a"))
        await world.time.advance(120)
        assert world.reported.changes == [("ADDED", "p"), ("ADDED", "n1")]
        world.meter.lost.clear()  # the scripted loss


@pytest.mark.parametrize("seed", range(5))
async def test_two_partitions_always_add_up_to_the_cluster(seed: int) -> None:
    """Nodes move, pods come, are bound and go; in the end each pod on a node is known where the node is."""
    chance = random.Random(seed)
    world = World()
    other = World(labels={"pool": "b"}, name="theirs", beside=world, seed=seed)
    async with world.running(), other.running():
        for _ in range(150):
            name = f"p{chance.randrange(12)}"
            known = world.cluster._store(Pod).objects.get(("", "ns", name))
            match chance.randrange(4):
                case 0:
                    world.cluster.put(node(f"n{chance.randrange(4)}", chance.choice(["a", "b", "c"])))
                case 1 if known is None:
                    world.cluster.put(pod(name, "", chance.choice(["mine", "theirs", "third"])))
                case 2 if known is not None and not known.spec.node_name:
                    world.bind(name, f"n{chance.randrange(4)}")
                case 3 if known is not None:
                    await world.cluster.delete(known, grace_seconds=0)
            await world.time.advance(chance.choice([0, 0, 0.5, 3]))
        await world.time.advance(10)
        nodes = {obj.metadata.name: obj.metadata.labels["pool"] for obj in world.cluster.objects(Node)}
        for side, pool, own in ((world, "a", "mine"), (other, "b", "theirs")):
            expected = {name for name, there in nodes.items() if there == pool} | {
                each.metadata.name for each in world.cluster.objects(Pod)
                if nodes.get(each.spec.node_name) == pool or each.spec.scheduler_name == own
            }  # fmt: skip
            assert set(side.names) == expected


# ---------------------------------------------------------------------- selections


def test_selectors_are_those_of_the_api() -> None:
    assert selectors({"b/c": None, "a": "x"}) == {"labelSelector": "a=x,!b/c"}
    assert selectors({}, "n1") == {"fieldSelector": "spec.nodeName=n1"}
    assert selectors({}) == {}


async def test_the_cluster_in_memory_selects_as_an_api_server() -> None:
    cluster = MemoryCluster([node("n1", "a"), node("n2", "b"), pod("p", "n1"), pod("q", "n2")])
    assert [obj.metadata.name for obj in (await cluster.list(Node, labels={"pool": "b"})).items] == ["n2"]
    assert [obj.metadata.name for obj in (await cluster.list(Pod, node="n1")).items] == ["p"]
    assert (await cluster.list(Pod, namespace="none")).items == ()


def test_a_state_is_reduced_to_the_partition() -> None:
    config = SchedulerConfig(partition=CONFIG, profiles=(Profile(scheduler_name="mine"),))
    objects: list[KubeObject] = [
        pod("p", "n2"),
        pod("q", "n1"),
        pod("r", "", "mine"),
        pod("s"),
        node("n1", "a"),
        node("n2", "b"),
    ]
    assert [obj.metadata.name for obj in partition_of(objects, config)] == ["q", "r", "n1"]
    assert partition_of(objects, SchedulerConfig()) == objects


async def test_a_node_that_had_not_joined_when_a_standby_ended_joins_later() -> None:
    world = World(node("n1", "a"))
    async with world.running():
        world.cluster.put(pod("p", on="n2"))
        world.cluster.put(node("n2", "a"))
        await world.time.run_pending()
        assert world.names == ["n1"]
    for obj in await world.mirror.resync():
        assert obj.metadata.name in ("n1", "n2", "p")
    async with world.following():
        await world.pass_settling()
        assert world.names == ["n1", "n2", "p"]


async def test_a_start_after_a_cancelled_one_knows_the_present_nodes() -> None:
    world = World(node("n1", "a"), pod("p1", on="n1"), pod("p2", on="n2"))
    assert [obj.metadata.name for obj in (await world.partition.list(Node)).items] == ["n1"]  # then it was cancelled
    await world.cluster.delete(node("n1", "a"))
    world.cluster.put(node("n2", "a"))
    world.partition.forget_nodes()
    assert sorted(obj.metadata.name for obj in await world.mirror.start()) == ["n2", "p2"]
