"""Committed evictions: the scheduler deletes the victims, which keep their resources until they end."""

from __future__ import annotations

import pytest

from session_scheduler.actions import ACTIONS
from session_scheduler.cluster.errors import TooManyRequests
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.groups import Phase
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, pod


def preempt(session):
    """Evict all running pods for all waiting ones."""
    for group in session.groups():
        session.outcomes[group] = PlacementResult(group)
        with session.ledger.statement(group) as statement:
            for victim in [task for task in session.snapshot.cache.bound_tasks() if task.phase is Phase.BOUND]:
                statement.evict(victim)
            for task in group.in_phase(Phase.PENDING):
                statement.allocate(task, session.table.row_of["n1"])
            yield statement.commit()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch):
    cluster = FakeCluster()
    cluster.nodes(1, cpu="2")
    cluster.add(pod("old", cpu="2", bound_to="n1"), pod("new", cpu="2"))
    monkeypatch.setitem(ACTIONS, "allocate", preempt)
    cluster.run()
    monkeypatch.undo()
    return cluster


def test_a_pod_placed_with_an_eviction_waits_until_the_victim_ends(cluster: FakeCluster):
    cluster.assert_pending("new", "waiting for 1 evicted pods to terminate")
    old = cluster.find(Pod, "old")
    assert old.metadata.deletion_timestamp is not None
    cluster.finish_deletions()
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("new", "n1")


def test_a_victim_keeps_its_resources_until_it_ends(cluster: FakeCluster):
    (old,) = [task for task in cluster.scheduler.cache.tasks.values() if task.name == "old"]
    assert (old.node, old.phase) == ("n1", Phase.RELEASING)
    assert cluster.scheduler.cache.table.all_rows().used("cpu").tolist() == [2000]


def test_a_victim_whose_eviction_is_refused_stays_bound(monkeypatch: pytest.MonkeyPatch):
    cluster = FakeCluster()
    cluster.nodes(1, cpu="2")
    cluster.add(pod("old", cpu="2", bound_to="n1"), pod("new", cpu="2"))

    async def refuses(pod, *, grace_seconds=None):
        raise TooManyRequests("a disruption budget allows none")

    monkeypatch.setattr(cluster.memory, "evict", refuses)
    monkeypatch.setitem(ACTIONS, "allocate", preempt)
    cluster.run()
    (old,) = [task for task in cluster.scheduler.cache.tasks.values() if task.name == "old"]
    assert (old.node, old.phase) == ("n1", Phase.BOUND)
    cluster.assert_pending("new")
