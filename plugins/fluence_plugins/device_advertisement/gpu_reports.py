"""Reports which devices the kubelet gave to the reservation pods of this node, as an annotation on each of them.

The scheduler creates a reservation pod for each GPU that pods share, and waits for this report. Their names are never
used twice, so the device in the kubelet's list is that of the pod in the API server. Docs: how-to/share-gpus.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import grpc
import grpc.aio

from fluence_plugins.device_advertisement import pod_resources_pb2 as api
from session_scheduler.errors import InputError
from session_scheduler.model.gpu_reservations import NAME_PREFIX, RESERVED_DEVICE
from session_scheduler.sdk.addresses import host_and_port
from session_scheduler.sdk.http_client import Endpoint, HttpPool, request_head
from session_scheduler.sdk.service_account import api_server_of_pod, api_server_tls, read_token

LIST: Final = "/v1.PodResourcesLister/List"
PERIOD_SECONDS: Final = 1.0
LONGEST_WAIT: Final = 4.0
"""The scheduler waits 30 s for a report by default."""
_LIST_SECONDS: Final = 5.0
_PATCH_SECONDS: Final = 10.0
_MOST_BYTES: Final = 16 << 20
_LONGEST_ANSWER: Final = 1 << 20
_CHANNEL: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.enable_http_proxy", 0),
)
_PATCH: Final = "application/merge-patch+json"
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

log = logging.getLogger(__name__)


class ReportError(Exception):
    """The kubelet or the API server did not answer as expected."""


class PodAnnotator(Protocol):
    """Annotates the pods of one namespace, as `ApiServer` does."""

    namespace: str

    async def annotate(self, name: str, annotations: Mapping[str, str]) -> bool:
        """Annotate a pod. Returns False if it does not exist. Raises ReportError."""


class ApiServer:
    """The API server, as a pod's service account reaches it. Create it in a running event loop."""

    def __init__(self, account: Path, environment: Mapping[str, str] = os.environ) -> None:
        """`account` is the directory with namespace, token and ca.crt. Raises InputError."""
        self._token = account / "token"
        try:
            host, port = api_server_of_pod(environment)
            self.namespace = (account / "namespace").read_text().strip()
            read_token(self._token)
            tls = api_server_tls(cafile=str(account / "ca.crt"))
        except (OSError, ValueError) as error:
            raise InputError(f"--report-gpus: cannot use the service account in {account}: {error}; run it in a pod "
                             "that mounts the token") from error  # fmt: skip
        self._endpoint = Endpoint(host, port, tls)
        self._pool = HttpPool(1, connect_seconds=_PATCH_SECONDS)

    async def annotate(self, name: str, annotations: Mapping[str, str]) -> bool:
        """Annotate a pod of the namespace. Returns False if it does not exist. Raises ReportError."""
        body = json.dumps({"metadata": {"annotations": annotations}}).encode()
        path = f"/api/v1/namespaces/{quote(self.namespace)}/pods/{quote(name)}?fieldManager=fluence-device-plugin"
        try:
            async with asyncio.timeout(_PATCH_SECONDS):
                status, text = await self._send(path, body)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            raise ReportError(f"cannot reach the API server: {str(error) or 'no answer'}") from error
        if status != 404 and not 200 <= status < 300:
            raise ReportError(f"the API server rejected the report of pod {self.namespace}/{name}: {status} {text}")
        return status != 404

    async def _send(self, path: str, body: bytes) -> tuple[int, str]:
        token = read_token(self._token)  # the kubelet replaces it
        headers = {"Authorization": f"Bearer {token}", "Content-Type": _PATCH, "Accept": _METADATA_ONLY}
        host = host_and_port(self._endpoint.host, self._endpoint.port)
        head = request_head("PATCH", path, host, headers, len(body))
        connection = await self._pool.acquire(self._endpoint)
        try:
            answer = await connection.exchange(head + body, _LONGEST_ANSWER)
        finally:
            self._pool.release(connection)
        return answer.status, " ".join(answer.body.decode(errors="replace").split())[:300]

    async def close(self) -> None:
        """Close the connection."""
        await self._pool.close()


class GpuReports:
    """Reads the kubelet's list once a second, and reports each new reservation pod."""

    def __init__(self, socket: Path, server: PodAnnotator, *, period: float = PERIOD_SECONDS) -> None:
        self._socket = socket
        self._server = server
        self._period = period
        self._reported: dict[str, str] = {}
        """The device of each reported pod, by name."""
        self.problem: str | None = None
        """Why the last attempt failed."""

    async def run(self) -> None:
        """Report until cancelled."""
        wait = self._period
        while True:
            try:
                await self.report()
            except ReportError as error:
                if str(error) != self.problem:  # log it only once
                    log.warning("%s", error)
                self.problem = str(error)
                wait = min(2 * wait, LONGEST_WAIT)
            else:
                self.problem, wait = None, self._period
            await asyncio.sleep(wait)

    async def report(self) -> None:
        """Report the devices of the reservation pods that are not reported yet. Raises the first ReportError."""
        devices = await self._devices()
        self._reported = {name: device for name, device in self._reported.items() if devices.get(name) == device}
        problems = []
        for name in sorted(devices.keys() - self._reported.keys()):
            try:
                exists = await self._server.annotate(name, {RESERVED_DEVICE: devices[name]})
            except ReportError as error:
                problems.append(error)
                continue
            if exists:
                log.info("reservation pod %s has device %s", name, devices[name])
            self._reported[name] = devices[name]
        if problems:
            raise problems[0]

    async def _devices(self) -> dict[str, str]:
        """The device of each reservation pod that has one."""
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=_CHANNEL) as channel:
            call: Any = channel.unary_unary(
                LIST,
                request_serializer=api.ListPodResourcesRequest.SerializeToString,
                response_deserializer=api.ListPodResourcesResponse.FromString,
            )
            try:
                listed = await call(api.ListPodResourcesRequest(), timeout=_LIST_SECONDS)
            except grpc.aio.AioRpcError as error:
                details = " ".join((error.details() or error.code().name).split())[:300]
                raise ReportError(f"cannot list the devices of pods at {self._socket}: {details}") from error
        found = {}
        for pod in listed.pod_resources:
            if pod.namespace == self._server.namespace and pod.name.startswith(NAME_PREFIX):
                devices = [one for container in pod.containers for each in container.devices for one in each.device_ids]
                if len(devices) == 1:
                    found[pod.name] = devices[0]
        return found
