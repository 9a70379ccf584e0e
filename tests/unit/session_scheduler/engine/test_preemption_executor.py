"""Preemption beside the sessions: requests that are refused, answered late, or overtaken by another decision."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from session_scheduler.cluster.errors import Conflict, Forbidden, NotFound, Unavailable
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.model.meta import LabelSelector, ObjectMeta
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.policy import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from session_scheduler.testing import node, pod
from session_scheduler.testing.builders import gang

from ....tools.preempting import OneLoop


class Turns(OneLoop):
    """Turns as the engine takes them, in one event loop: work in flight goes on from one to the next."""

    def __init__(self, runner: asyncio.Runner, **options: Any) -> None:
        super().__init__(runner, **options)
        self.events: list[str] = []

    def start(self, *plugins: object) -> Any:
        scheduler = super().start(*plugins)
        scheduler.observer.preempted = lambda task, _: self.events.append(task.name)  # type: ignore[method-assign, assignment]
        return scheduler

    def instead(self, request: str, answer: Callable[..., Awaitable[Any]]) -> None:
        """Let `answer(real, pod, …)` stand in for a request about pods."""
        real = getattr(self.memory, request)
        setattr(self.memory, request, lambda *arguments, **options: answer(real, *arguments, **options))


@pytest.fixture
def cluster() -> Iterator[Turns]:
    with asyncio.Runner() as runner:
        found = Turns(runner)
        found.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1, bound_to="n1"))
        yield found


def test_a_victim_whose_end_is_refused_is_asked_again_after_a_backoff_and_not_at_once(cluster: Turns) -> None:
    asked = []

    async def refuse(_: Any, one: Pod, **__: Any) -> None:
        asked.append(one.metadata.name)
        raise Forbidden("pods cannot be deleted")

    cluster.start()
    cluster.instead("delete", refuse)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn(6)
    assert asked == ["low"]
    cluster.advance(1)
    cluster.turn(6)
    assert asked == ["low", "low"]


def test_a_victim_whose_end_is_refused_uses_its_budget_once(cluster: Turns) -> None:
    """A budget's status, which counts who was asked to end, is written for none of these."""
    asked = []

    async def refuse(_: Any, one: Pod, **__: Any) -> None:
        asked.append(one.metadata.name)
        raise Forbidden("pods cannot be deleted")

    budget = PodDisruptionBudget(
        metadata=ObjectMeta(name="x", namespace="default"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "x"})),
        status=PodDisruptionBudgetStatus(disruptions_allowed=1),
    )
    cluster.add(budget, node("n2", cpu="1"), pod("of-budget", cpu="1", bound_to="n2", labels={"app": "x"}))
    cluster.start()
    cluster.instead("delete", refuse)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn(3)
    cluster.advance(1)
    cluster.turn(3)
    assert asked == ["of-budget", "of-budget"]  # "low", whose priority is higher, would be the price of a violation


@pytest.mark.parametrize(
    ("request_", "refused", "reported"),
    [("delete", (0,), 2), ("delete", (1,), 2), ("delete", (0, 1), 2), ("delete", (2,), 3), ("delete", (), 3),
     ("patch_status", (0,), 1), ("patch_status", (2,), 2)],
)  # fmt: skip
def test_the_last_of_several_victims_is_asked_when_the_others_end(
    cluster: Turns, request_: str, refused: tuple[int, ...], reported: int
) -> None:
    """Victims are asked in an order of their own: refused are those that come first, second or third."""
    seen: list[str] = []
    deleted: list[str] = []

    async def refuse(real: Any, one: Pod, **options: Any) -> Any:
        if one.metadata.name.startswith("low"):
            if one.metadata.name not in seen:
                seen.append(one.metadata.name)
            if seen.index(one.metadata.name) in refused:
                raise Forbidden("pods are not to be touched")
        return await real(one, **options)

    async def count(real: Any, one: Pod, **options: Any) -> Any:
        deleted.append(one.metadata.name)
        return await real(one, **options)

    cluster.add(node("n1", cpu="3"), *(pod(f"low{n}", cpu="1", priority=1, bound_to="n1") for n in (2, 3)))
    cluster.start()
    cluster.instead("delete", count)
    cluster.instead(request_, refuse)
    cluster.add(pod("high", cpu="3", priority=10))
    cluster.turn(2)
    assert len(deleted if request_ == "patch_status" else seen) == reported
    assert len(cluster.ending()) == reported - len([one for one in refused if request_ == "delete"])


