"""NodeResourceTopologyMatch through the scheduler: which nodes fit, what pods without a report do, and scores."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.builtin import DEFAULT_PLUGINS
from session_scheduler.engine.explain import explain_pending
from session_scheduler.framework.bindings import Runtime
from session_scheduler.model.meta import ObjectMeta
from session_scheduler.model.node_topology import NodeResourceTopology
from session_scheduler.model.objects import Pod, ResourceRequirements
from session_scheduler.testing.builders import pod, pod_group
from session_scheduler.testing.evaluations import check_evaluations
from session_scheduler.testing.fake_cluster import FakeCluster

from ....tools.numa import GPU, Offers, container, guaranteed, topology

NAME = "NodeResourceTopologyMatch"
OTHERS = tuple(name for name, _ in DEFAULT_PLUGINS)
CONTAINER = "cannot align container"
UNREPORTED = "cannot align container while the NodeResourceTopology lacks new pods"
HALVES: tuple[Offers, Offers] = ({"cpu": 8}, {"cpu": 8})


def cluster(strategy: str = "LeastAllocated", **options: Any) -> FakeCluster:
    return FakeCluster(**options).use(NAME, {"scoringStrategy": {"type": strategy}})


def with_node(*zones: Offers, name: str = "n1", found: FakeCluster | None = None, **options: Any) -> FakeCluster:
    found = found or cluster()
    totals: dict[str, int] = {}
    for zone in zones:
        for key, amount in zone.items():
            totals[key] = totals.get(key, 0) + int(amount)
    cpu, offers = totals.pop("cpu", 4), {key: value for key, value in totals.items() if "/" in key}
    return found.node(name, cpu=cpu, memory="64Gi", offers=offers).add(topology(name, *zones, **options))


# ------------------------------------------------------------------ which pods and which nodes


def test_a_guaranteed_pod_waits_if_no_zone_has_its_amounts_although_the_node_has() -> None:
    with_node(*HALVES).add(guaranteed("waits", cpu=9)).schedule().assert_pending("waits", CONTAINER)
    with_node(*HALVES).add(guaranteed("fits", cpu=8)).schedule().assert_bound("fits", "n1")


def test_a_pod_of_another_qos_class_is_not_aligned() -> None:
    unlimited = pod("burstable", cpu=9)
    less = guaranteed("less", cpu=5)
    requests = ResourceRequirements(requests={"cpu": 5}, limits={"cpu": 9, "memory": "1Gi"})
    less = replace(less, spec=replace(less.spec, containers=(replace(less.spec.containers[0], resources=requests),)))
    with_node(*HALVES).add(unlimited, less).schedule().assert_all_bound()


def test_devices_of_a_pod_of_any_qos_class_are_in_one_zone() -> None:
    found = with_node({"cpu": 8, GPU: 2}, {"cpu": 8, GPU: 2})
    found.add(pod("three", requests={GPU: 3})).schedule().assert_pending("three", CONTAINER)
    found.add(pod("pair", cpu=9, requests={GPU: 2})).schedule().assert_bound("pair")


def test_cpus_and_devices_of_a_guaranteed_pod_are_in_the_same_zone() -> None:
    found = with_node({"cpu": 8, GPU: 2}, {"cpu": 8, GPU: 2}, used={0: {"cpu": 6}, 1: {GPU: 2}})
    found.add(guaranteed("both", cpu=4, gpu=1)).schedule().assert_pending("both", CONTAINER)


def test_memory_and_huge_pages_count_if_zones_have_them() -> None:
    large = container(cpu=1, memory="5Gi")
    found = with_node({"cpu": 8, "memory": 4 << 30}, {"cpu": 8, "memory": 4 << 30})
    found.add(guaranteed("large", large), guaranteed("small", cpu=1)).schedule()
    found.assert_pending("large", CONTAINER).assert_bound("small")


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted"])
def test_nodes_with_another_policy_or_without_an_object_fit(policy: str) -> None:
    found = with_node(*HALVES).node("n2", cpu=16).node("n3", cpu=16)
    found.add(topology("n3", *HALVES, policy=policy), guaranteed("a", cpu=9), guaranteed("b", cpu=9)).schedule()
    assert sorted(found.pods_on("n2") + found.pods_on("n3")) == ["default/a", "default/b"]


def test_with_the_scope_container_the_containers_may_be_in_different_zones() -> None:
    two = guaranteed("two", container("a", cpu=8), container("b", cpu=8))
    with_node(*HALVES).add(two).schedule().assert_bound("two")
    with_node(*HALVES, scope="pod").add(two).schedule().assert_pending("two", "cannot align pod")


def test_init_containers_are_aligned_too() -> None:
    first = guaranteed("first", cpu=1, init=(container("i", cpu=9),))
    beside = guaranteed("beside", cpu=1, init=(container("s", "Always", cpu=9),))
    found = with_node(*HALVES).add(first, beside).schedule()
    found.assert_pending("first", "cannot align init container")
    found.assert_pending("beside", "cannot align sidecar container")
    with_node(*HALVES).add(guaranteed("p", cpu=8, init=(container("i", cpu=8),))).schedule().assert_all_bound()


def test_a_pod_with_resources_of_the_pod_level_is_not_aligned() -> None:
    level = guaranteed("level", cpu=9)
    with_level = replace(level.spec, resources=ResourceRequirements(limits={"cpu": 9, "memory": "1Gi"}))
    with_node(*HALVES).add(replace(level, spec=with_level)).schedule().assert_bound("level")


def test_without_the_plugin_objects_mean_nothing() -> None:
    FakeCluster().node("n1", cpu=16).add(topology("n1", *HALVES), guaranteed("p", cpu=9)).schedule().assert_bound("p")


# ------------------------------------------------------------------ pods that are not reported yet


def test_a_gang_fills_the_zones_in_one_cycle() -> None:
    members = [guaranteed(f"g-{number}", cpu=4, group="g") for number in range(4)]
    with_node(*HALVES).add(pod_group("g", 4), *members).schedule().assert_all_bound()


def test_a_pod_waits_until_the_object_reports_the_pods_before_it() -> None:
    found = with_node(*HALVES).add(guaranteed("a", cpu=4), guaranteed("b", cpu=4)).schedule().assert_all_bound()
    found.add(guaranteed("waits", cpu=6)).schedule().assert_pending("waits", UNREPORTED)
    found.advance(30).schedule().assert_pending("waits", UNREPORTED)
    found.add(topology("n1", *HALVES, used={0: {"cpu": 8}})).advance(30).schedule().assert_bound("waits")


def test_a_report_without_the_new_pods_does_not_release_their_amounts() -> None:
    found = with_node(*HALVES).add(guaranteed("a", cpu=4), guaranteed("b", cpu=4)).schedule()
    found.add(guaranteed("waits", cpu=6), topology("n1", *HALVES, used={0: {"cpu": 4}})).advance(90).schedule()
    found.assert_pending("waits", UNREPORTED)
    found.add(topology("n1", *HALVES, used={0: {"cpu": 4}, 1: {"cpu": 4}})).advance(400).schedule()
    found.assert_pending("waits", CONTAINER)
    assert UNREPORTED not in found.reasons("waits")


def test_an_unchanged_object_that_covers_a_new_pod_reports_it_after_a_minute() -> None:
    """The agent writes nothing if one pod replaces an equal one."""
    found = with_node(*HALVES, used={0: {"cpu": 8}}).add(guaranteed("new", cpu=8)).schedule().assert_bound("new")
    found.add(guaranteed("next", cpu=8)).schedule().assert_pending("next", UNREPORTED)
    found.advance(50).schedule().assert_pending("next", UNREPORTED)
    found.advance(20).add(topology("n2", {"cpu": 1}), guaranteed("other", cpu=1))
    found.node("n3", cpu=1).schedule()
    found.advance(400).schedule().assert_bound("next", "n1")


def test_when_an_unchanged_object_covers_a_new_pod_the_rejected_pods_are_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("session_scheduler.builtin.node_resource_topology_match._CHECK_SECONDS", 0)
    found = with_node(*HALVES, used={0: {"cpu": 8}}).add(guaranteed("new", cpu=8)).schedule()
    found.add(guaranteed("next", cpu=8)).schedule().assert_pending("next", UNREPORTED)
    plugin = found.plugin(NAME)
    assert not changes(plugin)
    monkeypatch.setattr("session_scheduler.builtin.node_resource_topology_match.time", Later(60))
    assert changes(plugin) == [NAME]
    assert not changes(plugin)
    found.scheduler.queue.plugin_changed(NAME)
    found.advance(60).schedule().assert_bound("next", "n1")


def test_nothing_is_retried_because_an_object_does_not_cover_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_node(*HALVES).add(guaranteed("new", cpu=8)).schedule().add(guaranteed("next", cpu=8)).schedule()
    monkeypatch.setattr("session_scheduler.builtin.node_resource_topology_match._CHECK_SECONDS", 0)
    monkeypatch.setattr("session_scheduler.builtin.node_resource_topology_match.time", Later(60))
    assert not changes(found.plugin(NAME))


class Later:
    """The module `time`, some seconds later."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._seconds


