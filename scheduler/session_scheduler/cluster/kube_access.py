"""Credentials and address of an API server, from a kubeconfig file or from the pod's service account.

The Kubernetes client library reads kubeconfig files and runs credential plugins. It takes 75 MB of memory and a second
to import, so only a kubeconfig file causes the import. This module reads a pod's service account itself: a namespace, a
certificate and a token in three known files.
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
"""Maximum age of a cached token."""


async def _anonymous() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Access:
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
    if _IN_CLUSTER in os.environ:
        return await _from_pod()
    raise InputError(f"no cluster is configured: pass --kubeconfig, set KUBECONFIG, or create {_DEFAULT_FILE}")


def namespace_of(kubeconfig: str | None, context: str | None) -> str:
    """Return the namespace of `load_access`'s context, else the pod's, else `default`. Raises InputError."""
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
        raise _wrong(files, f"its credential plugin did not finish within {_PLUGIN_PATIENCE:g} s") from None
    except (ConfigException, yaml.YAMLError, OSError, ValueError, binascii.Error) as error:
        raise _wrong(files, error) from None
    except (AttributeError, TypeError, KeyError):  # the library's errors for malformed values
        raise _wrong(files, "a cluster, a user or a context in it is malformed") from None


def _check_files(files: str) -> None:
    """Raise InputError if none of the files in KUBECONFIG exists: the library ignores missing files."""
    paths = [Path(path).expanduser() for path in files.split(os.pathsep) if path]
    if not any(path.is_file() for path in paths):
        raise InputError(f"kubeconfig {files}: the file does not exist")


async def _from_pod() -> Access:
    """Source: rest.InClusterConfig of client-go."""
    token = _PodToken(_ACCOUNT / "token")
    try:
        server = _server_of_pod()
        token.read()
        tls = _context(str(_ACCOUNT / "ca.crt"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot use the pod's service account: {one_line(str(error))}: mount its token "
                         "(automountServiceAccountToken), or pass --kubeconfig") from None  # fmt: skip
    return Access(server=server, tls=tls, authorization=token.header, renew=_from_pod)


def _server_of_pod() -> str:
    host, port = os.environ.get(_IN_CLUSTER, ""), os.environ.get(_IN_CLUSTER_PORT, "")
    if not host or not port:
        raise ValueError(f"{_IN_CLUSTER} and {_IN_CLUSTER_PORT} do not both have a value")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class _PodToken:
    """A pod's token. The kubelet replaces it long before it expires."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._header = ""
        self._read_at = 0.0

    def read(self) -> None:
        """Read the token. Raises OSError or ValueError."""
        token = self._file.read_text().strip()
        if not token:
            raise ValueError(f"{self._file} is empty")
        self._header, self._read_at = f"Bearer {token}", time.monotonic()

    async def header(self) -> str:
        """Return the Authorization header's value, at most a minute old. Raises Forbidden."""
        if time.monotonic() - self._read_at >= _TOKEN_SECONDS:
            try:
                self.read()
            except (OSError, ValueError) as error:
                raise Forbidden(f"cannot read the service account's token: {one_line(str(error))}") from None
        return self._header


def _access(configuration: Any, renew: Callable[[], Awaitable[Access]]) -> Access:
    """Convert the library's configuration to an Access."""
    from kubernetes.aio.config import ConfigException

    if not configuration.host.startswith(("https://", "http://")):
        raise ValueError(f"expected an http or https URL as the cluster's server, got {configuration.host!r}")

    async def authorization() -> str:
        try:
            header: str | None = await configuration.get_api_key_with_prefix("BearerToken")
        except (ConfigException, OSError) as error:
            raise Forbidden(f"cannot get the kubeconfig's token: {one_line(str(error))}") from None
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
    # Python 3.13 and later set this flag. It rejects CAs without a key identifier, which many clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _tls(configuration: Any) -> ssl.SSLContext:
    """Return the TLS context. It loads the system's CAs only if it verifies the server, because loading is slow."""
    trusts = configuration.verify_ssl and configuration.host.startswith("https://")
    context = _context(configuration.ssl_ca_cert) if trusts else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:  # insecure-skip-tls-verify
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _wrong(files: str, problem: object) -> InputError:
    return InputError(f"kubeconfig {files}: {one_line(str(problem))}: correct it, or use another file")
