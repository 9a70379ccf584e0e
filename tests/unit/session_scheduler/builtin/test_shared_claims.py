"""Pending pods that share a claim without an allocation: the first decision allocates it, and the others follow it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.builtin.devices.holdings import Holdings
from session_scheduler.config.settings import DeviceResourceConfig, QueueConfig, SchedulerConfig
from session_scheduler.model.devices import Allocation, Consumer, ResourceClaim, ResourceSlice
from session_scheduler.model.objects import Pod
from session_scheduler.model.queues import QUEUE_LABEL
from session_scheduler.testing import FakeCluster, pod, pod_group

from .test_device_quota import GPUS, counts, freed, taken
from .test_dynamic_resources import (
    DRIVER,
    allocated_to,
    claim,
    device_class,
    devices_of,
    made,
    plugin_of,
    slice_of,
    user,
    users_of,
)

MODES = pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])
ZONE = "topology.kubernetes.io/zone"


def world(evaluation: Any, *objects: Any, **config: Any) -> FakeCluster:
    cluster = FakeCluster(evaluation=evaluation, config=SchedulerConfig(bindings_in_flight=1_000, **config))
    return cluster.add(device_class(), *objects)


def member(name: str, *claims: str, **options: Any) -> Pod:
    return user(name, *claims, group="g", **options)


@MODES
def test_the_second_pod_waits_for_the_node_of_the_allocation(evaluation: str) -> None:
    cluster = world(evaluation, slice_of("n1", "a", "b"), slice_of("n2", "a", "b")).nodes(2, cpu="1")
    cluster.add(claim("c"), claim("own"), user("p0", "c", cpu="1"), user("p1", "c", cpu="1")).run()
    (waits,) = [name for name in ("p0", "p1") if cluster.node_of(name) is None]
    reason = "1 Insufficient cpu, 1 resourceclaim not available on the node"
    cluster.assert_pending(waits, f"0/2 nodes are available: {reason}.")
    assert not plugin_of(cluster.scheduler)._repairs.waiting, "the claim must not be deallocated for this pod"
    cluster.add(user("other", "own", cpu="0")).run()
    cluster.assert_bound("other")
    cluster.delete_pod(next(name for name in ("p0", "p1") if name != waits))
    cluster.run()
    cluster.assert_bound(waits)
    assert users_of(cluster, "c")[-1:] == [waits]


@MODES
def test_a_device_for_several_nodes_is_allocated_once_and_usable_on_each_of_them(evaluation: str) -> None:
    zone = {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}]}
    spec = {"driver": DRIVER, "nodeSelector": zone, "devices": [{"name": "a"}, {"name": "b"}],
            "pool": {"name": "zone-a", "generation": 1, "resourceSliceCount": 1}}  # fmt: skip
    cluster = world(evaluation, made(ResourceSlice, "zone-a", spec=spec))
    for number, name in enumerate("aab"):
        cluster.node(f"n{number}", cpu="1", labels={ZONE: name})
    cluster.add(claim("c"), claim("own"), [user(f"p{n}", "c", cpu="1") for n in range(3)]).run()
    placed = [cluster.node_of(f"p{n}") for n in range(3)]
    assert sorted(placed, key=str) == [None, "n0", "n1"]
    cluster.assert_pending(f"p{placed.index(None)}", "1 resourceclaim not available on the node, 2 Insufficient cpu")
    assert len(devices_of(cluster, "c")) == 1


@MODES
@pytest.mark.parametrize("size", [2, 3])
def test_a_gang_that_does_not_fit_leaves_its_shared_claim_unallocated(evaluation: str, size: int) -> None:
    """The members share one claim, and each has one of its own: two members need three devices."""
    cluster = world(evaluation, slice_of("n1", "a", "b", "c"), slice_of("n2", "a", "b", "c")).nodes(2)
    cluster.add(claim("c"), [claim(f"own-{n}") for n in range(size)], claim("after", 3), pod_group("g", size))
    cluster.add(member(f"g-{n}", "c", f"own-{n}") for n in range(size)).run(cycles=2)
    if size == 2:
        cluster.assert_all_bound()
        assert len({cluster.node_of("g-0"), cluster.node_of("g-1")}) == 1
        assert users_of(cluster, "c") == ["g-0", "g-1"]
        return
    assert not any(cluster.placements().values())
    cluster.add(user("p0", "after")).run()
    cluster.assert_bound("p0")


@MODES
def test_a_pod_that_shares_the_claim_of_a_nominated_pod_needs_no_more_devices_beside_it(evaluation: str) -> None:
    cluster = world(evaluation, slice_of("n1", "a")).nodes(1, cpu="4")
    cluster.add(pod("low", cpu="3", priority=1), claim("c")).run()
    cluster.add(user("high", "c", cpu="3", priority=9)).run(cycles=2)
    cluster.assert_nominated("high", "n1")
    cluster.add(user("next", "c", cpu="0", priority=5)).run(cycles=2)
    cluster.assert_bound("next", "n1")
    assert devices_of(cluster, "c") == ["a"]
    cluster.delete_pod("low")
    cluster.run(cycles=2)
    cluster.assert_bound("high", "n1")
    assert users_of(cluster, "c") == ["high", "next"]


@MODES
def test_a_pod_that_shares_the_claim_of_a_nominated_pod_adds_nothing_to_the_queue(evaluation: str) -> None:
    model = DeviceResourceConfig(name="a100", device_attributes={f"{DRIVER}/model": "A100"})
    fixed = [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "A100"'}}]
    devices = slice_of("n1", "a", "b", attributes={"model": {"string": "A100"}})
    queues = (QueueConfig(name="q", limit={"a100.fluence.flux-framework.org/devices": 1}),)
    cluster = world(evaluation, devices, queues=queues, device_resources=(model,)).nodes(1, cpu="4")
    cluster.add(pod("low", cpu="3", priority=1, queue="q"), claim("c", selectors=fixed)).run()
    cluster.add(user("high", "c", cpu="3", priority=9, labels={QUEUE_LABEL: "q"})).run(cycles=2)
    cluster.assert_nominated("high", "n1")
    cluster.add(user("next", "c", cpu="0", priority=5, labels={QUEUE_LABEL: "q"})).run(cycles=2)
    cluster.assert_bound("next", "n1")


@MODES
def test_a_pod_does_not_keep_the_claim_of_victims_from_being_freed_for_a_nominated_pod(evaluation: str) -> None:
    cluster = world(evaluation, slice_of("n1", "a")).nodes(1, cpu="4")
    cluster.add(claim("c"), user("low", "c", priority=1)).run()
    cluster.add(claim("own"), user("high", "own", priority=9), user("next", "c", priority=5)).run(cycles=2)
    assert taken(cluster) == ["low"]
    cluster.assert_pending("next", "1 cannot allocate all claims")
    cluster.delete_pod("low")
    freed(cluster, "low")
    cluster.run(cycles=2)
    cluster.assert_bound("high")
    cluster.assert_pending("next")


@MODES
@pytest.mark.parametrize("claims", ["cd", "dc"])
def test_a_failed_preemption_is_not_reused_for_a_pod_that_shares_the_claim_of_a_nominated_pod(
    claims: str, evaluation: str
) -> None:
    """The device on the node is for the claim `c` of the nominated pod. The two pods differ only in their claims."""
    cluster = world(evaluation, slice_of("n1", "a")).nodes(1, cpu="6")
    cluster.add(pod("low", cpu="3", priority=1), pod("victim", cpu="2", priority=2), claim("c"), claim("d")).run()
    cluster.add(user("high", "c", cpu="3", priority=9)).run(cycles=2)
    cluster.assert_nominated("high", "n1")
    cluster.add(user(f"p{n}", name, cpu="2", priority=5) for n, name in enumerate(claims)).run()
    assert taken(cluster) == ["low", "victim"]
    cluster.assert_nominated(f"p{claims.index('c')}", "n1")


@MODES
def test_no_victim_is_evicted_for_a_claim_that_a_pod_in_flight_uses(evaluation: str) -> None:
    """The claim is allocated, but not reserved for the second pod yet."""
    cluster = world(evaluation, slice_of("n1", "a")).nodes(1, cpu="4")
    cluster.add(claim("c"), claim("own"), user("low", "c", priority=0)).run()
    cluster.add(user("second", "c", priority=9), user("high", "own", priority=5)).run()
    cluster.assert_bound("second")
    assert not taken(cluster)
    cluster.delete_pod("second")
    there = cluster.find(ResourceClaim, "c")
    users = tuple(one for one in there.status.reserved_for if one.name != "second")
    cluster.add(replace(there, status=replace(there.status, reserved_for=users))).run()
    assert taken(cluster) == ["low"]


@MODES
@pytest.mark.parametrize("devices", ["a", "ab"])
def test_a_dry_run_without_the_only_user_of_a_shared_claim_allocates_it_again(evaluation: str, devices: str) -> None:
    """Once the victim is gone, the claim's devices are free, and the preemptor needs devices for both of its claims."""
    cluster = world(evaluation, slice_of("n1", *devices)).nodes(1, cpu="4")
    cluster.add(claim("c"), user("low", "c", cpu="3", priority=1)).run()
    cluster.add(claim("own"), user("high", "c", "own", cpu="3", priority=9)).run(cycles=2)
    assert taken(cluster) == ["low"] * (devices == "ab")
    if devices == "ab":
        cluster.delete_pod("low")
        freed(cluster, "low")
        cluster.run(cycles=2)
        cluster.assert_bound("high")


