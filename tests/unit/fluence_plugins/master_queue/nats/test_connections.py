"""Connections are kept up and in step with what is wanted, whatever the servers do; nothing is left when they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from fluence_plugins.master_queue.nats import connection
from fluence_plugins.master_queue.nats.connection import FIRST_SECONDS, LONGEST_SECONDS, STEADY_SECONDS
from fluence_plugins.master_queue.nats.connections import Connections
from fluence_plugins.master_queue.nats.settings import ConnectorSettings
from session_scheduler.sdk.backoff import Backoff

from ..fake_nats import SOON, Delays, FakeNats, Heard, Way, until

SECRET = "s3cret-word"


class World:
    """Connections with all that is around them."""

    def __init__(self, configured: Mapping[str, ConnectorSettings] | None = None) -> None:
        self.heard = Heard()
        self.delays = Delays()
        self.now = 0.0
        self.connections = Connections(
            configured or {},
            self.heard,
            meter=self.heard,  # type: ignore[arg-type]
            sleep=self.delays,
            clock=lambda: self.now,
            chance=Random(1),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run them; in the end they end soon, and nothing of them is left."""
        others = asyncio.all_tasks()
        task = asyncio.create_task(self.connections.run())
        try:
            yield
        finally:
            task.cancel()
            async with asyncio.timeout(SOON):
                with suppress(asyncio.CancelledError):
                    await task
        left = asyncio.all_tasks() - others
        assert [one for one in left if "FakeNats" not in str(one.get_coro())] == []


@pytest.fixture
async def server() -> AsyncIterator[FakeNats]:
    async with FakeNats() as fake:
        yield fake


@pytest.fixture
def world() -> World:
    return World()


def connected(world: World, times: int = 1) -> Callable[[], bool]:
    return lambda: world.heard.count("connected") == times


async def test_messages_arrive_after_every_subject_is_confirmed(server: FakeNats, world: World) -> None:
    server.silent = True
    server.takes = lambda _: setattr(server, "silent", False) is None  # its first PING is answered
    world.connections.follow({server.url: ["b", "a.x"]})
    assert world.connections.problem(server.url) == "not connected yet"
    async with world.running():
        await until(connected(world))
        assert server.subjects == ["a.x.*", "b.*"]
        assert world.connections.problem(server.url) is None
        server.publish("a.x.pool", b"1")
        server.publish("b.pool", b"2")
        await until(lambda: len(world.heard.messages) == 2)
    assert sorted(world.heard.messages) == [
        (server.url, "a.x", "a.x.pool", b"1"),
        (server.url, "b", "b.pool", b"2"),
    ]
    assert world.heard.events == [("connected", server.url)]
    await until(lambda: not server.clients)


async def test_a_connection_is_not_reported_before_its_subscriptions_are_confirmed(
    server: FakeNats, world: World
) -> None:
    answered = []

    def subscribed() -> bool:
        if server.subjects and not answered:
            answered.append(list(world.heard.events))
            server.silent = False
            server.say(b"PONG")
        return bool(answered)

    original = server._subscribe

    def subscribe(client: Any, subject: str, number: str) -> None:
        server.silent = True
        original(client, subject, number)

    server._subscribe = subscribe  # type: ignore[method-assign]
    world.connections.follow({server.url: ["a"]})
    async with world.running():
        await until(subscribed)
        assert answered == [[]]
        await until(connected(world))


async def test_large_messages_are_passed_to_the_listener(server: FakeNats, world: World) -> None:
    world.connections.follow({server.url: ["a"]})
    data = bytes(range(256)) * 4096
    async with world.running():
        await until(connected(world))
        for _ in range(3):
            server.publish("a.pool", data)
        await until(lambda: len(world.heard.messages) == 3)
    assert {message[3] for message in world.heard.messages} == {data}


async def test_many_messages_at_once_do_not_block_other_work(server: FakeNats, world: World) -> None:
    turns = 0
    seen: list[int] = []

    async def works() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    world.heard.message = lambda *_: seen.append(turns)  # type: ignore[method-assign]
    world.connections.follow({server.url: ["a"]})
    async with world.running():
        await until(connected(world))
        working = asyncio.create_task(works())
        for _ in range(1000):
            server.publish("a.pool", b"1")
        await until(lambda: len(seen) == 1000)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert seen[-1] - seen[0] >= 999


async def test_a_lost_connection_is_reported_and_replaced(
    server: FakeNats, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "master-queue")
    connector = server.url_of(f"u:{SECRET}")
    world.connections.follow({connector: ["a"]})
    async with world.running():
        await until(connected(world))
        await server.stop()
        await until(lambda: len(world.delays.asked) == 1)
        assert world.connections.problem(connector) is not None
        world.delays.pass_one()
        await until(lambda: len(world.delays.asked) == 2)
        assert "Connect" in (world.connections.problem(connector) or "")
        await server.start()
        world.delays.pass_one()
        await until(connected(world, 2))
        server.publish("a.pool", b"1")
        await until(lambda: world.heard.messages)
    assert [event[0] for event in world.heard.events] == ["connected", "lost", "lost", "connected"]
    assert dict(world.heard.reconnects) == {f"127.0.0.1:{server.port}": 1}
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING", "INFO"]
    assert caplog.messages[-1] == f"[master-queue] NATS 127.0.0.1:{server.port}: connected again"
    assert SECRET not in caplog.text + str(world.heard.events[1:3]).replace(connector, "")


