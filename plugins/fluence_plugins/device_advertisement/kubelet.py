"""The kubelet's service Registration, at kubelet.sock in its device plugin folder."""

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
"""The kubelet takes up to 10 s to connect to the plugin before it answers."""
_CHANNEL: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # a pool would hold waits from a kubelet that was not there yet
    ("grpc.max_receive_message_length", 64 << 10),
    ("grpc.enable_http_proxy", 0),
)
_PASSING: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


class UnavailableError(Exception):
    """Nobody answered, or not in time."""


class RefusedError(Exception):
    """The kubelet does not take the plugin: the version, the resource's name, or it could not connect back."""


class Kubelet:
    """The kubelet whose folder this is."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "kubelet.sock"

    def identity(self) -> Identity | None:
        """Which socket is there, if any: another one is another kubelet, which knows nothing of us."""
        return identity(self._path)

    async def register(self, resource_name: str, endpoint: str) -> None:
        """Tell which socket of the folder serves a resource. Raises UnavailableError or RefusedError."""
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
                told = " ".join((error.details() or error.code().name).split())[:500]
                raise (UnavailableError if error.code() in _PASSING else RefusedError)(told) from error