@MODES
@pytest.mark.parametrize("devices", ["ab", "abc"])
def test_a_gang_allocates_the_shared_claim_of_its_victim_again_and_once(evaluation: str, devices: str) -> None:
    cluster = world(evaluation, slice_of("n1", *devices)).nodes(1, cpu="4")
    cluster.add(claim("c"), user("low", "c", cpu="3", priority=1)).run()
    cluster.add(pod_group("g", 2, priority=9), [claim(f"own-{n}") for n in range(2)])
    cluster.add(member(f"g-{n}", "c", f"own-{n}", cpu="2", priority=9) for n in range(2)).run(cycles=2)
    assert taken(cluster) == ["low"] * (devices == "abc")
    if devices == "abc":
        cluster.delete_pod("low")
        freed(cluster, "low")
        cluster.run(cycles=2)
        cluster.assert_bound("g-0")
        cluster.assert_bound("g-1")
        assert sorted([*devices_of(cluster, "c"), *devices_of(cluster, "own-0"), *devices_of(cluster, "own-1")]) == [
            *devices
        ]


@MODES
def test_two_pods_of_one_session_count_their_claim_once(evaluation: str) -> None:
    queues = (QueueConfig(name="q", limit={GPUS: 1}),)
    cluster = world(evaluation, slice_of("n1", "a", "b"), queues=queues).nodes(1)
    cluster.add(claim("c"), claim("own"))
    cluster.add(user(f"p{n}", "c", labels={QUEUE_LABEL: "q"}) for n in range(2))
    cluster.add(user("other", "own", labels={QUEUE_LABEL: "q"})).run()
    waiting = [name for name in ("p0", "p1", "other") if cluster.node_of(name) is None]
    assert waiting in (["other"], ["p0", "p1"])
    assert counts(cluster, "q")[0] == 1


