"""Failures in preemption stay local: a node whose dry run fails, a nomination that is not written, a gang that is
nominated in part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler import hookimpl
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.errors import Forbidden, Unavailable
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.hookspecs import Scope
from session_scheduler.model.objects import Pod, PodStatus
from session_scheduler.registry.registry import Registry
from session_scheduler.testing import FakeCluster, gang, node, pod

from ....tools.preempting import OneLoop, ended

# ------------------------------------------------------------------ a plugin that fails in a trial


class FailsOn:
    """A filter that fails on some nodes without running pods, which happens only in a trial."""

    name = "fails-on"

    def __init__(self, nodes: set[str], scope: Scope) -> None:
        self._nodes = nodes
        self.filter_scope = scope

    @hookimpl
    def filter(self, cls, nodes, mask):
        for place in range(len(nodes)):
            if nodes.node(place).metadata.name in self._nodes and not nodes.used("cpu")[place]:
                raise RuntimeError(f"{nodes.node(place).metadata.name} is empty")


def preempting_with_failures(failing: set[str], scope: Scope) -> FakeCluster:
    """The pods on n1 are the best victims, then those on n2."""
    cluster = FakeCluster()  # checks the counted usage of each node after each cycle
    cluster.add(node(f"n{n}", cpu="1") for n in (1, 2, 3))
    cluster.add(pod(f"low{n}", cpu="1", priority=n, bound_to=f"n{n}") for n in (1, 2, 3))
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run(FailsOn(failing, scope))
    return cluster


@pytest.mark.parametrize("scope", [Scope.NODE, Scope.ANY])
@pytest.mark.parametrize(("failing", "victims"), [(set(), "low1"), ({"n1"}, "low2"), ({"n1", "n2"}, "low3")])
def test_preemption_uses_another_node_if_a_plugin_fails_in_a_nodes_dry_run(
    failing: set[str], victims: str, scope: Scope
) -> None:
    cluster = preempting_with_failures(failing, scope)
    assert ended(cluster) == [victims]
    cluster.assert_pending("high", "Insufficient cpu")


@pytest.mark.parametrize("scope", [Scope.NODE, Scope.ANY])
def test_the_failure_is_reported_if_no_other_node_is_left(scope: Scope) -> None:
    cluster = preempting_with_failures({"n1", "n2", "n3"}, scope)
    assert ended(cluster) == []
    cluster.assert_pending("high", "is empty")


class Loses:
    """Follows trials, and fails when a pod is removed, or when it is put back."""

    name = "loses"

    def __init__(self, when: str) -> None:
        self._when = when

    @hookimpl
    def on_session_open(self, session):
        session.add_trial_handler(self._handler("removed"), self._handler("put back"))

    def _handler(self, when: str) -> Any:
        def handle(event):
            if when == self._when and event.task.name == "low1":
                raise RuntimeError("low1 is not there")

        return handle


@pytest.mark.parametrize(("when", "victims"), [("removed", ["low2"]), ("put back", [])])
def test_a_plugin_that_fails_when_a_pod_is_put_back_ends_the_attempt(when: str, victims: list[str]) -> None:
    """A plugin that failed at the removal gets the pod back, so its state is correct."""
    cluster = FakeCluster()
    cluster.add(node(f"n{n}", cpu="1") for n in (1, 2))
    cluster.add(pod(f"low{n}", cpu="1", priority=n, bound_to=f"n{n}") for n in (1, 2))
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.run(Loses(when))
    assert ended(cluster) == victims


# ------------------------------------------------------------------ a nomination that is not written


@pytest.fixture
def cluster() -> Iterator[OneLoop]:
    with asyncio.Runner() as runner:
        found = OneLoop(runner)
        found.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1, bound_to="n1"))
        yield found


def lose(cluster: OneLoop, name: str, node: str, *, done: bool = False) -> None:
    """Fail the requests that nominate the pod for the node; with `done` only their answers are lost."""
    real = cluster.memory.patch_status

    async def lost(one: Any, **options: Any) -> Any:
        if one.metadata.name != name or options.get("nominated_node_name") != node:
            return await real(one, **options)
        if done:
            await real(one, **options)
            raise Unavailable("timeout")
        raise Forbidden("the status of pods cannot be written")

    cluster.memory.patch_status = lost  # type: ignore[method-assign, assignment]


def known(cluster: FakeCluster, name: str) -> str | None:
    task = cluster.scheduler.cache.tasks[cluster.find(Pod, name).metadata.uid]
    return cluster.scheduler.cache.nominations.node_of(task)


def test_a_nomination_that_is_not_written_reserves_nothing(cluster: OneLoop) -> None:
    cluster.start()
    lose(cluster, "high", "n1")
    cluster.add(pod("high", cpu="1", priority=10), pod("waits", cpu="1", priority=10, preemption_policy="Never"))
    cluster.turn(2)
    assert known(cluster, "high") is None
    cluster.delete(Pod, "low")
    cluster.turn(2)
    assert cluster.get("waits").spec.node_name or cluster.get("high").spec.node_name


def test_a_written_nomination_stays_although_the_answer_was_lost(cluster: OneLoop) -> None:
    cluster.start()
    lose(cluster, "high", "n1", done=True)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn(3)
    assert known(cluster, "high") == "n1"


def test_a_single_pods_nomination_is_not_reverted(cluster: OneLoop) -> None:
    """The write may have happened although the answer was lost, and the watch will show it."""
    cluster.start()
    lose(cluster, "high", "n1")
    real, asked = cluster.memory.patch_status, list[Any]()

    async def noted(one: Any, **options: Any) -> Any:
        asked.append(options.get("nominated_node_name"))
        return await real(one, **options)

    cluster.memory.patch_status = noted  # type: ignore[method-assign, assignment]
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn(3)
    assert set(asked) == {"n1"}


def test_a_nomination_stays_if_its_removal_is_not_written(cluster: OneLoop) -> None:
    cluster.start()
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn(2)
    lose(cluster, "high", "")
    cluster.add(pod("higher", cpu="1", priority=20))
    cluster.turn(2)
    assert cluster.get("high").status.nominated_node_name == known(cluster, "high") == "n1"


# ------------------------------------------------------------------ a gang that is nominated in part


@pytest.mark.parametrize("done", [False, True])
def test_a_gang_keeps_its_nominations_only_if_all_are_written(cluster: OneLoop, done: bool) -> None:
    """Lost answers do not matter if the nominations are written."""
    cluster.add(node("n2", cpu="1"), pod("low2", cpu="1", priority=1, bound_to="n2"))
    cluster.start()
    lose(cluster, "high-1", "n1", done=done)
    lose(cluster, "high-1", "n2", done=done)
    cluster.add(gang("high", 2, cpu="1", priority=10))
    cluster.turn(2)
    for name in ("high-0", "high-1"):
        assert bool(cluster.get(name).status.nominated_node_name) is done
        assert bool(known(cluster, name)) is done
    assert cluster.ending() == []


def test_a_partial_nomination_that_cannot_be_reverted_reserves_nothing_and_is_removed_later(cluster: OneLoop) -> None:
    cluster.add(node("n2", cpu="1"), pod("low2", cpu="1", priority=1, bound_to="n2"))
    cluster.start()
    real = cluster.memory.patch_status
    for name, place in (("high-1", "n1"), ("high-1", "n2"), ("high-0", "")):
        lose(cluster, name, place)
    cluster.add(gang("high", 2, cpu="1", priority=10))
    cluster.turn(3)
    assert cluster.get("high-0").status.nominated_node_name
    assert known(cluster, "high-0") is None
    cluster.memory.patch_status = real  # type: ignore[method-assign]
    cluster.delete(Pod, "high-1")
    cluster.advance(11)
    cluster.turn(3)
    assert cluster.get("high-0").status.nominated_node_name == ""


@pytest.mark.parametrize("when", ["before its answer", "after its answer"])
def test_a_partial_nomination_that_the_watch_shows_after_its_revert_reserves_nothing(
    cluster: OneLoop, when: str
) -> None:
    cluster.add(node("n2", cpu="1"), pod("low2", cpu="1", priority=1, bound_to="n2"))
    cluster.start()
    for name, place in (("high-1", "n1"), ("high-1", "n2")):
        lose(cluster, name, place)
    lose(cluster, "high-0", "")
    cluster.add(gang("high", 2, cpu="1", priority=10))

    async def deaf() -> None:
        await cluster.scheduler.complete_finished()
        for _ in range(200):
            await asyncio.sleep(0)

    cluster.turn()
    for _ in range(1 if when == "before its answer" else 2):
        cluster._runner.run(deaf())
    cluster.turn(2)
    assert cluster.get("high-0").status.nominated_node_name
    assert known(cluster, "high-0") is None
    cluster.add(replace(cluster.get("high-0"), status=PodStatus(nominated_node_name="n9")))
    cluster.turn()
    assert known(cluster, "high-0") == "n9"


def restarted(nominated: int, *others: Pod) -> FakeCluster:
    """A cluster at the start of a scheduler: a gang of three with minCount 2, some of its pods nominated."""
    cluster = FakeCluster()
    cluster.add(node(f"n{n}", cpu="1") for n in range(3))
    cluster.add(pod("there", cpu="1", priority=20, bound_to="n2"), *others)
    for one in gang("high", 3, min_count=2, cpu="1", priority=10):
        place = f"n{one.metadata.name[-1]}"
        there = isinstance(one, Pod) and int(place[1:]) < nominated
        cluster.add(replace(one, status=PodStatus(nominated_node_name=place)) if there else one)
    return cluster


@pytest.mark.parametrize(("nominated", "kept"), [(1, False), (2, True), (3, True)])
def test_after_a_restart_a_gang_keeps_nominations_only_if_they_suffice_to_start(nominated: int, kept: bool) -> None:
    cluster = restarted(nominated)
    cluster.start()
    names = [f"high-{n}" for n in range(nominated)]
    assert [known(cluster, name) is not None for name in names] == [kept] * nominated
    written = [cluster.find(Pod, name).status.nominated_node_name for name in names]
    cluster.run()
    assert {cluster.node_of("high-0"), cluster.node_of("high-1")} == {"n0", "n1"}
    assert all(written)


def test_after_a_restart_a_partially_nominated_gang_is_attempted_at_once() -> None:
    cluster, config = restarted(1, pod("low", cpu="1")), SchedulerConfig()
    scheduler = Scheduler(cluster.memory, config, Registry(BUILTIN).load_calls(config), cluster.clock)

    async def first_cycle() -> list[str]:
        await scheduler.start()
        return [task.name for bound in await scheduler.cycle() for task in bound.bound]

    assert sorted(asyncio.run(first_cycle())) == ["high-0", "high-1"]


def test_after_a_restart_a_gang_that_cannot_start_loses_its_nominations() -> None:
    cluster = restarted(1, pod("also-there", cpu="1", priority=20, bound_to="n1"))
    cluster.run()
    assert cluster.find(Pod, "high-0").status.nominated_node_name == ""
    cluster.assert_pending("high-0")
