"""Statements: changes, undo, redo and commit."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from session_scheduler.framework.hooks import PluginError
from session_scheduler.model.groups import Phase
from session_scheduler.testing import FakeCluster, gang, pod


@contextmanager
def open_statement(*objects, nodes=2):
    cluster = FakeCluster()
    cluster.nodes(nodes)
    cluster.add(*objects)
    scheduler = cluster.start()
    (calls,) = scheduler.profiles.values()
    session = scheduler.sessions.open(calls, tuple(scheduler.cache.groups.values()))
    tasks = {task.name: task for task in scheduler.cache.tasks.values()}
    with session.ledger.statement(next(iter(scheduler.cache.groups.values()))) as statement:
        yield session, statement, tasks


def state(session):
    cache = session.snapshot.cache
    return cache.table.digest(), {task.key: (task.phase, task.node, task.row) for task in cache.tasks.values()}


def test_rolling_back_to_a_checkpoint_keeps_what_was_before_it():
    with open_statement(gang("g", 2)) as (session, statement, tasks):
        statement.allocate(tasks["g-0"], 0)
        mark, kept = statement.checkpoint(), state(session)
        statement.allocate(tasks["g-1"], 1)
        undone = statement.rollback(mark)
        assert state(session) == kept
        assert statement.placed_since(0) == [tasks["g-0"]]
        statement.redo(undone)
        assert tasks["g-1"].node == "n2"
        assert statement.commit().allocated == [tasks["g-0"], tasks["g-1"]]
    assert tasks["g-0"].phase is Phase.ASSUMED


def test_leaving_without_a_commit_undoes_everything_also_after_an_error():
    with open_statement(pod("p"), pod("old", bound_to="n1")) as (session, _, tasks):
        before = state(session)
        with pytest.raises(LookupError):
            fail_on_the_way(session, tasks)
        assert state(session) == before


def fail_on_the_way(session, tasks):
    with session.ledger.statement(tasks["p"].group) as statement:
        statement.allocate(tasks["p"], 1)
        statement.evict(tasks["old"])
        raise LookupError


def test_an_eviction_frees_the_node_and_is_undone_to_the_same_phase():
    with open_statement(pod("old", cpu="4", bound_to="n1"), pod("p", cpu="4"), nodes=1) as (session, statement, tasks):
        board = session.board(tasks["p"])
        assert board.pick(tasks["p"]) == -1
        statement.evict(tasks["old"])
        assert (tasks["old"].phase, tasks["old"].node) == (Phase.RELEASING, None)
        assert board.pick(tasks["p"]) == 0
        statement.rollback()
        assert (tasks["old"].phase, tasks["old"].node) == (Phase.BOUND, "n1")
        assert board.pick(tasks["p"]) == -1


@pytest.mark.parametrize("evaluation", ["naive", "board", "heap"])
def test_evicting_from_an_unknown_node_touches_no_other_and_is_undone(evaluation):
    cluster = FakeCluster(evaluation=evaluation)
    cluster.nodes(2)
    cluster.add(pod("lost", bound_to="gone"), pod("p"))
    scheduler = cluster.start()
    (calls,) = scheduler.profiles.values()
    session = scheduler.sessions.open(calls, tuple(scheduler.cache.groups.values()))
    tasks = {task.name: task for task in scheduler.cache.tasks.values()}
    before = state(session)
    board = session.board(tasks["p"])
    board.sync()
    with session.ledger.statement(tasks["p"].group) as statement:
        statement.evict(tasks["lost"])
        board.sync()
        assert board.mask.all()
    assert state(session) == before
    assert tasks["lost"].node == "gone"


def test_only_pending_tasks_are_placed_only_bound_ones_evicted_and_only_on_nodes():
    with open_statement(pod("p"), pod("old", bound_to="n1")) as (_, statement, tasks):
        with pytest.raises(ValueError, match="default/old is bound, not pending"):
            statement.allocate(tasks["old"], 0)
        with pytest.raises(ValueError, match="default/p is pending, not bound"):
            statement.evict(tasks["p"])
        for row in (-1, 2, 10_000):
            with pytest.raises(LookupError, match="has no node"):
                statement.allocate(tasks["p"], row)


def test_a_committed_statement_can_be_neither_changed_nor_undone():
    with open_statement(gang("g", 2)) as (session, statement, tasks):
        statement.allocate(tasks["g-0"], 0)
        statement.commit()
        placed = state(session)
        for act in (lambda: statement.allocate(tasks["g-1"], 0), statement.rollback, statement.commit):
            with pytest.raises(RuntimeError, match="committed"):
                act()
    assert state(session) == placed


def test_boards_raise_an_error_if_nodes_changed_in_a_session():
    with open_statement(pod("p")) as (session, _, tasks):
        board = session.board(tasks["p"])
        session.table.remove("n2")
        with pytest.raises(RuntimeError, match="events are applied between sessions"):
            board.pick(tasks["p"])


class Share:
    """A placement that reserves and frees, and whose redo may fail."""

    def __init__(self, *, redoable=True):
        self.nodes, self.holds = {}, {}
        self.taken, self._redoable = True, redoable

    def undo(self):
        assert self.taken
        self.taken = False

    def redo(self):
        if not self._redoable:
            raise OSError("another task took it")
        self.taken = True

    def release(self, tasks): ...


def test_a_redo_that_fails_changes_nothing():
    with open_statement(gang("g", 3)) as (session, statement, tasks):
        statement.allocate(tasks["g-0"], 0)
        before = state(session)
        mark = statement.checkpoint()
        first, second = Share(), Share(redoable=False)
        statement.hold("first", first)
        statement.allocate(tasks["g-1"], 1)
        statement.hold("second", second)
        undone = statement.rollback(mark)
        with pytest.raises(PluginError, match="plugin second failed in place_group: OSError: another task took it"):
            statement.redo(undone)
        assert state(session) == before
        assert (first.taken, second.taken) == (False, False)
        assert statement.commit().allocated == [tasks["g-0"]]
