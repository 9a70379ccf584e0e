"""A server that answers with bytes, right or wrong, and what a real slurmrestd has answered (exchanges/)."""

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
"""In place of an answer: none comes."""
DROP = b""
"""In place of an answer: the connection is closed."""


@dataclass(frozen=True)
class Exchange:
    """One request and its answer, as tests/slurm/record.py has seen them."""

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
    """The bytes that slurmrestd 26.05 writes: where there is an error, a second answer after the first."""
    head = b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\nContent-Type: application/json\r\n\r\n"
    if status < 400:
        return head % (status, b"", len(body)) + body
    second = b"HTTP/1.1 %d X\r\nConnection: Close\r\nContent-Length: 4\r\nContent-Type: text/plain\r\n\r\nOops" % status
    return head % (status, b"Connection: Close\r\n", len(body)) + body + second


@dataclass(frozen=True)
class Request:
    """What the server was asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


@dataclass
class Answering:
    """Answers each connection with the next of the answers; with the last, when there are no more."""

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
            pass  # a client that goes away is what some tests are about
        finally:
            writer.close()


@dataclass
class Waits:
    """A sleep that records its seconds instead of taking them."""

    seconds: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def client(server: Answering | str, folder: Path, waits: Waits | None = None, **settings: Any) -> SlurmClient:
    """A client of it that waits for nothing, with a token in the folder."""
    token = folder / "token"
    if not token.exists():
        token.write_text(TOKEN)
    url = server if isinstance(server, str) else server.url
    connection = Connection(url=url, token_file=str(token), **settings)
    return SlurmClient(connection, sleep=waits or Waits(), chance=lambda: 1.0)


def without_api(path: str) -> str:
    """A request's path as exchanges have it."""
    return re.sub(r"^/slurm/v[\d.]+/", "", path)
