"""What a connector is, and one connection: whatever is wrong is one line without secrets, and nothing stays behind."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fluence_plugins.master_queue.errors import ConnectionFailedError, RefusedSubjectError
from fluence_plugins.master_queue.nats.client import NatsClient, close_connection, open_connection
from fluence_plugins.master_queue.nats.nkeys import SEED, USER, text_of
from fluence_plugins.master_queue.nats.settings import ConnectorSettings, label_of, settings_of
from session_scheduler.config.parsing import validated
from session_scheduler.errors import FluenceError, InputError

from .....queues.certificates import write_certificate
from ..fake_nats import SOON, FakeNats, Way, until
from ..virtual_time import run

SECRET = "s3cret-word"


@pytest.fixture
async def server() -> AsyncIterator[FakeNats]:
    async with FakeNats() as fake:
        yield fake


class Ears:
    """What a connection reports."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.errors: list[FluenceError] = []


async def connect(
    url: str, ears: Ears | None = None, *, within: float = SOON, ping: float = 5.0, **more: Any
) -> NatsClient:
    ears = ears or Ears()
    settings = ConnectorSettings(servers=(url,), **more)
    return await open_connection(
        settings, closed=ears.closed.append, error=ears.errors.append, name="test", within=within, ping_seconds=ping
    )


def settings(**values: Any) -> ConnectorSettings:
    return validated(ConnectorSettings, values, "file", "connectors.a")


