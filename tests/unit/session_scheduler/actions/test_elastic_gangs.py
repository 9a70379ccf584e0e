"""Elastic gangs: minCount now, the rest when there is room; and what becomes of them when members end."""

from __future__ import annotations

import pytest

from session_scheduler.testing import FakeCluster


def running(cluster: FakeCluster) -> int:
    return sum(node is not None for node in cluster.placements().values())


def elastic(cpu: int, size: int = 5, minimum: int = 2) -> FakeCluster:
    """A gang of pods of one cpu, and a node with so many of them."""
    return FakeCluster().node("n1", cpu=cpu).gang("g", size, min_count=minimum, cpu="1").schedule()


@pytest.mark.parametrize(("cpu", "runs"), [(1, 0), (2, 2), (4, 4), (9, 5)])
def test_an_elastic_gang_starts_with_all_that_fit_once_these_are_min_count(cpu: int, runs: int) -> None:
    assert running(elastic(cpu)) == runs


def test_an_elastic_gang_takes_the_rest_one_by_one_as_room_comes() -> None:
    cluster = elastic(2)
    for number, runs in enumerate((3, 4, 5), 2):
        cluster.node(f"n{number}", cpu=1).schedule()
        assert running(cluster) == runs


def test_the_rest_of_an_elastic_gang_keeps_no_room_from_others() -> None:
    cluster = elastic(2).pod("other", cpu="1").node("n2", cpu=1)
    cluster.delete_pod("g-4").delete_pod("g-3").delete_pod("g-2").schedule()
    cluster.assert_bound("other")


def test_an_elastic_gang_that_shrinks_to_min_count_gets_its_replacements_one_by_one() -> None:
    cluster = elastic(3, size=3).end("g-0")
    cluster.node("n1", cpu=2).pod("g-3", group="g", cpu="1").pod("g-4", group="g", cpu="1").schedule()
    assert running(cluster) == 3, "two run, and the one that ended ran"
    cluster.node("n1", cpu=3).advance(60).schedule()
    assert running(cluster) == 4


def test_an_elastic_gang_that_shrinks_below_min_count_starts_again_together_and_ends_nobody() -> None:
    cluster = elastic(3, size=3, minimum=3).end("g-0").end("g-1")
    cluster.node("n1", cpu=2).pod("g-3", group="g", cpu="1").pod("g-4", group="g", cpu="1").schedule()
    cluster.assert_bound("g-2").assert_pending("g-3", "waiting for minCount pods").assert_pending("g-4")
    cluster.node("n1", cpu=3).advance(60).schedule()
    cluster.assert_bound("g-2").assert_bound("g-3").assert_bound("g-4")


def test_of_an_elastic_gang_that_has_started_no_pod_waits_for_another_one() -> None:
    cluster = FakeCluster().node("n1", cpu=3).group("g", 2).pods(2, prefix="a", group="g", cpu="1").schedule()
    cluster.pod("large", group="g", cpu="9").pod("small", group="g", cpu="1").schedule()
    cluster.assert_bound("small").assert_pending("large", "Insufficient cpu")
