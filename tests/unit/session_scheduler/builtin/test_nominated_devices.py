"""Nominated pods keep the devices that preemption frees for them, however they request the devices."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.model.devices import ResourceClaim
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, pod

from .test_device_quota import freed, taken
from .test_dynamic_resources import claim, device_class, slice_of, status, user

NAME = "example.com/gpu"
BY_CLAIM = [False, True]


def only(name: str) -> list[Any]:
    return [{"cel": {"expression": f'device.attributes["d.example.com"].n == "{name}"'}}]


def wants(name: str, count: int, *, by_claim: bool, **options: Any) -> list[Pod | ResourceClaim]:
    if by_claim:
        return [claim(f"c-{name}", count), user(name, f"c-{name}", **options)]
    return [pod(name, requests={NAME: count}, **options)]


def with_victims(evaluation: Any = "board") -> FakeCluster:
    """Two pods of low priority have one device each."""
    cluster = FakeCluster(evaluation=evaluation).nodes(1, cpu="64")
    cluster.add(device_class(extendedResourceName=NAME), slice_of("n1", "a", "b"))
    cluster.add(*wants("v0", 1, by_claim=True, priority=0), *wants("v1", 1, by_claim=False, priority=0)).run()
    cluster.assert_all_bound()
    return cluster


@pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])
@pytest.mark.parametrize("next_by_claim", BY_CLAIM)
@pytest.mark.parametrize("by_claim", BY_CLAIM)
def test_a_pod_leaves_the_freed_device_to_the_nominated_pod(
    evaluation: str, by_claim: bool, next_by_claim: bool
) -> None:
    cluster = with_victims(evaluation)
    cluster.add(*wants("high", 2, by_claim=by_claim, priority=9)).run(cycles=2)
    assert taken(cluster) == ["v0", "v1"]
    cluster.assert_nominated("high", "n1")
    cluster.delete_pod("v0")
    freed(cluster, "v0")
    cluster.add(*wants("next", 1, by_claim=next_by_claim, priority=5)).run(cycles=2)
    cluster.assert_pending("next", "1 cannot allocate all claims")
    cluster.add(*wants("higher", 1, by_claim=next_by_claim, priority=10)).run(cycles=2)
    cluster.assert_bound("higher")


@pytest.mark.parametrize("by_claim", BY_CLAIM)
def test_the_nominated_pod_starts_when_the_last_device_is_free(by_claim: bool) -> None:
    cluster = with_victims()
    cluster.add(*wants("high", 2, by_claim=by_claim, priority=9)).run(cycles=2)
    cluster.add(*wants("next", 1, by_claim=False, priority=5))
    for victim in ("v0", "v1"):
        cluster.delete_pod(victim)
        freed(cluster, victim)
        cluster.advance(30)
        cluster.run(cycles=2)
    cluster.assert_bound("high")
    cluster.assert_pending("next")


@pytest.mark.parametrize("next_by_claim", BY_CLAIM)
def test_a_pod_gets_devices_that_the_nominated_pod_does_not_need(next_by_claim: bool) -> None:
    cluster = FakeCluster().nodes(1, cpu="64").add(device_class(extendedResourceName=NAME))
    cluster.add(slice_of("n1", name, pool=name, attributes={"n": {"string": name}}) for name in "abc")
    cluster.add(pod("v", priority=0, cpu="60")).run()
    cluster.add(claim("a", selectors=only("a")), user("high", "a", priority=9, cpu="60")).run(cycles=2)
    cluster.assert_nominated("high", "n1")
    cluster.add(*wants("next", 2, by_claim=next_by_claim, priority=5, cpu="0")).run(cycles=2)
    cluster.assert_bound("next")
    (own,) = [one.metadata.name for one in cluster.memory.objects(ResourceClaim)
              if [user.name for user in one.status.reserved_for] == ["next"]]  # fmt: skip
    allocation = status(cluster, own).allocation
    assert allocation is not None
    assert [result.pool for result in allocation.devices.results] == ["b", "c"]
