"""Nominated pods where the resource graph places: only pods of higher priority can use their resources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.graph.accounting import CpuAccounting
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.matching.nominated_pods import NominatedPods
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.framework import nominated_pods as core
from session_scheduler.model.objects import KubeObject, Pod, PodStatus
from session_scheduler.testing import FakeCluster, gang, node, pod

from ...tools.preempting import ended

QPU = "fluxion.flux-framework.org/qpu"
RESOURCES = """
resources:
  - {type: qpu, name: one, count: 2, attributes: {vendor: a}}
  - {type: qpu, name: other, count: 1, attributes: {vendor: b}}
"""
HALF, TWO_CORES = {"cpu": "500m"}, {"cpu": "1500m"}
"""Filters count millicores, so both fit on a node of two cores; with `cores` the graph counts whole ones."""


class Cluster(FakeCluster):
    """A cluster whose scheduler runs the plugin."""

    def __init__(self, plugin: FluencePlugin) -> None:
        super().__init__(checked=False)
        self.fluence = plugin


def made(folder: Path, policy: str = "first", cpu: CpuAccounting = "auto") -> Cluster:
    file = folder / "resources.yaml"
    file.write_text(RESOURCES)
    return Cluster(FluencePlugin(FluenceArguments(resources=str(file), match_policy=policy, cpu_accounting=cpu)))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return made(tmp_path)


def run(cluster: Cluster) -> None:
    if cluster._scheduler is None:
        cluster.run(cluster.fluence)
    else:
        cluster.run()


def live(cluster: Cluster) -> LiveGraph:
    return cluster.fluence.live


def nominated(name: str, where: str = "n1", **options: Any) -> Pod:
    """A gated pod that is nominated for a node."""
    return replace(pod(name, gates=["later"], **options), status=PodStatus(nominated_node_name=where))


def arrive(cluster: Cluster, name: str) -> None:
    """Remove the pod's gates and run the scheduler."""
    one = cluster.find(Pod, name)
    cluster.add(replace(one, spec=replace(one.spec, scheduling_gates=())))
    cluster.advance(60)
    run(cluster)


def needing(qpus: int) -> dict[str, Any]:
    return {"cpu": "100m", "requests": {QPU: str(qpus)}}


def alone(priority: int, options: dict[str, Any]) -> list[KubeObject]:
    return [pod("x-0", priority=priority, **options)]


def together(priority: int, options: dict[str, Any]) -> list[KubeObject]:
    return list(gang("x", 2, priority=priority, **options))


@pytest.mark.parametrize(("priority", "bound"), [(9, False), (10, False), (11, True)])
@pytest.mark.parametrize(
    ("policy", "waits", "others", "of_others"),
    [
        ("first", TWO_CORES, alone, HALF),
        ("locality", TWO_CORES, alone, HALF),
        ("lonodex", TWO_CORES, alone, HALF),
        ("first", TWO_CORES, together, {"cpu": "250m"}),
        ("firstnodex", TWO_CORES, together, {"cpu": "250m"}),
        ("first", {"cpu": "1500m", "requests": {QPU: "2"}}, alone, {"cpu": "500m", "requests": {QPU: "1"}}),
        ("first", needing(2), alone, needing(2)),
        ("first", needing(2), together, needing(1)),
    ],
)
def test_only_a_higher_priority_may_use_the_resources_of_a_nominated_pod(
    policy: str, waits: Any, others: Any, of_others: Any, priority: int, bound: bool, tmp_path: Path
) -> None:
    cluster = made(tmp_path, policy, "cores")
    cluster.add(node("n1", cpu="2", offers={QPU: "8"}), nominated("waits", priority=10, **waits))
    cluster.add(*others(priority, of_others))
    run(cluster)
    assert (cluster.node_of("x-0") == "n1") is bound
    arrive(cluster, "waits")
    assert (cluster.node_of("waits") == "n1") is not bound


def end(cluster: Cluster, name: str) -> None:
    cluster.delete(Pod, name)
    cluster.advance(60)
    run(cluster)


def allocated_without_a_pod(cluster: Cluster) -> list[str]:
    """The devices that the graph has allocated outside any pod's share."""
    found = live(cluster).matcher.find("sched-now=allocated")
    taken = {vertex["metadata"]["paths"]["containment"] for vertex in found["graph"]["nodes"]} if found else set()
    held = {
        device.path
        for share in live(cluster).holdings.shares.values()
        for part in share.values()
        for device in part.devices
    }
    return sorted(path for path in taken & set(live(cluster).graph.virtual) if path not in held)


