"""The taints that DeviceTaintRules add to the devices of slices."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from session_scheduler.builtin.devices.taint_rules import tainted
from session_scheduler.model.devices import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from session_scheduler.testing import FakeCluster, node, pod

OWN = {"key": "own", "effect": "None"}


def part(name: str, driver: str = "d", pool: str = "p") -> ResourceSlice:
    devices = [{"name": "one", "taints": [OWN]}, {"name": "two"}]
    spec = {"driver": driver, "pool": {"name": pool}, "devices": devices}
    return msgspec.convert({"kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}, ResourceSlice)


def rule(name: str, selector: Any, effect: str = "NoSchedule") -> DeviceTaintRule:
    spec = {"deviceSelector": selector, "taint": {"key": name, "effect": effect}}
    return msgspec.convert({"kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}, DeviceTaintRule)


def keys(slices: list[ResourceSlice]) -> dict[str, dict[str, list[str]]]:
    return {
        one.metadata.name: {device.name: [taint.key for taint in device.taints] for device in one.spec.devices}
        for one in slices
    }


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({}, {"s/one", "s/two", "t/one", "t/two"}),
        (None, {"s/one", "s/two", "t/one", "t/two"}),
        ({"driver": "d"}, {"s/one", "s/two"}),
        ({"pool": "q"}, {"t/one", "t/two"}),
        ({"device": "two"}, {"s/two", "t/two"}),
        ({"driver": "d", "pool": "p", "device": "one"}, {"s/one"}),
        ({"driver": "d", "pool": "q"}, set()),
    ],
)
def test_a_rule_taints_the_devices_that_meet_all_criteria(selector: Any, selected: set[str]) -> None:
    slices = [part("s"), part("t", "e", "q")]
    found = keys(tainted(slices, [rule("r", selector)]))
    assert {f"{name}/{device}" for name, devices in found.items() for device, taints in devices.items()
            if "r" in taints} == selected  # fmt: skip


def test_taints_of_rules_come_after_those_of_the_driver_in_the_order_of_names() -> None:
    found = keys(tainted([part("s")], [rule("b", {}), rule("a", {"device": "one"})]))
    assert found == {"s": {"one": ["own", "a", "b"], "two": ["b"]}}


def test_a_slice_without_a_selected_driver_or_pool_is_the_same_object() -> None:
    slices = [part("s"), part("t", "e")]
    found = tainted(slices, [rule("r", {"driver": "d"})])
    assert found[0] is not slices[0]
    assert found[1] is slices[1]
    assert tainted(slices, []) == slices


def claimed(more: Any = None) -> tuple[Any, Any, Any]:
    """A claim for one device, its class, and the pod p that uses it."""
    exactly = {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1, **(more or {})}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    claim = {"kind": "ResourceClaim", "metadata": {"name": "own", "namespace": "default"}, "spec": spec}
    return (
        msgspec.convert(claim, ResourceClaim),
        msgspec.convert({"kind": "DeviceClass", "metadata": {"name": "c"}}, DeviceClass),
        pod("p", resource_claims=({"name": "e", "resourceClaimName": "own"},)),
    )


def published(node_name: str) -> list[Any]:
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "nodeName": node_name, "pool": pool, "devices": [{"name": "one"}]}
    return [node(node_name), msgspec.convert({"kind": "ResourceSlice", "metadata": {"name": node_name}, "spec": spec},
                                             ResourceSlice)]  # fmt: skip


@pytest.mark.parametrize(("effect", "waits"), [("NoSchedule", True), ("NoExecute", True), ("None", False)])
def test_a_claim_gets_no_device_with_the_taint_of_a_rule_until_the_rule_is_gone(effect: str, waits: bool) -> None:
    claim, cls, user = claimed()
    cluster = FakeCluster().add(published("n1"), cls, claim, rule("r", {"pool": "n1"}, effect)).add(user).schedule()
    if waits:
        cluster.assert_pending("p", "cannot allocate all claims")
        cluster.delete(DeviceTaintRule, "r", "").advance(60).schedule()
    cluster.assert_bound("p", "n1")


def test_a_claim_that_tolerates_the_taint_gets_the_device() -> None:
    claim, cls, user = claimed({"tolerations": [{"key": "r", "operator": "Exists"}]})
    cluster = FakeCluster().add(published("n1"), cls, claim, rule("r", {"pool": "n1"})).add(user)
    cluster.schedule().assert_bound("p", "n1")


def test_a_pod_avoids_the_node_whose_device_a_new_rule_taints() -> None:
    claim, cls, user = claimed()
    cluster = FakeCluster().add(published("n1"), published("n2"), cls, claim).schedule()
    cluster.add(rule("r", {"pool": "n1"})).add(user).schedule().assert_bound("p", "n2")
