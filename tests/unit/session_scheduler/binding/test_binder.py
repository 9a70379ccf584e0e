"""Decisions carried out: prebind for all members first, failures undone, holdings written with the binding."""

from __future__ import annotations

import asyncio
import json

import pytest

from session_scheduler import hookimpl
from session_scheduler.cluster.errors import Conflict
from session_scheduler.framework.bindings import HELD_ANNOTATION
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, pod


class Held:
    """A placement whose `holds` is what it is given."""

    def __init__(self, nodes, holds):
        self.nodes = nodes
        self._holds = holds
        self.read = 0

    @property
    def holds(self):
        self.read += 1
        return self._holds(self.nodes)

    def undo(self): ...

    def redo(self): ...

    def release(self, tasks): ...


class Holding:
    name = "holding"

    def __init__(self, holds=lambda nodes: {}, prebind=None):
        self._holds, self._prebind = holds, prebind
        self.seen, self.cancelled, self.placements = [], [], []

    @hookimpl
    def place_group(self, session, tasks):
        names = session.table.names()
        self.placements.append(Held({task: names[at % len(names)] for at, task in enumerate(tasks)}, self._holds))
        return self.placements[-1]

    @hookimpl
    async def prebind(self, binding):
        await asyncio.sleep(0)
        self.seen.append((binding.task.name, dict(binding.holds)))
        if self._prebind is not None:
            self._prebind(binding)

    @hookimpl
    async def cancel(self, allocation):
        self.cancelled.append(allocation.pod.metadata.name)


def cluster_with(plugin, *objects, nodes=2):
    cluster = FakeCluster()
    cluster.nodes(nodes)
    cluster.add(*objects)
    cluster.start(plugin)
    return cluster


def fails_for(name):
    def prebind(binding):
        if binding.task.name == name:
            raise OSError("no device")

    return prebind


def test_no_member_is_bound_where_one_prebind_fails_and_all_are_cancelled():
    plugin = Holding(prebind=fails_for("g-1"))
    cluster = cluster_with(plugin, gang("g", 3))
    empty = cluster.scheduler.cache.table.digest()
    (bound,) = cluster.run()
    assert bound.bound == []
    assert set(bound.failed.values()) == {
        "plugin holding failed in prebind: OSError: no device "
        f"at tests/unit/session_scheduler/binding/test_binder.py:{fails_for.__code__.co_firstlineno + 3} "
        "(pod default/g-1 of group PodGroup default/g)"
    }
    assert sorted(plugin.cancelled) == ["g-0", "g-1", "g-2"]
    assert set(cluster.placements().values()) == {None}
    assert cluster.scheduler.cache.table.digest() == empty


def test_no_plugin_is_asked_about_a_pod_that_went_while_others_were_waited_for():
    asked = []

    class First:
        @hookimpl
        async def prebind(self, binding):
            await asyncio.sleep(0)
            if binding.task.name == "g-1":
                await cluster.memory.delete((await cluster.memory.get(Pod, "default", "g-0")), grace_seconds=0)
                await cluster._deliver()

    class Second:
        @hookimpl
        async def prebind(self, binding):
            asked.append(binding.task.name)

    cluster = FakeCluster()
    cluster.nodes(2)
    cluster.add(gang("g", 2))
    cluster.start(First(), Second())
    (bound,) = cluster.run()
    assert "g-0" not in asked
    assert "cancelled: the pod is being deleted" in next(iter(bound.failed.values()))
    cluster.assert_pending("g-1")


def test_what_is_held_is_handed_to_prebind_and_written_with_the_binding():
    plugin = Holding(holds=lambda nodes: {task: {"on": name} for task, name in nodes.items()})
    cluster = cluster_with(plugin, gang("g", 2))
    cluster.run()
    assert sorted(plugin.seen) == [("g-0", {"on": "n1"}), ("g-1", {"on": "n2"})]
    annotations = cluster.find(Pod, "g-1").metadata.annotations
    assert json.loads(annotations[HELD_ANNOTATION])["plugins"] == {"holding": {"on": "n2"}}


def test_the_holdings_of_a_gang_are_read_once_however_large_it_is():
    plugin = Holding(holds=lambda nodes: {task: {"on": name} for task, name in nodes.items()})
    cluster = cluster_with(plugin, gang("g", 50))
    cluster.run()
    assert [placement.read for placement in plugin.placements] == [1]


@pytest.mark.parametrize(
    "holds",
    [
        lambda nodes: 1 / 0,
        lambda nodes: dict.fromkeys(nodes, 5),
        lambda nodes: {task: {"on": object()} for task in nodes},
        lambda nodes: ["no mapping"],
    ],
)
def test_holdings_that_cannot_be_written_fail_the_group_by_the_plugins_name(holds):
    plugin = Holding(holds=holds)
    cluster = cluster_with(plugin, gang("g", 2))
    (bound,) = cluster.run()
    assert bound.bound == []
    assert all("plugin holding failed in place_group" in reason for reason in bound.failed.values())
    assert sorted(plugin.cancelled) == ["g-0", "g-1"]


def test_an_annotation_that_is_no_text_fails_the_group():
    plugin = Holding(prebind=lambda binding: binding.annotations.update(rank=3))
    cluster = cluster_with(plugin, gang("g", 2))
    (bound,) = cluster.run()
    assert all("expected a string as annotation 'rank', got 3" in reason for reason in bound.failed.values())


def test_only_the_member_whose_bind_failed_is_placed_again():
    plugin = Holding()
    cluster = cluster_with(plugin, gang("g", 3))
    binds, refuse = [], ["g-1"]
    bind = cluster.memory.bind

    async def refusing(namespace, name, **options):
        binds.append(name)
        if name in refuse:
            raise Conflict("resourceVersion moved")
        await bind(namespace, name, **options)

    cluster.memory.bind = refusing
    cluster._checked = False  # until the third is bound the gang runs with two
    (bound,) = cluster.run()
    assert [task.name for task in bound.bound] == ["g-0", "g-2"]
    assert list(bound.failed.values()) == ["binding to n2 failed: resourceVersion moved"]
    assert plugin.cancelled == ["g-1"]
    refuse.clear()
    cluster.advance(1)
    cluster.run()
    cluster.assert_bound("g-1")
    assert sorted(binds) == ["g-0", "g-1", "g-1", "g-2"]


def test_a_pod_that_was_deleted_meanwhile_is_not_bound():
    plugin = Holding(prebind=lambda binding: None)
    cluster = cluster_with(plugin, pod("p"))
    uid = cluster.find(Pod, "p").metadata.uid

    def replaced(binding):
        cluster.memory._remove(cluster.memory._get(Pod, ("", "default", "p")))

    plugin._prebind = replaced
    (bound,) = cluster.run()
    assert list(bound.failed.values()) == ["binding to n1 failed: Pod default/p not found"]
    assert uid not in cluster.scheduler.cache.tasks


def test_no_pod_is_bound_to_a_node_that_has_left_the_partition():
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p"))
    scheduler = cluster.start()
    scheduler.binder._serves = lambda node: False
    cluster.run()
    assert not cluster.memory.objects(Pod)[0].spec.node_name
    outcome = next(iter(scheduler.outcomes.values()))
    assert "node n1 has left the scheduler's partition" in str(outcome)