def full_of_devices(cluster: Cluster) -> None:
    """Allocate both devices of one vendor, and the device of the other."""
    cluster.add(node("n1", cpu="8", offers={QPU: "8"}))
    for number, vendor in enumerate(("a", "a", "b")):
        cluster.add(pod(f"holds{number}", priority=1, annotations=of(vendor), **needing(1)))
    run(cluster)
    assert sorted(live(cluster).holdings.shares) == sorted(task.uid for task in cluster.scheduler.cache.bound_tasks())


def of(vendor: str) -> dict[str, str]:
    return {"fluence.flux-framework.org/require-vendor": vendor}


def test_freed_devices_stay_reserved_until_the_last_victim_ends(cluster: Cluster) -> None:
    full_of_devices(cluster)
    cluster.add(pod("high", priority=10, **needing(2)))
    run(cluster)
    assert ended(cluster) == ["holds0", "holds1"]
    cluster.add(pod("low", priority=5, preemption_policy="Never", **needing(1)))
    end(cluster, "holds0")
    cluster.assert_pending("low", "the pod requests 1 qpu, and 0 of 3 are free")
    end(cluster, "holds1")
    cluster.assert_bound("high")
    cluster.assert_pending("low")
    assert allocated_without_a_pod(cluster) == []


def test_a_device_without_a_nominated_pod_is_free_for_others(cluster: Cluster) -> None:
    full_of_devices(cluster)
    cluster.add(pod("high", priority=10, annotations=of("a"), **needing(1)))
    run(cluster)
    cluster.add(pod("low", priority=1, **needing(1)))
    end(cluster, "holds2")
    cluster.assert_bound("low")
    cluster.finish_deletions()
    cluster.advance(60)
    run(cluster)
    cluster.assert_bound("high")


def test_two_nominated_pods_wait_for_two_devices_without_conflict(cluster: Cluster) -> None:
    full_of_devices(cluster)
    cluster.add(*(pod(f"high{number}", priority=10, annotations=of("a"), **needing(1)) for number in (0, 1, 2)))
    run(cluster)
    assert ended(cluster) == ["holds0", "holds1"]
    cluster.assert_pending("high2", "preemption: ")
    for number in (0, 1):
        end(cluster, f"holds{number}")
    assert [bool(cluster.node_of(f"high{number}")) for number in (0, 1, 2)] == [True, True, False]


def test_devices_stay_reserved_after_a_restart(cluster: Cluster, tmp_path: Path) -> None:
    full_of_devices(cluster)
    cluster.add(pod("high", priority=10, **needing(2)))
    run(cluster)
    cluster.fluence = made(tmp_path).fluence
    cluster.start(cluster.fluence)
    cluster.add(pod("low", priority=5, preemption_policy="Never", **needing(1)))
    end(cluster, "holds0")
    cluster.assert_pending("low")
    end(cluster, "holds1")
    cluster.assert_bound("high")


def test_a_gang_gets_the_devices_reserved_for_it(cluster: Cluster) -> None:
    full_of_devices(cluster)
    cluster.add(gang("high", 2, priority=10, **needing(1)))
    run(cluster)
    gone = ended(cluster)
    assert len(gone) == 2
    cluster.add(pod("low", priority=5, preemption_policy="Never", **needing(1)))
    for name in gone:
        end(cluster, name)
    cluster.assert_bound("high-0")
    cluster.assert_bound("high-1")
    cluster.assert_pending("low")


@pytest.mark.parametrize("policy", ["first", "lonodex"])
def test_reserved_resources_are_free_after_the_nominated_pod_is_deleted(policy: str, tmp_path: Path) -> None:
    cluster = made(tmp_path, policy)
    cluster.add(node("n1", cpu="2", offers={QPU: "8"}))
    cluster.add(nominated("waits", priority=10, cpu="1500m", requests={QPU: "2"}))
    cluster.add(pod("low", priority=1, cpu="500m", requests={QPU: "2"}))
    run(cluster)
    cluster.assert_pending("low")
    end(cluster, "waits")
    cluster.assert_bound("low")
    assert allocated_without_a_pod(cluster) == []


def test_without_nominated_pods_there_is_no_work_for_them(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object) -> None:
        raise AssertionError("expected no lookup of nominated pods")

    for name in ("count_on", "_hold_devices"):
        monkeypatch.setattr(NominatedPods, name, unwanted)
    monkeypatch.setattr(core.NominatedPods, "yielded_to", unwanted)
    cluster.add(node("n1", cpu="8", offers={QPU: "8"}), pod("plain"), pod("device", **needing(1)), gang("g", 2))
    run(cluster)
    assert len(live(cluster).holdings.shares) == 4
