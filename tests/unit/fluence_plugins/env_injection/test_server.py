"""The HTTPS server: TLS, certificates that are swapped, and clients that take their time."""

import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from fluence_plugins.env_injection.certificates import Material, make
from fluence_plugins.env_injection.metrics import WebhookMetrics
from fluence_plugins.env_injection.reviews import SMALL_BODY, Reviews
from fluence_plugins.env_injection.server import TlsServer, load_chain, tls_context
from session_scheduler.base.sockets import bound

from .reviewing import Labels, review, text_of

NOW = datetime.now(UTC)
NAME = "127.0.0.1"
PATIENCE = 20.0


class Served:
    """A server on a free port, and a client that trusts its CA."""

    def __init__(self, host: str = NAME, **more: Any) -> None:
        self.material = make([NAME], NOW)
        self.context = tls_context()
        load_chain(self.context, self.material.chain)
        self.reviews = Reviews({"labels": Labels()}, WebhookMetrics(), most_requests=1)
        listening = bound(host, 0)
        self.port = listening.getsockname()[1]
        self.server = TlsServer(listening, self.context, self.reviews, **more)
        self.client = ssl.create_default_context(cadata=self.material.authorities.decode())

    async def ask(self, **more: Any) -> int:
        limit = aiohttp.ClientTimeout(total=PATIENCE)
        async with aiohttp.ClientSession(timeout=limit) as session, session.post(
            f"https://{NAME}:{self.port}/mutate/labels", ssl=self.client, json=review(), **more
        ) as answer:  # fmt: skip
            return answer.status

    async def open(self, *, tls: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(NAME, self.port, ssl=self.client if tls else None)

    async def certificate(self) -> bytes:
        reader, writer = await self.open()
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
        assert reader is not None
        return found


@asynccontextmanager
async def served(**more: Any) -> AsyncIterator[Served]:
    world = Served(**more)
    await world.server.start()
    async with asyncio.timeout(PATIENCE):
        yield world
    await world.server.stop()


def der(material: Material) -> bytes:
    return ssl.PEM_cert_to_DER_cert(material.certificate.decode())


async def test_reviews_are_answered_over_verified_tls() -> None:
    async with served() as world:
        assert await world.ask() == 200


async def test_a_server_on_all_ipv6_addresses_answers_ipv4_too() -> None:
    async with served(host="::") as world:
        assert await world.ask() == 200


async def test_no_tls_session_is_resumed_with_an_earlier_certificate() -> None:
    async with served() as world:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            world.client.maximum_version = version
            reader, writer = await world.open()
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"404: Not Found")  # tickets come before the first answer
            session = writer.get_extra_info("ssl_object").session
            writer.transport.abort()
            assert (session.has_ticket, session.ticket_lifetime_hint) == (False, 0), version


@pytest.mark.parametrize(("version", "taken"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)])
def test_tls_below_1_2_is_rejected(version: str, taken: bool) -> None:
    asking, serving = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls_context()
    load_chain(serving, make([NAME], NOW).chain)
    asking.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        asking.minimum_version = asking.maximum_version = ssl.TLSVersion[version]
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        asking.wrap_bio(to_client, to_server, server_hostname=NAME).do_handshake()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    with pytest.raises(
        ssl.SSLWantReadError if taken else ssl.SSLError, match=None if taken else "UNSUPPORTED_PROTOCOL"
    ):
        server.do_handshake()


async def test_a_new_certificate_is_served_from_the_next_handshake_and_no_connection_breaks() -> None:
    async with served() as world:
        reader, writer = await world.open()
        new = make([NAME], NOW)
        load_chain(world.context, new.chain)
        world.client.load_verify_locations(cadata=new.authorities.decode())
        assert await world.certificate() == der(new)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        writer.transport.abort()


async def test_a_certificate_without_its_key_is_rejected_and_the_previous_one_stays() -> None:
    async with served() as world:
        before, other = await world.certificate(), make([NAME], NOW)
        with pytest.raises(ssl.SSLError):
            load_chain(world.context, other.certificate + world.material.key)
        assert await world.certificate() == before


@pytest.mark.parametrize("start", [b"", b"POST /mutate/labels HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_without_a_request_in_time_is_closed(start: bytes) -> None:
    async with served(greeting=0.1) as world:
        reader, writer = await world.open()
        writer.write(start)
        assert await reader.read() == b""
        writer.transport.abort()


async def test_a_connection_without_a_handshake_is_closed() -> None:
    async with served(greeting=0.1) as world:
        reader, writer = await world.open(tls=False)
        assert await reader.read() == b""
        writer.transport.abort()


async def test_a_connection_with_a_request_is_kept_alive() -> None:
    over, looked = asyncio.Event(), []

    async def sleep(seconds: float) -> None:
        await over.wait()
        looked.append(seconds)

    async with served(greeting=60, sleep=sleep) as world:
        reader, writer = await world.open()
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await reader.readuntil(b"404: Not Found")
            assert answer.startswith(b"HTTP/1.1 404")
            over.set()  # the time for the first request
            while not looked:  # noqa: ASYNC110 (nothing reports it)
                await asyncio.sleep(0)
        assert looked == [60]
        writer.transport.abort()


@pytest.mark.parametrize("sent", [b"\x16\x03\x01garbage", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5000])
async def test_bytes_that_are_not_tls_close_the_connection_without_a_log_line(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as world:
        reader, writer = await world.open(tls=False)
        writer.write(sent)
        with suppress(ConnectionResetError):
            await reader.read()
        writer.transport.abort()
        assert await world.ask() == 200
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


@pytest.mark.parametrize("sent", [b"no http\r\n\r\n", b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
                                  b"POST /mutate/labels HTTP/1.1\r\nContent-Length: -1\r\n\r\n"])  # fmt: skip
async def test_bytes_that_are_not_http_are_rejected_without_a_log_line(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as world:
        reader, writer = await world.open()
        writer.write(sent)
        assert b" 400 " in await reader.readline()
        writer.transport.abort()
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_a_client_with_many_connections_blocks_no_other() -> None:
    async with served(most_connections=3, greeting=60) as world:
        held = [await world.open() for _ in range(6)]
        for _, writer in held:  # each has asked once
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await world.ask() == 200
        for reader, writer in held[:4]:
            await reader.read()  # closed, the oldest first
            writer.transport.abort()
        for _, writer in held[4:]:
            writer.transport.abort()


async def test_clients_without_a_handshake_block_no_other() -> None:
    async with served(most_connections=2, greeting=60) as world:
        held = [await world.open(tls=False) for _ in range(4)]
        assert await world.ask() == 200
        for reader, writer in held[:3]:
            assert await reader.read() == b""
            writer.transport.abort()
        held[3][1].transport.abort()


async def test_a_request_in_flight_completes_before_the_server_stops() -> None:
    body = text_of(review()) + b" " * SMALL_BODY
    head = ["POST /mutate/labels HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    async with served() as world:
        reader, writer = await world.open()
        writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body[:50])
        while not world.reviews._slots.locked():  # noqa: ASYNC110 (nothing reports it)
            await asyncio.sleep(0.01)
        stopping = asyncio.ensure_future(world.server.stop())
        await asyncio.sleep(0)
        writer.write(body[50:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await stopping
        with pytest.raises(ConnectionRefusedError):
            await world.open()
        writer.transport.abort()


async def test_a_server_with_open_connections_stops_at_once() -> None:
    async with served() as world:
        _, idle = await world.open()
        _, raw = await world.open(tls=False)
        async with asyncio.timeout(1.5):
            await world.server.stop()
        for writer in (idle, raw):
            writer.transport.abort()
