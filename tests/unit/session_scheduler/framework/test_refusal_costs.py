"""Costs of a full cluster: operations grow with the classes, not with classes × nodes, and none is repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from session_scheduler import Refusal, Scope, hookimpl
from session_scheduler.actions.trial import Trial
from session_scheduler.framework import evaluator as evaluators
from session_scheduler.framework.board import Board
from session_scheduler.framework.evaluation import FilterResult
from session_scheduler.framework.evaluator import Evaluator
from session_scheduler.framework.hooks import HookCall
from session_scheduler.framework.node_refusals import Verdict
from session_scheduler.framework.row_results import RowResults
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, node, pod

NODES = 40
SHAPES = 100
EACH = 3
"""The pods of each shape."""


def full(evaluation: str = "heap", **running: Any) -> FakeCluster:
    found = FakeCluster(checked=False, evaluation=evaluation)
    racks = ({"rack": f"r{number % 7}"} for number in range(NODES))
    found.add(node(f"n{number}", cpu="1", labels=labels) for number, labels in enumerate(racks))
    found.add(pod(f"runs{number}", cpu="1", bound_to=f"n{number}", **running) for number in range(NODES))
    return found


def waiting(shapes: int = SHAPES, *, mixed: bool = False, **more: Any) -> Iterator[Any]:
    """Pods that fit nowhere, the shapes in turns; with `mixed` half of the shapes also differ in a selector."""
    for index in range(EACH * shapes):
        shape = index % shapes
        selector: dict[str, Any] = {"node_selector": {"rack": f"r{shape % 7}"}} if mixed and shape % 2 else {}
        yield pod(f"p{index}", cpu=f"{100 + shape}m", **selector, **more)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts what a cycle does: boards, evaluations, calls of hooks, verdicts, and nodes listed for victims."""
    counts: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:

        def count(where: Any, name: str, what: str) -> None:
            real = getattr(where, name)

            def call(*args: Any, **options: Any) -> Any:
                counts[what] += 1
                return real(*args, **options)

            patch.setattr(where, name, call)

        count(Board, "_build", "boards")
        count(Board, "_evaluate", "evaluations")
        count(Board, "_score", "scored boards")
        count(Board, "capacity", "counted capacities")
        count(RowResults, "__init__", "columns of victims")
        count(Trial, "units", "nodes listed for victims")
        real = HookCall.__call__

        def called(call: HookCall, *args: Any) -> Any:
            counts[call.hook] += 1
            return real(call, *args)

        patch.setattr(HookCall, "__call__", called)
        new = Verdict.__init__

        def made(verdict: Verdict, *args: Any, **options: Any) -> None:
            counts["verdicts"] += 1
            new(verdict, *args, **options)

        patch.setattr(Verdict, "__init__", made)
        yield counts


@pytest.mark.parametrize("mixed", [False, True], ids=["requests", "mixed"])
def test_each_class_is_evaluated_once_however_many_there_are(mixed: bool) -> None:
    cluster = full()
    cluster.add(waiting(mixed=mixed))
    cluster.start()
    with counted() as counts:
        cluster.run(cycles=1)
    cluster.assert_pending("p0", f"0/{NODES} nodes are available: {NODES} Insufficient cpu.")
    selectors = 7 if mixed else 0
    assert counts["boards"] == counts["evaluations"] == SHAPES
    assert counts["scored boards"] == 0
    assert counts["filter"] == 2 + selectors + SHAPES  # cordons and taints; the selectors; the amounts
    assert counts["reasons"] <= 2 * SHAPES
    assert counts["why"] == 0
    assert counts["verdicts"] <= 4 * SHAPES
    assert counts["nodes listed for victims"] == 0
    assert counts["columns of victims"] == 0


def test_a_class_that_fits_nowhere_counts_no_capacity_for_a_plugin_that_places_groups() -> None:
    cluster = full().use("fluence")
    cluster.add(waiting(10))
    cluster.start()
    with counted() as counts:
        cluster.run(cycles=1)
    cluster.assert_pending("p0", f"0/{NODES} nodes are available: {NODES} Insufficient cpu.")
    assert counts["boards"] == 10
    assert counts["counted capacities"] == 0


def test_the_operations_do_not_grow_with_the_nodes() -> None:
    found = []
    for more in (0, 3 * NODES):
        cluster = full()
        cluster.add(node(f"more{number}", cpu="1m") for number in range(more))
        cluster.add(waiting(10))
        cluster.start()
        with counted() as counts:
            cluster.run(cycles=1)
        found.append(counts)
    few, many = found
    assert many["verdicts"] <= few["verdicts"] + 10  # each class has one more verdict
    assert {**many, "verdicts": 0} == {**few, "verdicts": 0}


def test_only_nodes_with_a_pod_of_lower_priority_are_searched_for_victims() -> None:
    cluster = full(priority=10)
    cluster.add(node("low", cpu="1"), pod("low", cpu="1", priority=1, bound_to="low"))
    cluster.add(waiting(1, priority=10))
    cluster.start()
    with counted() as counts:
        cluster.run(cycles=1)
    assert counts["nodes listed for victims"] == EACH
    cluster.assert_nominated("p0", "low")


