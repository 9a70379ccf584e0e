"""What a preemptor's trials cost beside the graph: counted is what is asked and what is thought away, no time."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.graph.allocations import Allocations
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.actions.trial import Trial
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, node, pod

QPU = "fluxion.flux-framework.org/qpu"
A_NODE = 4


def full(folder: Path, nodes: int) -> FakeCluster:
    """Nodes of four cores with as many pods of low priority, of which one holds a device."""
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
    """How often each of these is called."""
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
def test_what_is_thought_away_for_a_device_does_not_grow_with_the_cluster(
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
    }  # before any trial


def test_that_nothing_would_help_is_found_out_in_a_few_trials_and_told_once(
    counted: Counter[str], tmp_path: Path
) -> None:
    cluster = full(tmp_path, 16)
    cluster.add(pod("high", cpu="100m", requests={QPU: "17"}, priority=100))
    counted.clear()
    cluster.run()
    cluster.assert_pending("high", "the pod requests 17 qpus, and 16 of 16 are free")
    assert counted == {"is_placeable": 3, "place": 5, "set_aside": 64, "shortage": 1}


def test_a_trial_of_a_gang_asks_the_graph_for_no_reason(counted: Counter[str], tmp_path: Path) -> None:
    cluster = full(tmp_path, 16)
    counted.clear()
    cluster.add(gang("high", 3, cpu="2", requests={QPU: "1"}, priority=100))
    cluster.run()
    assert ending(cluster)
    assert counted == {"is_placeable": 43, "place": 44, "set_aside": 178}


def test_as_many_pods_end_as_there_are_preemptors_that_need_one_device(tmp_path: Path) -> None:
    """The last of them finds no node that nobody is to come to, and counts on those that end already."""
    cluster = full(tmp_path, 60)
    cluster.add(pod(f"high{index}", cpu="100m", requests={QPU: "1"}, priority=100) for index in range(20))
    cluster.run()
    assert len(ending(cluster)) == 20
    cluster.finish_deletions()
    cluster.run()
    for index in range(20):
        cluster.assert_bound(f"high{index}")
