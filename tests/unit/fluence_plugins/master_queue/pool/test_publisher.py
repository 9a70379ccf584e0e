"""A pool's own side: what is published when, over connections that come and go."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, cast

import nats.errors
import pytest

from fluence_plugins.master_queue.errors import ConnectionFailedError, RefusedSubjectError
from fluence_plugins.master_queue.messages import decoded
from fluence_plugins.master_queue.nats.client import NatsClient
from fluence_plugins.master_queue.nats.settings import ConnectorSettings
from fluence_plugins.master_queue.pool.publisher import Pool, Publisher, message
from session_scheduler.errors import InputError
from session_scheduler.sdk.dynamic_client import ClusterError

SETTINGS = ConnectorSettings(servers=("nats://127.0.0.1:4222",))


class World:
    """A clock that each sleep advances, and a server that takes what is published."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[tuple[float, str, dict[str, Any]]] = []
        self.opened: list[float] = []
        self.shut = 0
        self.away_until = 0.0
        self.refuses = ""
        self.unconfirmed = False
        self.quotas: Mapping[str, str] | Exception = {"cpu": "8"}
        self.at: list[tuple[float, Callable[[], None]]] = []
        self.closed: Callable[[str], None] = lambda _: None
        self.error: Callable[[Exception], None] = lambda _: None
        self.end = 120.0
        self.stop = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        for when, what in [one for one in self.at if one[0] <= until]:
            self.at.remove((when, what))
            self.now = when
            what()
            for _ in range(3):
                await asyncio.sleep(0)
        self.now = max(self.now, until)
        if self.now >= self.end:
            self.stop.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def open(self, settings: ConnectorSettings, *, closed: Any, error: Any, name: str) -> NatsClient:
        assert (settings, name) == (SETTINGS, "fluence-pool")
        if self.now < self.away_until:
            raise ConnectionFailedError("nats://127.0.0.1:4222: refused")
        self.opened.append(self.now)
        self.closed, self.error = closed, error
        return cast(NatsClient, Client(self))

    async def what(self) -> Mapping[str, str]:
        if isinstance(self.quotas, Exception):
            raise self.quotas
        return self.quotas

    def publisher(self, every: float = 30.0) -> Publisher:
        pool = Pool(SETTINGS, "a.b.far", self.what, ("k=v",), ("t=v:NoSchedule",))
        return Publisher(pool, every, connect=self.open, chance=Random(1), clock=lambda: self.now, sleep=self.sleep)

    @property
    def times(self) -> list[float]:
        return [when for when, _, _ in self.sent]


class Client:
    def __init__(self, world: World) -> None:
        self._world = world

    async def publish(self, subject: str, data: bytes) -> None:
        if self._world.refuses:
            self._world.error(RefusedSubjectError(subject, self._world.refuses))
            return
        self._world.sent.append((self._world.now, subject, json.loads(data)))

    async def confirm(self, seconds: float) -> None:
        assert seconds > 0
        if self._world.unconfirmed:
            raise nats.errors.ConnectionClosedError


@pytest.fixture(autouse=True)
def shutting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def close_connection(client: Client) -> None:
        client._world.shut += 1

    monkeypatch.setattr("fluence_plugins.master_queue.pool.publisher.close_connection", close_connection)


def run(work: Callable[[World], Awaitable[None]]) -> World:
    async def all_of_it() -> World:
        world = World()
        async with asyncio.timeout(30):
            await work(world)
        return world

    return asyncio.run(all_of_it())


def test_a_message_is_sent_at_once_and_then_at_the_interval_with_labels_and_taints() -> None:
    async def work(world: World) -> None:
        await world.publisher().run(world.stop)

    world = run(work)
    assert world.times == [0, 30, 60, 90]
    subjects = {subject for _, subject, _ in world.sent}
    assert subjects == {"a.b.far"}
    assert world.sent[0][2] == {"quotas": {"cpu": "8"}, "labels": ["k=v"], "taints": ["t=v:NoSchedule"]}
    assert (world.opened, world.shut) == ([0], 1)