def changes(plugin: Any) -> list[str]:
    """The plugins whose rejected pods the plugin retries in its next checks."""
    found: list[str] = []

    async def serve() -> None:
        async with plugin.serve(Runtime(lambda *_: None, lambda: True, change=lambda name, _: found.append(name))):
            for _ in range(10):
                await asyncio.sleep(0)

    asyncio.run(serve())
    return found


@pytest.mark.parametrize(
    ("change", "retried"),
    [
        ({}, False),
        ({"used": {0: {"cpu": 1}}}, False),
        ({"used": {0: {"cpu": 0}}, "scope": "pod"}, False),
        ({"policy": "none"}, True),
    ],
)
def test_an_update_retries_a_pod_only_if_it_may_fit_now(change: dict[str, Any], retried: bool) -> None:
    found = with_node(*HALVES).add(guaranteed("waits", cpu=9)).schedule().assert_pending("waits").advance(30)
    found.add(topology("n1", *HALVES, **change))
    assert due(found, "waits") == retried


def test_an_update_with_equal_amounts_retries_pods_beside_new_pods() -> None:
    """It may show that it accounts for them."""
    found = with_node(*HALVES).add(guaranteed("a", cpu=6), guaranteed("b", cpu=6)).schedule().assert_all_bound()
    found.add(guaranteed("waits", cpu=4)).schedule().assert_pending("waits", UNREPORTED)
    again = topology("n1", *HALVES)
    found.advance(30).schedule().add(replace(again, metadata=ObjectMeta(name="n1", labels={"version": "2"})))
    assert due(found, "waits")


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_updates_of_nodes_that_reject_no_pod_retry_nothing(policy: str) -> None:
    found = with_node(*HALVES).node("n2", cpu=1).add(topology("n2", {"cpu": 1}, policy=policy))
    found.add(guaranteed("waits", cpu=9)).schedule().assert_pending("waits").advance(30)
    found.add(topology("n2", {"cpu": 1}, policy=policy, used={0: {"cpu": 1}}))
    assert not due(found, "waits")