def kept_bytes(evaluator: Evaluator, used: Board) -> int:
    """The memory of an evaluator's boards and filter results, except of those in use."""
    boards = [one for one in evaluator._boards.values() if one is not used]
    results = {each for one in boards for result in one.results for each in result.chain()}
    results |= set(evaluator._shared._results.values())
    in_use = {each for result in used.results for each in result.chain()}
    return sum(one.nbytes for one in boards) + sum(one.nbytes for one in results - in_use)


@pytest.mark.parametrize("free", [0, 1], ids=["full", "free"])
def test_boards_and_filter_results_keep_within_a_bound_of_memory(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    most, found, real = 200_000, [], Evaluator.board

    def measured(evaluator: Evaluator, *args: Any) -> Board:
        used = real(evaluator, *args)
        found.append(kept_bytes(evaluator, used))
        return used

    monkeypatch.setattr(Evaluator, "board", measured)
    kept = []
    for limit in (2**28, most):
        monkeypatch.setattr(evaluators, "_MOST_BYTES", limit)
        found.clear()
        cluster = full()
        cluster.add(node(f"free{number}", cpu="20") for number in range(free))
        cluster.add(waiting(mixed=True))
        cluster.run(cycles=1)
        kept.append(max(found))
    without, with_bound = kept
    assert with_bound <= most < without / 3


def test_the_memory_of_a_filter_result_is_counted_again_only_if_it_may_have_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = 0
    real: Any = FilterResult.__dict__["nbytes"]

    def size(result: FilterResult) -> int:
        nonlocal counted
        counted += 1
        found: int = real.fget(result)
        return found

    monkeypatch.setattr(FilterResult, "nbytes", property(size))
    cluster = full()
    cluster.add(waiting(mixed=True))
    cluster.run(cycles=1)
    assert counted <= 2 * EACH * SHAPES  # for each pod its class's result, and one more that has not grown


@pytest.mark.parametrize("most", [0, 30_000, 200_000])
@pytest.mark.parametrize("priority", [0, 5], ids=["equal", "preempting"])
def test_the_bound_of_memory_changes_no_decision(monkeypatch: pytest.MonkeyPatch, most: int, priority: int) -> None:
    monkeypatch.setattr(evaluators, "_MOST_BYTES", most)
    decisions: list[tuple[object, ...]] = []
    for mode in ("naive", "board", "heap"):
        cluster = FakeCluster(evaluation=mode)
        racks = ({"rack": f"r{number % 7}"} for number in range(NODES))
        cluster.add(node(f"n{number}", cpu="1", labels=labels) for number, labels in enumerate(racks))
        cluster.add(pod(f"low{number}", cpu="700m", bound_to=f"n{number}") for number in range(0, NODES, 2))
        cluster.add(waiting(50, mixed=True, priority=priority), gang("g", 5, cpu="300m"))
        cluster.run(cycles=1)
        names = [key.split("/")[1] for key in cluster.placements()]
        nominated = [cluster.find(Pod, name).status.nominated_node_name for name in names]
        decisions.append((cluster.placements(), nominated, [cluster.reasons(name) for name in names]))
    assert decisions[0] == decisions[1] == decisions[2]


class Prepares:
    """Counts the calls of `prepare`."""

    name = "prepares"
    filter_scope = Scope.STATIC

    def __init__(self, *, promises: bool) -> None:
        self.ignores_requests = promises
        self.calls = 0

    @hookimpl
    def prepare(self) -> Refusal | None:
        self.calls += 1
        return None

    @hookimpl
    def filter(self) -> None:
        """Rejects no node."""


@pytest.mark.parametrize(
    ("promises", "mode", "calls"),
    [(True, "heap", 1 + 7), (True, "naive", SHAPES), (False, "heap", SHAPES)],
    ids=["promised", "promised, but naive", "not promised"],
)
def test_a_plugin_that_ignores_requests_prepares_once_for_each_selector(promises: bool, mode: str, calls: int) -> None:
    plugin = Prepares(promises=promises)
    cluster = full(evaluation=mode)
    cluster.add(waiting(mixed=True))
    cluster.run(plugin, cycles=1)
    cluster.assert_pending("p0", f"0/{NODES} nodes are available: {NODES} Insufficient cpu.")
    assert plugin.calls == calls


def test_the_refusal_of_a_plugin_that_ignores_requests_holds_for_all_requests() -> None:
    class Refuses(Prepares):
        @hookimpl
        def prepare(self) -> Refusal:
            self.calls += 1
            return Refusal("not today")

    plugin = Refuses(promises=True)
    cluster = full()
    cluster.add(waiting(10))
    cluster.run(plugin, cycles=1)
    for number in range(10):
        cluster.assert_pending(f"p{number}", f"0/{NODES} nodes are available: not today.")
    assert plugin.calls == 1
