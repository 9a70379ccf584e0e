"""Decoder of watch streams: bytes to lines, lines to events. It also merges two watches of one kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from session_scheduler.cluster.errors import Unavailable
from session_scheduler.cluster.kube_errors import Status, error_of
from session_scheduler.cluster.kube_kinds import Resource
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.port import Change, Kube, WatchEvent

MAX_LINE = 32 * 1024 * 1024
"""Maximum size of one event in bytes: twenty times etcd's limit for one object."""
_CHANGES = {change.value: change for change in Change}


class LineSplitter:
    """Splits a stream of bytes into lines. It scans each byte once, however the stream is split."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that this chunk completes. Raises Unavailable if a line is longer than the limit."""
        *ended, rest = chunk.split(b"\n")
        lines = []
        for end in ended:
            lines.append(b"".join((*self._rest, end)) if self._rest else end)
            self._rest, self._size = [], 0
        if rest:
            self._rest.append(rest)
            self._size += len(rest)
        if self._size > self._limit:
            raise Unavailable(f"watch: an event has more than {self._limit} bytes")
        return [line for line in lines if line]


async def watch_one(
    client: ApiClient, resource: Resource[Kube], version: str, selected: Mapping[str, str] = {}
) -> AsyncGenerator[WatchEvent[Kube], None]:
    """Yield the changes of one resource after the version until the connection ends; see `port.Cluster.watch`.

    `selected` are the selectors of `kube_lists.selectors`.
    """
    query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version, **selected}
    what = f"watch of {resource.plural}"
    async with client.stream(resource.path(), query, what=what) as chunks:
        splitter = LineSplitter()
        try:
            async for chunk in chunks:
                for line in splitter.feed(chunk):
                    yield _event(resource, line, what)
        except OSError:
            return  # the connection ended or was silent for too long; drop an incomplete event


def _event(resource: Resource[Kube], text: bytes, what: str) -> WatchEvent[Kube]:
    bookmark = resource.bookmark(text)
    if bookmark is not None:
        return WatchEvent(Change.BOOKMARK, None, bookmark)
    line = resource.line(text)
    if line is None:  # an ignored object: only move the resourceVersion on
        return WatchEvent(Change.BOOKMARK, None, resource.version_of_line(text))
    if isinstance(line.object, Status):
        raise error_of(line.object.code, line.object, what)
    change = _CHANGES.get(line.type)
    if change is None:
        raise Unavailable(f"{what}: unknown event type {line.type!r}")
    version = line.object.metadata.resource_version
    return WatchEvent(change, None if change is Change.BOOKMARK else line.object, version)


# ------------------------------------------------------------------ merging

_SEPARATOR = "/"


def joined_versions(versions: Sequence[str]) -> str:
    """Join the resourceVersions of several resources to one string."""
    return _SEPARATOR.join(versions)


def split_versions(version: str) -> list[str]:
    """Split a string of `joined_versions`."""
    return version.split(_SEPARATOR)


async def merged(
    watches: Sequence[AsyncGenerator[WatchEvent[Kube], None]], versions: Sequence[str]
) -> AsyncGenerator[WatchEvent[Kube], None]:
    """Merge several watches; events of one watch keep their order. When one watch ends, close all of them.

    `versions` are the resourceVersions at the start. Each event has the joined versions of all watches.
    """
    seen = list(versions)
    nexts = {asyncio.ensure_future(anext(watch)): number for number, watch in enumerate(watches)}
    try:
        while True:
            done, _ = await asyncio.wait(nexts, return_when=asyncio.FIRST_COMPLETED)
            for ready in sorted(done, key=nexts.__getitem__):
                number = nexts.pop(ready)
                try:
                    event = ready.result()
                except StopAsyncIteration:
                    return
                seen[number] = event.resource_version
                yield WatchEvent(event.change, event.object, joined_versions(seen))
                nexts[asyncio.ensure_future(anext(watches[number]))] = number
    finally:
        for pending in nexts:
            pending.cancel()
        await asyncio.gather(*nexts, return_exceptions=True)
        for watch in watches:
            await watch.aclose()
