"""Elastic gangs start with minCount pods, get the rest when nodes fit them, and replace members that end."""

from __future__ import annotations

import pytest

from session_scheduler.testing import FakeCluster


def running(cluster: FakeCluster) -> int:
    return sum(node is not None for node in cluster.placements().values())


def elastic(cpu: int, size: int = 5, minimum: int = 2) -> FakeCluster:
    """A gang of pods with one cpu each, and a node with `cpu` cpus."""
    return FakeCluster().node("n1", cpu=cpu).gang("g", size, min_count=minimum, cpu="1").schedule()


@pytest.mark.parametrize(("cpu", "runs"), [(1, 0), (2, 2), (4, 4), (9, 5)])
def test_an_elastic_gang_starts_with_all_that_fit_once_these_are_min_count(cpu: int, runs: int) -> None:
    assert running(elastic(cpu)) == runs


def test_an_elastic_gang_gets_its_remaining_pods_one_by_one_when_nodes_are_added() -> None:
    cluster = elastic(2)
    for number, runs in enumerate((3, 4, 5), 2):
        cluster.node(f"n{number}", cpu=1).schedule()
        assert running(cluster) == runs


def test_the_remaining_pods_of_an_elastic_gang_reserve_nothing() -> None:
    cluster = elastic(2).pod("other", cpu="1").node("n2", cpu=1)
    cluster.delete_pod("g-4").delete_pod("g-3").delete_pod("g-2").schedule()
    cluster.assert_bound("other")


def test_an_elastic_gang_that_shrinks_to_min_count_gets_its_replacements_one_by_one() -> None:
    cluster = elastic(3, size=3).end("g-0")
    cluster.node("n1", cpu=2).pod("g-3", group="g", cpu="1").pod("g-4", group="g", cpu="1").schedule()
    assert running(cluster) == 3, "two run, and the third one has ended"
    cluster.node("n1", cpu=3).advance(60).schedule()
    assert running(cluster) == 4


def test_an_elastic_gang_below_min_count_places_its_replacements_together_and_evicts_no_pods() -> None:
    cluster = elastic(3, size=3, minimum=3).end("g-0").end("g-1")
    cluster.node("n1", cpu=2).pod("g-3", group="g", cpu="1").pod("g-4", group="g", cpu="1").schedule()
    cluster.assert_bound("g-2").assert_pending("g-3", "waiting for minCount pods").assert_pending("g-4")
    cluster.node("n1", cpu=3).advance(60).schedule()
    cluster.assert_bound("g-2").assert_bound("g-3").assert_bound("g-4")


def test_pods_of_a_started_elastic_gang_do_not_wait_for_each_other() -> None:
    cluster = FakeCluster().node("n1", cpu=3).group("g", 2).pods(2, prefix="a", group="g", cpu="1").schedule()
    cluster.pod("large", group="g", cpu="9").pod("small", group="g", cpu="1").schedule()
    cluster.assert_bound("small").assert_pending("large", "Insufficient cpu")