def due(found: FakeCluster, name: str) -> bool:
    """Whether the next cycle tries the pod."""
    found._sync()
    return any(name in key for key in found._due())


@pytest.mark.parametrize("key", ["cpu", "memory", GPU])
@pytest.mark.parametrize("amount", ["1e20", "64Pi", "-5", "1e-9"])
def test_extreme_amounts_of_an_object_stop_nothing(amount: str, key: str) -> None:
    zone = {"cpu": 8, "memory": 64 << 30, GPU: 4}
    made = topology("n1", zone, zone)
    zones = tuple(
        replace(one, resources=tuple(replace(part, available=amount, allocatable=amount) if part.name == key else part
                                     for part in one.resources))
        for one in made.zones
    )  # fmt: skip
    found = with_node(zone, zone, name="n2", found=with_node(zone, zone)).add(replace(made, zones=zones))
    found.add(guaranteed(f"p{number}", cpu=4, gpu=2) for number in range(4)).schedule().assert_all_bound()


@pytest.mark.parametrize("key", ["cpu", "memory", "gpu"])
def test_pods_with_extreme_amounts_leave_no_zone_room(key: str) -> None:
    zone = {"cpu": 8, "memory": 64 << 30, GPU: 4}
    amounts: dict[str, Any] = {"cpu": 1, "gpu": 1, key: "1e20"}
    found = with_node(zone, zone, name="n2", found=with_node(zone, zone))
    found.add(guaranteed(f"big{n}", **amounts, bound_to="n1", scheduler="other") for n in range(100))
    found.add(guaranteed("p", cpu=4, gpu=1)).schedule().assert_bound("p", "n2")
    found.add(guaranteed("too-large", **amounts)).schedule().assert_pending("too-large")


