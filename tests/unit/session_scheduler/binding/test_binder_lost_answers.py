"""Binds whose outcome is unknown: nothing that may be bound is given back, and what turns out to be bound is held."""

from __future__ import annotations

import asyncio

import pytest

from session_scheduler import hookimpl
from session_scheduler.actions import ACTIONS
from session_scheduler.cluster.errors import Conflict, Unavailable
from session_scheduler.framework.bindings import HELD_ANNOTATION
from session_scheduler.model.groups import Phase
from session_scheduler.model.objects import Pod
from session_scheduler.offline.simulate import place_all
from session_scheduler.testing import FakeCluster, gang, pod


class Share:
    """Holds the node's name for each task."""

    def __init__(self, plugin, nodes):
        self.nodes, self._plugin = nodes, plugin
        self.redo()

    @property
    def holds(self):
        return {task: {"on": node} for task, node in self.nodes.items()}

    def undo(self):
        self.release(list(self.nodes))

    def redo(self):
        self._plugin.held.update({task.name: node for task, node in self.nodes.items()})

    def release(self, tasks):
        for task in tasks:
            del self._plugin.held[task.name]


class Shares:
    """What each pod holds, by name; every call that changes it, in order."""

    name = "shares"

    def __init__(self):
        self.held, self.calls, self.fails = {}, [], False

    @hookimpl
    def on_nodes_changed(self, changes):
        self.calls.append("nodes")

    @hookimpl
    def place_group(self, session, tasks, room):
        names = session.table.names()
        free = [names[row] for row in room[tasks[0].cls].nonzero()[0]]
        return Share(self, {task: free[at % len(free)] for at, task in enumerate(tasks)})

    @hookimpl
    async def cancel(self, allocation):
        self.calls.append(f"cancel {allocation.pod.metadata.name}")
        self.held.pop(allocation.pod.metadata.name, None)

    @hookimpl
    def recover(self, holdings):
        if self.fails:
            raise OSError("no graph")
        if holdings:
            self.calls.append("recover " + " ".join(holding.task.name for holding in holdings))
        self.held.update({one.task.name: one.held["on"] for one in holdings if one.held})


class World:
    """One pod of 3 cpu on nodes of 4, with a bind that `bind` stands for."""

    def __init__(self, *objects, nodes=2):
        self.shares = Shares()
        self.cluster = FakeCluster(checked=False)
        self.cluster.nodes(nodes)
        self.cluster.add(*(objects or [pod("p", cpu="3")]))
        self.cluster.start(self.shares)
        memory = self.cluster.memory
        self.bind, self.get, self.patch = memory.bind, memory.get, memory.patch_metadata

    def bound_by(self, bind):
        self.cluster.memory.bind = bind  # type: ignore[method-assign]

    def unreadable(self, error=None):
        async def get(*_, **__):
            raise error or Unavailable("no connection")

        self.cluster.memory.get = self.cluster.memory.patch_metadata = get  # type: ignore[method-assign]

    def readable(self):
        memory = self.cluster.memory
        memory.bind, memory.get, memory.patch_metadata = self.bind, self.get, self.patch  # type: ignore[method-assign]

    def cycle(self):
        """A cycle alone, without the events before and after it."""
        return asyncio.run(self.cluster.scheduler.cycle())

    def task(self, name="p"):
        return next(task for task in self.cluster.scheduler.cache.tasks.values() if task.name == name)

    async def lands(self, namespace, name, **options):
        await self.bind(namespace, name, **options)
        raise Unavailable("timeout")

    async def is_lost(self, namespace, name, **options):
        raise Unavailable("timeout")

    def by_another(self, node):
        """Another replica binds the pod first."""

        async def bind(namespace, name, **options):
            record = f'{{"uid":"{options["uid"]}","plugins":{{"shares":{{"on":"{node}"}}}}}}'
            await self.bind(namespace, name, **options | {"node": node, "annotations": {HELD_ANNOTATION: record}})
            raise Conflict("already bound")

        return bind


def test_a_bind_that_landed_although_its_answer_was_lost_stands():
    world = World()
    world.bound_by(world.lands)
    (bound,) = world.cycle()
    assert ([task.name for task in bound.bound], bound.failed, bound.unknown) == (["p"], {}, {})
    assert world.task().phase is Phase.BOUND
    assert world.shares.held == {"p": "n1"}


