"""The kubelet's side of the device plugin API on a real socket, as far as a plugin can observe it.

Three details are easy to overlook. The kubelet removes every socket in its folder when it starts. It connects back
before it answers Register. When a stream ends, it drops the plugin that it then knows under that resource, even if that
is another plugin.
"""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fluence_plugins.device_advertisement import api_pb2 as api

PREFIX = "fluxion.flux-framework.org/"


async def until(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    """Wait for the condition; after `seconds`, fail with `what`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        await asyncio.sleep(0.01)


class _Plugin:
    """The kubelet's view of a plugin."""

    def __init__(self, path: Path) -> None:
        self.channel = grpc.aio.insecure_channel(f"unix:{path}", options=(("grpc.use_local_subchannel_pool", 1),))

    def unary(self, method: str, request: Any, answer: Any) -> Any:
        call: Any = self.channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=10, wait_for_ready=True)

    def stream(self) -> Any:
        call: Any = self.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )
        return call(api.Empty())


class FakeKubelet:
    """`start` and `stop` may be called repeatedly. Types are named without their prefix."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registered: list[str] = []
        self.lists: dict[str, list[list[str]]] = {}
        """Every received list, by type: healthy devices only."""
        self.allocatable: dict[str, int] = {}
        self.refusal: str | None = None
        self.silent = False
        """If set, it answers nothing."""
        self.blind = False
        """If set, it accepts plugins but never lists their devices."""
        self._plugins: dict[str, _Plugin] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._server: Any = None

    async def start(self, *, remove_sockets: bool = True) -> None:
        for path in self.folder.iterdir() if remove_sockets else ():
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        self.lists, self.allocatable, self._plugins = {}, {}, {}
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, api.RegisterRequest.FromString, api.Empty.SerializeToString
        )
        service = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler})
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{self.folder}/kubelet.sock")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        for plugin in self._plugins.values():
            await plugin.channel.close()

    async def _register(self, request: api.RegisterRequest, context: Any) -> api.Empty:
        name = request.resource_name.removeprefix(PREFIX)
        self.registered.append(name)
        if self.silent:
            await asyncio.Event().wait()
        if self.refusal or request.version != "v1beta1" or not request.resource_name.startswith(PREFIX):
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal or "requested API version is not supported")
        plugin = self._plugins[name] = _Plugin(self.folder / request.endpoint)
        await plugin.unary("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
        if not self.blind:
            task = asyncio.create_task(self._watch(name, plugin))
            self._watching.add(task)
            task.add_done_callback(self._watching.discard)
        return api.Empty()

    async def _watch(self, name: str, plugin: _Plugin) -> None:
        try:
            async for answer in plugin.stream():
                healthy = [device.ID for device in answer.devices if device.health == "Healthy"]
                self.lists.setdefault(name, []).append(healthy)
                self.allocatable[name] = len(healthy)
        except grpc.aio.AioRpcError:
            pass
        await self.drop(name)

    async def drop(self, name: str) -> None:
        """Forget the plugin that serves the type now, as at the end of its stream."""
        plugin = self._plugins.pop(name, None)
        if plugin is not None:
            self.allocatable[name] = 0
            await plugin.channel.close()

    async def allocate(self, name: str, *devices: str) -> dict[str, str]:
        """The environment of one container. Raises AioRpcError."""
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=devices)])
        answer = await self._plugins[name].unary("Allocate", request, api.AllocateResponse)
        (response,) = answer.container_responses
        return dict(response.envs)

    async def ask(self, name: str, method: str, request: Any, answer: Any) -> Any:
        """Send any other request to a type's plugin."""
        return await self._plugins[name].unary(method, request, answer)