def test_a_node_with_many_zones_takes_no_memory_on_the_others() -> None:
    found = with_node(*[{"cpu": 1}] * 64).add(guaranteed("p", cpu=1)).schedule().assert_bound("p")
    assert found.plugin(NAME)._zones.costs.shape[:2] == (8, 8)


def test_after_a_restart_pods_that_the_object_covers_count_as_reported() -> None:
    found = with_node(*HALVES).add(guaranteed("a", cpu=6)).schedule()
    found.add(topology("n1", *HALVES, used={0: {"cpu": 6}}))
    found.restart().add(guaranteed("b", cpu=8)).schedule().assert_bound("b")
    found = with_node(*HALVES).add(guaranteed("a", cpu=6), guaranteed("c", cpu=6)).schedule().restart()
    found.add(guaranteed("b", cpu=4)).schedule().assert_pending("b", UNREPORTED)


def test_a_pod_that_ends_before_its_report_makes_room() -> None:
    found = with_node(*HALVES).add(guaranteed("a", cpu=6), guaranteed("b", cpu=6)).schedule()
    found.add(guaranteed("waits", cpu=4)).schedule().assert_pending("waits", UNREPORTED)
    found.delete_pod("a").advance(30).schedule().assert_bound("waits")


def test_a_pod_that_was_resized_is_no_longer_reported() -> None:
    found = with_node(*HALVES, used={0: {"cpu": 4}}).add(guaranteed("a", cpu=4, bound_to="n1"))
    found.add(pod("opens-a-session")).schedule().add(guaranteed("a", cpu=6, bound_to="n1")).schedule()
    found.add(guaranteed("b", cpu=8)).schedule().assert_pending("b", UNREPORTED)
    found.add(topology("n1", *HALVES, used={0: {"cpu": 6}})).advance(30).schedule().assert_bound("b")


def test_a_fraction_of_a_cpu_is_never_reported_and_does_not_count() -> None:
    found = with_node(*HALVES).add(guaranteed("a", cpu="6500m")).schedule().assert_bound("a")
    found.add(guaranteed("b", cpu=8)).schedule().assert_bound("b")


def test_pods_of_another_scheduler_count_until_they_are_reported() -> None:
    foreign = guaranteed("foreign", cpu=6, scheduler="other", bound_to="n1")
    found = with_node(*HALVES).add(guaranteed("first", cpu=1)).schedule()
    found.add(foreign, guaranteed("a", cpu=8)).schedule().assert_pending("a", UNREPORTED)


def test_no_pod_is_evicted_because_which_zone_it_frees_is_not_known() -> None:
    low = [guaranteed(f"low-{number}", cpu=8, priority=1) for number in range(2)]
    found = with_node(*HALVES).add(*low).schedule()
    found.add(topology("n1", *HALVES, used={0: {"cpu": 8}, 1: {"cpu": 8}})).advance(1)
    found.add(guaranteed("high", cpu=8, priority=9)).schedule()
    found.assert_pending("high", CONTAINER)
    assert found.node_of("low-0") == found.node_of("low-1") == "n1"


def test_an_object_that_goes_makes_its_node_fit() -> None:
    found = with_node(*HALVES).add(guaranteed("p", cpu=9)).schedule().assert_pending("p")
    found.delete(NodeResourceTopology, "n1", "").advance(30).schedule().assert_bound("p")


def test_kinds_of_pods_that_no_longer_exist_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("session_scheduler.builtin.node_resource_topology_match._MOST_PINNED", 2)
    found = with_node({"cpu": 8}, {"cpu": 8})
    for cpu in range(1, 6):
        found.add(guaranteed(f"p{cpu}", cpu=cpu)).schedule().assert_bound(f"p{cpu}").delete_pod(f"p{cpu}")
    found.add(guaranteed("a", cpu=6), guaranteed("b", cpu=6)).schedule().assert_all_bound()
    assert len(found.plugin(NAME)._pinned) <= 3
    found.add(guaranteed("waits", cpu=4)).schedule().assert_pending("waits", UNREPORTED)


# ------------------------------------------------------------------ explanations


