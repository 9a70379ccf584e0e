"""The settings of connectors: the NATS servers, and the files with credentials and certificates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from fluence_plugins.master_queue.nats.addresses import Server, server_of
from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.settings import Strict
from session_scheduler.errors import InputError, shown

MOST_SERVERS: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")
_WAYS: Final = (
    ("user_file", "userFile"),
    ("token_file", "tokenFile"),
    ("nkey_seed_file", "nkeySeedFile"),
    ("credentials_file", "credentialsFile"),
)


def _servers(value: Any) -> Any:
    """Validate before pydantic does, whose messages would show parts of an address."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise wrong_value("expected a list of addresses; write [nats://host:port]")
    if not 1 <= len(value) <= MOST_SERVERS:
        raise wrong_value(f"expected 1 to {MOST_SERVERS} addresses, got {len(value)}")
    for index, one in enumerate(value):
        found = server_of(one)
        if isinstance(found, str):
            raise wrong_value(found, at=(index,))
    return tuple(value)


_File = Annotated[str, Field(min_length=1)]


class Tls(Strict):
    """TLS of a connector, which is then required. The client always verifies certificate and name.

    caFile: the trusted certificates (default: the system's). certFile, keyFile: the client's certificate. serverName:
    the name in the server's certificate, if it is not the address's host.
    """

    ca_file: _File | None = None
    cert_file: _File | None = None
    key_file: _File | None = None
    server_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            missing = "certFile" if self.cert_file is None else "keyFile"
            raise wrong_value("is missing; set both certFile and keyFile, or neither", at=(missing,))
        return self


class ConnectorSettings(Strict):
    """The servers of a connector, and its credentials. The representation shows no password or token.

    servers: 1 to 16 addresses, nats://, tls://, ws:// or wss://, tried in this order; each may contain user:password@
    or token@, percent-encoded. At most one of: userFile with passwordFile, tokenFile, nkeySeedFile, credentialsFile (a
    .creds file with JWT and seed), addresses with a user or token. The client reads the files for every connection.
    """

    servers: Annotated[tuple[str, ...], BeforeValidator(_servers), Field(repr=False)]
    user_file: _File | None = None
    password_file: _File | None = None
    token_file: _File | None = None
    nkey_seed_file: _File | None = None
    credentials_file: _File | None = None
    tls: Tls | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.user_file is None) != (self.password_file is None):
            missing = "userFile" if self.user_file is None else "passwordFile"
            raise wrong_value("is missing; set both userFile and passwordFile, or neither", at=(missing,))
        ways = [name for field, name in _WAYS if getattr(self, field) is not None]
        if any(server.has_user for server in self.addresses):
            ways.append("a user or token in servers")
        if len(ways) > 1:
            raise wrong_value(f"{', '.join(ways)}: use only one way to authenticate")
        for index, server in enumerate(self.addresses):
            if server.scheme == "ws" and self.tls is not None:
                raise wrong_value("has no TLS, but tls is set; write wss:// or remove tls", at=("servers", index))
        return self

    @property
    def addresses(self) -> tuple[Server, ...]:
        """The servers."""
        return tuple(found for found in map(server_of, self.servers) if isinstance(found, Server))


def settings_of(connector: str, configured: Mapping[str, ConnectorSettings]) -> ConnectorSettings:
    """The settings for a natsConnector of a MasterQueue: the name of a configured connector, or URLs separated by
    commas.

    Only the configuration can name files, so that users who edit MasterQueues do not choose which files the controller
    reads. Raises InputError: one line without password or token, which continues a sentence that starts with the
    field's name.
    """
    if connector in configured:
        return configured[connector]
    if "://" not in connector:
        name = f"{shown(connector)} is not a" if _NAME.fullmatch(connector) else "the value is neither an address nor a"
        raise InputError(f"{name} configured connector; configure it, or write nats://host:port")
    urls = [url.strip() for url in connector.split(",")]
    if len(urls) > MOST_SERVERS:
        raise InputError(f"has {len(urls)} addresses; write at most {MOST_SERVERS}, separated by commas")
    for number, url in enumerate(urls, 1):
        found = server_of(url)
        if isinstance(found, str):
            which = "the address" if len(urls) == 1 else f"address {number} of {len(urls)}"
            raise InputError(f"{which} {found}" + ("; write a comma in an address as %2C" if len(urls) > 1 else ""))
    return ConnectorSettings(servers=tuple(urls))


def label_of(connector: str, configured: Mapping[str, ConnectorSettings]) -> str:
    """The connector's name in logs and metrics: its own name, or host:port of its servers. It contains no secret."""
    if connector in configured:
        return connector
    try:
        return ",".join(server.place for server in settings_of(connector, configured).addresses)
    except InputError:
        return connector if _NAME.fullmatch(connector) else "(no address)"
