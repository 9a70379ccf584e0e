"""The informer for objects of any kind: the existing objects, then every change, despite failures.

The API server is in memory, and time is virtual.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from session_scheduler.cluster.dynamic_client import KubeApi
from session_scheduler.cluster.dynamic_informer import Change, Follower, Resource
from session_scheduler.cluster.errors import Forbidden, Gone, NotFound, Unavailable
from session_scheduler.model.objects import ObjectMeta

from .mirror_world import FakeTime


class Spec(msgspec.Struct, frozen=True):
    size: int = 0


class Widget(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind", tag="Widget"):
    api_version: str = "example.com/v1"
    metadata: ObjectMeta = ObjectMeta()
    spec: Spec = Spec()


class Gadget(Widget, frozen=True, tag="Gadget"):
    pass


WIDGETS = Resource(Widget, "example.com/v1", "widgets", lax=True)  # type: ignore[type-var]
GADGETS = Resource(Gadget, "example.com/v1", "gadgets", namespaced=False, lax=True)  # type: ignore[type-var]
END = None
PATIENCE = 20.0


class Server:
    """The methods of an ApiClient that a Follower calls. Lists and events show the same object."""

    def __init__(self):
        self.version = 10
        self.objects = {"widgets": {}, "gadgets": {}}
        self.refused = {}
        """The error of lists and watches, by plural."""
        self.lists, self.asked = [], []
        self._watches = {"widgets": [], "gadgets": []}
        self._history = {"widgets": [], "gadgets": []}

    # ------------------------------------------------------------------ events

    def put(self, plural, name, *, reported=True, **content):
        self.version += 1
        change = "MODIFIED" if name in self.objects[plural] else "ADDED"
        uid = self.objects[plural].get(name, {"metadata": {"uid": f"u{self.version}"}})["metadata"]["uid"]
        meta = {"name": name, "uid": uid, "resourceVersion": str(self.version)}
        self.objects[plural][name] = {"metadata": meta, **content}
        self._tell(plural, change, self.objects[plural][name], reported=reported)

    def delete(self, plural, name, *, reported=True):
        self.version += 1
        obj = self.objects[plural].pop(name)
        meta = {**obj["metadata"], "resourceVersion": str(self.version)}
        self._tell(plural, "DELETED", {**obj, "metadata": meta}, reported=reported)

    def _tell(self, plural, change, obj, *, reported):
        whole = {"kind": plural[:-1].title(), "apiVersion": "example.com/v1", **obj}
        line = msgspec.json.encode({"type": change, "object": whole}) + b"\n"
        if reported:
            self._history[plural].append((self.version, line))
            self.say(plural, line)

    def say(self, plural, line):
        """Send a line to all open watches; END ends them."""
        for watch in self._watches[plural]:
            watch.put_nowait(line)

    def open(self, plural):
        return len(self._watches[plural])

    # ------------------------------------------------------------------ requests

    async def read(self, path, query=None, *, what, page=False):
        plural = path.rpartition("/")[2]
        self.lists.append(path)
        if plural in self.refused:
            raise self.refused[plural]
        items = list(self.objects[plural].values()) or None
        return msgspec.json.encode({"metadata": {"resourceVersion": str(self.version)}, "items": items})

    @asynccontextmanager
    async def stream(self, path, query, *, what):
        plural = path.rpartition("/")[2]
        self.asked.append((plural, int(query["resourceVersion"])))
        if plural in self.refused:
            raise self.refused[plural]
        lines = asyncio.Queue()
        for version, line in self._history[plural]:
            if version > int(query["resourceVersion"]):
                lines.put_nowait(line)
        self._watches[plural].append(lines)
        try:
            yield _chunks(lines)
        finally:
            self._watches[plural].remove(lines)


async def _chunks(lines):
    while (line := await lines.get()) is not END:
        yield line


class World:
    def __init__(self, *resources):
        self.server, self.time = Server(), FakeTime()
        self.first: Any = None
        self.reported: Any = []
        api = KubeApi(self.server)  # type: ignore[arg-type]
        self.follower = Follower(
            api, resources or (WIDGETS, GADGETS), self.take, clock=self.time, sleep=self.time.sleep
        )

    def take(self, change, obj):
        self.reported.append((change, type(obj).__name__, obj.metadata.name, obj.spec.size))

    @asynccontextmanager
    async def running(self):
        self.first = await asyncio.wait_for(self.follower.start(), PATIENCE)
        running = asyncio.create_task(self.follower.run())
        await self.time.run_pending()
        try:
            yield self
        finally:
            ended = running.done()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            assert not ended
        assert self.server.open("widgets") == self.server.open("gadgets") == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}


# ------------------------------------------------------------------ existing objects, then changes


async def test_start_returns_existing_objects_with_type_and_version_and_delivers_none():
    world = World()
    world.server.put("gadgets", "g")
    world.server.put("widgets", "w", spec={"size": 3}, more=[1])
    async with world.running():
        widget, gadget = world.first
        assert (type(widget), widget.metadata.name, widget.spec.size) == (Widget, "w", 3)
        assert (type(gadget), gadget.api_version) == (Gadget, "example.com/v1")
        assert world.reported == []
    assert world.server.lists == ["apis/example.com/v1/widgets", "apis/example.com/v1/gadgets"]


async def test_every_change_is_delivered_in_order_and_once_by_the_informer():
    world = World()
    async with world.running():
        assert world.first == []
        world.server.put("widgets", "w", spec={"size": 1})
        world.server.put("gadgets", "g")
        await world.time.run_pending()
        world.server.put("widgets", "w", spec={"size": 2})
        world.server.delete("widgets", "w")
        await world.time.run_pending()
    of_widgets = [one for one in world.reported if one[1] == "Widget"]
    assert of_widgets == [
        (Change.ADDED, "Widget", "w", 1),
        (Change.MODIFIED, "Widget", "w", 2),
        (Change.DELETED, "Widget", "w", 2),
    ]
    assert [one for one in world.reported if one[1] == "Gadget"] == [(Change.ADDED, "Gadget", "g", 0)]


async def test_the_informer_delivers_changes_between_start_and_run():
    world = World(WIDGETS)
    await world.follower.start()
    world.server.put("widgets", "w")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(world.follower.run())
        await world.time.run_pending()
        running.cancel()
    assert world.reported == [(Change.ADDED, "Widget", "w", 0)]


async def test_start_waits_for_an_api_server_that_does_not_respond():
    world = World(WIDGETS)
    world.server.refused["widgets"] = Unavailable("no answer")
    starting = asyncio.create_task(world.follower.start())
    await world.time.advance(600)
    assert not starting.done()
    world.server.refused.clear()
    world.server.put("widgets", "w")
    await world.time.advance(15)
    assert [one.metadata.name for one in starting.result()] == ["w"]


async def test_an_exception_of_the_receiver_ends_the_run():
    world = World(WIDGETS)
    world.reported = None
    await world.follower.start()
    world.server.put("widgets", "w")
    with pytest.raises(ExceptionGroup) as raised:
        await world.follower.run()
    assert raised.value.subgroup(AttributeError) is not None
    assert world.server.open("widgets") == 0


# ------------------------------------------------------------------ refused kinds


@pytest.mark.parametrize("refusal", [NotFound("404: no such path"), Forbidden("403: not you")])
async def test_a_refused_kind_is_empty_until_it_is_served_and_delays_no_other(refusal):
    world = World()
    world.server.put("gadgets", "g")
    world.server.put("widgets", "w")
    world.server.refused["widgets"] = refusal
    with capture_logs() as logs:
        async with world.running():
            assert [one.metadata.name for one in world.first] == ["g"]
            assert [kind.__name__ for kind in world.follower.refused] == ["Widget"]
            world.server.put("gadgets", "g2")
            await world.time.advance(100)
            assert world.reported == [(Change.ADDED, "Gadget", "g2", 0)]
            assert 3 <= world.server.lists.count("apis/example.com/v1/widgets") <= 6
            del world.server.refused["widgets"]
            await world.time.advance(31)
            assert world.reported[1:] == [(Change.ADDED, "Widget", "w", 0)]
            assert world.follower.refused == frozenset()
            world.server.put("widgets", "w", spec={"size": 1})
            await world.time.run_pending()
            assert world.reported[2:] == [(Change.MODIFIED, "Widget", "w", 1)]
    assert [one["kind"] for one in logs if "cannot list a kind" in one["event"]] == ["Widget"]


# ------------------------------------------------------------------ broken watches


async def test_a_watch_that_ends_is_resumed_without_loss():
    world = World(WIDGETS)
    async with world.running():
        world.server.put("widgets", "a")
        await world.time.run_pending()
        world.server.say("widgets", END)
        await world.time.run_pending()
        world.server.put("widgets", "b")
        await world.time.advance(1)
        assert world.server.asked == [("widgets", 10), ("widgets", 11)]
        assert [one[2] for one in world.reported] == ["a", "b"]
        assert world.server.lists == ["apis/example.com/v1/widgets"]


async def test_when_the_history_is_gone_the_difference_to_a_new_list_is_delivered():
    world = World(WIDGETS)
    for name in ("stays", "changes", "goes"):
        world.server.put("widgets", name)
    async with world.running():
        world.server.refused["widgets"] = Gone("410: too old")
        world.server.say("widgets", END)
        await world.time.run_pending()
        world.server.put("widgets", "changes", reported=False, spec={"size": 5})
        world.server.delete("widgets", "goes", reported=False)
        world.server.put("widgets", "comes", reported=False)
        await world.time.advance(1)
        world.server.refused.clear()
        await world.time.advance(15)
        assert world.reported == [
            (Change.DELETED, "Widget", "goes", 0),
            (Change.MODIFIED, "Widget", "changes", 5),
            (Change.ADDED, "Widget", "comes", 0),
        ]
        assert world.server.asked[-1] == ("widgets", world.server.version)


async def test_an_error_event_leads_to_a_new_list():
    world = World(WIDGETS)
    async with world.running():
        world.server.put("widgets", "w", reported=False)
        status = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"}
        world.server.say("widgets", msgspec.json.encode({"type": "ERROR", "object": status}) + b"\n")
        await world.time.advance(1)
        assert world.reported == [(Change.ADDED, "Widget", "w", 0)]


async def test_missed_changes_are_found_by_periodic_comparison():
    world = World(WIDGETS)
    async with world.running():
        world.server.put("widgets", "w", reported=False)
        await world.time.advance(250)
        assert world.reported == []
        await world.time.advance(150)
        assert world.reported == [(Change.ADDED, "Widget", "w", 0)]


# ------------------------------------------------------------------ invalid objects


async def test_an_invalid_object_does_not_hide_others():
    world = World(WIDGETS)
    world.server.put("widgets", "bad", spec={"size": "large"})
    world.server.put("widgets", "good")
    with capture_logs() as logs:
        async with world.running():
            assert [one.metadata.name for one in world.first] == ["good"]
            world.server.put("widgets", "worse", spec=[])
            world.server.put("widgets", "better")
            await world.time.run_pending()
            assert [one[2] for one in world.reported] == ["better"]
            world.server.put("widgets", "bad", spec={"size": 1})
            await world.time.run_pending()
            assert world.reported[1:] == [(Change.ADDED, "Widget", "bad", 1)]
    assert len([one for one in logs if "ignoring an object that cannot be decoded" in one["event"]]) == 2
