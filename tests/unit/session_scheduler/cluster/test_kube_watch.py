"""Watch streams: split into lines, decoded to events, and merged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from session_scheduler.cluster.errors import Gone, Unavailable
from session_scheduler.cluster.kube_kinds import resource_of
from session_scheduler.cluster.kube_watch import LineSplitter, merged, watch_one
from session_scheduler.cluster.port import Change, WatchEvent
from session_scheduler.model.objects import Node, Pod

from .fake_api import FakeApi, Hangs, refuses, streams

PODS = resource_of(Pod)


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as fake:
        yield fake


def line(change: str, version: str, name: str = "p", kind: str = "Pod") -> bytes:
    metadata = {"name": name, "namespace": "ns", "resourceVersion": version, "managedFields": [{"manager": "m"}]}
    obj = {"kind": kind, "apiVersion": "v1", "metadata": metadata}
    return msgspec.json.encode({"type": change, "object": obj}) + b"\n"


def failure(code: int) -> bytes:
    status = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": "Expired", "message": "too old"}
    return msgspec.json.encode({"type": "ERROR", "object": status}) + b"\n"


async def events(api: FakeApi, **settings: Any) -> list[WatchEvent[Pod]]:
    return [event async for event in watch_one(api.client(**settings), PODS, "7")]


# ---------------------------------------------------------------------- lines


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    splitter = LineSplitter(limit=10)
    assert splitter.feed(b"12345678\n") == [b"12345678"]
    splitter.feed(b"12345678")
    with pytest.raises(Unavailable, match="more than 10 bytes"):
        splitter.feed(b"9ab")


# ---------------------------------------------------------------------- events


async def test_a_watch_asks_for_bookmarks_after_its_version(api: FakeApi) -> None:
    api.replies = [streams()]
    assert await events(api) == []
    (seen,) = api.seen
    assert (seen.path, seen.query) == (
        "/api/v1/pods",
        {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": "7"},
    )


async def test_events_come_in_order_with_where_to_go_on(api: FakeApi) -> None:
    text = line("ADDED", "8") + line("BOOKMARK", "20", name="") + line("DELETED", "21")
    api.replies = [streams(text[:10], text[10:150], text[150:])]
    got = await events(api)
    assert [(event.change, event.resource_version) for event in got] == [
        (Change.ADDED, "8"),
        (Change.BOOKMARK, "20"),
        (Change.DELETED, "21"),
    ]
    assert [event.object and event.object.key for event in got] == ["ns/p", None, "ns/p"]


async def test_a_bookmark_is_read_as_api_servers_write_it(api: FakeApi) -> None:
    """For pods its object is the zero value of the API server's type, with null as the list of containers."""
    text = (
        b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12746",'
        b'"creationTimestamp":null},"spec":{"containers":null},"status":{}}}\n'
    )
    api.replies = [streams(text)]
    assert [(event.change, event.resource_version) for event in await events(api)] == [(Change.BOOKMARK, "12746")]


async def test_an_incomplete_event_before_the_connection_breaks_is_dropped(api: FakeApi) -> None:
    api.replies = [streams(line("ADDED", "8"), line("ADDED", "9")[:30], broken=True)]
    assert [event.resource_version for event in await events(api)] == ["8"]


async def test_a_watch_that_falls_silent_ends(api: FakeApi) -> None:
    api.replies = [Hangs(line("ADDED", "8"))]
    assert [event.resource_version for event in await events(api, watch_silence=0.05)] == ["8"]


async def test_a_version_that_is_too_old_is_gone_as_a_response_and_as_an_event(api: FakeApi) -> None:
    api.replies = [refuses(410, "Expired"), streams(failure(410))]
    for _ in range(2):
        with pytest.raises(Gone):
            await events(api)


async def test_any_other_failure_of_a_watch_is_unavailable(api: FakeApi) -> None:
    api.replies = [streams(failure(500)), streams(b'{"type":"ADDED","object":[]}\n'), streams(line("SURPRISE", "1"))]
    for text in ("too old", "cannot decode the API server's response", "unknown event type 'SURPRISE'"):
        with pytest.raises(Unavailable, match=text):
            await events(api)


async def test_closing_a_watch_closes_its_connection(api: FakeApi) -> None:
    hanging = Hangs(line("ADDED", "8"))
    api.replies = [hanging]
    async with aclosing(watch_one(api.client(), PODS, "7")) as watch:
        await anext(watch)
    await asyncio.wait_for(hanging.left.wait(), 10)


async def test_cancelling_the_wait_for_an_event_closes_the_connection(api: FakeApi) -> None:
    hanging = Hangs(line("ADDED", "8"))
    api.replies = [hanging]
    watch = watch_one(api.client(), PODS, "7")
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(hanging.left.wait(), 10)


# ---------------------------------------------------------------------- merging


async def test_each_event_of_two_watches_carries_both_versions(api: FakeApi) -> None:
    client = api.client()
    one, two = Hangs(line("ADDED", "11")), Hangs(line("ADDED", "21"))
    api.replies = [one, two]
    both = merged([watch_one(client, PODS, "10"), watch_one(client, PODS, "20")], ["10", "20"])
    versions = [(await anext(both)).resource_version for _ in range(2)]
    assert versions[0] in ("11/20", "10/21")
    assert versions[1] == "11/21"
    await both.aclose()
    await asyncio.wait_for(asyncio.gather(one.left.wait(), two.left.wait()), 10)


async def test_if_one_of_two_watches_ends_or_fails_both_do(api: FakeApi) -> None:
    client = api.client()
    for end, error in ((streams(), None), (streams(failure(410)), Gone)):
        hanging = Hangs()
        api.replies = [hanging, end]
        both = merged([watch_one(client, PODS, "1"), watch_one(client, PODS, "2")], ["1", "2"])
        with pytest.raises(error or StopAsyncIteration):
            await anext(both)
        await asyncio.wait_for(hanging.left.wait(), 10)


def test_a_node_in_a_watch_of_pods_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        PODS.line(line("ADDED", "1", kind=Node.__name__))
