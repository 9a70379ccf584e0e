"""Watch events that are older than the answer to a bind, and clusters restored from a backup."""

from __future__ import annotations

from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.groups import Phase, Task
from session_scheduler.model.objects import Pod
from session_scheduler.state.cache import Cache
from session_scheduler.testing import node, pod


def a_cache(waiting: Pod) -> tuple[Cache, Task]:
    table = NodeTable()
    cache = Cache(table, ClassTable(table), {"fluence"}.__contains__)
    cache.put(node("n1", cpu="4"))
    cache.put(waiting)
    return cache, cache.tasks[waiting.metadata.uid]


def used(cache: Cache) -> int:
    return int(cache.table.all_rows().used("cpu")[cache.table.row_of["n1"]])


def test_an_older_event_does_not_move_a_pod_whose_bind_has_succeeded() -> None:
    waiting = pod("p", cpu="1")
    cache, task = a_cache(waiting)
    cache.occupy(task, "n1")
    task.phase = Phase.BOUND
    cache.put(waiting)
    assert (task.phase, task.node, used(cache)) == (Phase.BOUND, "n1", 1000)
    cache.put(pod("p", cpu="1", bound_to="n1"))
    assert (task.phase, task.node, used(cache)) == (Phase.BOUND, "n1", 1000)


def test_a_bound_pod_that_becomes_unbound_is_pending_and_uses_nothing() -> None:
    """A restore of etcd can do this."""
    cache, task = a_cache(pod("p", cpu="1", bound_to="n1"))
    assert used(cache) == 1000
    cache.put(pod("p", cpu="1"))
    assert (task.phase, task.node, used(cache)) == (Phase.PENDING, None, 0)