def seed(prefix: int = USER) -> tuple[str, Ed25519PublicKey]:
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    head = bytes([SEED | prefix >> 5, (prefix & 31) << 3])
    return text_of(head + private.private_bytes_raw()), private.public_key()


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "file: connectors.a.servers: is missing; add it"),
        ({"servers": f"nats://u:{SECRET}@h"}, "file: connectors.a.servers: expected a list of addresses; write [nats://host:port]"),
        ({"servers": []}, "file: connectors.a.servers: expected 1 to 16 addresses, got 0"),
        ({"servers": [f"nats://u:{SECRET}@h"] * 17}, "file: connectors.a.servers: expected 1 to 16 addresses, got 17"),
        (
            {"servers": ["nats://h", f"http://u:{SECRET}@h"]},
            "file: connectors.a.servers[1]: is not a NATS address;"
            " write nats://, tls://, ws:// or wss:// before host:port",
        ),
        (
            {"servers": ["nats://h"], "userFile": "/u"},
            "file: connectors.a.passwordFile: is missing; set both userFile and passwordFile, or neither",
        ),
        (
            {"servers": [f"nats://{SECRET}@h"], "tokenFile": "/t"},
            "file: connectors.a: tokenFile, a user or token in servers: use only one way to authenticate",
        ),
        (
            {"servers": ["nats://h"], "nkeySeedFile": "/n", "credentialsFile": "/c"},
            "file: connectors.a: nkeySeedFile, credentialsFile: use only one way to authenticate",
        ),
        (
            {"servers": ["tls://h"], "tls": {"keyFile": "/k"}},
            "file: connectors.a.tls.certFile: is missing; set both certFile and keyFile, or neither",
        ),
        (
            {"servers": ["ws://h"], "tls": {"caFile": "/k"}},
            "file: connectors.a.servers[0]: has no TLS, but tls is set; write wss:// or remove tls",
        ),
        (
            {"servers": ["nats://h"], "tls": {"insecure": True}},
            "file: connectors.a.tls.insecure: unknown field; use one of caFile, certFile, keyFile, serverName",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_a_configured_connector_is_one_line_without_secrets(values: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as raised:
        settings(**values)
    assert list(raised.value.messages) == [line]


def test_the_representation_of_settings_has_no_secrets() -> None:
    found = settings(servers=[f"nats://u:{SECRET}@h:1", f"nats://{SECRET}@h"])
    assert SECRET not in f"{found!r} {found} {found.addresses!r}"


@pytest.mark.parametrize(
    ("url", "place", "who"),
    [
        ("nats://h", "h:4222", (None, None, None)),
        ("tls://h:1/", "h:1", (None, None, None)),
        ("ws://h/a/b", "h:80", (None, None, None)),
        ("wss://[::1]", "[::1]:443", (None, None, None)),
        ("nats://u:p%40%3A%2F%2C%25@h:1", "h:1", ("u", "p@:/,%", None)),
        ("nats://t%40@h", "h:4222", (None, None, "t@")),
        ("nats://u:@h", "h:4222", ("u", "", None)),
    ],
)
def test_an_address_is_split_into_place_and_user(url: str, place: str, who: tuple[str | None, ...]) -> None:
    (found,) = settings_of(url, {}).addresses
    assert (found.place, (found.user, found.password, found.token)) == (place, who)


@pytest.mark.parametrize(
    ("connector", "line"),
    [
        ("site-a", "'site-a' is not a configured connector; configure it, or write nats://host:port"),
        (
            f"u:{SECRET}@h:4222",
            "the value is neither an address nor a configured connector; configure it, or write nats://host:port",
        ),
        ("ftp://h", "the address is not a NATS address; write nats://, tls://, ws:// or wss:// before host:port"),
        (
            f"nats://u:{SECRET}/@h",
            "the address is not valid; write nats://host:port, and encode : / @ in user and password as %3A %2F %40",
        ),
        (
            f"nats://u:12/{SECRET}@h",
            "the address has text after host:port; remove it,"
            " and encode / ? # in user and password as %2F %3F %23",
        ),
        (f"nats://h?{SECRET}", "the address has text after host:port; remove it,"
            " and encode / ? # in user and password as %2F %3F %23"),
        (f"nats://:{SECRET}@h", "the address has an empty user or token before the @; write user:password@ or token@"),
        ("nats://", "the address has no valid host; write nats://host:port"),
        ("nats://h:0", "the address has no valid host; write nats://host:port"),
        ("nats://a b", "the address is not valid; write at most 2048 printable characters without spaces"),
        ("nats://a\x00", "the address is not valid; write at most 2048 printable characters without spaces"),
        (
            f"nats://h,nats://u:{SECRET},@h2",
            "address 2 of 3 is not valid; write nats://host:port, and encode : / @ in user and password as %3A %2F %40;"
            " write a comma in an address as %2C",
        ),
        (",".join(["nats://h"] * 17), "has 17 addresses; write at most 16, separated by commas"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_nats_connector_is_one_line_without_secrets(connector: str, line: str) -> None:
    with pytest.raises(InputError) as raised:
        settings_of(connector, {})
    assert list(raised.value.messages) == [line]
    assert SECRET not in label_of(connector, {})


def test_a_connector_is_a_name_or_addresses() -> None:
    configured = {"site-a": settings(servers=["nats://h"], tokenFile="/t")}
    assert settings_of("site-a", configured) is configured["site-a"]
    found = settings_of(f"nats://u:{SECRET}@a:1, tls://b", configured)
    assert [server.url for server in found.addresses] == ["nats://a:1", "tls://b:4222"]
    connectors = ("site-a", f"nats://u:{SECRET}@a:1, tls://b", "site-b", SECRET + "/")
    labels = [label_of(one, configured) for one in connectors]
    assert labels == ["site-a", "a:1,b:4222", "site-b", "(no address)"]


# ------------------------------------------------------------------ connecting


async def test_a_connection_publishes_and_closes_without_leaving_tasks(server: FakeNats) -> None:
    ears = Ears()
    client = await connect(server.url, ears)
    got: list[bytes] = []

    async def take(message: Any) -> None:
        got.append(message.data)

    await client.subscribe("a.*", cb=take)
    await client.publish("a.b", b"1")
    await client.confirm(SOON)
    await until(lambda: got == [b"1"])
    await close_connection(client)
    await until(lambda: not server.clients)
    assert [str(task.get_coro()) for task in _tasks_of_clients()] == []
    assert ears.closed == []
    assert server.connects[0]["name"] == "test"
    with pytest.raises(nats.errors.ConnectionClosedError):
        await client.publish("a.b", b"1")


def _tasks_of_clients() -> list[asyncio.Task[Any]]:
    """Tasks but for the test and what serves it."""
    found = asyncio.all_tasks() - {asyncio.current_task()}
    return [task for task in found if "FakeNats" not in str(task.get_coro())]


@pytest.mark.parametrize("way", [Way.SAY_NOTHING, Way.HANG_AFTER_CONNECT])
async def test_a_connection_attempt_to_a_server_that_hangs_ends(server: FakeNats, way: Way) -> None:
    server.way = way
    with pytest.raises(ConnectionFailedError, match=f"^nats://127.0.0.1:{server.port}: no response in time$"):
        await connect(server.url, within=0.05)
    await until(lambda: not server.clients)
    assert _tasks_of_clients() == []


@pytest.mark.parametrize(
    ("way", "why"),
    [
        (Way.CLOSE_AT_ONCE, "the server does not speak NATS"),
        (Way.TALK_HTTP, "the server does not speak NATS"),
        (Way.GREET_STRANGELY, "the server does not speak NATS"),
    ],
)
async def test_a_server_that_does_not_speak_nats_is_reported(server: FakeNats, way: Way, why: str) -> None:
    server.way = way
    with pytest.raises(ConnectionFailedError, match=f": {why}$"):
        await connect(server.url)
    await until(lambda: not server.clients)


async def test_an_unreachable_server_is_reported_and_the_next_one_used(server: FakeNats) -> None:
    other = FakeNats()
    await other.start()
    await other.stop()
    with pytest.raises(ConnectionFailedError, match=f"^nats://127.0.0.1:{other.port}: .*[Cc]onnect"):
        await connect(other.url)
    both = ConnectorSettings(servers=(other.url, server.url))
    client = await open_connection(both, closed=_nothing, error=_nothing, name="test")
    assert client.is_connected
    await close_connection(client)


def test_each_server_has_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    async def hangs(
        _settings: object, _server: object, _events: object, _name: str, seconds: float, _: float
    ) -> NatsClient:
        shares.append(seconds)
        await asyncio.sleep(seconds if len(shares) != 2 else 0.0)
        raise ConnectionFailedError("no response in time")

    monkeypatch.setattr("fluence_plugins.master_queue.nats.client._open_connection", hangs)
    three = ConnectorSettings(servers=("nats://a", "nats://b", "nats://c"))
    with pytest.raises(ConnectionFailedError, match=r"^nats://a:4222: no response in time; nats://b"):
        run(open_connection(three, closed=_nothing, error=_nothing, name="test", within=9.0))
    assert shares == [3.0, 3.0, 6.0]  # what one does not need is the next one's


async def test_an_unknown_host_name_is_reported() -> None:
    with pytest.raises(ConnectionFailedError, match=r"^nats://no-such-host.invalid:4222: cannot resolve the host: "):
        await connect("nats://no-such-host.invalid")


async def test_rejected_credentials_are_reported_without_secrets(
    server: FakeNats, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    server.takes = lambda said: said.get("pass") == "right"
    with pytest.raises(ConnectionFailedError) as raised:
        await connect(server.url_of(f"u:{SECRET}"))
    assert str(raised.value) == (
        f"{server.url}: the server rejects these credentials, or requires credentials: Authorization Violation"
    )
    assert raised.value.__cause__ is None
    assert SECRET not in caplog.text + "".join(capfd.readouterr())
    assert server.connects[0]["pass"] == SECRET
    await close_connection(await connect(server.url_of("u:right")))


async def test_files_are_read_again_for_each_connection(server: FakeNats, tmp_path: Path) -> None:
    user, password = tmp_path / "user", tmp_path / "password"
    user.write_text("u\n")
    found = ConnectorSettings(servers=(server.url,), user_file=str(user), password_file=str(password))
    for word in ("one", "two"):
        password.write_text(f"{word}\n")
        await close_connection(await open_connection(found, closed=_nothing, error=_nothing, name="test"))
    assert [(said["user"], said["pass"]) for said in server.connects] == [("u", "one"), ("u", "two")]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "the file cannot be read: No such file or directory"),
        (b"", "the file is empty"),
        (b"a\nb", "the file has more than one line, or characters that are not printable"),
        (b"\xff", "the file is not UTF-8"),
        (b"a" * 70_000, "the file has more than 65536 bytes"),
    ],
)
async def test_an_invalid_file_is_named(server: FakeNats, tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConnectionFailedError) as raised:
        await connect(server.url, token_file=str(file))
    assert str(raised.value).endswith(f": {why}")
    assert "tokenFile" in str(raised.value)
    assert server.came == 0


async def test_a_token_is_sent(server: FakeNats, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    await close_connection(await connect(server.url, token_file=str(tmp_path / "token")))
    await close_connection(await connect(server.url_of("t%40")))
    assert [said["auth_token"] for said in server.connects] == [SECRET, "t@"]


async def test_an_nkey_signs_the_nonce(server: FakeNats, tmp_path: Path) -> None:
    server.info |= {"nonce": "n0nce", "auth_required": True}
    text, public = seed()
    (tmp_path / "seed").write_text(text + "\n")
    await close_connection(await connect(server.url, nkey_seed_file=str(tmp_path / "seed")))
    (said,) = server.connects
    public.verify(base64.urlsafe_b64decode(said["sig"] + "=="), b"n0nce")
    assert said["nkey"] == text_of(bytes([USER]) + public.public_bytes_raw())
    assert said["nkey"].startswith("U")


async def test_a_credentials_file_has_jwt_and_seed(server: FakeNats, tmp_path: Path) -> None:
    server.info |= {"nonce": "n0nce"}
    text, public = seed()
    file = tmp_path / "user.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{text}\n------END USER NKEY SEED------\n"
    )
    await close_connection(await connect(server.url, credentials_file=str(file)))
    (said,) = server.connects
    public.verify(base64.urlsafe_b64decode(said["sig"] + "=="), b"n0nce")
    assert said["jwt"] == "a.b.c"
    file.write_text("-----BEGIN NATS USER JWT-----\n")
    with pytest.raises(
        ConnectionFailedError, match=r"credentialsFile .*: the file does not contain a user's JWT and seed"
    ):
        await connect(server.url, credentials_file=str(file))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[:-1], "a seed has 58 characters"),
        (lambda text: text[:-1] + "1", "a seed has only A-Z and 2-7"),
        (lambda text: text[:9] + ("B" if text[9] == "A" else "A") + text[10:], "the seed's checksum is wrong"),
        (lambda _: seed(0)[0], "a user's seed starts with SU"),
    ],
)
async def test_an_invalid_seed_is_reported_without_the_seed(
    server: FakeNats, tmp_path: Path, change: Callable[[str], str], why: str
) -> None:
    text = change(seed()[0])
    (tmp_path / "seed").write_text(text)
    with pytest.raises(ConnectionFailedError) as raised:
        await connect(server.url, nkey_seed_file=str(tmp_path / "seed"))
    assert str(raised.value).endswith(f"the file does not contain a user's seed: {why}")
    assert text not in str(raised.value)


