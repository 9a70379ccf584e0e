"""Every end of a nomination frees its reservation and requeues other pods; a preemptor is retried when possible victims
are bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.model.objects import Node, Pod, PodStatus
from session_scheduler.testing import FakeCluster, gang, node, pod

from ....tools.preempting import OneLoop
from .requeue_world import observed

NOWHERE = {"disk": "ssd"}


@pytest.fixture
def cluster() -> FakeCluster:
    """A node with a nomination for a gated pod, and a pod that waits because of it."""
    found = FakeCluster(checked=False)
    found.add(node("n1", cpu="1"), node("n2", cpu="1", unschedulable=True), nominated("n1"))
    found.add(pod("waits", cpu="1", priority=5))
    found.run()
    found.assert_pending("waits", "Insufficient cpu")
    assert found.scheduler.queue.is_unschedulable("Pod default/waits")
    return found


def nominated(where: str, **options: Any) -> Pod:
    made = pod("first", cpu="1", priority=10, gates=["later"], **options)
    return replace(made, status=PodStatus(nominated_node_name=where))


def test_its_pod_is_deleted(cluster: FakeCluster) -> None:
    cluster.delete(Pod, "first")
    cluster.run()
    cluster.assert_bound("waits", "n1")


def test_its_nomination_is_cleared(cluster: FakeCluster) -> None:
    cluster.add(replace(cluster.find(Pod, "first"), status=PodStatus()))
    cluster.run()
    cluster.assert_bound("waits", "n1")


def test_its_pod_is_nominated_for_another_node(cluster: FakeCluster) -> None:
    cluster.add(replace(cluster.find(Pod, "first"), status=PodStatus(nominated_node_name="n2")))
    cluster.run()
    cluster.assert_bound("waits", "n1")


def test_its_pod_is_bound_to_another_node(cluster: FakeCluster) -> None:
    first = cluster.find(Pod, "first")
    cluster.add(replace(first, spec=replace(first.spec, node_name="n2", scheduling_gates=())))
    cluster.run()
    cluster.assert_bound("waits", "n1")


def test_its_pod_fits_nowhere_any_more() -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu="1", labels={"disk": "ssd"}), pod("low", cpu="1", priority=1, bound_to="n1"))
    cluster.add(pod("high", cpu="1", priority=10, node_selector={"disk": "ssd"}))
    cluster.run()
    cluster.finish_deletions()
    cluster.add(node("n1", cpu="1"))  # the victim is gone, and so is the label that the preemptor needs
    cluster.add(pod("waits", cpu="1", priority=5))
    cluster.run(cycles=2)
    cluster.advance(11)
    cluster.run(cycles=2)
    cluster.assert_bound("waits", "n1")


@pytest.mark.parametrize("end", [None, "", "n2"])
def test_its_end_requeues_only_the_pods_that_yielded_to_it(end: str | None) -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu="1"), node("n2", cpu="1", unschedulable=True), nominated("n1"))
    cluster.add(pod(f"p{priority}", cpu="1", priority=priority, node_selector=NOWHERE) for priority in (5, 10, 11))
    cluster.add(gang("g", 2, cpu="1", priority=11), gang("h", 2, cpu="1", priority=10))
    cluster.add(
        pod("big", cpu="2", priority=11), pod("larger", cpu="2", priority=10), pod("small", cpu="1", priority=10)
    )
    tries = observed(cluster)
    cluster.run()
    tries.of.clear()
    if end is None:
        cluster.delete(Pod, "first")
    else:
        cluster.add(replace(cluster.find(Pod, "first"), status=PodStatus(nominated_node_name=end)))
    cluster.run(cycles=2)
    assert set(tries.of) == {"h", "small"}, "the node is too small for the larger ones"


def test_the_start_of_a_nomination_requeues_no_pod() -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu="1"), nominated(""), pod("big", cpu="2", priority=5))
    tries = observed(cluster)
    cluster.run()
    cluster.add(nominated("n1"))
    cluster.run(cycles=2)
    assert tries.of == {"big": 1}


@pytest.mark.parametrize("where", ["", "n2"])
def test_its_own_pod_is_retried_if_another_client_ends_it(where: str) -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1, bound_to="n1"))
    cluster.add(pod("high", cpu="1", priority=10))
    tries = observed(cluster)
    cluster.run(cycles=2)
    assert tries.of == {"high": 1}
    high = cluster.find(Pod, "high")
    assert high.status.nominated_node_name == "n1"
    cluster.add(replace(high, status=replace(high.status, nominated_node_name=where)))
    cluster.run()
    assert tries.of == {"high": 2}


class SlowBinds(OneLoop):
    """Binds that complete when `let` is set."""

    def __init__(self, runner: asyncio.Runner) -> None:
        super().__init__(runner)
        self.let = asyncio.Event()
        bind = self.memory.bind

        async def slowly(*arguments: Any, **options: Any) -> Any:
            await self.let.wait()
            return await bind(*arguments, **options)

        self.memory.bind = slowly  # type: ignore[method-assign]


@pytest.fixture
def slow() -> Iterator[SlowBinds]:
    with asyncio.Runner() as runner:
        yield SlowBinds(runner)


@pytest.mark.parametrize("who", [pod("high", cpu="1", priority=10), gang("high", 2, cpu="1", priority=10)])
def test_pods_with_a_bind_in_flight_are_preempted_after_it(slow: SlowBinds, who: Any) -> None:
    slow.add(node("n1", cpu="1"), node("n2", cpu="1"))
    slow.start()
    slow.add(pod(f"low{number}", cpu="1", priority=1) for number in (1, 2))
    slow.turn()
    slow.add(who)
    slow.turn(2)
    slow.let.set()
    slow.turn(2)
    slow.advance(2)
    slow.turn(3)
    assert len(slow.ending()) == (1 if isinstance(who, Pod) else 2)


def test_a_preemptor_is_not_retried_while_it_waits_for_a_bind(slow: SlowBinds) -> None:
    slow.add(node("n1", cpu="1"))
    slow.start()
    slow.add(pod("low", cpu="1", priority=1))
    slow.turn()
    slow.add(pod("high", cpu="1", priority=10))
    slow.turn()
    tried = []
    slow.scheduler.observer.decided = tried.append  # type: ignore[method-assign, assignment]
    slow.turn(5)
    assert tried == []


def test_the_deletion_of_a_node_requeues_no_pod_for_its_nominations(cluster: FakeCluster) -> None:
    cluster.delete(Node, "n1", "")
    cluster.run()
    cluster.assert_pending("waits")