def test_a_bind_that_landed_stands_where_its_event_comes_before_the_answer():
    world = World()

    async def bind(namespace, name, **options):
        await world.bind(namespace, name, **options)
        await world.cluster.scheduler.event_handlers.apply("MODIFIED", await world.get(Pod, namespace, name))
        world.unreadable()
        raise Unavailable("timeout")

    world.bound_by(bind)
    (bound,) = world.cycle()
    assert [task.name for task in bound.bound] == ["p"]
    world.cluster.run()
    assert world.shares.held == {"p": "n1"}
    assert not [call for call in world.shares.calls if call != "nodes"]


def test_a_bind_that_was_lost_before_it_was_done_frees_the_share():
    world = World()
    world.bound_by(world.is_lost)
    (bound,) = world.cycle()
    assert list(bound.failed.values()) == ["binding to n1 failed: timeout"]
    assert (world.task().phase, world.shares.held) == (Phase.PENDING, {})
    world.cluster.assert_pending("p", "binding to n1 failed: timeout")


def test_a_pod_that_another_replica_bound_holds_what_that_one_wrote():
    world = World()
    world.bound_by(world.by_another("n2"))
    world.shares.calls.clear()
    (bound,) = world.cycle()
    assert list(bound.failed.values()) == ["binding to n1 failed: already bound"]
    assert world.shares.held == {}
    world.cluster.run()
    world.cluster.run()
    assert world.shares.held == {"p": "n2"}
    assert world.shares.calls == ["cancel p", "nodes", "recover p"]


def test_a_record_that_another_replica_wrote_on_the_same_node_is_not_taken_for_ours():
    world = World(nodes=1)

    async def bind(namespace, name, **options):
        record = f'{{"uid":"{options["uid"]}","plugins":{{"shares":{{"on":"elsewhere"}}}}}}'
        await world.bind(namespace, name, **options | {"annotations": {HELD_ANNOTATION: record}})
        await world.cluster.scheduler.event_handlers.apply("MODIFIED", await world.get(Pod, namespace, name))
        raise Conflict("already bound")

    world.bound_by(bind)
    (bound,) = world.cycle()
    assert [task.name for task in bound.failed] == ["p"]
    world.cycle()
    assert world.shares.held == {"p": "elsewhere"}
    assert world.shares.calls[-3:] == ["cancel p", "nodes", "recover p"]


def in_doubt(bind="lands", **options):
    """A world with a bind of unknown outcome."""
    world = World(**options)
    world.bound_by(getattr(world, bind))
    world.unreadable()
    (bound,) = world.cycle()
    assert (bound.bound, bound.failed) == ([], {})
    assert list(bound.unknown.values()) == ["bind with unknown outcome: binding to n1 failed: timeout"]
    assert world.task().phase is Phase.ASSUMED
    assert world.shares.held == {"p": "n1"}
    return world


@pytest.mark.parametrize(("bind", "phase"), [("lands", Phase.BOUND), ("is_lost", Phase.PENDING)])
def test_a_bind_in_doubt_keeps_place_and_share_until_the_cluster_can_be_asked(bind, phase):
    world = in_doubt(bind)
    world.cycle()
    assert world.task().phase is Phase.ASSUMED
    world.readable()
    world.cycle()
    assert world.task().phase is phase
    assert world.shares.held == ({"p": "n1"} if phase is Phase.BOUND else {})
    world.cluster.advance(1)
    world.cluster.run()
    world.cluster.assert_bound("p", "n1")
    assert world.shares.held == {"p": "n1"}


def test_an_event_that_shows_the_pod_bound_as_decided_ends_the_doubt():
    world = in_doubt()
    asyncio.run(world.cluster._deliver())
    assert world.task().phase is Phase.BOUND
    world.cycle()
    assert world.shares.held == {"p": "n1"}
    assert not [call for call in world.shares.calls if call != "nodes"]


def test_an_event_that_shows_the_pod_bound_elsewhere_frees_the_share_and_takes_the_other():
    world = in_doubt("is_lost")
    with pytest.raises(Conflict):
        asyncio.run(
            world.by_another("n2")(
                "default", "p", uid=world.task().uid, resource_version=world.task().pod.metadata.resource_version
            )
        )
    world.cluster.run()
    assert (world.task().node, world.shares.held) == ("n2", {"p": "n2"})


