"""What the kubelet gives a pod to reach the API server. Public, as `sdk.service_account`.

An environment with the API server's address, and a directory with a token, the CA's certificate and the namespace.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"
"""The environment variable that a process has only in a pod."""
_PORT: Final = "KUBERNETES_SERVICE_PORT"


def api_server_of_pod(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Host and port of the API server, for a process in a pod. Raises ValueError.

    Source: rest.InClusterConfig of client-go.
    """
    host, port = environment.get(IN_CLUSTER, ""), environment.get(_PORT, "")
    if not host or not port:
        raise ValueError(f"{IN_CLUSTER} and {_PORT} must both be set")
    if not port.isdecimal():
        raise ValueError(f"{_PORT}: expected a port, got {port!r}")
    return host, int(port)


def read_token(file: Path) -> str:
    """The token in a file, which the kubelet replaces long before the token expires. Raises OSError or ValueError."""
    token = file.read_text().strip()
    if not token:
        raise ValueError(f"{file} is empty")
    return token


def api_server_tls(*, cadata: str | None = None, cafile: str | None = None) -> ssl.SSLContext:
    """A TLS context that trusts this CA, by default the system's CAs. Raises OSError."""
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    # Python 3.13 and later set this flag. It rejects CAs without a key identifier, which many clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
