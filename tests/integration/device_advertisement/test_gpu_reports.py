"""Reports of the devices of reservation pods: from a kubelet's pod resources API to an API server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fluence_plugins.device_advertisement import gpu_reports
from fluence_plugins.device_advertisement import pod_resources_pb2 as api
from fluence_plugins.device_advertisement.gpu_reports import ApiServer, GpuReports, ReportError
from session_scheduler.builtin.gpu_reservation_pods import ReservationArguments
from session_scheduler.errors import InputError
from session_scheduler.model.gpu_reservations import RESERVED_DEVICE
from session_scheduler.sdk.http_client import Endpoint

from .fake_kubelet import until

Pods = Mapping[tuple[str, str], list[list[str]]]
"""By namespace and name: the device IDs of each container."""


class PodResources:
    """The kubelet's side of the API."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "resources.sock"
        self.pods: Pods = {}
        self.seconds = 0.0
        self._server: Any = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._list,
            api.ListPodResourcesRequest.FromString,
            api.ListPodResourcesResponse.SerializeToString,
        )
        handlers = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})
        self._server.add_generic_rpc_handlers((handlers,))
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _list(self, _request: object, _context: object) -> api.ListPodResourcesResponse:
        await asyncio.sleep(self.seconds)
        return api.ListPodResourcesResponse(pod_resources=[
            api.PodResources(name=name, namespace=namespace, containers=[
                api.ContainerResources(name="c", devices=[
                    api.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=devices)])
                for devices in containers])
            for (namespace, name), containers in self.pods.items()
        ])  # fmt: skip


@pytest.fixture
async def kubelet(folder: Path) -> AsyncIterator[PodResources]:
    found = PodResources(folder)
    await found.start()
    yield found
    await found.stop()


class Server:
    """The API server as `GpuReports` needs it."""

    namespace = "kube-system"

    def __init__(self) -> None:
        self.reports: list[tuple[str, str]] = []
        self.gone: set[str] = set()
        self.problem: str | None = None
        self.rejected: set[str] = set()

    async def annotate(self, name: str, annotations: Mapping[str, str]) -> bool:
        if self.problem or name in self.rejected:
            raise ReportError(self.problem or f"rejected: {name}")
        ((key, device),) = annotations.items()
        assert key == RESERVED_DEVICE
        self.reports.append((name, device))
        return name not in self.gone


async def test_it_reports_each_reservation_pod_of_its_namespace_once(kubelet: PodResources) -> None:
    server = Server()
    reports = GpuReports(kubelet.path, server)
    kubelet.pods = {
        ("kube-system", "fluence-gpu-a"): [["GPU-1"]],
        ("kube-system", "fluence-gpu-pending"): [[]],
        ("kube-system", "other"): [["GPU-2"]],
        ("default", "fluence-gpu-forged"): [["GPU-3"]],
        ("kube-system", "fluence-gpu-two"): [["GPU-4"], ["GPU-5"]],
    }
    await reports.report()
    await reports.report()
    assert server.reports == [("fluence-gpu-a", "GPU-1")]
    kubelet.pods = {**kubelet.pods, ("kube-system", "fluence-gpu-pending"): [["GPU-6"]]}
    await reports.report()
    assert server.reports[1:] == [("fluence-gpu-pending", "GPU-6")]


async def test_a_pod_that_the_api_server_no_longer_has_is_not_reported_again(kubelet: PodResources) -> None:
    server = Server()
    server.gone = {"fluence-gpu-a"}
    reports = GpuReports(kubelet.path, server)
    kubelet.pods = {("kube-system", "fluence-gpu-a"): [["GPU-1"]]}
    await reports.report()
    await reports.report()
    assert server.reports == [("fluence-gpu-a", "GPU-1")]


async def test_a_rejected_report_does_not_delay_others(kubelet: PodResources) -> None:
    server = Server()
    server.rejected = {"fluence-gpu-a", "fluence-gpu-b"}
    reports = GpuReports(kubelet.path, server)
    kubelet.pods = {("kube-system", f"fluence-gpu-{name}"): [[f"GPU-{name}"]] for name in "abc"}
    with pytest.raises(ReportError, match="rejected: fluence-gpu-a"):
        await reports.report()
    assert server.reports == [("fluence-gpu-c", "GPU-c")]
    server.rejected = set()
    await reports.report()
    assert server.reports[1:] == [("fluence-gpu-a", "GPU-a"), ("fluence-gpu-b", "GPU-b")]


def test_the_longest_pause_is_far_below_the_schedulers_time_out() -> None:
    assert ReservationArguments().seconds / 4 > gpu_reports.LONGEST_WAIT


