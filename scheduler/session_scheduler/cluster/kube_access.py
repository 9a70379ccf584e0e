"""Credentials and address of an API server, from a kubeconfig file or from the pod's service account.

The Kubernetes client library takes 50 MB of memory and 0.3 s to import. So this module reads a pod's service account
and a kubeconfig file with a token or certificates itself. The library runs credential plugins, merges several files,
and finds the errors in a file.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog
import yaml

from session_scheduler.base.addresses import host_and_port
from session_scheduler.base.extras import require
from session_scheduler.base.service_account import IN_CLUSTER, api_server_of_pod, api_server_tls, read_token
from session_scheduler.cluster.errors import Forbidden, one_line
from session_scheduler.config.yaml_text import read_value
from session_scheduler.errors import InputError

_log = structlog.get_logger(__name__)
_DEFAULT_FILE = Path("~/.kube/config")
_PLUGIN_PATIENCE = 60.0
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NAMESPACE = "default"
_TOKEN_SECONDS = 60.0
"""Maximum age of a cached token."""


async def _anonymous() -> str:
    return ""


class Access(msgspec.Struct, frozen=True):
    """How to reach an API server and authenticate to it."""

    server: str
    """Its URL without a trailing slash; may have a path."""
    tls: ssl.SSLContext | bool = True
    """How to verify the server's certificate, with the client certificate if there is one."""
    server_name: str | None = None
    """The name in the server's certificate if it differs from the URL's."""
    proxy: str | None = None
    authorization: Callable[[], Awaitable[str]] = _anonymous
    """Returns the current value of the Authorization header; empty for none."""
    renew: Callable[[], Awaitable[Access]] | None = None
    """Reads the configuration again after a 401, because tokens and certificates expire."""


async def load_access(kubeconfig: str | None, context: str | None) -> Access:
    """Load the access from `kubeconfig`, else $KUBECONFIG, else ~/.kube/config, else the pod's service account.

    `context` defaults to the kubeconfig's current context. Raises InputError with one line.
    """
    files = kubeconfig or os.environ.get("KUBECONFIG") or _default_file()
    if files is not None:
        return await _from_files(files, context)
    if IN_CLUSTER in os.environ:
        return await _from_pod()
    raise InputError(f"no cluster is configured; pass --kubeconfig, set KUBECONFIG, or create {_DEFAULT_FILE}")


def namespace_of(kubeconfig: str | None, context: str | None) -> str:
    """Return the namespace of `load_access`'s context, else the pod's, else `default`. Raises InputError."""
    files = kubeconfig or os.environ.get("KUBECONFIG") or _default_file()
    if files is None:
        with suppress(OSError):
            return (_ACCOUNT / "namespace").read_text().strip() or _NAMESPACE
        return _NAMESPACE
    chosen = _chosen(files, context)
    if chosen is not None:
        return str(chosen.context.get("namespace") or _NAMESPACE)
    require(f"kubeconfig {files}", "kubernetes", requirement="kubernetes")
    from kubernetes.aio.config import ConfigException, list_kube_config_contexts

    try:
        every, current = list_kube_config_contexts(files)
        found = next(each for each in every if each["name"] == context) if context else current
        namespace = found["context"].get("namespace")
    except (ConfigException, yaml.YAMLError, OSError, LookupError, TypeError, AttributeError, StopIteration) as error:
        raise _wrong(files, error) from None
    except RecursionError:
        raise _wrong(files, "is nested too deeply") from None
    return str(namespace or _NAMESPACE)


def _default_file() -> str | None:
    path = _DEFAULT_FILE.expanduser()
    return str(path) if os.path.isfile(path) else None


# ------------------------------------------------------------------ a kubeconfig file without the library


class _Chosen(msgspec.Struct, frozen=True):
    """What a context of a kubeconfig file names."""

    folder: Path
    """Paths in the file are relative to it."""
    context: Mapping[str, Any]
    cluster: Mapping[str, Any]
    user: Mapping[str, Any]

    def pem(self, part: Mapping[str, Any], name: str) -> str | None:
        """The certificate or key with this name, from a file or in base64. Raises OSError or ValueError."""
        data, file = part.get(f"{name}-data"), part.get(name)
        if data:
            try:
                return base64.b64decode("".join(data.split()), validate=True).decode()
            except ValueError as error:
                raise ValueError(f"{name}-data: {error}") from None
        if not file:
            return None
        path = self.folder / str(file)
        text = path.read_text()
        if not text.strip():
            raise ValueError(f"{path} is empty")
        return text


