"""A test server that answers with given bytes, and the recorded answers of a real slurmrestd (exchanges/)."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fluence_plugins.slurm_bridge.slurm.client import Connection, SlurmClient

EXCHANGES = Path(__file__).parent / "exchanges"
TOKEN = "header.claims.signature-that-nobody-may-see"
HANG = b"\0hang"
"""Instead of an answer: the server does not answer."""
DROP = b""
"""Instead of an answer: the server closes the connection."""


@dataclass(frozen=True)
class Exchange:
    """A request and its answer, recorded by tests/slurm/record.py."""

    method: str
    path: str
    request: Any
    status: int
    answer: Any

    @classmethod
    def of(cls, name: str) -> Exchange:
        return cls(**json.loads((EXCHANGES / f"{name}.json").read_text()))

    @property
    def raw(self) -> bytes:
        return slurmrestd(self.status, json.dumps(self.answer).encode())


def slurmrestd(status: int, body: bytes) -> bytes:
    """The bytes that slurmrestd 26.05 writes: after an error response it writes a second one."""
    head = b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\nContent-Type: application/json\r\n\r\n"
    if status < 400:
        return head % (status, b"", len(body)) + body
    second = b"HTTP/1.1 %d X\r\nConnection: Close\r\nContent-Length: 4\r\nContent-Type: text/plain\r\n\r\nOops" % status
    return head % (status, b"Connection: Close\r\n", len(body)) + body + second


@dataclass(frozen=True)
class Request:
    """The requests that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


@dataclass
class Answering:
    """Answers each connection with the next answer, and repeats the last one."""

    answers: Sequence[bytes]
    tls: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"https://localhost:{port}" if self.tls else f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, path, _ = first.split(" ")
            answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
            self.requests.append(Request(method, path, headers, body))
            if answer == HANG:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # in some tests the client disconnects
        finally:
            writer.close()


@dataclass
class Waits:
    """Replaces asyncio.sleep."""

    seconds: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def client(server: Answering | str, folder: Path, waits: Waits | None = None, **settings: Any) -> SlurmClient:
    """A client of the server that never waits, with a token in the directory."""
    token = folder / "token"
    if not token.exists():
        token.write_text(TOKEN)
    url = server if isinstance(server, str) else server.url
    connection = Connection(url=url, token_file=str(token), **settings)
    return SlurmClient(connection, sleep=waits or Waits(), chance=lambda: 1.0)


def without_api(path: str) -> str:
    """A request's path as in the recorded exchanges."""
    return re.sub(r"^/slurm/v[\d.]+/", "", path)
