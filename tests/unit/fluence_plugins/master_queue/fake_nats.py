"""A NATS server in this process, with which everything can be wrong; and a listener and a sleep for tests with it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Self

SOON = 30.0
"""Seconds within which all that is waited for happens, however busy the machine is."""


class Way(Enum):
    """What a server does with one that connects."""

    SERVE = auto()
    SAY_NOTHING = auto()
    CLOSE_AT_ONCE = auto()
    TALK_HTTP = auto()
    GREET_STRANGELY = auto()
    HANG_AFTER_CONNECT = auto()


@dataclass(eq=False)
class Client:
    """One that is connected, as the server knows it."""

    writer: asyncio.StreamWriter
    said: dict[str, Any] = field(default_factory=dict)
    """Its CONNECT."""
    subjects: dict[str, str] = field(default_factory=dict)
    """By subscription."""

    def send(self, data: bytes) -> None:
        """Send it these bytes."""
        self.writer.write(data)


class FakeNats:
    """Listens on the loopback interface while it is entered, and again on the same port after `start`."""

    def __init__(self, *, info: dict[str, Any] | None = None, context: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.info = {"server_id": "fake", "version": "2.9.10", "max_payload": 1 << 20, "headers": True, **(info or {})}
        self.way = Way.SERVE
        self.takes: Callable[[dict[str, Any]], bool] = lambda _: True
        """Whether what CONNECT says lets one in."""
        self.denied: set[str] = set()
        self.silent = False
        """Whether it answers no PING."""
        self.clients: list[Client] = []
        self.connects: list[dict[str, Any]] = []
        self.came = 0
        self.subscribed: Counter[str] = Counter()
        """How often each subject was subscribed to, ever."""
        self.behind_info = b""
        """What it sends behind INFO, before TLS."""
        self._context = context
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Its address, without credentials."""
        return f"nats://127.0.0.1:{self.port}"

    def url_of(self, who: str) -> str:
        """Its address with a user or token."""
        return f"nats://{who}@127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=1 << 22)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close every connection, and listen no more."""
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Close every connection, and take new ones."""
        for client in self.clients:
            client.writer.transport.abort()

    @property
    def subjects(self) -> list[str]:
        """What is subscribed to now."""
        return sorted(subject for client in self.clients for subject in client.subjects.values())

    def publish(self, subject: str | bytes, data: bytes) -> None:
        """To each subscription of exactly its first words."""
        name = subject.encode() if isinstance(subject, str) else subject
        for client in self.clients:
            for number, wanted in client.subjects.items():
                if wanted == f"{name.rpartition(b'.')[0].decode()}.*":
                    client.send(b"MSG %s %s %d\r\n%s\r\n" % (name, number.encode(), len(data), data))

    def say(self, line: bytes) -> None:
        """Send a line to everybody."""
        for client in self.clients:
            client.send(line + b"\r\n")

    # ---------------------------------------------------------------- serving

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        client = Client(writer)
        self.clients.append(client)
        self.came += 1
        try:
            await self._serve(reader, client)
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            self._serving.discard(task)
            self.clients.remove(client)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, client: Client) -> None:
        match self.way:
            case Way.CLOSE_AT_ONCE:
                return
            case Way.TALK_HTTP:
                client.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            case Way.GREET_STRANGELY:
                client.send(b"INFO [1]\r\n")
            case Way.SERVE | Way.HANG_AFTER_CONNECT:
                client.send(b"INFO %s\r\n%s" % (json.dumps(self.info).encode(), self.behind_info))
                if self._context is not None:
                    await client.writer.start_tls(self._context)
        while line := await reader.readline():
            if self.way in (Way.SERVE, Way.HANG_AFTER_CONNECT) and not await self._take(line, reader, client):
                return

    async def _take(self, line: bytes, reader: asyncio.StreamReader, client: Client) -> bool:
        """Whether it may stay."""
        word, *words = line.decode().split()
        match word:
            case "CONNECT":
                client.said = json.loads(line.partition(b" ")[2])
                self.connects.append(client.said)
                if not self.takes(client.said):
                    client.send(b"-ERR 'Authorization Violation'\r\n")
                    await client.writer.drain()
                    return False
            case "PING" if not self.silent and self.way is not Way.HANG_AFTER_CONNECT:
                client.send(b"PONG\r\n")
            case "SUB":
                self._subscribe(client, words[0], words[-1])
            case "UNSUB":
                client.subjects.pop(words[0], None)
            case "PUB":
                self.publish(words[0], (await reader.readexactly(int(words[-1]) + 2))[:-2])
        return True

    def _subscribe(self, client: Client, subject: str, number: str) -> None:
        self.subscribed[subject] += 1
        if subject in self.denied:
            client.send(b"-ERR 'Permissions Violation for Subscription to \"%s\"'\r\n" % subject.encode())
        else:
            client.subjects[number] = subject


# -------------------------------------------------------------------- what hears, and waits


class Heard:
    """A listener and a meter that record what they receive."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []
        self.unheard: list[float] = []
        self.messages: list[tuple[str, str, str, bytes]] = []
        self.reconnects: Counter[str] = Counter()
        self.drops: Counter[str] = Counter()

    def connected(self, connector: str) -> None:
        self.events.append(("connected", connector))

    def lost(self, connector: str, why: str, unheard: float) -> None:
        self.events.append(("lost", connector, why))
        self.unheard.append(unheard)

    def message(self, connector: str, subject: str, message_subject: str, data: bytes) -> None:
        self.messages.append((connector, subject, message_subject, data))

    def reconnected(self, connector_label: str) -> None:
        self.reconnects[connector_label] += 1

    def dropped(self, connector_label: str) -> None:
        self.drops[connector_label] += 1

    def count(self, what: str) -> int:
        """Events of a kind."""
        return sum(event[0] == what for event in self.events)


class Delays:
    """A sleep that lasts until the test lets it pass."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._passes = asyncio.Semaphore(0)

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self._passes.acquire()

    def pass_one(self) -> None:
        """Let one sleep end, now or when it begins."""
        self._passes.release()


async def until(true: Callable[[], object], seconds: float = SOON) -> None:
    """Let the loop run until this is so."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 (what it waits for has no event)
            await asyncio.sleep(0.001)