@pytest.mark.parametrize("request_", ["delete", "patch_status"])
def test_an_error_that_nobody_expected_is_raised_and_the_victim_is_not_taken_to_end(
    cluster: Turns, request_: str
) -> None:
    broken = True

    async def break_off(real: Any, one: Pod, **options: Any) -> Any:
        if broken:
            raise ZeroDivisionError
        return await real(one, **options)

    cluster.start()
    cluster.instead(request_, break_off)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn()
    with pytest.raises(ZeroDivisionError):
        cluster.turn()
    broken = False
    cluster.advance(1)
    cluster.turn(3)
    assert cluster.ending() == ["low"]


def test_a_victim_that_others_write_to_all_the_time_is_not_taken_to_end(cluster: Turns) -> None:
    busy = True

    async def overtaken(real: Any, one: Pod, **options: Any) -> Any:
        if busy and one.metadata.name == "low":
            raise Conflict("the object has been modified")
        return await real(one, **options)

    cluster.start()
    cluster.instead("patch_status", overtaken)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn(3)
    assert cluster.events == cluster.ending() == []
    busy = False
    cluster.advance(1)
    cluster.turn(3)
    assert cluster.events == cluster.ending() == ["low"]


def test_of_a_victim_that_is_gone_already_nothing_is_told(cluster: Turns) -> None:
    async def gone(real: Any, one: Pod, **options: Any) -> Any:
        if one.metadata.name == "low":
            raise NotFound("there is no such pod")
        return await real(one, **options)

    cluster.start()
    cluster.instead("patch_status", gone)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn(3)
    assert cluster.events == []


def test_a_victim_of_two_is_asked_to_end_once_and_both_are_tried_again_where_that_is_refused(cluster: Turns) -> None:
    cluster.add(pod("other", cpu="1", priority=2, bound_to="n2"), node("n2", cpu="1", unschedulable=True))
    asked = []
    reported = asyncio.Event()

    async def late(_: Any, one: Pod, **__: Any) -> None:
        asked.append(one.metadata.name)
        await reported.wait()
        raise Forbidden("pods cannot be deleted")

    cluster.start()
    cluster.instead("delete", late)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn()
    cluster.add(pod("higher", cpu="1", priority=20))
    cluster.turn()
    assert asked == ["low"]
    reported.set()
    cluster.turn(2)
    cluster.advance(1)
    cluster.turn(2)
    assert asked == ["low", "low"]  # for the higher one, which comes first
    assert cluster.get("higher").status.nominated_node_name == "n1"


def test_a_victim_is_told_for_whom_it_ends_though_that_pod_goes_meanwhile(cluster: Turns) -> None:
    first = asyncio.Event()

    async def late(real: Any, one: Pod, **options: Any) -> Any:
        if one.metadata.name == "high":
            await first.wait()
        return await real(one, **options)

    texts: list[str] = []
    scheduler = cluster.start()
    scheduler.observer.preempted = lambda _, text: texts.append(text)
    cluster.instead("patch_status", late)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn()
    uid = cluster.get("high").metadata.uid
    cluster.delete(Pod, "high")
    cluster.turn()
    first.set()
    cluster.turn(2)
    (reported,) = [one for one in cluster.get("low").status.conditions if one.type == "DisruptionTarget"]
    assert reported.message == "fluence: preempting to accommodate a higher priority pod"
    assert texts == [f"Preempted by pod {uid} on node n1"]


