"""The gRPC service DevicePlugin of one type, at a socket of its own: ListAndWatch does not say which type is meant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from fluence_plugins.device_advertisement import api_pb2 as api
from fluence_plugins.device_advertisement.devices import NO_DEVICES, BadRequestError, Devices
from fluence_plugins.device_advertisement.metrics import Metrics

SERVICE: Final = "v1beta1.DevicePlugin"
OPTIONS: Final = api.DevicePluginOptions()
"""Nothing is to be asked before a container starts, nor which devices are preferred: they are all the same."""
_WITHDRAW_SECONDS: Final = 2.0
_MOST_CALLS: Final = 32
_MOST_BYTES: Final = 4 << 20
_CHANNEL: Final = (
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.max_concurrent_streams", _MOST_CALLS),
    ("grpc.so_reuseport", 0),
)


class DevicePluginServer:
    """`start`, then `stop` or `withdraw`, once each."""

    def __init__(self, devices: Devices, metrics: Metrics) -> None:
        self.streams = 0
        """How many ListAndWatch streams are open."""
        self.opened = 0
        """How many there were, those that ended too."""
        self._devices = devices
        self._metrics = metrics
        self._withdrawn = asyncio.Event()
        self._server = grpc.aio.server(options=_CHANNEL, maximum_concurrent_rpcs=_MOST_CALLS)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))

    async def start(self, path: Path) -> None:
        """Serve there. Raises OSError."""
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:  # what the library makes of it, without its reason
            raise OSError("it cannot be bound") from error
        starting = asyncio.create_task(self._server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait((starting,))  # a server of the library that has half begun cannot be stopped
            raise

    async def stop(self) -> None:
        """End every call and stop, at once."""
        await self._server.stop(None)

    async def withdraw(self) -> None:
        """Tell every stream that there are no devices any more, let it end, and stop; takes two seconds at most."""
        self._withdrawn.set()
        await self._server.stop(_WITHDRAW_SECONDS)

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "GetDevicePluginOptions": unary(self._options, api.Empty.FromString, _serialized),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch, api.Empty.FromString, bytes),
            "GetPreferredAllocation": unary(self._prefer, api.PreferredAllocationRequest.FromString, _serialized),
            "Allocate": unary(self._allocate, api.AllocateRequest.FromString, _serialized),
            "PreStartContainer": unary(self._pre_start, api.PreStartContainerRequest.FromString, _serialized),
        }

    async def _options(self, _request: api.Empty, _context: object) -> api.DevicePluginOptions:
        return OPTIONS

    async def _list_and_watch(self, _request: api.Empty, _context: object) -> AsyncIterator[bytes]:
        self.streams += 1
        self.opened += 1
        try:
            yield self._devices.list
            await self._withdrawn.wait()
            yield NO_DEVICES
        finally:
            self.streams -= 1

    async def _prefer(self, request: api.PreferredAllocationRequest, context: Any) -> api.PreferredAllocationResponse:
        try:
            return self._devices.prefer(request)
        except BadRequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise  # not reached: abort raises

    async def _allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        try:
            answer = self._devices.allocate(request)
        except BadRequestError as error:
            self._metrics.allocated(self._devices.type, "refused")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise  # not reached: abort raises
        self._metrics.allocated(self._devices.type, "ok")
        return answer

    async def _pre_start(
        self, _request: api.PreStartContainerRequest, _context: object
    ) -> api.PreStartContainerResponse:
        return api.PreStartContainerResponse()


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