def test_an_event_that_shows_the_pod_unbound_decides_nothing():
    world = in_doubt()
    asyncio.run(world.cluster.scheduler.event_handlers.apply("MODIFIED", world.task().pod))
    assert world.task().phase is Phase.ASSUMED
    assert world.shares.held == {"p": "n1"}


def test_a_pod_in_doubt_that_is_deleted_is_cancelled_once():
    world = in_doubt("is_lost")
    world.cluster.delete(Pod, "p")
    world.cluster.run()
    world.readable()
    world.cluster.run()
    assert [call for call in world.shares.calls if call != "nodes"] == ["cancel p"]


def test_a_bound_pod_that_appears_is_recovered_once_after_its_node_is_told():
    world = World(pod("other"))
    world.cluster.run()
    world.shares.calls.clear()
    world.cluster.add(pod("new", bound_to="n2"), pod("foreign", bound_to="n2", scheduler="else"))
    world.cluster.run()
    world.cluster.run()
    assert world.shares.calls == ["nodes", "recover new"]


def test_no_group_is_placed_while_a_plugin_cannot_take_what_a_bound_pod_holds():
    world = World(pod("other"))
    world.cluster.run()
    world.shares.fails = True
    world.cluster.add(pod("new", bound_to="n2"), pod("waiting"))
    world.cluster.run()
    world.cluster.assert_pending("waiting", "plugin shares failed in recover: OSError: no graph")
    world.shares.fails = False
    world.cluster.advance(1)
    world.cluster.run()
    world.cluster.assert_bound("waiting")
    assert "recover new" in world.shares.calls


# ------------------------------------------------------------------ unexpected errors


def test_an_unexpected_error_of_one_bind_is_raised_after_all_others_were_settled():
    world = World(gang("g", 2), pod("single"))

    async def bind(namespace, name, **options):
        if name == "g-0":
            raise OSError("boom")
        await world.bind(namespace, name, **options)

    world.bound_by(bind)
    with pytest.raises(OSError, match="boom"):
        world.cycle()
    phases = {name: world.task(name).phase for name in ("g-0", "g-1", "single")}
    assert phases == {"g-0": Phase.ASSUMED, "g-1": Phase.BOUND, "single": Phase.BOUND}
    assert set(world.shares.held) == {"g-0", "g-1", "single"}
    world.readable()
    world.cycle()
    assert world.task("g-0").phase is Phase.PENDING
    assert set(world.shares.held) == {"g-1", "single"}


def test_an_unexpected_error_while_asking_again_leaves_the_doubt_and_the_rest_of_the_cycle():
    world = in_doubt("is_lost")
    world.readable()
    world.unreadable(OSError("boom"))
    world.cluster.add(pod("next", cpu="3"))
    with pytest.raises(OSError, match="boom"):
        world.cluster.run()
    assert world.cluster.node_of("next") == "n2"


def test_what_was_decided_before_an_action_failed_is_settled(monkeypatch: pytest.MonkeyPatch):
    world = World(pod("a"), pod("b"))
    allocate = ACTIONS["allocate"]

    def breaking(session):
        yield next(iter(allocate(session)))
        raise RuntimeError("a bug")

    monkeypatch.setitem(ACTIONS, "allocate", breaking)
    with pytest.raises(RuntimeError, match="a bug"):
        world.cycle()
    assert [world.task(name).phase for name in "ab"] == [Phase.BOUND, Phase.PENDING]


def test_a_failure_to_bind_is_not_told_any_more_when_there_is_a_newer_reason():
    world = World(pod("p", cpu="3"), pod("small"), nodes=1)
    scheduler = world.cluster.scheduler

    async def bind(namespace, name, **options):
        if name == "small":
            await world.bind(namespace, name, **options)
            return
        world.cluster.add(pod("theirs", cpu="3", bound_to="n1", scheduler="else"))
        await scheduler.event_handlers.apply("ADDED", await world.get(Pod, "default", "theirs"))
        raise Conflict("resourceVersion moved")

    world.bound_by(bind)
    reported = asyncio.run(place_all(scheduler))
    reasons = {one["name"]: one["reason"] for one in reported["pods"]}
    assert reasons["small"] is None
    assert "Insufficient cpu" in reasons["p"]
