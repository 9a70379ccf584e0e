"""Queues that limit and share devices: claims by DeviceClass, and parts of GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.model.devices import Consumer, ResourceClaim, ResourceClaimStatus
from session_scheduler.model.objects import Pod
from session_scheduler.model.queues import QUEUE_LABEL
from session_scheduler.testing import FakeCluster, gang, pod

from .test_dynamic_resources import allocated_to, claim, device_class, made, slice_of, user

GPUS = "gpu.deviceclass.resource.k8s.io/devices"
BIG = "big.deviceclass.resource.k8s.io/devices"


def in_queues(*queues: QueueConfig, devices: int = 4, nodes: int = 1, **options: Any) -> FakeCluster:
    cluster = FakeCluster(config=SchedulerConfig(bindings_in_flight=1_000, queues=queues, **options))
    cluster.nodes(nodes, cpu="64")
    slices = [slice_of(f"n{n + 1}", *(f"d{number}" for number in range(devices))) for n in range(nodes)]
    return cluster.add(device_class(), *slices)


def of(name: str, queue: str, *claims: str, **options: Any) -> Pod:
    return user(name, *claims, labels={QUEUE_LABEL: queue}, **options)


def counts(cluster: FakeCluster, queue: str, name: str = GPUS) -> tuple[int, int]:
    """Allocated and pending."""
    use = cluster.scheduler.cache.queues
    use.reconcile()
    found = use.counts(queue)
    return found.allocated.get(name, 0), found.pending.get(name, 0)


def either(name: str, *requests: tuple[str, int]) -> ResourceClaim:
    """A claim for one of several classes and counts."""
    listed = [{"name": f"s{n}", "deviceClassName": of_class, "count": count}
              for n, (of_class, count) in enumerate(requests)]  # fmt: skip
    spec = {"devices": {"requests": [{"name": "r", "firstAvailable": listed}]}}
    found: ResourceClaim = made(ResourceClaim, name, "default", spec=spec)
    return found


# ------------------------------------------------------------------ limits


def test_a_queue_limits_the_devices_of_a_class_as_resource_quota_names_them() -> None:
    cluster = in_queues(QueueConfig(name="a", limit={GPUS: 3}))
    cluster.add(claim("two", 2), claim("also-two", 2), claim("one"))
    cluster.add(of("two", "a", "two"), of("also-two", "a", "also-two"), of("one", "a", "one"))
    cluster.run()
    cluster.assert_bound("two")
    cluster.assert_bound("one")
    why = f"queue 'a' has reached its limit of {GPUS}: limit 3, allocated 2, requested 2"
    cluster.assert_pending("also-two", why)
    assert counts(cluster, "a") == (3, 2)


def test_the_limit_of_an_ancestor_applies_to_the_devices_of_all_queues_below() -> None:
    cluster = in_queues(QueueConfig(name="top", limit={GPUS: 1}), QueueConfig(name="a", parent="top"),
                        QueueConfig(name="b", parent="top"))  # fmt: skip
    cluster.add(claim("ca"), claim("cb"), of("pa", "a", "ca"), of("pb", "b", "cb"))
    cluster.run()
    assert sorted(counts(cluster, name) for name in "ab") == [(0, 1), (1, 0)]
    assert counts(cluster, "top") == (1, 1)


def test_a_pod_waits_for_its_queue_until_the_pod_with_the_devices_ends() -> None:
    cluster = in_queues(QueueConfig(name="a", limit={GPUS: 1}))
    cluster.add(claim("c1"), claim("c2"), of("p1", "a", "c1"))
    cluster.run()
    cluster.add(of("p2", "a", "c2"))
    cluster.run()
    cluster.assert_pending("p2", f"queue 'a' has reached its limit of {GPUS}: limit 1, allocated 1, requested 1")
    cluster.delete_pod("p1")
    cluster.run()
    cluster.assert_bound("p2")


def test_pods_that_share_a_claim_count_it_once_in_each_queue() -> None:
    cluster = in_queues(QueueConfig(name="top", limit={GPUS: 2}), QueueConfig(name="a", parent="top", limit={GPUS: 2}),
                        QueueConfig(name="b", parent="top"))  # fmt: skip
    cluster.add(claim("shared", 2), of("p1", "a", "shared"), of("p2", "a", "shared"), of("p3", "b", "shared"))
    cluster.run()
    cluster.assert_all_bound()
    assert [counts(cluster, name) for name in ("a", "b", "top")] == [(2, 0), (2, 0), (2, 0)]
    cluster.delete_pod("p1")
    cluster.run()
    assert counts(cluster, "a") == (2, 0)
    cluster.delete_pod("p2")
    cluster.run()
    assert [counts(cluster, name) for name in ("a", "b", "top")] == [(0, 0), (2, 0), (2, 0)]


def test_a_pending_pod_adds_nothing_for_a_claim_that_a_running_pod_of_its_queue_uses() -> None:
    cluster = in_queues(QueueConfig(name="a", limit={"pods": 1}))
    cluster.add(claim("shared"), of("p1", "a", "shared"), of("p2", "a", "shared"))
    cluster.run()
    assert counts(cluster, "a") == (1, 0)
    assert counts(cluster, "a", "pods") == (1, 1)


def test_a_gang_counts_a_shared_claim_once_and_its_own_claims_all() -> None:
    cluster = in_queues(QueueConfig(name="a", limit={GPUS: 3}))
    objects = gang("g", 3, labels={QUEUE_LABEL: "a"})
    claims = [claim(f"own{n}") for n in range(3)]
    pods = [one for one in objects if isinstance(one, Pod)]
    entries = [({"name": "s", "resourceClaimName": "shared"}, {"name": "o", "resourceClaimName": f"own{n}"})
               for n in range(3)]  # fmt: skip
    members = [replace(one, spec=replace(one.spec, resource_claims=entry))
               for one, entry in zip(pods, entries, strict=True)]  # fmt: skip
    groups = [one for one in objects if not isinstance(one, Pod)]
    cluster.add(*groups, claim("shared"), *claims, *members)
    cluster.run()
    assert not any(cluster.placements().values())
    assert counts(cluster, "a") == (0, 4)
    roomy = in_queues(QueueConfig(name="a", limit={GPUS: 4}))
    roomy.add(*groups, claim("shared"), *claims, *members)
    roomy.run()
    roomy.assert_all_bound()


def test_each_class_counts_with_its_largest_alternative_until_one_is_allocated() -> None:
    cluster = in_queues(QueueConfig(name="a", limit={GPUS: 4, BIG: 1}))
    cluster.add(device_class("big", selectors=[{"cel": {"expression": "false"}}]))
    cluster.add(either("c", ("big", 1), ("gpu", 2), ("gpu", 1)), either("d", ("big", 1), ("gpu", 1)))
    cluster.add(of("p", "a", "c", cpu="65"), of("q", "a", "d", cpu="65"))
    cluster.run()
    assert (counts(cluster, "a"), counts(cluster, "a", BIG)) == ((0, 3), (0, 2))
    cluster.delete_pod("p")
    cluster.delete_pod("q")
    cluster.add(of("p", "a", "c"))
    cluster.run()
    cluster.add(of("q", "a", "d"))
    cluster.run()
    cluster.assert_all_bound()
    assert (counts(cluster, "a"), counts(cluster, "a", BIG)) == ((3, 0), (0, 0))


def test_the_allocation_of_a_smaller_alternative_requeues_pods_of_the_queue() -> None:
    cluster = in_queues(QueueConfig(name="a", limit={BIG: 1}))
    cluster.add(device_class("big", selectors=[{"cel": {"expression": "false"}}]))
    cluster.add(either("c", ("big", 1), ("gpu", 1)), either("d", ("big", 1), ("gpu", 1)))
    cluster.add(of("p", "a", "c"), of("q", "a", "d"))
    cluster.run(cycles=2)
    cluster.advance(30)
    cluster.run()
    cluster.assert_all_bound()


def test_a_request_for_all_devices_counts_as_one_until_it_is_allocated() -> None:
    cluster = in_queues(QueueConfig(name="a", limit={GPUS: 1}), QueueConfig(name="b"))
    cluster.add(claim("c", allocationMode="All"), of("p", "b", "c", cpu="65"))
    cluster.run()
    assert counts(cluster, "b") == (0, 1)
    cluster.add(claim("d", allocationMode="All"), of("q", "b", "d"))
    cluster.run()
    assert counts(cluster, "b") == (4, 1)


def test_devices_with_admin_access_do_not_count() -> None:
    cluster = in_queues(QueueConfig(name="a", limit={GPUS: 0}))
    cluster.add(claim("c", adminAccess=True), of("p", "a", "c"))
    cluster.run()
    cluster.assert_bound("p")
    assert counts(cluster, "a") == (0, 0)


def test_pods_that_are_not_preemptible_stay_within_the_deserved_devices() -> None:
    cluster = in_queues(QueueConfig(name="a", deserved={GPUS: 1}))
    cluster.add(*(claim(f"c{n}") for n in range(3)))
    cluster.add(of("p0", "a", "c0", priority=100), of("p1", "a", "c1", priority=100), of("p2", "a", "c2"))
    cluster.run()
    why = f"queue 'a' has reached its deserved {GPUS} for non-preemptible pods: deserved 1, allocated 1, requested 1"
    cluster.assert_pending("p1", why)
    assert counts(cluster, "a") == (2, 1)


# ------------------------------------------------------------------ changes of claims


def test_counts_follow_the_claim_and_its_deletion() -> None:
    cluster = in_queues(QueueConfig(name="a"))
    cluster.add(claim("c", 2), of("p", "a", "c", cpu="65"))
    cluster.run()
    assert counts(cluster, "a") == (0, 2)
    cluster.add(allocated_to(claim("c", 2), "n1", "d0"))
    cluster.run()
    assert counts(cluster, "a") == (0, 1)
    cluster.delete(ResourceClaim, "c")
    cluster.run()
    assert counts(cluster, "a") == (0, 0)


def test_a_pod_whose_claim_is_being_deleted_is_gated_and_not_pending() -> None:
    cluster = in_queues(QueueConfig(name="a"))
    cluster.add(claim("c"), of("p", "a", "c", cpu="65"))
    cluster.run()
    cluster.delete(ResourceClaim, "c")
    cluster._sync()
    cache = cluster.scheduler.cache
    (task,) = cache.tasks.values()
    assert counts(cluster, "a", "pods") == (0, 1)
    cache.recheck_gates(task.group)  # as for a requeued group
    assert counts(cluster, "a", "pods") == (0, 0)


# ------------------------------------------------------------------ fair shares


def fair(cluster: FakeCluster, queue: str, name: str = GPUS) -> int:
    scheduler = cluster.scheduler
    use = scheduler.cache.queues
    use.reconcile()
    for calls in scheduler.profiles.values():
        scheduler.sessions.refresh_offered(calls)
    return use.shares(scheduler.cache.table).fair[queue].get(name, 0)


def test_queues_share_the_devices_that_match_a_class() -> None:
    cluster = in_queues(QueueConfig(name="a", deserved={GPUS: 1}), QueueConfig(name="b"), nodes=2)
    cluster.add(*(claim(f"c{n}") for n in range(20)))
    cluster.add(*(of(f"p{n}", "ab"[n % 2], f"c{n}") for n in range(20)))
    cluster.run(cycles=2)
    assert [fair(cluster, name) for name in "ab"] == [5, 3]
    assert [counts(cluster, name) for name in "ab"] == [(5, 5), (3, 7)]


def test_devices_of_pods_that_do_not_count_are_not_shared() -> None:
    cluster = in_queues(QueueConfig(name="a"))
    cluster.add(*(claim(f"c{n}") for n in range(6)))
    cluster.add(*(of(f"p{n}", "a", f"c{n}") for n in range(6)))
    cluster.add(allocated_to(claim("foreign"), "n1", "d0"))
    cluster.run()
    assert fair(cluster, "a") == 3
    cluster.delete(ResourceClaim, "foreign")
    cluster.run()
    assert fair(cluster, "a") == 4


def test_a_new_generation_of_a_pool_replaces_its_devices_in_the_shares() -> None:
    cluster = in_queues(QueueConfig(name="a"))
    cluster.add(*(claim(f"c{n}") for n in range(9)), *(of(f"p{n}", "a", f"c{n}") for n in range(9)))
    cluster.run()
    assert fair(cluster, "a") == 4
    newer = slice_of("n1", *(f"d{n}" for n in range(7)))
    newer = replace(newer, spec=replace(newer.spec, pool=replace(newer.spec.pool, generation=2)))
    cluster.add(replace(newer, metadata=replace(newer.metadata, name="newer")))
    cluster.run()
    assert fair(cluster, "a") == 7


@pytest.mark.parametrize("by_plugin", [0, 3])
def test_devices_of_an_extended_resource_add_to_what_nodes_advertise(by_plugin: int) -> None:
    cluster = FakeCluster(config=SchedulerConfig(bindings_in_flight=1_000, queues=(QueueConfig(name="a"),)))
    cluster.nodes(1, cpu="64")
    cluster.nodes(2, cpu="64", offers={"example.com/gpu": by_plugin} if by_plugin else {}, prefix="m")
    cluster.add(device_class(extendedResourceName="example.com/gpu"), slice_of("n1", "d0", "d1"))
    cluster.add(*(pod(f"p{n}", labels={QUEUE_LABEL: "a"}, requests={"example.com/gpu": 1}) for n in range(20)))
    cluster.run()
    assert fair(cluster, "a", "example.com/gpu") == 2 + 2 * by_plugin


# ------------------------------------------------------------------ reclaim


def taken(cluster: FakeCluster) -> list[str]:
    """The pods that are being evicted."""
    return sorted(one.metadata.name for one in cluster.memory.objects(Pod) if one.metadata.deletion_timestamp)


def freed(cluster: FakeCluster, *pods: str) -> None:
    """Deallocate the claims that are reserved for these pods only, as their controller does."""
    for one in cluster.memory.objects(ResourceClaim):
        if {user.name for user in one.status.reserved_for} & set(pods):
            cluster.add(replace(one, status=ResourceClaimStatus()))


def starts_when_freed(cluster: FakeCluster, name: str, victim: str) -> None:
    """Assert that the pod evicts no more pods while the victim's devices are being freed, and then starts."""
    cluster.finish_deletions()
    for _ in range(3):
        cluster.advance(30)
        cluster.run()
    assert not taken(cluster), "the devices are being freed"
    freed(cluster, victim)
    cluster.run()
    cluster.assert_bound(name)


