"""Counts of single tasks in the counters of their rows (`Session.count`): they follow the task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from session_scheduler.framework.callbacks import Event
from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import hookimpl
from session_scheduler.model.groups import Phase, Task
from session_scheduler.model.objects import Node
from session_scheduler.testing import FakeCluster, node, pod

SEATS = "seats"


class Seats:
    """Counts two seats for each pod that is placed."""

    name = "seats"

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        def placed(event: Event) -> None:
            session.count(event.task, {SEATS: 2})

        session.add_event_handler(allocate=placed)


def seats(cluster: FakeCluster, name: str = "n1") -> int:
    table = cluster.scheduler.cache.table
    return int(table.counter(SEATS)[table.row_of[name]])


@contextmanager
def opened(cluster: FakeCluster) -> Iterator[tuple[Session, dict[str, Task]]]:
    scheduler = cluster.scheduler
    (calls,) = scheduler.profiles.values()
    session = scheduler.sessions.open(calls, tuple(scheduler.cache.groups.values()))
    yield session, {task.name: task for task in scheduler.cache.tasks.values()}
    scheduler.sessions.close(session)


def running() -> FakeCluster:
    cluster = FakeCluster().nodes(1)
    cluster.add(pod("p"))
    cluster.run(Seats())
    assert seats(cluster) == 2
    return cluster


def test_counts_end_with_the_task() -> None:
    cluster = running()
    cluster.delete_pod("p")
    cluster.run()
    assert seats(cluster) == 0


def test_rollback_and_redo_of_a_placement_include_its_counts() -> None:
    cluster = FakeCluster().nodes(1)
    cluster.add(pod("p"))
    cluster.start(Seats())
    with opened(cluster) as (session, tasks), session.ledger.statement(tasks["p"].group) as statement:
        before = session.table.digest()
        statement.allocate(tasks["p"], 0)
        assert seats(cluster) == 2
        undone = statement.rollback()
        assert session.table.digest() == before
        assert not tasks["p"].counts
        statement.redo(undone)
        assert seats(cluster) == 2


def test_undoing_an_eviction_or_a_simulated_removal_restores_the_counts() -> None:
    cluster = running()
    with opened(cluster) as (session, tasks):
        task = tasks["p"]
        before = session.table.digest()
        with session.ledger.statement(task.group) as statement:
            statement.evict(task)
            assert seats(cluster) == 0
        assert session.table.digest() == before
        session.ledger.remove(task)
        assert seats(cluster) == 0
        session.ledger.put_back(task, "n1", Phase.BOUND)
        assert session.table.digest() == before


def test_count_on_includes_the_counts_of_a_task() -> None:
    cluster = running()
    cache = cluster.scheduler.cache
    (task,) = cache.tasks.values()
    cache.count_on(task.row, task, -1)
    assert seats(cluster) == 0
    cache.count_on(task.row, task, 1)
    assert seats(cluster) == 2


def test_counts_return_with_a_deleted_and_recreated_node() -> None:
    cluster = running()
    cluster.delete(Node, "n1")
    cluster.run()
    cluster.add(node("n1"))
    cluster.run()
    assert seats(cluster) == 2


def test_a_failed_bind_leaves_no_counts() -> None:
    cluster = FakeCluster().nodes(1)
    cluster.add(pod("p"))
    cluster.fail_binds("p")
    cluster.run(Seats())
    assert seats(cluster) == 0
    cluster.mend_binds()
    cluster.advance(60)
    cluster.run()
    assert seats(cluster) == 2


def test_a_second_count_replaces_only_the_same_keys() -> None:
    cluster = running()
    with opened(cluster) as (session, tasks):
        session.count(tasks["p"], {"desks": 1})
        session.count(tasks["p"], {SEATS: 5})
        assert (seats(cluster), tasks["p"].counts) == (5, {SEATS: 5, "desks": 1})
        session.count(tasks["p"], {SEATS: 0})
        assert (seats(cluster), tasks["p"].counts) == (0, {"desks": 1})


def test_a_task_without_a_node_cannot_have_counts() -> None:
    cluster = FakeCluster().nodes(1)
    cluster.add(pod("p"))
    cluster.start(Seats())
    with opened(cluster) as (session, tasks), pytest.raises(ValueError, match="default/p is not on a node"):
        session.count(tasks["p"], {SEATS: 1})
