"""The guards between nats-py and a server, each as `docs/reference/guards.md` lists it."""

from __future__ import annotations

import asyncio

from nats.aio.client import Client
from nats.protocol.parser import MSG_RE

from fluence_plugins.master_queue.nats.addresses import Server
from fluence_plugins.master_queue.nats.client import Events, NatsClient, close_connection
from fluence_plugins.master_queue.nats.credentials import Credentials
from fluence_plugins.master_queue.nats.transport import GuardedTransport

from ..fake_nats import SOON


class Scripted(GuardedTransport):
    """Receives these bytes, and a PONG for each PING; keeps what is sent."""

    def __init__(self, received: bytes) -> None:
        super().__init__(Credentials(), print, None, needs_tls=False)
        self.received = asyncio.Queue[bytes]()
        self.received.put_nowait(received)
        self.sent: list[bytes] = []
        self.lost = False

    async def connect(self, *_: object, **__: object) -> None:
        pass

    async def connect_tls(self, *_: object, **__: object) -> None:
        pass

    async def _receive(self) -> bytes:
        return await self.received.get()

    async def _send(self, data: bytes) -> None:
        if self.lost:
            raise BrokenPipeError
        self.sent.append(data)
        if b"PING" in data:
            self.received.put_nowait(b"PONG\r\n")


def test_nats_py_has_the_private_name_that_passes_the_transport() -> None:
    remedy = "nats-py keeps its transport elsewhere: pass it there in NatsClient, or by an option, and see guards.md"
    assert vars(Client()).get("_transport", "nothing") is None, remedy


async def test_a_ping_is_sent_after_lines_that_are_written_later() -> None:
    transport = Scripted(b"")
    transport.write(b"PING\r\n")
    transport.writelines([b"SUB a 1\r\n", b"SUB b 2\r\n"])
    await transport.drain()
    assert transport.sent == [b"SUB a 1\r\nSUB b 2\r\nPING\r\n"]


async def test_a_message_and_the_ping_that_confirms_it_are_sent_at_once() -> None:
    transport = Scripted(b'INFO {"max_payload": 9}\r\n')
    client = NatsClient(transport, Events(print, print))
    await client.start(Server("nats", "h", 4222))
    await client.publish("a.b", b"1")
    await client.confirm(SOON)
    assert transport.sent[2:] == [b"PUB a.b  1\r\n1\r\nPING\r\n"]
    await close_connection(client)


async def test_nats_py_can_read_every_subject_that_a_publisher_can_choose() -> None:
    for byte in set(range(256)) - set(b" \t\r\n"):
        subject = b"a.b%cc" % byte
        transport = Scripted(b"HMSG %s 1 2 4\r\n\r\nhi\r\n" % subject)
        line = await transport.read()
        found = MSG_RE.match(line)
        assert found is not None, line
        assert (found[2], line[found.end() :]) == (b"1", b"hi\r\n")
        assert found[1].decode().isprintable() or byte < 0x80, line


async def test_sending_on_a_lost_connection_raises_nothing_and_reading_ends_it() -> None:
    transport = Scripted(b"")
    transport.lost = True
    transport.writelines([b"SUB a 1\r\n"])
    await transport.drain()
    assert transport.sent == []