def test_a_queue_reclaims_the_devices_that_it_deserves() -> None:
    cluster = in_queues(QueueConfig(name="a", deserved={GPUS: 1}), QueueConfig(name="b", deserved={GPUS: 3}))
    cluster.add(*(claim(f"c{n}") for n in range(8)))
    cluster.add(*(of(f"a{n}", "a", f"c{n}") for n in range(4)))
    cluster.run()
    cluster.assert_all_bound()
    cluster.add(*(of(f"b{n}", "b", f"c{4 + n}") for n in range(4)))
    cluster.run(cycles=3)
    victims = taken(cluster)
    assert len(victims) == 3
    cluster.finish_deletions()
    cluster.run(cycles=3)
    assert not taken(cluster), "the devices are still allocated, but they are being freed"
    assert counts(cluster, "b") == (0, 4)
    freed(cluster, *victims)
    cluster.run(cycles=3)
    assert [counts(cluster, name) for name in "ab"] == [(1, 0), (3, 1)]
    assert not taken(cluster)


def test_no_more_pods_are_evicted_while_the_devices_of_the_first_are_being_freed() -> None:
    cluster = in_queues(QueueConfig(name="a"), QueueConfig(name="b", deserved={GPUS: 4}))
    cluster.add(*(claim(f"c{n}") for n in range(5)), *(of(f"a{n}", "a", f"c{n}") for n in range(4)))
    cluster.run()
    cluster.add(of("b0", "b", "c4"))
    cluster.run()
    (victim,) = taken(cluster)
    starts_when_freed(cluster, "b0", victim)


