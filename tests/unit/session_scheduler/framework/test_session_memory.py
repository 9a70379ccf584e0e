"""Memory of a session: it leaves no reference cycles for the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.testing import FakeCluster, gang, node, pod


@pytest.fixture
def collector() -> Iterator[Callable[[], int]]:
    """Return how many objects a collection finds; automatic collections are off."""
    gc.collect()
    gc.disable()
    yield gc.collect
    gc.enable()


def placed(cluster: FakeCluster, turn: str) -> None:
    cluster.add(pod(f"alone-{turn}", cpu="1"), gang(f"gang-{turn}", 3, cpu="1"))
    cluster.run()
    assert len([place for place in cluster.placements().values() if place]) == 4


def refused(cluster: FakeCluster, turn: str) -> None:
    cluster.add(pod(f"alone-{turn}", cpu="100"), gang(f"gang-{turn}", 3, cpu="100"))
    cluster.run()
    assert not any(cluster.placements().values())


def preempting(cluster: FakeCluster, turn: str) -> None:
    cluster.add(pod(f"low-{turn}-{number}", cpu="4", priority=1) for number in range(4))
    cluster.run()
    cluster.add(pod(f"high-{turn}", cpu="4", priority=10))
    cluster.run()
    cluster.finish_deletions()
    cluster.advance(30)
    cluster.run()
    assert cluster.placements()[f"default/high-{turn}"]


@pytest.mark.parametrize("work", [placed, refused, preempting])
def test_a_session_frees_its_memory_without_garbage_collection(
    work: Callable[[FakeCluster, str], None], collector: Callable[[], int]
) -> None:
    cluster = FakeCluster()
    cluster.add(node(f"n{number}", cpu="4") for number in range(4))
    cluster.start()
    for turn in ("first", "second"):  # the first one fills caches
        collector()
        work(cluster, turn)
        for key in cluster.placements():
            cluster.delete(Pod, key.rpartition("/")[2])
        if work is not preempting:
            cluster.delete(PodGroup, f"gang-{turn}")
        cluster.run()
    assert collector() == 0