async def test_it_retries_what_failed_and_shows_why(kubelet: PodResources, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.problem = "the API server rejected the report: 403"
    kubelet.pods = {("kube-system", "fluence-gpu-a"): [["GPU-1"]]}
    reports = GpuReports(kubelet.path, server, period=0.01)
    running = asyncio.create_task(reports.run())
    await until(lambda: reports.problem, "the failure")
    await asyncio.sleep(0.1)
    assert caplog.text.count("rejected the report") == 1
    await kubelet.stop()
    await until(lambda: "cannot list the devices of pods at" in str(reports.problem), "the kubelet's end")
    server.problem = None
    await kubelet.start()
    await until(lambda: server.reports == [("fluence-gpu-a", "GPU-1")], "the report")
    await until(lambda: reports.problem is None, "health")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_kubelet_that_does_not_answer_or_sends_too_much_is_an_error(
    kubelet: PodResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = GpuReports(kubelet.path, Server())
    kubelet.pods = {("kube-system", f"fluence-gpu-{'x' * 1000}"): [["G" * 50_000] * 400]}
    with pytest.raises(ReportError, match=r"larger than max"):
        await reports.report()
    kubelet.pods, kubelet.seconds = {}, 5
    monkeypatch.setattr(gpu_reports, "_LIST_SECONDS", 0.1)
    with pytest.raises(ReportError, match=r"Deadline Exceeded"):
        await reports.report()


# ------------------------------------------------------------------ the API server


@asynccontextmanager
async def answering(folder: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    """An API server with one answer; `folder/request` holds what it received."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length")).split()[1])
        (folder / "request").write_bytes(head + await reader.readexactly(length))
        writer.write(answer)
        await writer.drain()
        if answer:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    (folder / "namespace").write_text("kube-system\n")
    (folder / "token").write_text("secret\n")

    class Plain:
        verify_flags = 0

    monkeypatch.setattr("ssl.create_default_context", lambda **_: Plain())
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    server = ApiServer(folder, environment)
    server._endpoint = Endpoint("127.0.0.1", port)
    try:
        yield server
    finally:
        await server.close()
        listening.close()


def reply(status: str, body: bytes = b"{}") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


async def test_the_request_patches_the_annotation_with_the_token(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(folder, reply("200 OK"), monkeypatch) as server:
        assert await server.annotate("fluence-gpu-a", {RESERVED_DEVICE: "GPU-1"})
    request = (folder / "request").read_bytes().decode()
    assert request.startswith("PATCH /api/v1/namespaces/kube-system/pods/fluence-gpu-a?fieldManager=")
    assert "Authorization: Bearer secret\r\n" in request
    assert "Content-Type: application/merge-patch+json\r\n" in request
    assert request.endswith('{"metadata": {"annotations": {"' + RESERVED_DEVICE + '": "GPU-1"}}}')


async def test_a_missing_pod_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(folder, reply("404 Not Found"), monkeypatch) as server:
        assert not await server.annotate("fluence-gpu-a", {})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (reply("403 Forbidden", b'{"message": "no\n"}'), r"rejected the report of .*-a: 403 \{"),
        (reply("200 OK", b"x" * (2 << 20)), "cannot reach the API server: the response exceeds 1048576 bytes"),
        (b"nonsense\r\n\r\n", "cannot reach the API server: the server sent an invalid HTTP response"),
        (b"", "cannot reach the API server: no answer"),
    ],
)  # fmt: skip
async def test_wrong_answers_are_errors_with_the_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, why: str
) -> None:
    if not answer:
        monkeypatch.setattr(gpu_reports, "_PATCH_SECONDS", 0.5)
    async with answering(folder, answer, monkeypatch) as server:
        with pytest.raises(ReportError, match=why):
            await server.annotate("fluence-gpu-a", {})


async def test_it_needs_an_account_of_a_pod(folder: Path) -> None:
    begins, ends = (
        f"--report-gpus: cannot use the service account in {folder}: ",
        "; run it in a pod that mounts the token",
    )
    missing = f"[Errno 2] No such file or directory: '{folder / 'namespace'}'"
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for given, problem in (
        ({}, "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must both be set"),
        ({**environment, "KUBERNETES_SERVICE_PORT": "x"}, "KUBERNETES_SERVICE_PORT: expected a port, got 'x'"),
        (environment, missing),
    ):
        with pytest.raises(InputError, match=f"^{re.escape(begins + problem + ends)}$"):
            ApiServer(folder, given)