async def test_the_same_reason_is_reported_once(
    server: FakeNats, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    server.takes = lambda _: False
    connector = server.url_of(f"u:{SECRET}")
    world.connections.follow({connector: ["a"]})
    async with world.running():
        for turn in range(1, 12):
            await until(lambda turn=turn: len(world.delays.asked) == turn)  # type: ignore[misc]
            world.delays.pass_one()
    why = f"{server.url}: the server rejects these credentials, or requires credentials: Authorization Violation"
    assert world.heard.events == [("lost", connector, why)]
    assert len(caplog.records) == 1
    assert SECRET not in caplog.text
    assert dict(world.heard.reconnects) == {}


def test_the_backoff_doubles_up_to_a_limit_with_jitter() -> None:
    backoff = Backoff(FIRST_SECONDS, LONGEST_SECONDS, Random(1))
    waits = [backoff.next() for _ in range(12)]
    full = [min(0.25 * 2**turn, LONGEST_SECONDS) for turn in range(12)]
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, full, strict=True))
    assert len(set(waits)) == 12
    again = Backoff(FIRST_SECONDS, LONGEST_SECONDS, Random(1))
    assert [again.next() for _ in range(12)] == waits
    backoff.reset()
    assert backoff.next() <= 0.25


async def test_only_a_connection_that_lasted_resets_the_backoff(server: FakeNats, world: World) -> None:
    world.connections.follow({server.url: ["a"]})
    async with world.running():
        for turn in range(1, 5):
            await until(connected(world, turn))
            world.now += STEADY_SECONDS / 10
            server.cut()
            await until(lambda turn=turn: len(world.delays.asked) == turn)  # type: ignore[misc]
            world.delays.pass_one()
        await until(connected(world, 5))
        world.now += STEADY_SECONDS
        server.cut()
        await until(lambda: len(world.delays.asked) == 5)
    assert all(2 * wait >= most for wait, most in zip(world.delays.asked, (0.25, 0.5, 1, 2, 0.25), strict=True))
    assert all(before < 2 * after for before, after in pairwise(world.delays.asked[:4]))
    assert world.delays.asked[4] <= 0.25


async def test_subjects_change_on_the_same_connection(server: FakeNats, world: World) -> None:
    world.connections.follow({server.url: ["a", "b"]})
    async with world.running():
        await until(connected(world))
        world.connections.follow({server.url: ["b", "c"]})
        await until(lambda: server.subjects == ["b.*", "c.*"])
        server.publish("a.pool", b"1")
        server.publish("c.pool", b"2")
        await until(lambda: world.heard.messages)
    assert [message[1] for message in world.heard.messages] == ["c"]
    assert server.came == 1
    assert server.subscribed == {"a.*": 1, "b.*": 1, "c.*": 1}
    assert world.heard.events == [("connected", server.url)]


async def test_connectors_can_be_added_and_removed(server: FakeNats, world: World) -> None:
    async with FakeNats() as other, world.running():
        world.connections.follow({server.url: ["a"]})
        await until(connected(world))
        world.connections.follow({server.url: ["a"], other.url: ["a"]})
        await until(connected(world, 2))
        world.connections.follow({other.url: ["a"]})
        await until(lambda: not server.clients)
        assert world.connections.problem(server.url) == "not connected yet"
        assert len(other.clients) == 1
        world.connections.follow({})
        await until(lambda: not other.clients)
    assert [event[0] for event in world.heard.events] == ["connected", "connected"]


async def test_a_connector_that_is_removed_and_added_again_is_reported_as_new(server: FakeNats, world: World) -> None:
    async with world.running():
        world.connections.follow({server.url: ["a"]})
        await until(connected(world))
        world.connections.follow({})
        world.connections.follow({server.url: ["a"]})
        await until(connected(world, 2))
        await until(lambda: len(server.clients) == 1)


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_subjects_may_change_during_the_connection_attempt(server: FakeNats, world: World, turns: int) -> None:
    world.connections.follow({server.url: ["a"]})
    async with world.running():
        for _ in range(turns):
            await asyncio.sleep(0)
        world.connections.follow({server.url: ["b"]})
        await until(lambda: server.subjects == ["b.*"])
        await until(connected(world))
    assert server.came == 1


@pytest.mark.parametrize("way", list(Way))
async def test_a_cancellation_at_any_point_leaves_nothing_open(server: FakeNats, way: Way) -> None:
    server.way = way
    for turns in range(0, 60, 2):
        world = World()
        world.connections.follow({server.url: ["a"]})
        async with world.running():
            for _ in range(turns):
                await asyncio.sleep(0)
    await until(lambda: not server.clients)