def test_two_messages_are_at_least_a_second_apart_even_if_the_connection_breaks_often() -> None:
    async def work(world: World) -> None:
        world.end = 30.0
        world.at = [(n / 10, lambda: world.closed("the connection was lost")) for n in range(1, 200)]
        await world.publisher(every=0.1).run(world.stop)

    world = run(work)
    assert len(world.sent) > 3
    assert all(later - sooner >= 1 for sooner, later in zip(world.times, world.times[1:], strict=False))
    assert world.shut == len(world.opened)


def test_an_unreachable_server_is_retried_with_backoff_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(world: World) -> None:
        world.away_until = 20.0
        await world.publisher().run(world.stop)

    with caplog.at_level(logging.INFO, "fluence"):
        world = run(work)
    assert 20 <= world.times[0] <= 35
    assert [record.getMessage() for record in caplog.records] == [
        "[pool] NATS: nats://127.0.0.1:4222: refused; publishing stops until this is fixed",
        "[pool] NATS: publishes to a.b.far again",
    ]


def test_a_lost_connection_is_replaced_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        world.at = [(40.0, lambda: world.closed("the server ended the connection"))]
        await world.publisher().run(world.stop)

    with caplog.at_level(logging.INFO, "fluence"):
        world = run(work)
    assert world.opened[0] == 0
    assert 40 <= world.opened[1] < 41
    assert world.times[:3] == [0, 30, world.opened[1]]
    assert [record.getMessage().partition("; ")[0] for record in caplog.records] == [
        "[pool] NATS: publishes to a.b.far",
        "[pool] NATS: the server ended the connection",
        "[pool] NATS: publishes to a.b.far again",
    ]


def test_while_the_cluster_cannot_be_read_nothing_is_published_and_the_connection_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(world: World) -> None:
        def recover() -> None:
            world.quotas = {"pods": "3"}

        world.quotas = ClusterError("the API server does not answer")
        world.at = [(45.0, recover)]
        await world.publisher().run(world.stop)

    with caplog.at_level(logging.INFO, "fluence"):
        world = run(work)
    assert world.times == [60, 90]
    assert world.opened == [0]
    assert caplog.records[0].getMessage().startswith("[pool] cluster: the API server does not answer; publishing stops")
    assert "[pool] cluster: is read again" in [record.getMessage() for record in caplog.records]


def test_a_rejected_subject_is_reported_with_the_servers_message() -> None:
    async def work(world: World) -> None:
        world.refuses = "the server does not permit publishing to 'a.b.far'"
        with pytest.raises(ConnectionFailedError, match="does not permit publishing"):
            await world.publisher().once()

    assert run(work).shut == 1


def test_once_sends_one_message_and_closes_the_connection() -> None:
    async def work(world: World) -> None:
        await world.publisher().once()

    world = run(work)
    assert (len(world.sent), world.shut) == (1, 1)


def test_once_fails_if_the_server_is_unreachable_or_confirms_nothing() -> None:
    async def away(world: World) -> None:
        world.away_until = 1.0
        with pytest.raises(ConnectionFailedError, match="refused"):
            await world.publisher().once()

    async def silent(world: World) -> None:
        world.unconfirmed = True
        with pytest.raises(ConnectionFailedError, match="does not confirm"):
            await world.publisher().once()

    assert run(away).sent == []
    assert run(silent).shut == 1


def test_a_message_is_valid_for_the_controller_and_what_it_would_drop_is_rejected() -> None:
    read = decoded(message({"cpu": "8", "pods": 3}, ["k=v"], ["t=v:NoSchedule"]))
    assert (read.quotas, read.labels, read.problems) == ({"cpu": "8", "pods": "3"}, {"k": "v"}, ())
    with pytest.raises(InputError) as refused:
        message({"cpu": "-1"}, ["k"], ["t"])
    assert [line.partition(":")[0] for line in refused.value.messages] == ["quotas['cpu']", "labels[0]", "taints[0]"]
    with pytest.raises(InputError, match=r"labels\[0\]: '\?' is not a valid value in Kubernetes"):
        message({"cpu": "1"}, ["k=\udcff"])
    with pytest.raises(InputError, match="send at most"):
        message({"cpu": "1"}, ["k=" + "v" * 70000])
