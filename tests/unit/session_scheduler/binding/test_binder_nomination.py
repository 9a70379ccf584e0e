"""A pod that has something to wait for before its bind says where it is to be bound. If that fails it is bound too."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from session_scheduler import hookimpl
from session_scheduler.cluster.errors import Conflict, Forbidden, Unavailable
from session_scheduler.model.groups import Phase
from session_scheduler.model.objects import Pod, PodStatus
from session_scheduler.testing import FakeCluster, gang, node, pod

from ....tools.volumes import claim, storage_class, using, volume


class Waits:
    """Has something to wait for of the pods that it is given by name; keeps what their status says then."""

    name = "waits"

    def __init__(self, cluster, *wanted, fails=False):
        self._cluster, self._wanted, self._fails = cluster, wanted, fails
        self.seen = {}

    @hookimpl
    def prebind_needed(self, binding):
        return binding.task.name in self._wanted

    @hookimpl
    async def prebind(self, binding):
        for one in self._cluster.memory.objects(Pod):
            self.seen[one.metadata.name] = one.status.nominated_node_name
        if self._fails:
            raise OSError("no device")


class Annotates(Waits):
    """Has something to do, at once."""

    name = "annotates"
    prebind_waits = False


class Writes:
    """The nominated nodes that are written, and the binds, in order; each write goes through `before` first."""

    def __init__(self, cluster, monkeypatch, before=None):
        self.done = []
        self._before = before
        self._patch, self._bind = cluster.memory.patch_status, cluster.memory.bind
        monkeypatch.setattr(cluster.memory, "patch_status", self._patched)
        monkeypatch.setattr(cluster.memory, "bind", self._bound)

    async def _patched(self, obj, *, nominated_node_name=None, **options):
        if nominated_node_name is not None:
            self.done.append((obj.metadata.name, nominated_node_name))
            if self._before is not None:
                await self._before(obj)
        return await self._patch(obj, nominated_node_name=nominated_node_name, **options)

    async def _bound(self, namespace, name, **options):
        self.done.append((name, "bind"))
        await self._bind(namespace, name, **options)


def cluster_of(*objects, nodes=2, **options):
    cluster = FakeCluster(checked=False)
    cluster.nodes(nodes, **options)
    cluster.add(*objects)
    return cluster


def named(cluster, name):
    """What a pod's status says."""
    return cluster.find(Pod, name, "default").status.nominated_node_name


def known(cluster):
    """What the scheduler takes for nominated, wherever it is."""
    nominations = cluster.scheduler.cache.nominations
    return dict(nominations.node_by_uid) | dict(nominations._placed)


def test_the_node_is_written_before_the_plugin_is_called_and_the_bind_is_sent_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_of(pod("p"), nodes=1)
    plugin = Waits(cluster, "p")
    cluster.start(plugin)
    writes = Writes(cluster, monkeypatch)
    cluster.run()
    cluster.assert_bound("p", "n1")
    assert plugin.seen == {"p": "n1"}
    assert writes.done == [("p", "n1"), ("p", "bind")]
    assert (named(cluster, "p"), known(cluster)) == ("", {})


@pytest.mark.parametrize("plugin", [Waits, Annotates])
def test_nothing_is_written_where_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch, plugin) -> None:
    cluster = cluster_of(pod("p"))
    cluster.start(plugin(cluster, *(["p"] if plugin is Annotates else [])))
    writes = Writes(cluster, monkeypatch)
    cluster.run()
    assert writes.done == [("p", "bind")]


def test_a_plugin_that_says_nothing_of_itself_is_taken_for_one_that_waits() -> None:
    seen = []

    class Silent:
        name = "silent"

        @hookimpl
        async def prebind(self, binding):
            seen.append(named(cluster, binding.task.name))

    cluster = cluster_of(pod("p"), nodes=1)
    cluster.run(Silent())
    assert seen == ["n1"]


def test_a_claim_that_waits_for_its_pods_node_is_such_a_thing_and_one_that_is_bound_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_of(storage_class("local"), volume("v", on="n2"), claim("c"), pod("p", volumes=using("c")))
    cluster.start()
    writes = Writes(cluster, monkeypatch)
    cluster.run()
    cluster.add(pod("q", volumes=using("c")))
    cluster.run()
    assert writes.done == [("p", "n2"), ("p", "bind"), ("q", "bind")]


def test_of_a_gang_all_members_say_it_for_none_is_bound_before_all_can_be() -> None:
    cluster = cluster_of(gang("g", 3), pod("alone"))
    plugin = Waits(cluster, "g-1")
    cluster.run(plugin)
    nodes = {name.removeprefix("default/"): place for name, place in cluster.placements().items()}
    del nodes["alone"]
    assert {name: plugin.seen[name] for name in nodes} == nodes
    assert plugin.seen["alone"] == ""
    assert known(cluster) == {}