async def test_no_credentials_are_sent_to_a_server_that_lacks_the_required_tls(server: FakeNats) -> None:
    with pytest.raises(ConnectionFailedError, match="offers no TLS, but TLS is required"):
        await connect(f"tls://u:{SECRET}@127.0.0.1:{server.port}")
    assert server.connects == []


async def test_an_invalid_ca_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nothing")
    async with FakeNats(info={"tls_required": True}) as server:
        with pytest.raises(ConnectionFailedError, match=r"tls.caFile .*/ca: cannot read certificates: "):
            await connect(server.url, tls=validated_tls(caFile=str(tmp_path / "ca")))


@pytest.mark.parametrize("offer", ["tls_required", "tls_available"])
async def test_offered_tls_is_used_and_bytes_before_it_are_not_trusted(tmp_path: Path, offer: str) -> None:
    certificate = write_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("tls.key"))
    async with FakeNats(info={offer: True}, context=context) as server:
        server.behind_info = b"-ERR 'in the clear'\r\nPONG\r\n"
        url = f"tls://u:{SECRET}@127.0.0.1:{server.port}"
        client = await connect(url, tls=validated_tls(caFile=str(certificate)))
        await client.confirm(SOON)
        assert server.clients[0].writer.get_extra_info("ssl_object") is not None
        await close_connection(client)
    assert server.connects[0]["pass"] == SECRET


