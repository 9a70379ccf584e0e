"""A device plugin for GPUs that do not exist, as NVIDIA's registers with the kubelet."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from fluence_plugins.device_advertisement import api_pb2 as api

NVIDIA = "nvidia.com/gpu"
GIVEN = "FAKE_GPUS"
"""The variable with the devices that the kubelet gave to a container."""


class FakeGpus:
    """Offers these devices while its context is entered."""

    def __init__(self, folder: Path, devices: Sequence[str]) -> None:
        self._folder, self._devices = folder, devices
        self._ends = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4))
        unary = grpc.unary_unary_rpc_method_handler
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetDevicePluginOptions": unary(
                lambda *_: api.DevicePluginOptions(), api.Empty.FromString, api.DevicePluginOptions.SerializeToString
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list, api.Empty.FromString, api.ListAndWatchResponse.SerializeToString
            ),
            "Allocate": unary(self._allocate, api.AllocateRequest.FromString, api.AllocateResponse.SerializeToString),
        }
        handler = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{folder / 'fake-gpus.sock'}")

    def _list(self, *_: object) -> Iterator[api.ListAndWatchResponse]:
        yield api.ListAndWatchResponse(devices=[api.Device(ID=device, health="Healthy") for device in self._devices])
        self._ends.wait()
        yield api.ListAndWatchResponse()

    @staticmethod
    def _allocate(request: api.AllocateRequest, _: object) -> api.AllocateResponse:
        return api.AllocateResponse(container_responses=[
            api.ContainerAllocateResponse(envs={GIVEN: ",".join(sorted(each.devices_ids))})
            for each in request.container_requests
        ])  # fmt: skip

    def __enter__(self) -> Self:
        self._server.start()
        request = api.RegisterRequest(version="v1beta1", endpoint="fake-gpus.sock", resource_name=NVIDIA)
        with grpc.insecure_channel(f"unix:{self._folder / 'kubelet.sock'}") as channel:
            register: Any = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=api.RegisterRequest.SerializeToString,
                response_deserializer=api.Empty.FromString,
            )
            register(request, timeout=15, wait_for_ready=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ends.set()
        self._server.stop(2).wait()
