"""Preemption where the resource graph places pods: a dry run frees the victims' resources, and allocates them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.graph.allocations import Allocations
from fluence_plugins.fluence.graph.cluster_graph import HostResources
from fluence_plugins.fluence.graph.foreign_load import ForeignLoad
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import HostHolding, Placement
from fluence_plugins.fluence.matching.simulated_removals import SimulatedRemovals
from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.resources.config import ResourcesConfig
from fluxion_cy import Allocation
from session_scheduler.testing import FakeCluster, gang, node, pod

from ...tools.preempting import ended

QPU = "fluxion.flux-framework.org/qpu"
RESOURCES = "resources:\n  - {type: qpu, name: one, count: 2}\n"


class Cluster(FakeCluster):
    """A cluster whose scheduler runs the plugin."""

    def __init__(self, plugin: FluencePlugin) -> None:
        super().__init__(checked=False)
        self.fluence = plugin


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    file = tmp_path / "resources.yaml"
    file.write_text(RESOURCES)
    made = Cluster(FluencePlugin(FluenceArguments(resources=str(file))))
    made.add(*(node(f"n{number}", cpu="4", offers={QPU: "8"}) for number in (1, 2)))
    return made


def graph(cluster: Cluster) -> object:
    """The allocations in the graph, by pod and jobid."""
    live = cluster.fluence.live
    found = live.matcher.find("sched-now=allocated")
    taken = sorted(vertex["metadata"]["paths"]["containment"] for vertex in found["graph"]["nodes"]) if found else []
    return dict(live.holdings.shares), taken, dict(live.foreign.held)


def run(cluster: Cluster) -> None:
    if cluster._scheduler is None:
        cluster.run(cluster.fluence)
    else:
        cluster.run()


def test_a_pod_that_needs_a_device_preempts_a_pod_with_one(cluster: Cluster) -> None:
    cluster.add(*(pod(f"holds{n}", cpu="1", requests={QPU: "1"}, priority=n) for n in (1, 2)), pod("plain", priority=0))
    run(cluster)
    cluster.add(pod("high", cpu="1", requests={QPU: "1"}, priority=10))
    run(cluster)
    assert ended(cluster) == ["holds1"]
    cluster.finish_deletions()
    run(cluster)
    cluster.assert_bound("high")
    cluster.assert_bound("holds2")


def test_a_dry_run_leaves_the_graph_unchanged(cluster: Cluster) -> None:
    cluster.add(gang("old", 4, cpu="1", priority=1), pod("other", cpu="2", priority=1, scheduler="x", bound_to="n1"))
    run(cluster)
    before = graph(cluster)
    cluster.add(pod("never", cpu="5", priority=10))
    cluster.add(gang("large", 5, cpu="4", priority=10), gang("many", 2, cpu="1", requests={QPU: "2"}, priority=10))
    run(cluster)
    assert ended(cluster) == []
    assert graph(cluster) == before


@pytest.mark.parametrize(("least", "evicted"), [(4, 4), (2, 2)])
def test_a_gang_preempts_a_gang_in_the_graph(least: int, evicted: int, cluster: Cluster) -> None:
    """As a whole, if its minimum could not stay."""
    cluster.add(gang("old", 4, min_count=least, cpu="2", priority=1))
    run(cluster)
    before = graph(cluster)
    cluster.add(gang("new", 2, cpu="2", priority=10))
    run(cluster)
    assert len(ended(cluster)) == evicted
    assert graph(cluster) == before
    cluster.finish_deletions()
    run(cluster)
    cluster.assert_bound("new-0")
    cluster.assert_bound("new-1")


def test_a_pod_preempts_enough_pods_of_a_node_for_the_graph(cluster: Cluster) -> None:
    cluster.add(*(pod(f"low{n}", cpu="2", priority=1) for n in range(3)), pod("mid", cpu="2", priority=5))
    run(cluster)
    before = graph(cluster)
    cluster.add(pod("high", cpu="3500m", priority=10))
    run(cluster)
    assert graph(cluster) == before
    assert ended(cluster)
    assert "mid" not in ended(cluster)
    cluster.finish_deletions()
    run(cluster)
    cluster.assert_bound("high")


def test_foreign_load_is_counted_once_per_match(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.add(*(pod(f"other{n}", cpu="500m", priority=1, scheduler="x", bound_to="n1") for n in range(8)))
    cluster.add(pod("stays", cpu="4", priority=20, scheduler="x", bound_to="n2"))
    run(cluster)
    counted, hold = [], ForeignLoad.set
    monkeypatch.setattr(
        ForeignLoad, "set", lambda load, name, amounts: (counted.append(name), hold(load, name, amounts))
    )
    before = graph(cluster)
    cluster.add(pod("high", cpu="1", requests={QPU: "1"}, priority=10))
    run(cluster)
    assert ended(cluster) == ["other6", "other7"]
    # once without all victims, after each of the six that can stay, and at the end
    assert counted == ["n1"] * 8
    assert graph(cluster) == before


def test_preemption_for_pods_without_devices_does_not_use_the_graph(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add(pod("ours", cpu="2", priority=5))
    cluster.add(*(pod(f"other{n}", cpu="900m", priority=n, scheduler="x", bound_to="n1") for n in range(2)))
    cluster.add(pod("stays", cpu="4", priority=20, scheduler="x", bound_to="n2"))
    run(cluster)
    monkeypatch.setattr(SimulatedRemovals, "remove", unwanted)
    monkeypatch.setattr(Allocations, "match_on", unwanted)
    monkeypatch.setattr(Allocations, "match", unwanted)
    cluster.add(pod("high", cpu="1500m", priority=10))
    run(cluster)
    assert ended(cluster) == ["other0", "other1"]


def test_if_only_the_graph_refuses_a_pod_its_victims_are_on_one_node_without_a_dry_run(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters count millicores, the graph whole cores."""
    cluster.fluence = FluencePlugin(FluenceArguments(cpu_accounting="cores"))
    for name, priority in (("n1", 2), ("n2", 1)):
        cluster.add(
            *(pod(f"{name}-{n}", cpu="900m", priority=priority, bound_to=name, scheduler="x") for n in range(4))
        )
    run(cluster)
    monkeypatch.setattr(SimulatedRemovals, "remove", unwanted)
    cluster.add(pod("high", cpu="300m", priority=10))
    run(cluster)
    assert ended(cluster) == ["n2-3"]
    cluster.finish_deletions()
    run(cluster)
    cluster.assert_bound("high", "n2")


