"""Who connects, read from files for each connection: they may be replaced at any time. No error shows a secret."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluence_plugins.master_queue.errors import ConnectionFailedError
from fluence_plugins.master_queue.nats.nkeys import SeedError, UserKey, user_key
from session_scheduler.errors import plain

if TYPE_CHECKING:
    from fluence_plugins.master_queue.nats.addresses import Server
    from fluence_plugins.master_queue.nats.settings import ConnectorSettings, Tls

MOST_BYTES: Final = 64 << 10
"""Of one file."""


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """What a server is told of who connects; nothing, if all is empty."""

    said: dict[str, str] = field(default_factory=dict)
    """Fields of CONNECT."""
    key: UserKey | None = None
    """What signs the server's nonce."""

    def fields(self, nonce: str | None) -> dict[str, str]:
        """Those of CONNECT. A server that says no nonce wants no signature, and gets none."""
        if self.key is None:
            return self.said
        if not nonce:
            return {}
        return {**self.said, "sig": self.key.signature(nonce)}


def credentials_of(settings: ConnectorSettings, server: Server) -> Credentials:
    """The credentials for one connection to one server. Raises ConnectionFailedError, naming the file."""
    if settings.user_file is not None and settings.password_file is not None:
        user = _secret("userFile", settings.user_file)
        return Credentials({"user": user, "pass": _secret("passwordFile", settings.password_file)})
    if settings.token_file is not None:
        return Credentials({"auth_token": _secret("tokenFile", settings.token_file)})
    if settings.nkey_seed_file is not None:
        key = _key("nkeySeedFile", settings.nkey_seed_file, _secret("nkeySeedFile", settings.nkey_seed_file))
        return Credentials({"nkey": key.public}, key)
    if settings.credentials_file is not None:
        return _of_file(settings.credentials_file)
    if server.token is not None:
        return Credentials({"auth_token": server.token})
    if server.user is not None:
        return Credentials({"user": server.user, "pass": server.password or ""})
    return Credentials()


def tls_of(tls: Tls | None) -> ssl.SSLContext:
    """What verifies the server, and shows it a certificate. Raises ConnectionFailedError, naming the file."""
    ca, certificate, key = (tls.ca_file, tls.cert_file, tls.key_file) if tls is not None else (None, None, None)
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise _unreadable("tls.caFile", ca or "", f"no certificates can be read from it: {_said(error)}") from None
    if certificate is not None and key is not None:
        try:
            # Without any password an encrypted key would ask for it at the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            what = f"no certificate with its key (tls.keyFile) can be read from it: {_said(error)}"
            raise _unreadable("tls.certFile", certificate, what) from None
    return context


def _of_file(path: str) -> Credentials:
    lines = iter(_text("credentialsFile", path).splitlines())
    parts = dict(_parts(lines))
    if "JWT" not in parts or "SEED" not in parts:
        what = "it has no JWT of a user with its seed: write what `nsc generate creds` says"
        raise _unreadable("credentialsFile", path, what)
    if not parts["JWT"].isascii() or not parts["JWT"].isprintable():
        raise _unreadable("credentialsFile", path, "its JWT is none")
    return Credentials({"jwt": parts["JWT"]}, _key("credentialsFile", path, parts["SEED"]))


def _parts(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if "BEGIN NATS USER JWT" in line:
            yield "JWT", next(lines, "").strip()
        elif "BEGIN USER NKEY SEED" in line:
            yield "SEED", next(lines, "").strip()


def _key(setting: str, path: str, seed: str) -> UserKey:
    try:
        return user_key(seed)
    except SeedError as error:
        raise _unreadable(setting, path, f"what is in it is no seed of a user: {error}") from None


def _secret(setting: str, path: str) -> str:
    """The file's only line."""
    text = _text(setting, path).strip("\r\n")
    if not text:
        raise _unreadable(setting, path, "it is empty")
    if not text.isprintable():
        raise _unreadable(setting, path, "it has more than one line, or characters that cannot be printed")
    return text


def _text(setting: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(setting, path, f"it cannot be read: {_said(error)}") from None
    if len(data) > MOST_BYTES:
        raise _unreadable(setting, path, f"it has more than {MOST_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _unreadable(setting, path, "it is no text in UTF-8") from None


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _unreadable(setting: str, path: str, what: str) -> ConnectionFailedError:
    return ConnectionFailedError(f"{setting} {plain(path)}: {what}")