@pytest.mark.parametrize("error", [Forbidden("pods cannot be patched"), Unavailable("no answer"), Conflict("it moved")])
def test_a_write_that_fails_stops_no_bind(
    monkeypatch: pytest.MonkeyPatch, error, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = cluster_of(pod("p"), nodes=1)
    cluster.start(Waits(cluster, "p"))

    async def refuse(_):
        raise error

    writes = Writes(cluster, monkeypatch, refuse)
    cluster.run()
    cluster.assert_bound("p")
    assert writes.done[-1] == ("p", "bind")
    assert "setting nominatedNodeName failed" in capfd.readouterr().out
    assert known(cluster) == {}


def test_a_status_that_somebody_else_writes_at_the_same_time_is_written_after_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_of(pod("p"), nodes=1)
    plugin = Waits(cluster, "p")
    cluster.start(plugin)
    others = ["once"]

    async def meanwhile(obj):
        if others:
            others.pop()
            await cluster.memory.patch_metadata(obj, annotations={"seen": "yes"})

    writes = Writes(cluster, monkeypatch, meanwhile)
    cluster.run()
    assert plugin.seen == {"p": "n1"}
    assert writes.done == [("p", "n1"), ("p", "n1"), ("p", "bind")]


def test_of_a_pod_that_is_not_what_was_decided_on_nothing_is_written_and_it_is_decided_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = cluster_of(pod("p"), nodes=1)
    plugin = Waits(cluster, "p")
    cluster.start(plugin)
    others = ["once"]

    async def meanwhile(obj):
        if others:
            others.pop()
            await cluster.memory.patch_metadata(obj, labels={"app": "other"})

    writes = Writes(cluster, monkeypatch, meanwhile)
    cluster.run()
    cluster.assert_pending("p", "binding to n1 failed")
    assert plugin.seen == {"p": ""}
    assert writes.done == [("p", "n1"), ("p", "bind"), ("p", "")]
    assert known(cluster) == {}
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p")


@pytest.mark.parametrize("where", ["prebind", "bind"])
def test_a_bind_that_comes_to_nothing_takes_it_back_though_no_watch_has_told_of_it(
    monkeypatch: pytest.MonkeyPatch, where
) -> None:
    cluster = cluster_of(gang("g", 2), nodes=1)
    cluster.start(Waits(cluster, "g-0", fails=where == "prebind"))

    async def refuse(*_, **__):
        raise Forbidden("pods cannot be bound")

    monkeypatch.setattr(cluster.memory, "bind", refuse)
    cluster.run()
    for name in ("g-0", "g-1"):
        cluster.assert_pending(name)
        assert named(cluster, name) == ""
    asyncio.run(cluster._deliver())
    assert known(cluster) == {}


def test_who_is_being_bound_costs_the_others_nothing() -> None:
    """Whether anybody is nominated is what every pod's placement asks first."""
    cluster = cluster_of(pod("p"), nodes=1)
    found = []

    class Looks(Waits):
        @hookimpl
        async def prebind(self, binding):
            await cluster._deliver()
            nominations = cluster.scheduler.cache.nominations
            found.append((bool(nominations), nominations.nominated_node_name(binding.task)))

    cluster.run(Looks(cluster, "p"))
    assert found == [(False, "n1")]


def test_it_takes_the_place_of_an_earlier_nomination_for_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    first = replace(pod("p", cpu="2"), status=PodStatus(nominated_node_name="n1"))
    cluster = cluster_of(pod("full", cpu="3", bound_to="n1"), first, cpu="4")
    plugin = Waits(cluster, "p")
    cluster.start(plugin)
    writes = Writes(cluster, monkeypatch)
    cluster.run()
    cluster.assert_bound("p", "n2")
    assert plugin.seen["p"] == "n2"
    assert writes.done == [("p", "n2"), ("p", "bind")]


def test_a_successor_tries_that_node_first() -> None:
    """The first dies while it waits; by its scores the second would take another node."""
    cluster = cluster_of(pod("p", cpu="1"), nodes=1, cpu="4")

    async def dies() -> None:
        cycle = asyncio.ensure_future(cluster.scheduler.cycle())
        while not plugin.seen:  # noqa: ASYNC110 (no event reports it)
            await asyncio.sleep(0)
        cycle.cancel()
        await asyncio.gather(cycle, return_exceptions=True)

    class Hangs(Waits):
        @hookimpl
        async def prebind(self, binding):
            await super().prebind(binding)
            await asyncio.Event().wait()

    plugin = Hangs(cluster, "p")
    cluster.start(plugin)
    asyncio.run(dies())
    assert named(cluster, "p") == "n1"
    cluster.add(node("n2", cpu="64"))
    cluster.start(Waits(cluster))
    cluster.run()
    cluster.assert_bound("p", "n1")


def test_a_place_that_is_given_up_before_any_bind_takes_it_back() -> None:
    """As where a plan that was taken over cannot be carried on with."""
    cluster = cluster_of(replace(pod("p", cpu="1"), status=PodStatus(nominated_node_name="n1")), nodes=1)
    scheduler = cluster.start()
    (task,) = scheduler.cache.tasks.values()

    async def placed_and_given_up() -> None:
        scheduler.cache.occupy(task, "n1")
        task.phase = Phase.ASSUMED
        await scheduler.completion.give_up(task, scheduler.profiles[task.pod.spec.scheduler_name])
        await scheduler.in_flight.wait([])
        await scheduler.complete_finished()

    asyncio.run(placed_and_given_up())
    assert (named(cluster, "p"), known(cluster)) == ("", {})


def test_no_place_is_kept_for_a_pod_that_goes_before_its_node_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(pod("p", cpu="1"), nodes=1)
    scheduler = cluster.start(Waits(cluster, "p"))
    gone = cluster.find(Pod, "p", "default")
    nominate = scheduler.binder._nominate
    turns = []

    async def beside_a_turn(pods):
        """The turn is ready to run when the nomination becomes a task."""
        turns.append(asyncio.ensure_future(scheduler.event_handlers.apply("DELETED", gone)))
        return await nominate(pods)

    monkeypatch.setattr(scheduler.binder, "_nominate", beside_a_turn)
    asyncio.run(scheduler.cycle())
    assert turns
    assert not scheduler.cache.tasks
    assert known(cluster) == {}
