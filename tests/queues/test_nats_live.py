"""Connections to a real nats-server: every way to authenticate, TLS, and servers and passwords that come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from fluence_plugins.master_queue.errors import ConnectionFailedError
from fluence_plugins.master_queue.nats.client import NatsClient, close_connection, open_connection
from fluence_plugins.master_queue.nats.connections import Connections
from fluence_plugins.master_queue.nats.settings import ConnectorSettings
from session_scheduler.config.parsing import validated

from ..controlplane.processes import free_ports
from ..tools.real_programs import made
from ..unit.fluence_plugins.master_queue.fake_nats import Heard, until
from .certificates import write_certificate
from .nats_accounts import Accounts
from .nats_peer import Auth, NatsServer

_SECONDS = 30.0
_UNTRUSTED = "certificate is not trusted"
_NOT_LET_IN = "rejects these credentials, or requires credentials: Authorization Violation$"


class Configured(NatsServer):
    """With more in its configuration; publishing from outside is not for it."""

    def __init__(self, folder: Path, more: dict[str, Any], *, tls: bool = False) -> None:
        super().__init__(folder, auth=Auth.NONE, tls=tls)
        self.more = more

    def _configuration(self) -> dict[str, Any]:
        found = super()._configuration()
        tls = {"tls": found["tls"] | self.more["tls"]} if "tls" in self.more else {}
        return found | self.more | tls


def configured(folder: Path, more: dict[str, Any], *, tls: bool = False) -> NatsServer:
    return made(lambda: Configured(folder, more, tls=tls))


def settings(*servers: str, **more: Any) -> ConnectorSettings:
    return validated(ConnectorSettings, {"servers": list(servers), **more}, "test")


async def connect(found: ConnectorSettings) -> NatsClient:
    return await open_connection(found, closed=print, error=print, name="test", within=_SECONDS)


async def carries(found: ConnectorSettings) -> None:
    """What is published there comes back."""
    client = await connect(found)
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def take(message: Any) -> None:
        got.set_result(message.data)

    try:
        await client.subscribe("a.*", cb=take)
        await client.publish("a.pool", b"hello")
        await client.confirm(_SECONDS)
        assert await asyncio.wait_for(got, _SECONDS) == b"hello"
    finally:
        await close_connection(client)


async def refused(found: ConnectorSettings, why: str) -> None:
    with pytest.raises(ConnectionFailedError, match=why):
        await connect(found)


# ------------------------------------------------------------------ who connects


@pytest.mark.parametrize("nats", [Auth.NONE, Auth.PASSWORD, Auth.TOKEN], indirect=True)
async def test_addresses_with_user_or_token_let_in(nats: NatsServer) -> None:
    await carries(settings(nats.url))
    if nats.auth is not Auth.NONE:
        await refused(
            settings(nats.bare_url), "rejects these credentials, or requires credentials: Authorization Violation$"
        )
        wrong = nats.url.replace(nats.password if nats.auth is Auth.PASSWORD else nats.token, "wrong")
        await refused(settings(wrong), _NOT_LET_IN)


async def test_files_with_user_and_password_let_in(nats: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "user").write_text(nats.user + "\n")
    (tmp_path / "password").write_text(nats.password)
    files = {"userFile": str(tmp_path / "user"), "passwordFile": str(tmp_path / "password")}
    await carries(settings(nats.bare_url, **files))


@pytest.mark.parametrize("nats", [Auth.NKEY], indirect=True)
async def test_an_nkey_lets_in(nats: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "seed").write_text(nats.seed)
    await carries(settings(nats.bare_url, nkeySeedFile=str(tmp_path / "seed")))
    (tmp_path / "seed").write_text(made(lambda: NatsServer(tmp_path / "other", auth=Auth.NKEY)).seed)
    await refused(settings(nats.bare_url, nkeySeedFile=str(tmp_path / "seed")), _NOT_LET_IN)


async def test_a_credentials_file_lets_in(tmp_path: Path) -> None:
    accounts = Accounts()
    (tmp_path / "right.creds").write_text(accounts.credentials)
    (tmp_path / "wrong.creds").write_text(Accounts().credentials)
    with configured(tmp_path / "nats", accounts.configuration) as nats:
        await carries(settings(nats.bare_url, credentialsFile=str(tmp_path / "right.creds")))
        await refused(
            settings(nats.bare_url, credentialsFile=str(tmp_path / "wrong.creds")), "Authorization Violation$"
        )


# ------------------------------------------------------------------ TLS


async def test_tls_is_verified_by_the_ca(tls_nats: NatsServer, tmp_path: Path) -> None:
    other = write_certificate(tmp_path / "other")
    await carries(settings(tls_nats.url, tls={"caFile": str(tls_nats.ca_file)}))
    await carries(settings(tls_nats.url.replace("tls://", "nats://"), tls={"caFile": str(tls_nats.ca_file)}))
    await refused(settings(tls_nats.url, tls={"caFile": str(other)}), rf"{_UNTRUSTED} \(self.signed")
    await refused(settings(tls_nats.url), _UNTRUSTED)
    await refused(settings(tls_nats.url.replace("tls://", "nats://")), _UNTRUSTED)


async def test_tls_is_verified_by_the_name(tls_nats: NatsServer) -> None:
    tls = {"caFile": str(tls_nats.ca_file)}
    await carries(settings(tls_nats.url, tls=tls | {"serverName": "localhost"}))
    await refused(settings(tls_nats.url, tls=tls | {"serverName": "nats.nats"}), _UNTRUSTED)


async def test_a_server_without_tls_is_refused_where_tls_is_wanted(nats: NatsServer) -> None:
    await refused(settings(nats.url.replace("nats://", "tls://")), "the server offers no TLS, but TLS is required")


async def test_tls_is_used_where_the_server_does_not_require_it(tmp_path: Path) -> None:
    with configured(tmp_path / "nats", {"allow_non_tls": True}, tls=True) as nats:
        client = await connect(settings(nats.url, tls={"caFile": str(nats.ca_file)}))
        (seen,) = nats.connections()
        assert seen["tls_version"]
        await close_connection(client)


async def test_a_client_shows_its_own_certificate(tmp_path: Path) -> None:
    own, other = write_certificate(tmp_path / "own"), write_certificate(tmp_path / "other")
    with configured(tmp_path / "nats", {"tls": {"ca_file": str(own), "verify": True}}, tls=True) as nats:
        tls = {"caFile": str(nats.ca_file)}
        shown = {"certFile": str(own), "keyFile": str(own.with_name("tls.key"))}
        await carries(settings(nats.bare_url, tls=tls | shown))
        await refused(settings(nats.bare_url, tls=tls), "certFile")
        strange = {"certFile": str(other), "keyFile": str(other.with_name("tls.key"))}
        await refused(settings(nats.bare_url, tls=tls | strange), "certFile")
        swapped = {"certFile": str(own), "keyFile": str(other.with_name("tls.key"))}
        await refused(
            settings(nats.bare_url, tls=tls | swapped), "tls.certFile .*cannot read the certificate and its key"
        )


async def test_web_sockets_carry_too(tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path / "tls")
    plain, secure = free_ports(2)
    own = {"cert_file": str(certificate), "key_file": str(certificate.with_name("tls.key"))}
    with configured(tmp_path / "a", {"websocket": {"host": "127.0.0.1", "port": plain, "no_tls": True}}):
        await carries(settings(f"ws://127.0.0.1:{plain}"))
    with configured(tmp_path / "b", {"websocket": {"host": "127.0.0.1", "port": secure, "tls": own}}):
        await carries(settings(f"wss://127.0.0.1:{secure}", tls={"caFile": str(certificate)}))
        for name, trusted in (("localhost", True), ("nats.nats", False)):
            named = settings(f"wss://127.0.0.1:{secure}", tls={"caFile": str(certificate), "serverName": name})
            await (carries(named) if trusted else refused(named, _UNTRUSTED))
        await refused(settings(f"wss://127.0.0.1:{secure}"), _UNTRUSTED)


# ------------------------------------------------------------------ their lives


class World:
    def __init__(self, found: ConnectorSettings) -> None:
        self.heard = Heard()
        meter: Any = self.heard
        self.connections = Connections(
            {"pools": found}, self.heard, meter=meter, sleep=lambda seconds: asyncio.sleep(seconds / 10)
        )

    @asynccontextmanager
    async def following(self, *subjects: str) -> AsyncIterator[None]:
        self.connections.follow({"pools": subjects})
        task = asyncio.create_task(self.connections.run())
        try:
            yield
        finally:
            task.cancel()
            async with asyncio.timeout(_SECONDS):
                with suppress(asyncio.CancelledError):
                    await task

    async def connected(self, times: int) -> None:
        await until(lambda: self.heard.count("connected") == times, _SECONDS)

    async def heard_all(self, *data: bytes) -> None:
        await until(lambda: [message[3] for message in self.heard.messages] == list(data), _SECONDS)


async def _killed_and_back(nats: NatsServer, url: str = "") -> None:
    world = World(settings(url or nats.url))
    async with world.following("interlink.resources"):
        await world.connected(1)
        nats.publish("interlink.resources.a", b"1")
        await world.heard_all(b"1")
        with nats.away():
            await until(lambda: world.connections.problem("pools"), _SECONDS)
        await world.connected(2)
        nats.publish("interlink.resources.a", b"2" * (1 << 20))
        await world.heard_all(b"1", b"2" * (1 << 20))
        assert nats.subscriptions() == ["interlink.resources.*"]
    assert dict(world.heard.reconnects) == {"pools": 1}
    await until(lambda: nats.connections() == [], _SECONDS)


async def test_a_server_that_is_killed_is_found_again(nats: NatsServer) -> None:
    await _killed_and_back(nats)


async def test_a_server_that_is_killed_is_found_again_over_a_web_socket(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with configured(tmp_path / "nats", {"websocket": {"host": "127.0.0.1", "port": port, "no_tls": True}}) as nats:
        await _killed_and_back(nats, f"ws://127.0.0.1:{port}")


def test_so_it_is_on_the_loop_that_serves(tls_nats: NatsServer) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        tls = {"caFile": str(tls_nats.ca_file)}
        runner.run(carries(settings(tls_nats.url, tls=tls)))
        runner.run(refused(settings(tls_nats.url), _UNTRUSTED))


def test_a_killed_server_is_found_again_on_the_loop_that_serves(nats: NatsServer) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_killed_and_back(nats))


async def test_a_password_may_change_on_both_sides(nats: NatsServer, tmp_path: Path) -> None:
    user, password = tmp_path / "user", tmp_path / "password"
    user.write_text(nats.user)
    password.write_text(nats.password)
    world = World(settings(nats.bare_url, userFile=str(user), passwordFile=str(password)))
    async with world.following("a"):
        await world.connected(1)
        nats.stop()
        nats.password = "another"
        nats.start()
        await until(lambda: "Authorization Violation" in (world.connections.problem("pools") or ""), _SECONDS)
        password.write_text("another\n")
        await world.connected(2)
        nats.publish("a.pool", b"1")
        await world.heard_all(b"1")


async def test_subjects_that_a_user_may_not_have_are_told_and_the_others_heard(tmp_path: Path) -> None:
    user = {"user": "u", "password": "p", "permissions": {"subscribe": ["a.*"], "publish": [">"]}}
    with configured(tmp_path / "nats", {"authorization": {"users": [user]}}) as nats:
        world = World(settings(nats.bare_url.replace("://", "://u:p@")))
        async with world.following("a", "B"):
            await until(lambda: world.heard.count("lost"), _SECONDS)
            why = "the server does not permit subscribing to 'B.*'; grant this user the permission on the server"
            assert world.connections.problem("pools") == why
            client = await connect(settings(nats.bare_url.replace("://", "://u:p@")))
            await client.publish("a.pool", b"1")
            await client.confirm(_SECONDS)
            await close_connection(client)
            await world.heard_all(b"1")
            world.connections.follow({"pools": ["a"]})
            await world.connected(1)
    assert world.heard.events == [("lost", "pools", why), ("connected", "pools")]


async def test_no_subject_that_a_publisher_chooses_ends_the_connection(nats: NatsServer) -> None:
    world = World(settings(nats.url))
    async with world.following("a"):
        await world.connected(1)
        reader, writer = await asyncio.open_connection("127.0.0.1", nats.port)
        who = {"user": nats.user, "pass": nats.password, "headers": True, "verbose": False}
        writer.write(b"CONNECT %s\r\n" % json.dumps(who).encode())
        for subject in (b"a.b\x0bc", b"a.\xff\xfe", b"a.\x00", b"a.b\x0c1"):
            writer.write(b"PUB %s 2\r\nhi\r\n" % subject)
        writer.write(b"HPUB a.headers 2 4\r\n\r\nhi\r\nPING\r\n")
        while await reader.readline() != b"PONG\r\n":
            assert not reader.at_eof()
        writer.close()
        await writer.wait_closed()
        nats.publish("a.pool", b"1")
        await until(lambda: world.heard.messages and world.heard.messages[-1][3] == b"1", _SECONDS)
    assert world.heard.count("lost") == 0
    assert len(world.heard.messages) == 6