def test_a_claim_that_other_pods_use_is_not_reclaimed() -> None:
    cluster = in_queues(QueueConfig(name="a"), QueueConfig(name="b", deserved={GPUS: 4}),
                        QueueConfig(name="c", deserved={GPUS: 4}))  # fmt: skip
    cluster.add(claim("shared", 4), claim("own"), of("a0", "a", "shared"), of("c0", "c", "shared"))
    cluster.run()
    cluster.add(of("b0", "b", "own"))
    cluster.run(cycles=3)
    assert not taken(cluster)


def test_pods_that_share_a_claim_are_preempted_together_but_not_reclaimed() -> None:
    cluster = in_queues(QueueConfig(name="a"), QueueConfig(name="b", deserved={GPUS: 4}))
    cluster.add(claim("shared", 4), claim("own"), claim("other"))
    cluster.add(of("a0", "a", "shared"), of("a1", "a", "shared"), of("a2", "a"))
    cluster.run()
    cluster.add(of("b0", "b", "own"))
    cluster.run(cycles=3)
    assert not taken(cluster), "the devices of each pod alone stay allocated"
    cluster.add(of("a3", "a", "other", priority=9))
    cluster.run(cycles=3)
    assert taken(cluster) == ["a0", "a1"]


def preempts_in_its_queue(cluster: FakeCluster) -> None:
    """Assert that a pod with a claim preempts one of lower priority in the queue `a`."""
    cluster.add(claim("low"), claim("high"), of("low", "a", "low"))
    cluster.run()
    cluster.add(of("high", "a", "high", priority=9))
    cluster.run(cycles=2)
    assert taken(cluster) == ["low"]