_CA, _INSECURE = "certificate-authority", "insecure-skip-tls-verify"
_CLUSTER_FIELDS = frozenset({
    "server", _CA, f"{_CA}-data", _INSECURE, "tls-server-name", "proxy-url", "extensions",
})  # fmt: skip
_USER_FIELDS = frozenset({
    "token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data",
    "extensions",
})  # fmt: skip


def _chosen(files: str, context: str | None) -> _Chosen | None:
    """What the context names in a file that needs no library; None for other files. Raises InputError."""
    path = Path(files).expanduser()
    try:
        document = read_value(path.read_text(), "kubernetes")
        found = _named(document, "context", context or document["current-context"])
        cluster, user = (_named(document, kind, found[kind]) for kind in ("cluster", "user"))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if impersonated := sorted(name for name in user if name == "as" or str(name).startswith("as-")):
        raise _wrong(files, f"{impersonated[0]}: impersonation is not supported")
    if not (cluster.keys() <= _CLUSTER_FIELDS and user.keys() <= _USER_FIELDS):
        return None
    _check_types(files, cluster, user)
    return _Chosen(path.parent, found, cluster, user)


def _check_types(files: str, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> None:
    """Raise InputError for a value of the wrong type, and for fields that exclude each other, as client-go does."""
    for name, value in [*cluster.items(), *user.items()]:
        type_, expected = (bool, "true or false") if name == _INSECURE else (str, "a string")
        if name != "extensions" and value is not None and not isinstance(value, type_):
            raise _wrong(files, f"{name}: expected {expected}, got {value!r}")
    if cluster.get(_INSECURE) and (cluster.get(_CA) or cluster.get(f"{_CA}-data")):
        raise _wrong(files, f"{_INSECURE} and {_CA} are mutually exclusive; remove one of them")


def _named(document: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    """The entry of a kubeconfig. Raises LookupError or TypeError if there is none."""
    (found,) = [each[kind] for each in document[f"{kind}s"] if each["name"] == name] or [None]
    if not isinstance(found, Mapping):
        raise TypeError(f"expected a {kind} with the name {name!r}")
    return found


def _plain_access(chosen: _Chosen, renew: Callable[[], Awaitable[Access]]) -> Access:
    """Raises OSError or ValueError."""
    cluster, user = chosen.cluster, chosen.user
    server = _checked_url(cluster.get("server"))
    tls = _tls(server, chosen.pem(cluster, _CA), verifies=not cluster.get(_INSECURE))
    certificate = chosen.pem(user, "client-certificate")
    if certificate:
        key = chosen.pem(user, "client-key")
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:  # the module ssl reads files only; mode 0600
            both.write(f"{certificate}\n{key or ''}")
            both.flush()
            tls.load_cert_chain(both.name)
    authorization: Callable[[], Awaitable[str]] = _anonymous
    if user.get("tokenFile"):
        token = _TokenFile(chosen.folder / user["tokenFile"])
        token.read()
        authorization = token.header
    elif user.get("token"):
        if len(user["token"].splitlines()) > 1 or user["token"] != user["token"].strip():
            raise ValueError("token: expected one line without spaces around it")
        authorization = _constant(f"Bearer {user['token']}")
    proxy = _checked_proxy(cluster.get("proxy-url"))
    return Access(server, tls, cluster.get("tls-server-name"), proxy, authorization, renew)


def _constant(header: str) -> Callable[[], Awaitable[str]]:
    async def authorization() -> str:
        return header

    return authorization


# ------------------------------------------------------------------ the two sources


async def _from_files(files: str, context: str | None) -> Access:
    _check_files(files)
    renew = partial(_from_files, files, context)
    chosen = _chosen(files, context)
    if chosen is not None:
        try:
            return _plain_access(chosen, renew)
        except (OSError, ValueError) as error:
            raise _wrong(files, error) from None
    require(f"kubeconfig {files}", "kubernetes", requirement="kubernetes")
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config import ConfigException, load_kube_config

    configuration = Configuration()
    try:
        async with asyncio.timeout(_PLUGIN_PATIENCE):
            await load_kube_config(files, context, configuration, persist_config=False)
        return _access(configuration, renew)
    except TimeoutError:
        raise _wrong(files, f"its credential plugin did not finish within {_PLUGIN_PATIENCE:g} s") from None
    except (ConfigException, yaml.YAMLError, OSError, ValueError, binascii.Error) as error:
        raise _wrong(files, error) from None
    except (AttributeError, TypeError, KeyError, RecursionError):  # the library's errors for malformed values
        raise _wrong(files, "a cluster, user or context entry is malformed") from None


def _check_files(files: str) -> None:
    """Raise InputError if none of the files in KUBECONFIG exists: the library ignores missing files."""
    paths = [Path(path).expanduser() for path in files.split(os.pathsep) if path]
    if not any(map(os.path.isfile, paths)):
        raise InputError(f"kubeconfig {files}: the file does not exist or cannot be accessed; name a readable file")


async def _from_pod() -> Access:
    token = _TokenFile(_ACCOUNT / "token")
    try:
        server = f"https://{host_and_port(*api_server_of_pod())}"
        token.read()
        tls = api_server_tls(cafile=str(_ACCOUNT / "ca.crt"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot use the pod's service account: {one_line(str(error))}; mount its token "
                         "(automountServiceAccountToken), or pass --kubeconfig") from None  # fmt: skip
    return Access(server=server, tls=tls, authorization=token.header, renew=_from_pod)


class _TokenFile:
    """A token in a file, which is read again every minute."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._header = ""
        self._read_at = 0.0

    def read(self) -> None:
        """Read the token. Raises OSError or ValueError."""
        self._header, self._read_at = f"Bearer {read_token(self._file)}", time.monotonic()

    async def header(self) -> str:
        """Return the Authorization header's value, from the file at most a minute ago, as long as it can be read."""
        if time.monotonic() - self._read_at >= _TOKEN_SECONDS:
            try:
                self.read()
            except (OSError, ValueError) as error:  # the last token is valid for longer, as client-go assumes
                _log.warning("cannot read the token: using the last valid token", error=one_line(str(error)))
        return self._header


def _access(configuration: Any, renew: Callable[[], Awaitable[Access]]) -> Access:
    """Convert the library's configuration to an Access."""
    from kubernetes.aio.config import ConfigException

    server = _checked_url(configuration.host)
    tls = _tls(server, cafile=configuration.ssl_ca_cert, verifies=configuration.verify_ssl)
    if configuration.cert_file:
        tls.load_cert_chain(configuration.cert_file, configuration.key_file)

    async def authorization() -> str:
        try:
            header: str | None = await configuration.get_api_key_with_prefix("BearerToken")
        except (ConfigException, OSError) as error:
            raise Forbidden(f"cannot get the kubeconfig's token: {one_line(str(error))}") from None
        return header or ""

    return Access(
        server=server,
        tls=tls,
        server_name=configuration.tls_server_name,
        proxy=_checked_proxy(configuration.proxy),
        authorization=authorization,
        renew=renew,
    )


def _checked_url(server: object) -> str:
    """The URL without a trailing slash. Raises ValueError."""
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise ValueError(f"expected an http or https URL as the cluster's server, got {server!r}")
    address = urlsplit(server)
    if not address.hostname or address.port == 0:  # `port` raises ValueError if it is out of range
        raise ValueError(f"expected a host and a valid port in the cluster's server, got {server!r}")
    return server.rstrip("/")


def _checked_proxy(proxy: str | None) -> str | None:
    """The URL of a proxy; None if there is none. Raises ValueError without the URL, because it may have a password."""
    if not proxy:
        return None
    with suppress(ValueError):  # for example of `port`
        address = urlsplit(proxy)
        if address.scheme in ("http", "https") and address.hostname and address.port != 0:
            return proxy
    raise ValueError("proxy-url: expected an http or https URL with a host and a valid port")


def _tls(server: str, cadata: str | None = None, cafile: str | None = None, *, verifies: bool) -> ssl.SSLContext:
    """Return the TLS context. It loads the system's CAs only if it verifies the server, because loading is slow."""
    trusts = verifies and server.startswith("https://")
    context = api_server_tls(cadata=cadata, cafile=cafile) if trusts else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not verifies:  # insecure-skip-tls-verify
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _wrong(files: str, problem: object) -> InputError:
    return InputError(f"kubeconfig {files}: {one_line(str(problem))}; correct it, or use another file")
