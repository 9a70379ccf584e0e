"""A nats-server of a test's own, and what pools do: publish. Publishing is spoken here without any client's library.

    with NatsServer(folder) as nats:
        nats.publish("interlink.resources.podman-firenze", {"quotas": {"pods": 30}})
        nats.wait_subscribed("interlink.resources.*")    # before that no subscriber would get it

It keeps its port and its keys when it is killed and started again.
"""

from __future__ import annotations

import base64
import json
import secrets
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..controlplane.asking import ask
from ..controlplane.processes import Program, Served, free_ports
from .certificates import write_certificate
from .programs import nats_server

_START = 30.0
_ADDRESS = "127.0.0.1"
_SEED, _USER = 18 << 3, 20 << 3
"""Prefixes of nkeys: of a seed, and of a user."""
_PUBLISHER = "pools"
"""What whoever publishes here calls itself."""


class Auth(StrEnum):
    """How clients say who they are."""

    NONE = "none"
    PASSWORD = "password"
    TOKEN = "token"
    NKEY = "nkey"


class NatsServer(Served):
    """nats-server on the loopback interface. `folder` is its own, and keeps its log and keys."""

    def __init__(self, folder: Path, *, auth: Auth = Auth.PASSWORD, tls: bool = False) -> None:
        self._program_file = nats_server()
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self.auth = auth
        self.port, self._monitoring = free_ports(2)
        self.user, self.password, self.token = "fluence", secrets.token_hex(8), secrets.token_hex(8)
        self._key = Ed25519PrivateKey.generate()
        self.ca_file = write_certificate(folder / "tls") if tls else None
        self._program: Program | None = None

    # ------------------------------------------------------------------ life

    @property
    def url(self) -> str:
        """What a client connects to, with the name and password, or the token, where these are needed."""
        who = {Auth.PASSWORD: f"{self.user}:{self.password}@", Auth.TOKEN: f"{self.token}@"}.get(self.auth, "")
        return f"{'tls' if self.ca_file else 'nats'}://{who}{_ADDRESS}:{self.port}"

    @property
    def seed(self) -> str:
        """The seed of the nkey by which a client may come in ("SU…")."""
        return _base32(bytes((_SEED | _USER >> 5, (_USER & 31) << 3)) + self._key.private_bytes_raw())

    @property
    def _public_key(self) -> str:
        return _base32(bytes((_USER,)) + self._key.public_key().public_bytes_raw())

    @property
    def bare_url(self) -> str:
        """The same without credentials."""
        return f"{'tls' if self.ca_file else 'nats'}://{_ADDRESS}:{self.port}"

    def start(self) -> None:
        """Start it, and return once it serves."""
        path = self._folder / "nats.json"  # its configuration language takes JSON
        path.write_text(json.dumps(self._configuration()))
        self._program = Program("nats-server", [self._program_file, "-c", path], self._folder / "nats-server.log")
        try:
            self._program.wait_until(self._serves, _START)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it: clients see their connections closed."""
        program, self._program = self._program, None
        if program is not None:
            program.stop()

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        program, self._program = self._program, None
        if program is not None:
            program.kill()

    @contextmanager
    def away(self) -> Iterator[None]:
        """No server listens on its port meanwhile."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    def _configuration(self) -> dict[str, Any]:
        found: dict[str, Any] = {"host": _ADDRESS, "port": self.port, "http": f"{_ADDRESS}:{self._monitoring}"}
        if self.auth == Auth.PASSWORD:
            found["authorization"] = {"user": self.user, "password": self.password}
        elif self.auth == Auth.TOKEN:
            found["authorization"] = {"token": self.token}
        elif self.auth == Auth.NKEY:
            found["authorization"] = {"users": [{"nkey": self._public_key}]}
        if self.ca_file is not None:
            found["tls"] = {"cert_file": str(self.ca_file), "key_file": str(self.ca_file.with_name("tls.key"))}
        return found

    def _serves(self) -> bool:
        with suppress(OSError), socket.create_connection((_ADDRESS, self.port), timeout=1):
            return self._asked("/healthz") == {"status": "ok"}
        return False

    # ------------------------------------------------------------------ what pools do

    def publish(self, subject: str, payload: object) -> None:
        """Publish once; returns when the server has it. `payload`: bytes as they are, all else as JSON."""
        self.publish_all([(subject, payload)])

    def publish_all(self, messages: Sequence[tuple[str, object]]) -> None:
        """Publish these, (subject, payload) each, over one connection; returns when the server has all."""
        with self._connected() as (connection, lines):
            for subject, payload in messages:
                data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
                connection.sendall(b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(data), data))
            connection.sendall(b"PING\r\n")
            _pong(lines)

    @contextmanager
    def _connected(self) -> Iterator[tuple[socket.socket, Iterator[bytes]]]:
        with socket.create_connection((_ADDRESS, self.port), timeout=10) as plain:
            name, _, info = plain.recv(65_536).partition(b" ")
            assert name == b"INFO", name
            with self._secured(plain) as connection, connection.makefile("rb") as answers:
                connection.sendall(b"CONNECT %s\r\nPING\r\n" % json.dumps(self._who(json.loads(info))).encode())
                lines = iter(answers)
                _pong(lines)
                yield connection, lines

    def _who(self, info: dict[str, Any]) -> dict[str, object]:
        """What a client reports of itself. `info`: the INFO of the server."""
        who = {"verbose": False, "pedantic": False, "name": _PUBLISHER, "lang": "test", "version": "1", "protocol": 1}
        if self.auth == Auth.PASSWORD:
            return who | {"user": self.user, "pass": self.password}
        if self.auth == Auth.TOKEN:
            return who | {"auth_token": self.token}
        if self.auth == Auth.NKEY:
            signature = base64.urlsafe_b64encode(self._key.sign(info["nonce"].encode())).decode()
            return who | {"nkey": self._public_key, "sig": signature.rstrip("=")}
        return who

    def _secured(self, plain: socket.socket) -> socket.socket:
        if self.ca_file is None:
            return plain
        return ssl.create_default_context(cafile=self.ca_file).wrap_socket(plain, server_hostname=_ADDRESS)

    # ------------------------------------------------------------------ what it knows

    def connections(self) -> list[dict[str, Any]]:
        """Its clients now but for who publishes here, as /connz has them: "cid", "name", "subscriptions_list" …

        Connections without a name, such as that of `_serves`, have not said who they are, or have just ended.
        """
        found: list[dict[str, Any]] = self._asked("/connz?subs=1")["connections"]
        return [one for one in found if one.get("name") not in (None, _PUBLISHER)]

    def subscriptions(self) -> list[str]:
        """The subjects that clients listen to now, one for each subscription, sorted."""
        return sorted(subject for client in self.connections() for subject in client.get("subscriptions_list", ()))

    def wait_subscribed(self, *subjects: str, seconds: float = 30.0) -> None:
        """Return once exactly these are listened to. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while (found := self.subscriptions()) != sorted(subjects):
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {seconds:g} s {found} are listened to, not {sorted(subjects)}")
            time.sleep(0.05)

    def _asked(self, path: str) -> Any:
        status, text = ask(_ADDRESS, self._monitoring, path)
        assert status == HTTPStatus.OK, text
        return json.loads(text)


def _pong(lines: Iterator[bytes]) -> None:
    """Read until the server has taken all that was sent before."""
    for line in lines:
        if line.startswith(b"PONG"):
            return
        assert not line.startswith(b"-ERR"), line
    raise ConnectionError("nats-server closed the connection")


# ------------------------------------------------------------------ nkeys


def _base32(data: bytes) -> str:
    """An nkey's text: with the checksum (CRC-16/XMODEM, little endian), without padding."""
    checksum = 0
    for byte in data:
        checksum ^= byte << 8
        for _ in range(8):
            checksum = (checksum << 1 ^ 0x1021 if checksum & 0x8000 else checksum << 1) & 0xFFFF
    return base64.b32encode(data + checksum.to_bytes(2, "little")).decode().rstrip("=")