def validated_tls(**values: str) -> Any:
    return settings(servers=["tls://h"], tls=values).tls


# ------------------------------------------------------------------ its life


async def test_the_end_of_a_connection_is_reported_once_and_ends_waiting_calls(server: FakeNats) -> None:
    ears = Ears()
    client = await connect(server.url, ears)
    server.silent = True
    flush = asyncio.create_task(client.confirm(SOON))
    await asyncio.sleep(0)
    server.cut()
    with pytest.raises(nats.errors.ConnectionClosedError):
        await flush
    assert len(ears.closed) == 1
    assert ears.closed[0].startswith(("the server closed the connection", "the connection was lost: "))
    await close_connection(client)
    assert len(ears.closed) == 1


async def test_the_connection_to_a_silent_server_is_closed(server: FakeNats) -> None:
    ears = Ears()
    client = await connect(server.url, ears, ping=0.005)
    await asyncio.sleep(0.05)
    assert ears.closed == []
    server.silent = True
    await until(lambda: ears.closed)
    assert ears.closed == ["the server no longer responds"]
    await close_connection(client)
    await until(lambda: not server.clients)
    assert _tasks_of_clients() == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"-ERR 'User Authentication Expired'", "the server ended the connection: User Authentication Expired"),
        (b"-ERR", "the server ended the connection: "),
        (b"-ERR '\x1b[31m\xff'", "the server ended the connection: [31m\N{REPLACEMENT CHARACTER}"),
        (b"HTTP/1.1 200", "the server does not follow the NATS protocol: an unknown operation"),
        (b"MSG a 1", "the server does not follow the NATS protocol: a message has an invalid first line"),
        (
            b"MSG a 1 99999999",
            "the server does not follow the NATS protocol: a message has more than 67108864 bytes,"
            " or its headers are larger than the message",
        ),
        (b"x" * 1_100_000, "the server does not follow the NATS protocol: a line has more than 1048576 bytes"),
    ],
)
async def test_the_cause_of_a_closed_connection_is_reported(server: FakeNats, line: bytes, why: str) -> None:
    ears = Ears()
    client = await connect(server.url, ears)
    server.say(line)
    await until(lambda: ears.closed)
    assert ears.closed == [why]
    await close_connection(client)


