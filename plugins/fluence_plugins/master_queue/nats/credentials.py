"""The credentials of a connection, read from files each time, because files may be replaced. Errors show no secrets."""

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
"""The maximum size in bytes of a file."""


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The credentials that a client sends to a server; empty if there are none."""

    connect_fields: dict[str, str] = field(default_factory=dict)
    """Fields of CONNECT."""
    key: UserKey | None = None
    """Signs the server's nonce."""

    def fields(self, nonce: str | None) -> dict[str, str]:
        """The fields for CONNECT. A server that sends no nonce expects no signature."""
        if self.key is None:
            return self.connect_fields
        if not nonce:
            return {}
        return {**self.connect_fields, "sig": self.key.signature(nonce)}


def credentials_of(settings: ConnectorSettings, server: Server) -> Credentials:
    """The credentials for a connection to a server. Raises ConnectionFailedError, which names the file."""
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
    """The TLS context: trusted certificates and the client's own. Raises ConnectionFailedError,
    which names the file.
    """
    ca, certificate, key = (tls.ca_file, tls.cert_file, tls.key_file) if tls is not None else (None, None, None)
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise _unreadable("tls.caFile", ca or "", f"cannot read certificates: {_reason(error)}") from None
    if certificate is not None and key is not None:
        try:
            # Without a password, OpenSSL would ask for the password of an encrypted key on the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:
            what = f"cannot read the certificate and its key (tls.keyFile): {_reason(error)}"
            raise _unreadable("tls.certFile", certificate, what) from None
    return context


def _of_file(path: str) -> Credentials:
    lines = iter(_text("credentialsFile", path).splitlines())
    parts = dict(_parts(lines))
    if "JWT" not in parts or "SEED" not in parts:
        what = "the file does not contain a user's JWT and seed; write the output of `nsc generate creds`"
        raise _unreadable("credentialsFile", path, what)
    if not parts["JWT"].isascii() or not parts["JWT"].isprintable():
        raise _unreadable("credentialsFile", path, "the JWT is invalid")
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
        raise _unreadable(setting, path, f"the file does not contain a user's seed: {error}") from None


def _secret(setting: str, path: str) -> str:
    """The only line of the file."""
    text = _text(setting, path).strip("\r\n")
    if not text:
        raise _unreadable(setting, path, "the file is empty")
    if not text.isprintable():
        raise _unreadable(setting, path, "the file has more than one line, or characters that are not printable")
    return text


def _text(setting: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(setting, path, f"the file cannot be read: {_reason(error)}") from None
    if len(data) > MOST_BYTES:
        raise _unreadable(setting, path, f"the file has more than {MOST_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _unreadable(setting, path, "the file is not UTF-8") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _unreadable(setting: str, path: str, what: str) -> ConnectionFailedError:
    return ConnectionFailedError(f"{setting} {plain(path)}: {what}")