def test_a_nomination_that_is_outdone_while_it_is_written_does_not_come_back(cluster: Turns) -> None:
    first = asyncio.Event()

    async def late(real: Any, one: Pod, **options: Any) -> Any:
        if one.metadata.name == "high" and options.get("nominated_node_name") == "n1":
            await first.wait()
        return await real(one, **options)

    cluster.start()
    cluster.instead("patch_status", late)
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn()
    cluster.add(pod("higher", cpu="1", priority=20))
    cluster.turn()
    first.set()
    cluster.turn(3)
    assert cluster.get("higher").status.nominated_node_name == "n1"
    assert cluster.get("high").status.nominated_node_name == ""


def test_one_that_is_outdone_is_nominated_anew_only_when_its_old_nomination_is_taken_away(cluster: Turns) -> None:
    cluster.start()
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn(2)
    taken_away = asyncio.Event()

    async def late(real: Any, one: Pod, **options: Any) -> Any:
        if one.metadata.name == "high" and options.get("nominated_node_name") == "":
            await taken_away.wait()
        return await real(one, **options)

    cluster.instead("patch_status", late)
    cluster.add(pod("higher", cpu="1", priority=20))
    cluster.turn()
    cluster.add(node("n2", cpu="1"), pod("low2", cpu="1", priority=1, bound_to="n2"))
    cluster.turn(2)
    taken_away.set()
    cluster.turn(3)
    assert cluster.get("high").status.nominated_node_name == "n2"
    assert cluster.ending() == ["low", "low2"]
    cluster.advance(5)
    cluster.turn(3)
    assert cluster.get("high").status.nominated_node_name == "n2"


def test_a_pod_whose_nominated_node_goes_looks_for_another_at_once(cluster: Turns) -> None:
    cluster.start()
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn(2)
    cluster.add(node("n2", cpu="1"), pod("low2", cpu="1", priority=1, bound_to="n2"))
    cluster.turn()
    cluster.delete(Node, "n1", "")
    cluster.turn(3)
    assert cluster.get("high").status.nominated_node_name == "n2"


def test_of_a_nomination_that_cannot_be_taken_back_no_preemption_is_told(cluster: Turns) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise Forbidden("no status may be written")

    cluster.start()
    cluster.add(pod("high", cpu="1", priority=10))
    cluster.turn(2)
    cluster.instead("patch_status", refuse)
    cluster.delete(Node, "n1", "")
    with capture_logs() as logs:
        cluster.turn(2)
    assert [one["event"] for one in logs] == ["writing a nomination failed"]


@pytest.mark.parametrize("refused", ["g-0", "g-1"])
def test_what_is_kept_for_a_later_start_stays_though_it_is_not_written_and_is_written_later(refused: str) -> None:
    able = asyncio.Event()

    async def refuse(real: Any, one: Pod, **options: Any) -> Any:
        if one.metadata.name == refused and options.get("nominated_node_name") and not able.is_set():
            raise Unavailable("no status can be written")
        return await real(one, **options)

    with asyncio.Runner() as runner:
        cluster = Turns(runner, config=SchedulerConfig(actions=("allocate", "preempt", "backfill")))
        cluster.nodes(2, cpu="1")
        cluster.add(pod("first", cpu="1", active_deadline_seconds=1000, bound_to="n1"))
        cluster.start()
        cluster.turn()
        cluster.instead("patch_status", refuse)
        cluster.add(*gang("g", 2, cpu="1"))
        cluster.turn()
        cluster.add(pod("endless", cpu="1"))
        cluster.turn(2)
        assert cluster.get("endless").spec.node_name == ""
        able.set()
        cluster.advance(5)
        cluster.turn(3)
        assert {cluster.get(name).status.nominated_node_name for name in ("g-0", "g-1")} == {"n1", "n2"}
        assert cluster.get("endless").spec.node_name == ""
