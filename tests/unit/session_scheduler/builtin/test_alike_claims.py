"""Pods that differ only in their ResourceClaims share boards while their claims are equal and not allocated."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler import SKIP, Prepared, Scope, hookimpl
from session_scheduler.config.settings import QueueConfig
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ..framework.test_refusal_costs import counted
from .test_device_attributes import A100, fleet, gpus, of
from .test_device_resources import WHOLE
from .test_device_resources import fleet as by_node
from .test_dynamic_resources import claim, device_class, slice_of, user, world

PODS = 20
LACKS = "0/2 nodes are available: 2 cannot allocate all claims."
NO_VICTIMS = "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."


def owners(count: int = PODS, devices: int = 1, **options: Any) -> list[Any]:
    """Pods with a claim each, all equal."""
    found: list[Any] = [claim(f"c{n}", devices) for n in range(count)]
    return [*found, *(user(f"p{n}", f"c{n}", **options) for n in range(count))]


def test_pods_with_equal_claims_that_lack_devices_are_evaluated_once() -> None:
    cluster = world(owners(devices=3))
    cluster.start()
    with counted() as counts:
        cluster.run(cycles=1)
    cluster.assert_pending(f"p{PODS - 1}", f"{LACKS} {NO_VICTIMS}")
    assert counts["boards"] == counts["evaluations"] == counts["reasons"] == counts["postfilter"] == 1
    assert counts["filter"] == 5  # cordons, taints and amounts; the devices for the mask and for the reasons
    assert counts["prepare"] >= PODS


def test_pods_with_equal_claims_in_a_full_cluster_are_evaluated_once() -> None:
    cluster = world(owners(cpu="2"), nodes=0)
    cluster.add(node("n1", cpu="1"))
    cluster.start()
    with counted() as counts:
        cluster.run(cycles=1)
    cluster.assert_pending(f"p{PODS - 1}", "0/1 nodes are available: 1 Insufficient cpu.")
    assert counts["boards"] == counts["evaluations"] == counts["reasons"] == counts["postfilter"] == 1


def test_pods_that_get_devices_one_after_the_other_use_one_board() -> None:
    cluster = world(owners(), devices=tuple(f"d{n}" for n in range(PODS - 1)))
    cluster.start()
    with counted() as counts:
        cluster.run(cycles=1)
    assert sum(on == "n1" for on in cluster.placements().values()) == PODS - 1
    assert counts["boards"] == 1


@pytest.mark.parametrize("evaluation", ["naive", "heap", "board"])
def test_a_class_that_is_prepared_again_after_a_rollback_uses_its_new_state(evaluation: str) -> None:
    name, group = "example.com/gpu", dict[str, Any](group="g", priority=9)
    cluster = FakeCluster(evaluation=evaluation)
    cluster.add(device_class(extendedResourceName=name), slice_of("n1", "a"), slice_of("n2", "b", "c"))
    cluster.node("n1", cpu="4", offers={name: 1}).node("n2", cpu="4")
    cluster.add(pod("victim", cpu="4", bound_to="n2"), pod_group("g", 2), claim("ca"))
    cluster.add(user("g-0", "ca", cpu="1", requests={name: 1}, **group), pod("g-1", cpu="4", **group))
    cluster.run(cycles=1)
    cluster.assert_pending("g-1", "0/2 nodes are available: 2 Insufficient cpu")


def test_claims_of_other_devices_are_evaluated_on_their_own() -> None:
    cluster = world(claim("one"), claim("three", 3), user("a", "three"), user("b", "one"), user("c", "three"))
    cluster.run(cycles=1)
    cluster.assert_bound("b", "n1")
    cluster.assert_pending("a", LACKS)
    cluster.assert_pending("c", LACKS)


def test_a_pod_that_names_one_claim_twice_needs_one_device() -> None:
    cluster = world(
        *(claim(f"c{n}") for n in range(3)),
        user("a", "c0", "c1"), user("b", "c2", "c2"), nodes=1, devices=("a",),
    )  # fmt: skip
    cluster.run(cycles=1)
    cluster.assert_bound("b", "n1")
    cluster.assert_pending("a", "0/1 nodes are available: 1 cannot allocate all claims.")


def test_a_pod_whose_claim_another_pod_has_just_got_decides_nothing_for_the_others() -> None:
    """The node of the shared claim is then full: the second pod that shares it fits nowhere, the third one does."""
    cluster = world(claim("shared"), claim("own"), nodes=0)
    cluster.add(node("n1", cpu="1"), node("n2", cpu="1"), slice_of("n2", "a"))
    cluster.add(user(f"p{n}", name, cpu="1", priority=9 - n) for n, name in enumerate(("shared", "shared", "own")))
    cluster.run(cycles=1)
    assert {cluster.node_of("p0"), cluster.node_of("p2")} == {"n1", "n2"}
    cluster.assert_pending("p1", "resourceclaim not available on the node")


def test_pods_with_equal_claims_and_other_requests_are_evaluated_on_their_own() -> None:
    cluster = world(claim("c0"), claim("c1"), user("big", "c0", cpu="99", priority=1), user("small", "c1"))
    cluster.run(cycles=1)
    cluster.assert_bound("small", "n1")
    cluster.assert_pending("big", "Insufficient cpu")


@pytest.mark.parametrize("kind", ["devices of claims", "devices of nodes"])
def test_pods_that_a_limit_keeps_from_nodes_are_evaluated_on_their_own(kind: str) -> None:
    """The plugins note the classes that a limit rejects, for their queueing hints."""
    if kind == "devices of claims":
        cluster, requests = fleet(QueueConfig(name="a", limit={A100: 0})), {}
        cluster.add(gpus("n1", "A100"))
    else:
        cluster, requests = by_node(QueueConfig(name="a", limit={A100: 0}), models=("A100", "A100")), {WHOLE: 1}
        cluster.add(device_class(), slice_of("n1", "a"))
    cluster.add(*(claim(f"c{n}") for n in range(3)), *(of(f"p{n}", "a", f"c{n}", requests=requests) for n in range(3)))
    cluster.start()
    with counted() as counts:
        cluster.run(cycles=1)
    cluster.assert_pending("p0", "has reached its limit of a100")
    assert counts["boards"] == 3


def names_of(cls: Any) -> str:
    name: str = cls.pod.spec.resource_claims[0]["resourceClaimName"]
    return name


class ByFilter:
    """Keeps a pod on the node that its claim's name ends with."""

    name = "by-claim"
    filter_scope = Scope.STATIC

    @hookimpl
    def filter(self, cls: Any, nodes: Any, mask: Any) -> None:
        mask &= nodes.named(f"n{self.names(cls)[-1]}")

    def names(self, cls: Any) -> str:
        return names_of(cls)