@pytest.mark.parametrize(
    "line",
    [
        b"+OK",
        b"INFO {",
        b"INFO " + b"[" * 100_000,
        b'INFO {"connect_urls":["h:1"]}',
        b"PONG",
        b"PING",
        b"MSG a 99 2\r\nhi",
    ],
    ids=lambda line: line[:40],
)
async def test_harmless_server_errors_are_ignored(server: FakeNats, line: bytes) -> None:
    ears = Ears()
    client = await connect(server.url, ears)
    server.say(line)
    await client.confirm(SOON)
    assert (ears.closed, ears.errors) == ([], [])
    await close_connection(client)


async def test_a_rejected_subject_is_reported_and_the_connection_stays(server: FakeNats) -> None:
    server.denied = {"Secret.*"}
    ears = Ears()
    client = await connect(server.url, ears)
    await client.subscribe("Secret.*", cb=_ignore)
    await client.confirm(SOON)
    (error,) = ears.errors
    assert isinstance(error, RefusedSubjectError)
    assert error.subject == "secret.*"
    assert str(error) == (
        "the server does not permit subscribing to 'Secret.*'; grant this user the permission on the server"
    )
    assert ears.closed == []
    await close_connection(client)


def _nothing(_: object) -> None:
    pass


async def _ignore(_: object) -> None:
    pass


async def test_unusual_subjects_and_headers_of_a_publisher_do_not_close_the_connection(server: FakeNats) -> None:
    ears = Ears()
    client = await connect(server.url, ears)
    got: list[tuple[str, bytes]] = []

    async def take(message: Any) -> None:
        got.append((message.subject, message.data))

    await client.subscribe("a.*", cb=take)
    await client.confirm(SOON)
    server.publish(b"a.b\x0bc", b"1")
    server.publish(b"a.\xff", b"2")
    server.say(b"HMSG a.b 1 2 3\r\n\r\n3")
    await client.confirm(SOON)
    await until(lambda: len(got) == 3)
    assert got == [("a.b\\x0bc", b"1"), ("a.\\xff", b"2"), ("a.b", b"3")]
    assert ears.closed == []
    await close_connection(client)


async def test_an_error_of_the_message_handler_is_raised(server: FakeNats) -> None:
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["exception"]))
    ears = Ears()
    client = await connect(server.url, ears)

    async def take(_: object) -> None:
        raise LookupError("bug")

    await client.subscribe("a.*", cb=take)
    await client.publish("a.b", b"1")
    await client.confirm(SOON)
    await until(lambda: seen)
    assert [str(one) for one in seen] == ["bug"]
    assert ears.closed == []
    await close_connection(client)


@pytest.mark.parametrize("way", list(Way))
async def test_a_cancellation_at_any_point_leaves_nothing_open(server: FakeNats, way: Way) -> None:
    server.way = way
    for turns in range(25):
        task = asyncio.create_task(connect(server.url))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(found, NatsClient):
            await close_connection(found)
        assert _tasks_of_clients() == []
    await until(lambda: not server.clients)


async def test_connect_is_one_line_of_json_with_any_values(server: FakeNats) -> None:
    client = await connect(server.url_of("a%22%0D%0APING:%C3%A9"))
    await close_connection(client)
    (said,) = server.connects
    assert (said["user"], said["pass"]) == ('a"\r\nPING', "é")
