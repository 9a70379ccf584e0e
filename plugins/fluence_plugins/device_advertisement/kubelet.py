"""The client of the kubelet's Registration service, at kubelet.sock in its device plugin directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from fluence_plugins.device_advertisement import api_pb2 as api
from fluence_plugins.device_advertisement.server import OPTIONS
from fluence_plugins.device_advertisement.sockets import Identity, identity

VERSION: Final = "v1beta1"
REGISTER: Final = "/v1beta1.Registration/Register"
REGISTER_SECONDS: Final = 15.0
"""The kubelet takes up to 10 s to connect to the plugin before it responds."""
_CHANNEL: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # a shared pool would keep the backoff of an absent kubelet
    ("grpc.max_receive_message_length", 64 << 10),
    ("grpc.enable_http_proxy", 0),
)
_TEMPORARY: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


class UnavailableError(Exception):
    """The kubelet did not respond, or not in time."""


class RefusedError(Exception):
    """The kubelet rejected the plugin: its version or resource name, or the kubelet could not connect back."""


class Kubelet:
    """The kubelet of a directory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "kubelet.sock"

    def identity(self) -> Identity | None:
        """The identity of the kubelet's socket, if it exists. A new socket is a new kubelet, without registrations."""
        return identity(self._path)

    async def register(self, resource_name: str, endpoint: str) -> None:
        """Register a socket of the directory for a resource. Raises UnavailableError or RefusedError."""
        request = api.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource_name, options=OPTIONS)
        async with grpc.aio.insecure_channel(f"unix:{self._path}", options=_CHANNEL) as channel:
            call: Any = channel.unary_unary(
                REGISTER,
                request_serializer=api.RegisterRequest.SerializeToString,
                response_deserializer=api.Empty.FromString,
            )
            try:
                await call(request, timeout=REGISTER_SECONDS)
            except grpc.aio.AioRpcError as error:
                details = " ".join((error.details() or error.code().name).split())[:500]
                raise (UnavailableError if error.code() in _TEMPORARY else RefusedError)(details) from error
