"""Event streams: the changes of a page as server-sent events.

A stream ends when the permissions of its user change: the browser then loads the page again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from fluence_lab.dashboard.access import DeniedError, Reader, Session
from fluence_lab.dashboard.feeds import Feeds, FullError, Subject
from fluence_lab.dashboard.responses import HEADERS
from fluence_lab.dashboard.signing_in import SigningIn

__all__ = ["Streams"]

KEEP_ALIVE_SECONDS: Final = 15.0
"""How often an event stream without changes sends a comment, and its reader is reviewed again."""
WRITE_SECONDS: Final = 20.0
"""How long a client may take to read an event."""
STREAMS_PER_SESSION: Final = 16


class Streams:
    """The open event streams."""

    def __init__(self, feeds: Feeds, signing_in: SigningIn) -> None:
        self._feeds = feeds
        self._signing_in = signing_in
        self._open: dict[str, int] = {}
        """How many, by session or address."""

    async def serve(
        self, request: web.Request, subject: Subject, reader: Reader, session: Session | None
    ) -> web.StreamResponse:
        """Send the changes of a subject, which this reader asks for. Raises DeniedError."""
        name = session.name if session is not None else request.remote or ""
        if self._open.get(name, 0) >= STREAMS_PER_SESSION:
            raise DeniedError(429, f"more than {STREAMS_PER_SESSION} pages are open; close some")
        since = request.headers.get("Last-Event-ID", request.query.get("since", ""))
        number = int(since) if since.isdecimal() and len(since) < 16 else 0
        self._open[name] = self._open.get(name, 0) + 1
        try:
            return await self._stream(request, subject, reader, number)
        except FullError:
            raise DeniedError(503, "too many pages are open; retry later") from None
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]

    async def _stream(self, request: web.Request, subject: Subject, reader: Reader, number: int) -> web.StreamResponse:
        async with self._feeds.followed(subject) as feed:
            answer = web.StreamResponse(
                headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
            )
            await answer.prepare(request)
            try:
                while True:
                    if await feed.change(number, KEEP_ALIVE_SECONDS):
                        text = b"id: %d\ndata: %b\n\n" % (feed.number, feed.since(number))
                        number = feed.number
                    else:
                        text = b": nothing changed\n\n"
                    async with asyncio.timeout(WRITE_SECONDS):
                        await answer.write(text)
                    if await self._lost(request, reader):
                        await answer.write(b"event: end\ndata: {}\n\n")
                        break
            except (ConnectionError, TimeoutError):
                pass  # the client is gone, or does not read
            return answer

    async def _lost(self, request: web.Request, before: Reader) -> bool:
        """Whether the reader may no longer see the same: the browser then loads the page again."""
        try:
            reader, _ = await self._signing_in.reader(request)
        except DeniedError as denied:
            return denied.status != 503
        return reader != before
