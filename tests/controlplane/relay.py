"""A TCP relay to the API server whose connections can be cut."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import cast


class Relay:
    """Passes bytes between clients and a port of the loopback interface, until `cut` breaks every connection."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        at: TracebackType | None) -> None:  # fmt: skip
        self._server.close()
        self.cut()
        await self._server.wait_closed()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def cut(self) -> int:
        """Break all connections at once with a reset; return their number. New connections are possible."""
        for writer in self._open:
            writer.transport.abort()
        return len(self._open) // 2

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = {writer}
        self._open.add(writer)
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            pair.add(back)
            self._open.add(back)
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        except OSError:
            pass  # the server is away, or one end was cut
        finally:
            self._open -= pair
            for end in pair:
                end.transport.abort()


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    target.write_eof()