def test_a_pod_preempts_devices_of_its_own_queue() -> None:
    preempts_in_its_queue(in_queues(QueueConfig(name="a", limit={GPUS: 1})))


@pytest.mark.parametrize("sliced", [False, True])
def test_claims_of_unknown_pods_on_unknown_nodes_are_not_being_freed(sliced: bool) -> None:
    """The scheduler of a partition sees the claims of the others, but not their pods and nodes."""
    cluster = in_queues(QueueConfig(name="a"), devices=1)
    there = allocated_to(claim("there"), "elsewhere", "d0")
    user_there = Consumer(resource="pods", name="there", uid="there")
    cluster.add(replace(there, status=replace(there.status, reserved_for=(user_there,))))
    cluster.add(slice_of("elsewhere", "d0") if sliced else [])
    preempts_in_its_queue(cluster)


@pytest.mark.parametrize("by_claim", [False, True])
def test_a_pod_preempts_devices_that_another_has_as_an_extended_resource(by_claim: bool) -> None:
    name = "example.com/gpu"
    cluster = FakeCluster(config=SchedulerConfig(bindings_in_flight=1_000))
    cluster.nodes(2, cpu="64")
    cluster.add(device_class(extendedResourceName=name), slice_of("n1", "d0", "d1"))
    cluster.add(pod("low", requests={name: 1}, priority=1), pod("next", requests={name: 1}, priority=2))
    cluster.run()
    cluster.assert_all_bound()
    high = pod("high", requests={name: 1}, priority=9)
    cluster.add(claim("own"), user("high", "own", priority=9) if by_claim else high)
    cluster.run(cycles=2)
    assert taken(cluster) == ["low"]
    starts_when_freed(cluster, "high", "low")
    assert cluster.node_of("high") == "n1"
