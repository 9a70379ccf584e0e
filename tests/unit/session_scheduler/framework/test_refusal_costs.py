"""Costs of a full cluster: operations grow with the classes, not with classes × nodes, and none is repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from session_scheduler.actions.trial import Trial
from session_scheduler.framework.board import Board
from session_scheduler.framework.hooks import HookCall
from session_scheduler.framework.node_refusals import Verdict
from session_scheduler.testing import FakeCluster, node, pod

NODES = 40
SHAPES = 100
EACH = 3
"""The pods of each shape."""


def full(**running: Any) -> FakeCluster:
    found = FakeCluster(checked=False)
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
        count(Trial, "running", "nodes listed for victims")
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
