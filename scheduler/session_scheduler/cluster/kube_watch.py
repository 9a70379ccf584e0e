"""Watches: bytes to lines, lines to events, and two watches as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from session_scheduler.cluster.errors import Unavailable
from session_scheduler.cluster.kube_errors import Status, error_of
from session_scheduler.cluster.kube_kinds import Resource
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.port import Change, Kube, WatchEvent

MAX_LINE = 32 * 1024 * 1024
"""Bytes of one event: twenty times what etcd keeps of one object."""
_CHANGES = {change.value: change for change in Change}


class LineSplitter:
    """Cuts a stream of bytes into lines; each byte is looked at once, however the stream is cut."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes. Raises Unavailable where one grows beyond the limit."""
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
    client: ApiClient, resource: Resource[Kube], version: str
) -> AsyncGenerator[WatchEvent[Kube], None]:
    """The changes of one resource after the version, until the connection ends, as `port.Cluster.watch` says."""
    query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
    what = f"watch of {resource.plural}"
    async with client.stream(resource.path(), query, what=what) as chunks:
        splitter = LineSplitter()
        try:
            async for chunk in chunks:
                for line in splitter.feed(chunk):
                    yield _event(resource, line, what)
        except OSError:
            return  # the connection ended, or said nothing for too long: half an event is none


def _event(resource: Resource[Kube], text: bytes, what: str) -> WatchEvent[Kube]:
    moment = resource.bookmark(text)
    if moment is not None:
        return WatchEvent(Change.BOOKMARK, None, moment)
    line = resource.line(text)
    if line is None:  # no other object is to suffer for it
        return WatchEvent(Change.BOOKMARK, None, resource.moment(text))
    if isinstance(line.object, Status):
        raise error_of(line.object.code, line.object, what)
    change = _CHANGES.get(line.type)
    if change is None:
        raise Unavailable(f"{what}: there is no event of type {line.type!r}")
    version = line.object.metadata.resource_version
    return WatchEvent(change, None if change is Change.BOOKMARK else line.object, version)


# ------------------------------------------------------------------ several as one

_SEPARATOR = "/"


def joined_versions(versions: Sequence[str]) -> str:
    """The resourceVersions of several resources as one text."""
    return _SEPARATOR.join(versions)


def split_versions(version: str) -> list[str]:
    """The resourceVersions in a text that `joined_versions` made."""
    return version.split(_SEPARATOR)


async def merged(
    watches: Sequence[AsyncGenerator[WatchEvent[Kube], None]], versions: Sequence[str]
) -> AsyncGenerator[WatchEvent[Kube], None]:
    """The events of several watches, each in its order; ends when one of them ends, and then ends all.

    `versions` are those that they started from: an event's own version has all of them.
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
