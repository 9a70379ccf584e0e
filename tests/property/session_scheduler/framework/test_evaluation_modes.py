"""Batching changes no decision: the modes naive, board and heap choose the same nodes and give the same reasons."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from session_scheduler.framework.session import Session
from session_scheduler.model.groups import Phase, Task
from session_scheduler.model.objects import KubeObject
from session_scheduler.testing import FakeCluster, gang, node, pod

from ....tools.examples import examples
from ..worlds import Plugins, nodes, plugins, pods

MODES = ("naive", "board", "heap")


def started(objects: Sequence[KubeObject], chosen: Plugins, mode: str) -> FakeCluster:
    cluster = FakeCluster(evaluation=mode)
    cluster.add(objects)
    cluster.start(*chosen.build())
    return cluster


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(nodes(), pods(), plugins())
def test_all_evaluation_modes_place_the_same(some_nodes, some_pods, chosen):
    answers = []
    for mode in MODES:
        cluster = started([*some_nodes, *some_pods], chosen, mode)
        cluster.run(cycles=2)
        reasons = {key: cluster.reasons(key) for key, on in cluster.placements().items() if on is None}
        answers.append((cluster.placements(), reasons))
    assert answers[0] == answers[1]
    assert answers[0] == answers[2]


def pending(session: Session) -> list[Task]:
    tasks = [task for group in session.groups() for task in group.in_phase(Phase.PENDING)]
    return sorted(tasks, key=lambda task: task.key)


def bound(session: Session) -> list[Task]:
    tasks = session.snapshot.cache.tasks.values()
    return sorted((task for task in tasks if task.phase is Phase.BOUND), key=lambda task: task.key)


class Player:
    """Plays moves in a session of one evaluation mode and records the results."""

    def __init__(self, objects: Sequence[KubeObject], chosen: Plugins, mode: str, stack: ExitStack) -> None:
        cluster = started(objects, chosen, mode)
        scheduler = cluster.scheduler
        self.table = scheduler.cache.table
        (calls,) = scheduler.profiles.values()
        self.session = scheduler.sessions.open(calls, tuple(scheduler.cache.groups.values()))
        group = next(iter(scheduler.cache.groups.values()))
        self.statement = stack.enter_context(self.session.ledger.statement(group))
        self.marks: list[int] = []

    def play(self, move: str, number: int) -> object:
        session, statement = self.session, self.statement
        if move == "mark":
            self.marks.append(statement.checkpoint())
            return None
        if move == "rollback":
            statement.rollback(self.marks.pop() if self.marks else 0)
            self.marks = [mark for mark in self.marks if mark <= statement.checkpoint()]
            return None
        if move == "evict":
            tasks = bound(session)
            if tasks:
                statement.evict(tasks[number % len(tasks)])
            return None
        tasks = pending(session)
        if not tasks:
            return None
        return self._place(tasks[number % len(tasks)], move, number)

    def _place(self, task: Task, move: str, number: int) -> object:
        board = self.session.board(task)
        row = board.pick(task, 1 + number % 3)
        if row < 0:
            return board.why(task)
        total = float(board.total[row])
        fits, room = self._by_name(board.mask), self._by_name(board.capacity(1 + number % 4))
        if move == "elsewhere":  # where another class, or a plugin, would have put it, without an update of the board
            rows = np.flatnonzero(board.mask)
            names = sorted((node.metadata.name, int(r)) for r in rows if (node := self.table.nodes[r]))
            row = names[number % len(names)][1]
            self.statement.allocate(task, row)
        else:
            self.statement.allocate(task, row)
            board.took(row)
        return task.node, total, fits, room

    def _by_name(self, column: np.ndarray) -> dict[str, int]:
        return {name: int(column[row]) for name, row in self.table.row_of.items()}


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["pick", "pick", "pick", "pick", "elsewhere", "evict", "mark", "rollback"]), st.integers(0, 60)
    ),
    min_size=5, max_size=40,
)  # fmt: skip


@settings(max_examples=examples(80), deadline=None, derandomize=True)
@given(nodes(most=6), pods(most=6), plugins(subsets=False), MOVES)
def test_all_evaluation_modes_agree_while_placements_are_made_evicted_and_undone(some_nodes, some_pods, chosen, moves):
    placed = [pod(f"old-{index}", cpu="200m", bound_to=f"n{index % len(some_nodes)}") for index in range(4)]
    with ExitStack() as stack:
        players = [Player([*some_nodes, *some_pods, *placed], chosen, mode, stack) for mode in MODES]
        for move, number in moves:
            seen = [player.play(move, number) for player in players]
            assert seen[0] == seen[1], ("naive", "board", move)
            assert seen[0] == seen[2], ("naive", "heap", move)


@settings(max_examples=examples(6), deadline=None, derandomize=True)
@given(st.integers(70, 160), st.integers(1, 3), plugins(beyond=False, subsets=False), st.integers(0, 5))
def test_a_heap_of_some_rows_chooses_like_all_rows(count, runs, chosen, offset):
    """More nodes than the heap's initial size, alternating classes, and gangs that fail and are undone."""
    kinds = ("a", "b", "c")
    objects: list[KubeObject] = [
        node(f"n{index}", cpu=("1", "2", "500m")[(index + offset) % 3], pods=4, labels={"kind": kinds[index % 3]})
        for index in range(count)
    ]
    for run in range(runs):
        objects += [pod(f"s{run}-{index}", cpu="300m") for index in range(count)]
        objects += gang(f"whole-{run}", 30, cpu="400m", labels={"taste": "x"})
        objects += gang(f"fails-{run}", 4 * count, cpu="200m", labels={"taste": "xx"})
    placements = []
    for mode in ("board", "heap"):
        cluster = started(objects, chosen, mode)
        cluster.run()
        placements.append(cluster.placements())
    assert placements[0] == placements[1]