class ByClaims(ByFilter):
    """Like `ByFilter`, with the keys that a class has."""

    def names(self, cls: Any) -> str:
        key: str = cls.claims[0]
        return key


class ByKey(ByFilter):
    """Like `ByFilter`, and promises which claims are alike."""

    class_key_complete = True

    @hookimpl
    def prepare(self, cls: Any) -> Any:
        return Prepared(None, Scope.STATIC, SKIP, claims_key=lambda: self.names(cls)[-1])


class ByPredicate:
    """Like `ByFilter`, by a predicate."""

    name = "by-claim"
    class_key_complete = True

    @hookimpl
    def on_session_open(self, session: Any) -> None:
        def check(task: Any, _: Any, info: Any) -> str | None:
            return None if info.name == f"n{names_of(task.cls)[-1]}" else "other claim"

        session.add_predicate(check, scope=Scope.STATIC)


@pytest.mark.parametrize("plugin", [ByFilter, ByClaims, ByKey, ByPredicate])
def test_a_plugin_that_reads_claims_is_asked_about_each(plugin: type) -> None:
    names = [f"{group}-{number}" for group in "ab" for number in (1, 2, 3)]
    cluster = world(*map(claim, names), nodes=3, devices=())
    cluster.add(slice_of(f"n{number}", "a", "b") for number in (1, 2, 3))
    cluster.add(user(f"p{name}", name) for name in names)
    cluster.run(plugin(), cycles=2)
    assert cluster.placements() == {f"default/p{name}": f"n{name[-1]}" for name in names}


def test_a_claims_key_that_cannot_be_hashed_is_the_plugins_error() -> None:
    class Wrong(ByKey):
        @hookimpl
        def prepare(self, cls: Any) -> Any:
            unhashable: Any = []
            return Prepared(None, Scope.STATIC, SKIP, claims_key=lambda: unhashable)

    cluster = world(claim("c1"), user("p", "c1"))
    cluster.run(Wrong(), cycles=1)
    assert "plugin by-claim failed in prepare: TypeError: unhashable type: 'list'" in cluster.reasons("default/p")