def test_a_dry_run_that_allocates_a_freed_claim_again_leaves_its_allocation_as_it_was() -> None:
    """Also if the watch does not show that allocation yet. A claim that a pod in flight uses, too, is not freed."""
    decided: list[Allocation | None] = []
    holdings, free = Holdings(lambda _, allocation: decided.append(allocation)), claim("c")
    free = replace(free, metadata=replace(free.metadata, uid="u", resource_version="1"))
    before, again = (allocated_to(free, "n1", device).status.allocation for device in ("a", "b"))
    assert before is not None
    assert again is not None
    holdings.see({free.key: free}, 1)
    holdings.hold("low", free, before)
    holdings.hold("in flight", free, before)
    users = (Consumer(resource="pods", name="low", uid="low"),)
    written = replace(free, status=replace(free.status, allocation=before, reserved_for=users),
                      metadata=replace(free.metadata, resource_version="2"))  # fmt: skip
    holdings.wrote(written)

    def used() -> list[bool]:
        return [holdings.usage.is_exclusive((DRIVER, "n1", device)) for device in ("a", "b")]

    holdings.remove("low", [written])
    assert not holdings.is_freed(written)
    holdings.put_back("low", [written])
    holdings.release("in flight")
    holdings.remove("low", [written])
    assert holdings.is_freed(written)
    assert holdings.of(written) is None
    assert used() == [False, False]
    holdings.hold("high", written, again)
    assert (holdings.of(written), used()) == (again, [False, True])
    holdings.release("high")
    assert used() == [False, False]
    holdings.put_back("low", [written])
    assert (holdings.of(written), used()) == (before, [True, False])
    assert decided[-1] == before


def test_a_pod_uses_a_written_allocation_until_the_watch_shows_its_reservation() -> None:
    holdings, shared = Holdings(), allocated_to(claim("c"), "n1", "a")
    low, high = (Consumer(resource="pods", name=name, uid=name) for name in ("low", "high"))

    def reserved(version: int, *users: Consumer) -> ResourceClaim:
        metadata = replace(shared.metadata, uid="u", resource_version=str(version))
        found = replace(shared, metadata=metadata, status=replace(shared.status, reserved_for=users))
        holdings.see({found.key: found}, version)
        return found

    def is_freed(there: ResourceClaim) -> bool:
        holdings.remove("low", [there])
        freed = holdings.is_freed(there)
        holdings.put_back("low", [there])
        return freed

    there = reserved(1, low)
    holdings.join("high", there)
    assert not is_freed(there)
    holdings.release("high")
    assert is_freed(there)
    holdings.join("high", there)
    assert not is_freed(reserved(2, low, high))
    assert is_freed(reserved(3, low))
