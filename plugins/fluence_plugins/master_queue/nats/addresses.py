"""Parses the addresses of NATS servers, which may contain a user or token. Errors show no part of an address."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from session_scheduler.sdk.addresses import host_and_port

PORTS: Final = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
"""The default ports, by scheme."""
LONGEST: Final = 2048
_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[-A-Za-z0-9_.]{0,251}[A-Za-z0-9_.])?|[0-9A-Fa-f:.]{2,45}")
_PATH: Final = re.compile(r"/[-A-Za-z0-9._~/]*")


@dataclass(frozen=True, slots=True)
class Server:
    """A server. Its representation shows no secret."""

    scheme: str
    host: str
    port: int
    path: str = ""
    """The path of a WebSocket; empty, or starts with /."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def place(self) -> str:
        """Host and port."""
        return host_and_port(self.host, self.port)

    @property
    def url(self) -> str:
        """The address without user, password and token."""
        return f"{self.scheme}://{self.place}{self.path}"

    @property
    def has_user(self) -> bool:
        """Whether the address contains a user or token."""
        return self.user is not None or self.token is not None


def server_of(url: str) -> Server | str:
    """The server; if the address is invalid, the problem with a remedy."""
    if len(url) > LONGEST or not url.isprintable() or " " in url:
        return f"is not valid; write at most {LONGEST} printable characters without spaces"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not valid; write nats://host:port, and encode : / @ in user and password as %3A %2F %40"
    if parts.scheme not in PORTS:
        return "is not a NATS address; write nats://, tls://, ws:// or wss:// before host:port"
    host = parts.hostname or ""
    if port == 0 or not _HOST.fullmatch(host):
        return "has no valid host; write nats://host:port"
    if parts.query or parts.fragment or not _path_fits(parts):
        return "has text after host:port; remove it, and encode / ? # in user and password as %2F %3F %23"
    user, password, token = _user(parts)
    if user == "" or token == "":
        return "has an empty user or token before the @; write user:password@ or token@"
    return Server(parts.scheme, host, port or PORTS[parts.scheme], _path(parts), user, password, token)


def _path_fits(parts: SplitResult) -> bool:
    return parts.path in ("", "/") or (parts.scheme in ("ws", "wss") and _PATH.fullmatch(parts.path) is not None)


def _path(parts: SplitResult) -> str:
    return parts.path if parts.scheme in ("ws", "wss") else ""


def _user(parts: SplitResult) -> tuple[str | None, str | None, str | None]:
    """User, password and token."""
    if "@" not in parts.netloc:
        return None, None, None
    name = unquote(parts.username or "")
    if parts.password is None:
        return None, None, name
    return name, unquote(parts.password), None
