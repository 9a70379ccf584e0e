"""Invalid nodes and pods in the cluster of a scheduler: it reports them, and they affect no other object."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.tools.observing import observe

from session_scheduler.framework.observer import Observer
from session_scheduler.model.objects import Affinity, KubeObject, Pod
from session_scheduler.testing import FakeCluster, node, pod


class Recording(Observer):
    """Records the reports about invalid objects."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, str]] = []

    def wrong(self, obj: KubeObject, text: str) -> None:
        self.reported.append((obj.key, text))


def world(*objects: KubeObject, nodes: int = 1, checked: bool = True) -> tuple[FakeCluster, list[tuple[str, str]]]:
    """A running scheduler, and its reports about the objects that are added then."""
    cluster, listening = FakeCluster(checked=checked), Recording()
    cluster.nodes(nodes)
    observe(cluster.start(), listening)
    cluster.add(*objects)
    cluster.run()
    return cluster, listening.reported


def test_a_pod_with_an_amount_that_is_none_is_told_which_and_others_are_placed() -> None:
    cluster, reported = world(pod("wrong", cpu="four"), pod("right"))
    cluster.assert_pending("wrong", "spec.containers[0].resources.requests.cpu: 'four' is not a valid quantity")
    cluster.assert_bound("right")
    assert reported == []  # its own event reports it


def test_a_running_pod_counts_without_an_amount_that_is_none() -> None:
    cluster, reported = world(pod("runs", cpu="3", memory="much", bound_to="n1"), pod("small"), pod("large", cpu="2"))
    cluster.assert_bound("small")
    cluster.assert_pending("large", "Insufficient cpu")
    ((name, text),) = reported
    assert name == "default/runs"
    assert "requests.memory: 'much' is not a valid quantity" in text
    assert text.endswith("the scheduler ignores it")


def test_a_running_pod_keeps_its_last_valid_amount() -> None:
    cluster, _ = world(pod("runs", cpu="3", bound_to="n1"))
    cluster.add(pod("runs", cpu="three", bound_to="n1"), pod("large", cpu="2"))
    cluster.run()
    cluster.assert_pending("large", "Insufficient cpu")


def unreadable(obj: Any) -> Any:
    return replace(obj, unreadable="spec.priority: 'high' is a string")


def test_an_unreadable_pod_waits_until_it_is_readable() -> None:
    cluster, _ = world(unreadable(pod("p")))
    cluster.assert_pending("p", "spec.priority: 'high' is a string")
    cluster.add(pod("p"))
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p")


def test_no_pod_is_placed_beside_an_unreadable_running_pod() -> None:
    runs = unreadable(pod("runs", cpu="0", memory="0", bound_to="n1"))
    cluster, reported = world(runs, pod("p"), nodes=2, checked=False)  # it takes more than its node offers
    cluster.assert_bound("p", "n2")
    assert reported == [
        ("default/runs", "spec.priority: 'high' is a string: the scheduler places no more pods on its node")
    ]
    cluster.add(pod("runs", bound_to="n1"), pod("q", node_selector={"kubernetes.io/hostname": "n1"}))
    cluster.run()
    cluster.assert_bound("q", "n1")


@pytest.mark.parametrize(
    "wrong", [node("n2", cpu="four"), replace(node("n2"), unreadable="spec.taints: must be a list")]
)
def test_a_node_that_cannot_be_counted_on_is_told_of_once_and_not_used(wrong: Any) -> None:
    cluster, reported = world(wrong, pod("p", node_selector={"kubernetes.io/hostname": "n2"}))
    cluster.assert_pending("p", "0/1 nodes are available")
    cluster.add(replace(wrong, metadata=replace(wrong.metadata, annotations={"a": "b"})))
    cluster.run()
    ((name, text),) = reported
    assert name == "n2"
    assert text.startswith("Node n2: ")
    assert text.endswith("the scheduler places no pods on this node")
    cluster.add(node("n2"))
    cluster.run()
    cluster.assert_bound("p", "n2")


def test_an_object_that_triggers_a_bug_at_the_start_is_reported_and_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, listening = FakeCluster(), Recording()
    cluster.nodes(1)
    cluster.add(pod("a"), pod("b"))
    scheduler = cluster.start()
    observe(scheduler, listening)
    put = scheduler.cache.put

    def fails(obj: KubeObject) -> None:
        if isinstance(obj, Pod) and obj.metadata.name == "a":
            raise RuntimeError("a bug")
        put(obj)

    monkeypatch.setattr(scheduler.cache, "put", fails)
    asyncio.run(scheduler.start())
    assert listening.reported == [("default/a", "ignoring the object: RuntimeError: a bug")]
    asyncio.run(scheduler.cycle())
    cluster.assert_bound("b")


HUGE: dict[str, dict[str, Any]] = {
    "affinity": {"affinity": Affinity(pod_anti_affinity={"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": -(2**63), "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {}}}]})},
    "maxSkew": {"topology_spread_constraints": ({"maxSkew": 2**63, "topologyKey": "zone",
                                                 "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}},)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        ("affinity", "weight: -9223372036854775808 is out of range"),
        ("maxSkew", "maxSkew: expected a 32-bit integer of 1 or more, got 9223372036854775808"),
    ],
)
def test_a_number_that_no_column_holds_concerns_its_own_pod(case: str, problem: str) -> None:
    runs = pod("runs", bound_to="n1", **HUGE[case])
    cluster, _ = world(runs, pod("waits", **HUGE[case]), pod("other"))
    cluster.assert_pending("waits", problem)
    cluster.assert_bound("other")
