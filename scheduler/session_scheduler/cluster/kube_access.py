"""Who we are to which API server: from a kubeconfig file, or from the pod that we run in.

The client library reads kubeconfig files and runs credential plugins. It is imported when that is asked for, not
before: it takes 75 MB of memory and a second, and most commands need no live cluster. A pod's own account is a name, a
certificate and a token in three known places: they are read here.
"""

from __future__ import annotations

import asyncio
import binascii
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from session_scheduler.base.extras import require
from session_scheduler.cluster.errors import Forbidden, one_line
from session_scheduler.errors import InputError

_DEFAULT_FILE = Path("~/.kube/config")
_PLUGIN_PATIENCE = 60.0
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_IN_CLUSTER_PORT = "KUBERNETES_SERVICE_PORT"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NAMESPACE = "default"
_TOKEN_SECONDS = 60.0
"""How old a token that was read may get."""


async def _anonymous() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach and convince an API server."""

    server: str
    """Its URL without a slash at the end; may have a path."""
    tls: ssl.SSLContext | bool = True
    """How its certificate is verified, and our own one, if any."""
    server_name: str | None = None
    """The name in its certificate, where that is not the URL's."""
    proxy: str | None = None
    authorization: Callable[[], Awaitable[str]] = _anonymous
    """The Authorization header's value now; empty for none."""
    renew: Callable[[], Awaitable[Access]] | None = None
    """Reads the configuration again, after a 401: tokens and certificates expire."""


async def load_access(kubeconfig: str | None, context: str | None) -> Access:
    """The access that was configured: `kubeconfig`, else $KUBECONFIG, else ~/.kube/config, else the pod's own.

    `context` is the kubeconfig's current one unless given. Raises InputError, in one line.
    """
    files = kubeconfig or os.environ.get("KUBECONFIG") or _default_file()
    if files is not None:
        return await _from_files(files, context)
    if _IN_CLUSTER in os.environ:
        return await _from_pod()
    raise InputError(f"no cluster is configured: give --kubeconfig, set KUBECONFIG, or write {_DEFAULT_FILE}")


def namespace_of(kubeconfig: str | None, context: str | None) -> str:
    """The namespace of the context that `load_access` uses, else the pod's own, else `default`. Raises InputError."""
    files = kubeconfig or os.environ.get("KUBECONFIG") or _default_file()
    if files is None:
        with suppress(OSError):
            return (_ACCOUNT / "namespace").read_text().strip() or _NAMESPACE
        return _NAMESPACE
    require(f"kubeconfig {files}", "kubernetes", requirement="kubernetes")
    from kubernetes.aio.config import ConfigException, list_kube_config_contexts

    try:
        every, current = list_kube_config_contexts(files)
        found = next(each for each in every if each["name"] == context) if context else current
        namespace = found["context"].get("namespace")
    except (ConfigException, yaml.YAMLError, OSError, LookupError, TypeError, AttributeError, StopIteration) as error:
        raise _wrong(files, error) from None
    return str(namespace or _NAMESPACE)


def _default_file() -> str | None:
    path = _DEFAULT_FILE.expanduser()
    return str(path) if path.is_file() else None


# ------------------------------------------------------------------ the two sources


async def _from_files(files: str, context: str | None) -> Access:
    _check_files(files)
    require(f"kubeconfig {files}", "kubernetes", requirement="kubernetes")
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.config import ConfigException, load_kube_config

    configuration = Configuration()
    try:
        async with asyncio.timeout(_PLUGIN_PATIENCE):
            await load_kube_config(files, context, configuration, persist_config=False)
        return _access(configuration, renew=lambda: _from_files(files, context))
    except TimeoutError:
        raise _wrong(files, f"its credential plugin did not end within {_PLUGIN_PATIENCE:g} s") from None
    except (ConfigException, yaml.YAMLError, OSError, ValueError, binascii.Error) as error:
        raise _wrong(files, error) from None
    except (AttributeError, TypeError, KeyError):  # what the library makes of values that are not what they should be
        raise _wrong(files, "a cluster, a user or a context in it is malformed") from None


def _check_files(files: str) -> None:
    """KUBECONFIG may list several files, of which one must exist; the library is silent about missing ones."""
    paths = [Path(path).expanduser() for path in files.split(os.pathsep) if path]
    if not any(path.is_file() for path in paths):
        raise InputError(f"kubeconfig {files}: there is no such file")


async def _from_pod() -> Access:
    """Source: rest.InClusterConfig of client-go."""
    token = _PodToken(_ACCOUNT / "token")
    try:
        server = _server_of_pod()
        token.read()
        tls = _context(str(_ACCOUNT / "ca.crt"))
    except (OSError, ValueError) as error:
        raise InputError(f"the pod's service account cannot be used: {one_line(str(error))}: mount its token "
                         "(automountServiceAccountToken), or give --kubeconfig") from None  # fmt: skip
    return Access(server=server, tls=tls, authorization=token.header, renew=_from_pod)


def _server_of_pod() -> str:
    host, port = os.environ.get(_IN_CLUSTER, ""), os.environ.get(_IN_CLUSTER_PORT, "")
    if not host or not port:
        raise ValueError(f"{_IN_CLUSTER} and {_IN_CLUSTER_PORT} do not both have a value")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class _PodToken:
    """A pod's token, which the kubelet replaces long before it expires."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._header = ""
        self._read_at = 0.0

    def read(self) -> None:
        """Read it. Raises OSError, ValueError."""
        token = self._file.read_text().strip()
        if not token:
            raise ValueError(f"{self._file} is empty")
        self._header, self._read_at = f"Bearer {token}", time.monotonic()

    async def header(self) -> str:
        """The Authorization header's value, at most a minute old. Raises Forbidden."""
        if time.monotonic() - self._read_at >= _TOKEN_SECONDS:
            try:
                self.read()
            except (OSError, ValueError) as error:
                raise Forbidden(f"the service account's token cannot be read: {one_line(str(error))}") from None
        return self._header


def _access(configuration: Any, renew: Callable[[], Awaitable[Access]]) -> Access:
    """The library's configuration as what we need of it."""
    from kubernetes.aio.config import ConfigException

    if not configuration.host.startswith(("https://", "http://")):
        raise ValueError(f"the cluster's server {configuration.host!r} is no http or https URL")

    async def authorization() -> str:
        try:
            header: str | None = await configuration.get_api_key_with_prefix("BearerToken")
        except (ConfigException, OSError) as error:
            raise Forbidden(f"the kubeconfig's token cannot be had: {one_line(str(error))}") from None
        return header or ""

    return Access(
        server=configuration.host.rstrip("/"),
        tls=_tls(configuration),
        server_name=configuration.tls_server_name,
        proxy=configuration.proxy,
        authorization=authorization,
        renew=renew,
    )


def _context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    # From Python 3.13 on this is set, and refuses CAs without a key identifier, as many clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _tls(configuration: Any) -> ssl.SSLContext:
    """Where no server is verified, the system's CAs are not read: that takes longer than all else here."""
    trusts = configuration.verify_ssl and configuration.host.startswith("https://")
    context = _context(configuration.ssl_ca_cert) if trusts else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:  # insecure-skip-tls-verify: the user's explicit wish
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _wrong(files: str, problem: object) -> InputError:
    return InputError(f"kubeconfig {files}: {one_line(str(problem))}: correct it, or give another one")
