"""Preemption for groups within a rack: victims are in one rack, and a failure for one group does not affect another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.graph.topology import TopologyLevel
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.testing import FakeCluster, gang, node, pod

from ...tools.preempting import ended

RACK = "example.com/rack"


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(checked=False)


def run(cluster: FakeCluster) -> None:
    if cluster._scheduler is None:
        levels = (TopologyLevel(type="rack", label=RACK),)
        cluster.run(FluencePlugin(FluenceArguments(resources_text="", topology=levels)))
    else:
        cluster.run()


def within(name: str, size: int, **options: Any) -> list[Any]:
    group, *pods = gang(name, size, **options)
    annotations = {"fluence.flux-framework.org/within": "rack"}
    metadata = msgspec.structs.replace(group.metadata, annotations=annotations)
    return [msgspec.structs.replace(group, metadata=metadata), *pods]


def rack_of(cluster: FakeCluster, name: str) -> str | None:
    on = cluster.node_of(name)
    return {"n1": "r1", "n2": "r1", "n3": "r2", "n4": "r2"}[on] if on else None


def racks(cluster: FakeCluster, **cpu: str) -> None:
    for number in range(1, 5):
        name = f"n{number}"
        cluster.add(node(name, cpu=cpu.get(name, "4"), labels={RACK: "r1" if number < 3 else "r2"}))


def test_a_gang_preempts_only_in_a_rack_that_fits_it(cluster: FakeCluster) -> None:
    racks(cluster, n3="2", n4="1")
    cluster.add(*(pod(f"low-{number}", cpu="1", priority=1) for number in range(11)))
    run(cluster)
    before = {f"low-{number}": rack_of(cluster, f"low-{number}") for number in range(11)}
    assert set(before.values()) == {"r1", "r2"}
    cluster.add(within("high", 4, cpu="1", priority=10))
    run(cluster)
    victims = ended(cluster)
    assert len(victims) == 4
    assert {before[name] for name in victims} == {"r1"}
    cluster.finish_deletions()
    run(cluster)
    assert [rack_of(cluster, f"high-{number}") for number in range(4)] == ["r1"] * 4


def test_a_gang_that_fits_no_rack_preempts_no_pod(cluster: FakeCluster) -> None:
    racks(cluster, n3="2", n4="1")
    cluster.add(*(pod(f"low-{number}", cpu="1", priority=1) for number in range(11)))
    run(cluster)
    cluster.add(within("high", 9, cpu="1", priority=10))
    run(cluster)
    assert ended(cluster) == []


def test_an_equal_pod_preempts_in_its_groups_rack_though_one_in_another_rack_cannot(cluster: FakeCluster) -> None:
    racks(cluster, n2="0", n4="0")
    first, second = within("a", 3, min_count=2, cpu="1", priority=10), within("b", 3, min_count=2, cpu="1", priority=10)
    cluster.add(pod("fill-1", cpu="2", priority=10, node_selector={RACK: "r1"}),
                pod("fill-2", cpu="2", priority=1, node_selector={RACK: "r2"}))  # fmt: skip
    run(cluster)
    cluster.add(first[:3])
    run(cluster)
    cluster.add(second[:3])
    run(cluster)
    in_rack = {rack_of(cluster, f"{name}-0"): name for name in "ab"}
    assert set(in_rack) == {"r1", "r2"}
    cluster.add(first[3], second[3])
    run(cluster)
    assert ended(cluster) == ["fill-2"]
    cluster.finish_deletions()
    run(cluster)
    assert rack_of(cluster, f"{in_rack['r2']}-2") == "r2"
    assert rack_of(cluster, f"{in_rack['r1']}-2") is None