def test_a_rejected_node_names_the_plugin_and_what_would_make_it_fit() -> None:
    found = with_node({"cpu": 8, GPU: 1}, {"cpu": 8}).add(guaranteed("p", cpu=9, memory="2Gi", gpu=1)).schedule()
    verdict = found.verdicts("p")["n1"]
    assert (verdict.plugin, verdict.reason) == (NAME, CONTAINER)
    (reported,) = explain_pending(found.start())["pods"]
    assert reported["nodes"]["n1"]["fitsIf"] == [
        {"plugin": NAME, "changes": ["9 cpu and 2Gi memory and 1 nvidia.com/gpu were free in one NUMA node of n1"]}
    ]


# ------------------------------------------------------------------ scores

ZONES: dict[str, tuple[Offers, ...]] = {
    "empty": ({"cpu": 16}, {"cpu": 16}),
    "half": ({"cpu": 8}, {"cpu": 16}),
    "tight": ({"cpu": 5}, {"cpu": 2}),
}


def scores(
    strategy: str,
    wanted: Pod,
    nodes: Mapping[str, NodeResourceTopology] | None = None,
    *,
    weights: Mapping[str, int] | None = None,
    **more: NodeResourceTopology,
) -> dict[str, float | None]:
    listed = [{"name": name, "weight": weight} for name, weight in (weights or {"cpu": 1}).items()]
    found = FakeCluster().use(NAME, {"scoringStrategy": {"type": strategy, "resources": listed}})
    found.without(*OTHERS)
    for name, one in ({**(nodes or {}), **more}).items():
        found.node(name, cpu=64, offers={GPU: 8}).add(replace(one, metadata=ObjectMeta(name=name)))
    return {name: verdict.score for name, verdict in found.add(wanted).verdicts(wanted.metadata.name).items()}


def of_zones(strategy: str, wanted: Pod, scope: str = "container") -> dict[str, float | None]:
    return scores(strategy, wanted, {name: topology("", *zones, scope=scope) for name, zones in ZONES.items()})


def test_a_nodes_score_is_the_lowest_of_a_zone_that_fits() -> None:
    wanted = guaranteed("p", cpu=4)
    assert of_zones("LeastAllocated", wanted) == {"empty": 75, "half": 50, "tight": 20}
    assert of_zones("MostAllocated", wanted) == {"empty": 25, "half": 25, "tight": 80}
    assert of_zones("LeastAllocated", wanted, scope="pod") == {"empty": 75, "half": 50, "tight": 20}


