"""Costs of preemption and nominated pods: they depend on changes, not on the number of nodes or nominated pods."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.actions import trial
from session_scheduler.framework import nominated_pods
from session_scheduler.framework.board import Board
from session_scheduler.framework.node_refusals import NodeRefusals
from session_scheduler.testing import FakeCluster, gang, node, pod

from ....tools.preempting import ended

NODES = 120


@pytest.fixture
def cluster() -> FakeCluster:
    """Nodes that are full with low-priority pods."""
    found = FakeCluster(checked=False)
    found.add(node(f"n{number}", cpu="1") for number in range(NODES))
    found.add(pod(f"low{number}", cpu="1", priority=1, bound_to=f"n{number}") for number in range(NODES))
    found.start()
    return found


def counted(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, size: Any) -> list[int]:
    """Record the sizes of the arguments of a function from now on."""
    sizes: list[int] = []
    real = getattr(where, name)

    def call(*arguments: Any, **options: Any) -> Any:
        sizes.append(size(*arguments))
        return real(*arguments, **options)

    monkeypatch.setattr(where, name, call)
    return sizes


def nominate_all(cluster: FakeCluster, number: int) -> None:
    cluster.add(pod(f"high{each}", cpu="1", priority=10) for each in range(number))
    cluster.run()
    assert len(cluster.scheduler.cache.nominations.node_by_uid) == number


def test_only_changed_nodes_are_evaluated_again(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = counted(monkeypatch, NodeRefusals, "put", lambda _, rows, found: len(rows))
    nominate_all(cluster, 20)
    assert sum(sizes) < 4 * NODES


def test_nominated_pods_are_counted_together_and_not_node_by_node(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    nominate_all(cluster, 40)
    cluster.add(pod("waits", cpu="1", priority=5))
    rounds = counted(
        monkeypatch, nominated_pods._Counting, "_evaluate_beside", lambda counting, expected, *_: len(expected)
    )
    cluster.run()
    assert max(rounds, default=0) <= 40
    assert len(rounds) < 10


def test_nominated_pods_are_counted_only_on_nodes_that_fit_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node(f"n{number}", cpu="2") for number in range(20))
    cluster.add(pod(f"low{n}", cpu="2" if n < 15 else "1", priority=1, bound_to=f"n{n}") for n in range(20))
    cluster.add(pod(f"high{number}", cpu="2", priority=10) for number in range(20))
    cluster.start()
    cluster.run()
    assert len(cluster.scheduler.cache.nominations.node_by_uid) == 20
    cluster.add(pod("waits", cpu="1", priority=1))
    counts = counted(monkeypatch, nominated_pods._Counting, "_counted", lambda _, expected: len(expected))
    explained = counted(monkeypatch, nominated_pods, "evaluate", lambda _, view, *__: len(view))
    cluster.run()
    cluster.assert_pending("waits")
    assert max(counts) == 5
    assert explained == [5], "the reasons of all of these nodes are computed at once"


def test_for_a_nominated_pod_only_its_node_is_evaluated(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    nominate_all(cluster, 20)
    cluster.finish_deletions()
    cluster.advance(2)
    boards = counted(monkeypatch, Board, "_build", lambda *_: 1)
    cluster.run()
    assert sum(bool(place) for name, place in cluster.placements().items() if "high" in name) == 20
    assert len(boards) <= 1


def test_the_number_of_placements_of_a_gang_does_not_grow_with_possible_victims(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = counted(monkeypatch, trial, "place_ready", lambda *_: 1)
    cluster.add(gang("g", 30, cpu="1", priority=10))
    cluster.run()
    assert len(ended(cluster)) == 30
    assert len(placed) <= 3
