"""Claims of a PodGroup, which all of its pods share, as kube-scheduler handles them with DRAWorkloadResourceClaims."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from session_scheduler.builtin.devices.claims import ClaimName, consumer_of
from session_scheduler.model.devices import (
    CONSUMERS_LIMIT,
    Consumer,
    DeviceClass,
    DeviceCondition,
    DeviceStatus,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from session_scheduler.model.objects import ClaimStatus, OwnerReference, Pod, PodGroup
from session_scheduler.testing import FakeCluster, gang

ENTRY = {"name": "e", "resourceClaimName": "c"}
FROM_TEMPLATE = {"name": "e", "resourceClaimTemplateName": "t"}
RESULT = {"request": "r", "driver": "d", "pool": "p", "device": "one", "bindingConditions": ["ready"],
          "bindingFailureConditions": ["broken"]}  # fmt: skip


def made(kind: type[Any], name: str, namespace: str = "", **spec: Any) -> Any:
    return msgspec.convert(
        {"kind": kind.__name__, "metadata": {"name": name, "namespace": namespace}, "spec": spec}, kind
    )


def devices() -> list[Any]:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    listed = [{"name": "one"}]
    return [made(DeviceClass, "gpu"), made(ResourceSlice, "s", driver="d", allNodes=True, pool=pool, devices=listed)]


def claim(name: str = "c") -> ResourceClaim:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}]
    found: ResourceClaim = made(ResourceClaim, name, "default", devices={"requests": requests})
    return found


def sharing(size: int, own: Any, of_group: Any, statuses: tuple[ClaimStatus, ...] = (), **options: Any) -> list[Any]:
    """A gang g whose pods have the entry `own`, and whose PodGroup has the entry `of_group`."""
    found: list[Any] = []
    for one in gang("g", size, **options):
        if isinstance(one, Pod):
            one = replace(one, spec=replace(one.spec, resource_claims=(own,)),
                          status=replace(one.status, resource_claim_statuses=statuses))  # fmt: skip
        elif isinstance(one, PodGroup):
            one = replace(one, spec=replace(one.spec, resource_claims=(of_group,)))
        found.append(one)
    return found


def consumers(cluster: FakeCluster, name: str = "c") -> list[tuple[str, str, str]]:
    found = asyncio.run(cluster.memory.get(ResourceClaim, "default", name))
    return sorted((one.api_group, one.resource, one.name) for one in found.status.reserved_for)


OF_GROUP = [("scheduling.k8s.io", "podgroups", "g")]


def test_a_claim_of_the_group_is_reserved_for_the_group() -> None:
    cluster = FakeCluster().node("n1").add(devices(), claim(), sharing(3, ENTRY, ENTRY)).schedule().assert_all_bound()
    assert consumers(cluster) == OF_GROUP
    group = cluster.find(PodGroup, "g")
    (consumer,) = asyncio.run(cluster.memory.get(ResourceClaim, "default", "c")).status.reserved_for
    assert consumer.uid == group.metadata.uid != ""


def test_a_group_claim_has_room_for_more_pods_than_a_claim_may_have_consumers() -> None:
    size = CONSUMERS_LIMIT + 1
    objects = sharing(size, ENTRY, ENTRY, cpu="1m", memory="1")
    cluster = FakeCluster().nodes(3).add(devices(), claim(), objects).schedule().assert_all_bound()
    assert consumers(cluster) == OF_GROUP


@pytest.mark.parametrize("of_group", [{"name": "other", "resourceClaimName": "c"}, {"name": "e"}, FROM_TEMPLATE])
def test_a_claim_that_the_group_does_not_name_in_the_same_way_is_reserved_for_each_pod(of_group: Any) -> None:
    cluster = FakeCluster().node("n1").add(devices(), claim(), sharing(2, ENTRY, of_group)).schedule()
    cluster.assert_all_bound()
    assert consumers(cluster) == [("", "pods", "g-0"), ("", "pods", "g-1")]


def test_a_pod_that_names_the_group_only_by_a_label_reserves_the_claim_for_itself() -> None:
    group, member = sharing(1, ENTRY, ENTRY)
    stranger = replace(member, spec=replace(member.spec, scheduling_group=None))
    named = ClaimName("c", ENTRY)
    assert consumer_of(named, member, group).resource == "podgroups"
    assert consumer_of(named, stranger, group) == Consumer(resource="pods", name="g-0", uid=member.metadata.uid)


def owned(kind: str, name: str, api_version: str = "scheduling.k8s.io/v1beta1") -> ResourceClaim:
    """A claim that a controller generated for this owner."""
    one = claim()
    owner = OwnerReference(api_version=api_version, kind=kind, name=name, uid="x", controller=True)
    return replace(one, metadata=replace(one.metadata, owner_references=(owner,)))


NAMED = (ClaimStatus(name="e", resource_claim_name="c"),)


def test_pods_share_the_claim_that_was_generated_for_their_group() -> None:
    objects = sharing(2, FROM_TEMPLATE, FROM_TEMPLATE, NAMED)
    cluster = FakeCluster().node("n1").add(devices(), owned("PodGroup", "g"), objects).schedule().assert_all_bound()
    assert consumers(cluster) == OF_GROUP


@pytest.mark.parametrize(
    "other", [owned("PodGroup", "h"), owned("Pod", "g"), owned("PodGroup", "g", "scheduling.x-k8s.io/v1alpha1")]
)
def test_pods_do_not_use_the_claim_that_was_generated_for_another_owner(other: ResourceClaim) -> None:
    objects = sharing(1, FROM_TEMPLATE, FROM_TEMPLATE, NAMED)
    cluster = FakeCluster().node("n1").add(devices(), other, objects).schedule()
    assert cluster.node_of("g-0") is None


def test_a_later_pod_uses_the_claim_that_is_reserved_for_its_group() -> None:
    *objects, late = sharing(2, ENTRY, ENTRY)
    cluster = FakeCluster().node("n1").add(devices(), claim(), objects)
    group = next(one for one in objects if isinstance(one, PodGroup))
    cluster.add(replace(group, spec=replace(group.spec, scheduling_policy=None))).schedule().assert_bound("g-0")
    cluster.add(late).schedule().assert_bound("g-1")
    assert consumers(cluster) == OF_GROUP


def test_a_claim_that_is_reserved_for_a_deleted_group_of_the_same_name_is_reserved_for_the_new_one() -> None:
    cluster = FakeCluster().node("n1").add(devices(), claim())
    stored = asyncio.run(cluster.memory.get(ResourceClaim, "default", "c"))
    results = [{"request": "r", "driver": "d", "pool": "p", "device": "one"}]
    status = msgspec.convert({"allocation": {"devices": {"results": results}}}, ResourceClaimStatus)
    deleted = Consumer(api_group="scheduling.k8s.io", resource="podgroups", name="g", uid="deleted")
    cluster.memory.put(replace(stored, status=replace(status, reserved_for=(deleted,))))
    cluster.add(sharing(2, ENTRY, ENTRY)).schedule().assert_all_bound()
    reserved = asyncio.run(cluster.memory.get(ResourceClaim, "default", "c")).status.reserved_for
    assert [one.uid for one in reserved] == ["deleted", cluster.find(PodGroup, "g").metadata.uid]


@pytest.mark.parametrize("running", [False, True])
def test_a_group_claim_with_failed_devices_is_deallocated_if_no_pod_of_the_group_is_on_a_node(running: bool) -> None:
    cluster = FakeCluster().node("n1").add(devices(), claim())
    stored = asyncio.run(cluster.memory.get(ResourceClaim, "default", "c"))
    broken = DeviceCondition(type="broken", status="True", reason="Fan", message="off")
    status = msgspec.convert({"allocation": {"devices": {"results": [RESULT]}}}, ResourceClaimStatus)
    reserved = (Consumer(api_group="scheduling.k8s.io", resource="podgroups", name="g", uid="x"),)
    reported = (DeviceStatus(driver="d", pool="p", device="one", conditions=(broken,)),)
    cluster.memory.put(replace(stored, status=replace(status, devices=reported, reserved_for=reserved)))
    group, first, second = sharing(2, ENTRY, ENTRY)
    if running:
        first = replace(first, spec=replace(first.spec, node_name="n1"))
    cluster.add(group, first, second)
    plugin = cluster.start().profiles["fluence"].instances["DynamicResources"]
    cluster.run()
    noted = [one.key for one in plugin._repairs.waiting.values()]  # type: ignore[attr-defined]
    assert noted == ([] if running else ["default/c"])