def test_with_several_containers_it_is_the_mean_and_for_the_scope_pod_that_of_their_sum() -> None:
    wanted = guaranteed("p", container("a", cpu=4), container("b", cpu=2), init=(container("i", cpu=1),))
    assert of_zones("LeastAllocated", wanted) == {"empty": (75 + 87 + 93) // 3, "half": (50 + 75 + 87) // 3,
                                                  "tight": (20 + 60 + 50) // 3}  # fmt: skip
    assert of_zones("MostAllocated", wanted, scope="pod") == {"empty": 37, "half": 37, "tight": None}


def test_weights_count_and_resources_that_no_zone_has_do_not() -> None:
    one = topology("", {"cpu": 8, GPU: 4})
    wanted = guaranteed("p", cpu=4, gpu=1)
    assert scores("LeastAllocated", wanted, n=one) == {"n": (50 + 75) // 2}
    assert scores("LeastAllocated", wanted, weights={GPU: 3}, n=one) == {"n": (50 + 3 * 75) // 4}


def test_balanced_allocation_prefers_equal_fractions() -> None:
    wanted = guaranteed("p", cpu=4, gpu=1)
    nodes = {"even": topology("", {"cpu": 8, GPU: 2}), "uneven": topology("", {"cpu": 16, GPU: 1}),
             "one": topology("", {"cpu": 8, GPU: 1}, {"cpu": 4, GPU: 0})}  # fmt: skip
    variance = (0.25 - 0.625) ** 2 + (1 - 0.625) ** 2
    assert scores("BalancedAllocation", wanted, nodes) == {
        "even": 100, "uneven": int(100 * (1 - variance)), "one": int(100 * (1 - 0.125))}  # fmt: skip
    assert scores("BalancedAllocation", guaranteed("p", cpu=4), n=topology("", {"cpu": 8})) == {"n": 100}


def test_pods_without_a_report_lower_the_score() -> None:
    found = with_node({"cpu": 16}, {"cpu": 16}).without(*OTHERS)
    found.add(guaranteed("a", cpu=8)).schedule().add(guaranteed("b", cpu=4))
    assert found.verdicts("b")["n1"].score == 50


def test_only_guaranteed_pods_and_nodes_with_the_policy_are_scored() -> None:
    one = topology("", {"cpu": 8, GPU: 1})
    assert scores("LeastAllocated", pod("p", requests={GPU: 1}), n=one) == {"n": 0}
    assert scores("LeastAllocated", guaranteed("p", cpu=4), n=topology("", {"cpu": 8}, policy="restricted")) == {"n": 0}


def test_least_numa_nodes_counts_the_zones_of_any_policy() -> None:
    near = {(0, 0): 10, (0, 1): 12, (1, 0): 12, (1, 1): 10}
    nodes = {
        "one": topology("", {"cpu": 8}, {"cpu": 8}, policy="best-effort", costs=near),
        "two": topology("", {"cpu": 4}, {"cpu": 4}, policy="none", costs=near),
        "four": topology("", *[{"cpu": 2}] * 4, policy="restricted", topologyManagerMaxNUMANodes="4"),
        "none": topology("", {"cpu": 2}, {"cpu": 2}, policy="best-effort"),
    }
    wanted = guaranteed("p", cpu=8)
    assert scores("LeastNUMANodes", wanted, nodes) == {
        "one": 100 - 12 + 6, "two": 100 - 2 * 12 + 6, "four": 100 - 4 * 25 + 12, "none": 0}  # fmt: skip
    assert scores(
        "LeastNUMANodes", wanted, odd=topology("", {GPU: 1}), nine=topology("", *[{"cpu": 8}] * 20, policy="none")
    ) == {"odd": 100, "nine": 0}


def test_least_numa_nodes_prefers_zones_that_are_near_each_other() -> None:
    costs = {(one, other): 10 if one == other else 12 if one // 2 == other // 2 else 32
             for one in range(4) for other in range(4)}  # fmt: skip
    offered: list[Offers] = [{"cpu": 4}] * 4
    near = topology("", *offered, policy="none", costs=costs, used={2: {"cpu": 4}, 3: {"cpu": 4}})
    far = topology("", *offered, policy="none", costs=costs, used={0: {"cpu": 4}, 3: {"cpu": 4}})
    assert scores("LeastNUMANodes", guaranteed("p", cpu=8), near=near, far=far) == {"near": 82, "far": 76}


def test_least_numa_nodes_adds_up_containers_and_takes_the_pod_as_a_whole_with_that_scope() -> None:
    wanted = guaranteed("p", container("a", cpu=4), container("b", cpu=4))
    zones: list[Offers] = [{"cpu": 6}, {"cpu": 6}]
    by_container = topology("", *zones, policy="none", costs={})
    by_pod = topology("", *zones, policy="none", scope="pod", costs={})
    assert scores("LeastNUMANodes", wanted, c=by_container, p=by_pod) == {"c": 94, "p": 82}


# ------------------------------------------------------------------ the same decisions in every evaluation


@pytest.mark.parametrize("strategy", ["LeastAllocated", "MostAllocated", "BalancedAllocation", "LeastNUMANodes"])
@pytest.mark.parametrize("seed", range(3))
def test_every_evaluation_decides_the_same(strategy: str, seed: int) -> None:
    def scenario(found: FakeCluster) -> None:
        chosen = random.Random(seed)
        found.use(NAME, {"scoringStrategy": {"type": strategy}})
        for number in range(6):
            zones: list[Offers] = [{"cpu": chosen.choice((4, 8)), GPU: 2} for _ in range(chosen.choice((1, 2, 4)))]
            policy = chosen.choice(["single-numa-node", "single-numa-node", "best-effort"])
            with_node(*zones, name=f"n{number}", found=found, policy=policy, scope=chosen.choice(["pod", "container"]))
        for number in range(30):
            parts = [
                container(f"c{one}", cpu=chosen.randrange(1, 5), gpu=chosen.randrange(2))
                for one in range(chosen.choice((1, 2)))
            ]
            found.add(guaranteed(f"p{number}", *parts))
        found.add(pod_group("g", 4), *(guaranteed(f"g-{one}", cpu=2, group="g") for one in range(4)))
        found.schedule()
        assert any(found.placements().values())

    check_evaluations(scenario)
