"""The cost of a preemptor's dry runs in the graph, as the number of matches and simulated removals, not as time."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.tools.real_engine import embedded_only

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.graph.allocations import Allocations
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.actions.trial import Trial
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, node, pod

QPU = "fluxion.flux-framework.org/qpu"
A_NODE = 4


def full(folder: Path, nodes: int) -> FakeCluster:
    """Nodes of four cores with four pods of low priority each; one of the pods holds a device."""
    file = folder / "resources.yaml"
    file.write_text(f"resources:\n  - {{type: qpu, name: one, count: {nodes}}}\n")
    cluster = FakeCluster(checked=False)
    cluster.add(node(f"n{index}", cpu="4", offers={QPU: "1000"}) for index in range(nodes))
    for index in range(A_NODE * nodes):
        held = {QPU: "1"} if index % A_NODE == 0 else None
        cluster.add(pod(f"low{index}", cpu="900m", requests=held, priority=index % 5))
    cluster.run(FluencePlugin(FluenceArguments(resources=str(file))))
    return cluster


def ending(cluster: FakeCluster) -> list[str]:
    pods = asyncio.run(cluster.memory.list(Pod)).items
    return [one.metadata.name for one in pods if one.metadata.deletion_timestamp]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls of each of these functions."""
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        kept = getattr(owner, name)

        def called(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return kept(*arguments, **options)

        monkeypatch.setattr(owner, name, called)

    for owner, name in (
        (Allocations, "shortage"),
        (Allocations, "set_aside"),
        (Trial, "is_placeable"),
        (Trial, "place"),
    ):
        count(owner, name)
    return calls


@pytest.mark.parametrize(("nodes", "trials", "away"), [(15, 6, 6), (60, 7, 8)])
def test_the_simulated_removals_for_a_device_do_not_grow_with_the_cluster(
    nodes: int, trials: int, away: int, counted: Counter[str], tmp_path: Path
) -> None:
    cluster = full(tmp_path, nodes)
    cluster.add(pod("high", cpu="100m", requests={QPU: "1"}, priority=100))
    counted.clear()
    cluster.run()
    assert len(ending(cluster)) == 1
    assert counted == {
        "is_placeable": trials,
        "place": trials + 1,
        "set_aside": away,
        "shortage": 1,
    }  # before any dry run


def test_a_few_dry_runs_show_that_preemption_cannot_help(counted: Counter[str], tmp_path: Path) -> None:
    cluster = full(tmp_path, 16)
    cluster.add(pod("high", cpu="100m", requests={QPU: "17"}, priority=100))
    counted.clear()
    cluster.run()
    cluster.assert_pending("high", "the pod requests 17 qpus, and 16 of 16 are free")
    assert counted == {"is_placeable": 3, "place": 5, "set_aside": 64, "shortage": 1}


@embedded_only  # with the library, a victim frees a whole core
def test_a_dry_run_of_a_gang_does_not_ask_the_graph_for_a_reason(counted: Counter[str], tmp_path: Path) -> None:
    cluster = full(tmp_path, 16)
    counted.clear()
    cluster.add(gang("high", 3, cpu="2", requests={QPU: "1"}, priority=100))
    cluster.run()
    assert ending(cluster)
    assert counted == {"is_placeable": 45, "place": 46, "set_aside": 180}


def test_each_preemptor_of_a_device_evicts_one_pod(tmp_path: Path) -> None:
    """For the last preemptor, every node has a nominated pod; it counts on the terminating pods."""
    cluster = full(tmp_path, 60)
    cluster.add(pod(f"high{index}", cpu="100m", requests={QPU: "1"}, priority=100) for index in range(20))
    cluster.run()
    assert len(ending(cluster)) == 20
    cluster.finish_deletions()
    cluster.run()
    for index in range(20):
        cluster.assert_bound(f"high{index}")
