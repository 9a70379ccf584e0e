"""The gRPC service DevicePlugin of one type. Each type needs its own socket, because ListAndWatch names no type."""

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
"""The kubelet need not call PreStartContainer or GetPreferredAllocation: all devices are equal."""
_WITHDRAW_SECONDS: Final = 2.0
_MOST_CALLS: Final = 32
_MOST_BYTES: Final = 4 << 20
_CHANNEL: Final = (
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.max_concurrent_streams", _MOST_CALLS),
    ("grpc.so_reuseport", 0),
)


class DevicePluginServer:
    """Call `start`, then `stop` or `withdraw`, once each."""

    def __init__(self, devices: Devices, metrics: Metrics) -> None:
        self.streams = 0
        """The number of open ListAndWatch streams."""
        self.opened = 0
        """The number of all streams so far."""
        self._devices = devices
        self._metrics = metrics
        self._withdrawn = asyncio.Event()
        self._server = grpc.aio.server(options=_CHANNEL, maximum_concurrent_rpcs=_MOST_CALLS)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))

    async def start(self, path: Path) -> None:
        """Serve at this path. Raises OSError."""
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:  # gRPC hides the reason
            raise OSError("the socket cannot be bound") from error
        starting = asyncio.create_task(self._server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait((starting,))  # gRPC cannot stop a server that is still starting
            raise

    async def stop(self) -> None:
        """Cancel all calls and stop immediately."""
        await self._server.stop(None)

    async def withdraw(self) -> None:
        """Send every stream an empty device list, let it end, and stop; takes at most two seconds."""
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