def unwanted(*_: object) -> None:
    raise AssertionError("expected no match in the graph")


def test_amounts_do_not_decide_while_a_pod_holds_a_whole_host() -> None:
    """This happens after a restart with another match policy."""
    live = LiveGraph(ResourcesConfig(), "first")
    live.set_hosts({"n1": HostResources("n1", cores=4, memory_mib=1024, gpus=0)})
    whole = HostHolding("n1", live.graph.host_path("n1"), (0, 1), (), 1024, exclusive=True)
    live.allocations.replay({"uid": {1: Placement((whole,))}})
    assert live.holdings.of_pod("uid", "n1") == (2, 1024, 0, 0)
    assert not live.shares_hosts
    live.allocations.free("uid")
    assert live.shares_hosts


def test_a_pod_of_an_allocation_joins_the_pods_that_were_recovered_before() -> None:
    """A replica that stands by recovers the pods of a gang as they are bound."""
    live = LiveGraph(ResourcesConfig(), "first")
    live.set_hosts({"n1": HostResources("n1", cores=2, memory_mib=1024, gpus=0)})
    first, second = (Placement((HostHolding("n1", live.graph.host_path("n1"), (core,)),)) for core in (0, 1))
    live.allocations.replay({"a": {7: first}})
    live.allocations.replay({"b": {7: second}})
    assert live.holdings.shares == {"a": {7: first}, "b": {7: second}}
    assert live.matcher.allocation(7).R == both_at_once(first, second).R
    live.allocations.free("a")
    assert live.holdings.used_on("n1") == (1, 0, 0, 0)