async def test_a_rejected_subject_is_a_problem_and_is_retried(server: FakeNats, world: World) -> None:
    server.denied = {"B.*"}
    world.connections.follow({server.url: ["a", "B"]})
    async with world.running():
        await until(lambda: len(world.delays.asked) == 1)
        why = "the server does not permit subscribing to 'B.*'; grant this user the permission on the server"
        assert world.connections.problem(server.url) == why
        server.publish("a.pool", b"1")
        await until(lambda: world.heard.messages)
        world.delays.pass_one()
        await until(lambda: len(world.delays.asked) == 2)
        assert world.heard.events == [("lost", server.url, why)]
        server.denied = set()
        world.delays.pass_one()
        await until(connected(world))
        assert server.subjects == ["B.*", "a.*"]
        assert len(world.delays.asked) == 2
    assert server.came == 1
    assert server.subscribed == {"a.*": 1, "B.*": 3}
    assert dict(world.heard.reconnects) == {}


async def test_a_subject_that_is_rejected_later_is_a_problem_too(server: FakeNats, world: World) -> None:
    world.connections.follow({server.url: ["a"]})
    async with world.running():
        await until(connected(world))
        server.denied = {"a.*"}
        server.say(b"-ERR 'Permissions Violation for Subscription to \"a.*\"'")
        await until(lambda: world.heard.count("lost") == 1)
        world.connections.follow({server.url: ["b"]})
        await until(connected(world, 2))
        assert server.subjects == ["b.*"]


async def test_a_server_in_lame_duck_mode_is_left_if_there_is_another(server: FakeNats) -> None:
    async with FakeNats() as other:
        world = World({"both": ConnectorSettings(servers=(server.url, other.url)), "one": _settings(other)})
        world.connections.follow({"both": ["a"], "one": ["b"]})
        async with world.running():
            await until(connected(world, 2))
            server.way = Way.CLOSE_AT_ONCE
            server.say(b'INFO {"ldm": true}')
            other.say(b'INFO {"ldm": true}')
            await until(lambda: world.heard.count("lost") == 1)
            world.delays.pass_one()
            await until(connected(world, 3))
            assert sorted(other.subjects) == ["a.*", "b.*"]
    assert world.heard.events[2] == ("lost", "both", "the server is about to shut down: trying another server")


def _settings(server: FakeNats) -> ConnectorSettings:
    return ConnectorSettings(servers=(server.url,))


async def test_waiting_messages_are_limited_and_dropped_ones_counted(
    server: FakeNats, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "MOST_WAITING_BYTES", 100)
    world.connections.follow({server.url: ["a"]})
    async with world.running():
        await until(connected(world))
        for data in (b"x" * 200, b"y" * 300, b"z"):
            server.publish("a.pool", data)
        await until(lambda: world.heard.messages)
    assert [message[3] for message in world.heard.messages] == [b"z"]
    assert dict(world.heard.drops) == {f"127.0.0.1:{server.port}": 2}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "a message to 'a.pool' was dropped: it is too large, or too many messages are waiting" in caplog.text


async def test_an_unknown_connector_is_a_problem_and_affects_no_other(server: FakeNats, world: World) -> None:
    bad = f"u:{SECRET}@h"
    world.connections.follow({bad: ["a"], server.url: ["a"]})
    why = "the value is neither an address nor a configured connector; configure it, or write nats://host:port"
    async with world.running():
        await until(connected(world))
        assert world.connections.problem(bad) == why
        assert ("lost", bad, why) in world.heard.events
        world.connections.follow({server.url: ["a"]})
        assert world.connections.problem(bad) == "not connected yet"


@pytest.mark.parametrize("first", ["right", "wrong"])
async def test_the_rejection_of_one_of_two_users_of_a_server_is_reported(
    server: FakeNats, world: World, first: str
) -> None:
    server.takes = lambda said: said["user"] == "right"
    second = "wrong" if first == "right" else "right"
    world.connections.follow({server.url_of(f"{user}:{SECRET}"): ["a"] for user in (first, second)})
    async with world.running():
        await until(lambda: connected(world)() and world.heard.count("lost"))
        assert world.connections.states() == {f"127.0.0.1:{server.port}": False}


async def test_an_error_of_the_listener_is_raised_and_closes_all_connections(server: FakeNats, world: World) -> None:
    def connected(_: str) -> None:
        raise LookupError("bug")

    world.heard.connected = connected  # type: ignore[method-assign, assignment]
    world.connections.follow({server.url: ["a"]})
    with pytest.raises(LookupError, match=r"^bug$"):
        async with asyncio.timeout(SOON):
            await world.connections.run()
    await until(lambda: not server.clients)


async def test_a_lost_connection_is_reported_with_the_time_since_the_last_bytes(
    server: FakeNats, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    for module in ("transport", "connection"):
        clock = SimpleNamespace(monotonic=lambda: now[0])
        monkeypatch.setattr(f"fluence_plugins.master_queue.nats.{module}.time", clock)
    world.connections.follow({server.url: ["a"]})
    async with world.running():
        await until(connected(world))
        now[0] = 105.0
        server.publish("a.pool", b"1")
        await until(lambda: bool(world.heard.messages))
        now[0] = 119.0
        server.cut()
        await until(lambda: bool(world.heard.unheard))
    assert world.heard.unheard[0] == 14.0