def both_at_once(first: Placement, second: Placement) -> Allocation:
    live = LiveGraph(ResourcesConfig(), "first")
    live.set_hosts({"n1": HostResources("n1", cores=2, memory_mib=1024, gpus=0)})
    live.allocations.replay({"a": {7: first}, "b": {7: second}})
    return live.matcher.allocation(7)


def test_a_share_that_a_dry_run_cannot_restore_is_missing_until_the_graph_has_it() -> None:
    live = LiveGraph(ResourcesConfig(), "first")
    live.set_hosts({"n1": HostResources("n1", cores=2, memory_mib=1024, gpus=0)})
    first, second = (Placement((HostHolding("n1", live.graph.host_path("n1"), (core,)),)) for core in (0, 1))
    live.allocations.replay({"a": {7: first}, "b": {7: second}})
    share = live.allocations.set_aside("a")
    taken = live.foreign.reserve(first)
    assert taken is not None
    with pytest.raises(RuntimeError, match="allocation 7"):
        live.allocations.take_back({"a": share})
    assert live.holdings.missing == {"a": [(7, first)]}
    assert (live.holdings.of_pod("a", "n1"), live.holdings.of_pod("b", "n1"), live.holdings.used_on("n1")) == (
        None,
        (1, 0, 0, 0),
        (1, 0, 0, 0),
    )
    live.foreign.release(taken, first)
    live.set_hosts({"n2": HostResources("n2", cores=1, memory_mib=0, gpus=0)})
    assert (live.holdings.missing, live.holdings.of_pod("a", "n1"), live.holdings.used_on("n1")) == (
        {},
        (1, 0, 0, 0),
        (2, 0, 0, 0),
    )


class OneByOne(dict[str, Any]):
    """Shares that must not be iterated."""

    def items(self) -> Any:
        raise AssertionError("expected no iteration over all shares")


def test_the_cost_of_a_dry_run_does_not_grow_with_the_other_pods() -> None:
    live = LiveGraph(ResourcesConfig(), "first")
    live.set_hosts({"n1": HostResources("n1", cores=8, memory_mib=1024, gpus=0)})
    path = live.graph.host_path("n1")
    live.allocations.replay(
        {f"p{core}": {1 + core // 2: Placement((HostHolding("n1", path, (core,)),))} for core in range(8)}
    )
    live.holdings.shares = OneByOne(live.holdings.shares)
    away = {uid: live.allocations.set_aside(uid) for uid in ("p0", "p1", "p2")}
    assert live.holdings.used_on("n1") == (5, 0, 0, 0)
    live.allocations.take_back(away)
    assert (live.holdings.used_on("n1"), live.holdings.missing) == ((8, 0, 0, 0), {})


@pytest.mark.parametrize("lacking", ["pods", "port", "cordoned"])
def test_a_nominated_pod_is_not_bound_while_the_filters_refuse_its_node(cluster: Cluster, lacking: str) -> None:
    """The graph has free cores on the node; it does not model the scarce resource."""
    pods = 1 if lacking == "pods" else 9
    cluster.add(node("n1", cpu="4", pods=pods), node("n2", cpu="1"))
    port = {"host_port": 80} if lacking == "port" else {}
    cluster.pod("low", priority=1, cpu="4" if lacking == "cordoned" else "1", **port)
    run(cluster)
    cluster.assert_bound("low", "n1")
    cluster.pod("high", cpu="2", priority=10, **port)
    run(cluster)
    cluster.assert_nominated("high", "n1")
    if lacking == "cordoned":
        cluster.finish_deletions()
    for cores in (5, 6):
        cluster.add(node("n1", cpu=str(cores), pods=pods, unschedulable=lacking == "cordoned"), node("n2", cpu="1"))
        cluster.advance(600)
        run(cluster)
        assert cluster.node_of("high") is None
    cluster.finish_deletions()
    cluster.add(node("n1", cpu="7", pods=9))
    cluster.advance(600)
    run(cluster)
    cluster.assert_bound("high", "n1")
