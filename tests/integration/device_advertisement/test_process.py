"""The command as a process beside a kubelet: its resource use, its cleanup, and its errors."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from .fake_kubelet import FakeKubelet, until

COMMAND = [str(Path(sys.executable).with_name("fluence")), "device-plugin"]
HEAVY = ("numpy", "pydantic", "kubernetes", "aiohttp", "structlog", "rich", "typer", "fluxion_cy")
MIB = 1 << 20


class Process:
    """The command, running."""

    def __init__(self, options: list[str], env: dict[str, str], log: Path) -> None:
        self._log = log
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLUENCE_")}
        with log.open("w") as errors:
            self.process = subprocess.Popen([*COMMAND, *options], stderr=errors, env=kept | env)

    def log(self) -> str:
        return self._log.read_text()

    def mapped(self) -> str:
        """The libraries in its memory."""
        return Path(f"/proc/{self.process.pid}/maps").read_text()

    def resident(self) -> int:
        """The resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10

    def cpu(self) -> float:
        """The processor time so far in seconds, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def get(self, path: str) -> tuple[int, str]:
        """Returns status and body."""
        await until(lambda: " at 127.0.0.1:" in self.log(), "the endpoints' address")
        port = int(re.findall(r" at 127.0.0.1:(\d+)", self.log())[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = (await asyncio.wait_for(reader.read(), 10)).decode()
        writer.close()
        await writer.wait_closed()
        head, _, body = answer.partition("\r\n\r\n")
        return int(head.split()[1]), body

    async def end(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send the signal. Returns the exit status and the seconds until the end."""
        began = time.monotonic()
        self.process.send_signal(number)
        await until(lambda: self.process.poll() is not None, "the end")
        return self.process.returncode, time.monotonic() - began


@asynccontextmanager
async def started(folder: Path, resources: Path | None, **env: str) -> AsyncIterator[Process]:
    options = ["--kubelet-dir", str(folder), "--host", "127.0.0.1", "--port", "0", "--log-format", "console"]
    if resources is not None:
        options += ["--resources", str(resources)]
    plugin = Process(options, env, folder / f"log-{time.monotonic_ns()}")
    try:
        yield plugin
    finally:
        with suppress(ProcessLookupError):
            plugin.process.kill()
        plugin.process.wait()


def resources_of(folder: Path, *types: str) -> Path:
    path = folder / "resources.yaml"
    path.write_text("resources:\n" + "".join(f"- type: {each}\n" for each in types))
    return path


def sockets(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("fluence-*"))


async def test_twenty_types_of_a_thousand_need_less_than_60_mib_and_no_cpu(folder: Path, kubelet: FakeKubelet) -> None:
    types = [f"type-{number}" for number in range(20)]
    async with started(folder, resources_of(folder, *types)) as plugin:
        await until(lambda: kubelet.allocatable == dict.fromkeys(types, 1000), "every list was read")
        status, metrics = await plugin.get("/metrics")
        assert status == 200
        assert metrics.count("fluence_device_plugin_streams{") == 20
        assert (await plugin.get("/readyz"))[0] == 200
        assert plugin.resident() < 60 * MIB
        began, before = time.monotonic(), plugin.cpu()
        await asyncio.sleep(3)  # the measured interval
        assert plugin.cpu() - before < 0.05 * (time.monotonic() - began)
        assert plugin.resident() < 60 * MIB
        assert "cygrpc" in plugin.mapped()
        assert [name for name in HEAVY if f"/{name}/" in plugin.mapped()] == []


def test_the_process_imports_no_heavy_module() -> None:
    code = "import sys, fluence_plugins.device_advertisement.__main__; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {"grpc", "prometheus_client", "yaml"} <= set(out.stdout.split())
    assert [name for name in HEAVY if name in out.stdout.split()] == []


async def test_sigterm_ends_it_at_once_with_status_0_and_no_socket_left(folder: Path, kubelet: FakeKubelet) -> None:
    async with started(folder, resources_of(folder, "qpu", "qubit")) as plugin:
        await until(lambda: kubelet.allocatable == {"qpu": 1000, "qubit": 1000}, "watched")
        status, seconds = await plugin.end()
        assert (status, sockets(folder)) == (0, [])
        assert seconds < 5
        await until(lambda: kubelet.allocatable == {"qpu": 0, "qubit": 0}, "the kubelet sees the end")
        assert kubelet.lists == {name: [[f"{name}-{number}" for number in range(1000)]] for name in ("qpu", "qubit")}


async def test_sigterm_ends_it_while_the_kubelet_does_not_answer(folder: Path, kubelet: FakeKubelet) -> None:
    kubelet.silent = True
    async with started(folder, resources_of(folder, "qpu", "qubit")) as plugin:
        await until(lambda: sorted(kubelet.registered) == ["qpu", "qubit"], "both are asking")
        status, seconds = await plugin.end()
        assert (status, sockets(folder)) == (0, [])
        assert seconds < 5


async def test_after_a_kill_another_process_replaces_the_stale_sockets(folder: Path, kubelet: FakeKubelet) -> None:
    async with started(folder, resources_of(folder, "qpu", "qubit")) as plugin:
        await until(lambda: kubelet.allocatable == {"qpu": 1000, "qubit": 1000}, "watched")
        await plugin.end(signal.SIGKILL)
    assert sockets(folder) == ["fluence-qpu.sock", "fluence-qubit.sock"]
    async with started(folder, resources_of(folder, "qpu"), FLUENCE_RESOURCE_CAPACITY="7") as plugin:
        await until(lambda: kubelet.allocatable == {"qpu": 7, "qubit": 0}, "watched again")
        assert sockets(folder) == ["fluence-qpu.sock"]


async def test_a_restarted_kubelet_finds_it_again(folder: Path, kubelet: FakeKubelet) -> None:
    async with started(folder, resources_of(folder, "qpu")) as plugin:
        await until(lambda: kubelet.allocatable == {"qpu": 1000}, "watched")
        await kubelet.stop()
        await kubelet.start()
        await until(lambda: kubelet.allocatable == {"qpu": 1000}, "watched by the new one")
        assert plugin.process.poll() is None


async def test_it_waits_for_a_configuration_and_follows_it_as_a_configmap_is_mounted(
    folder: Path, kubelet: FakeKubelet
) -> None:
    mounted = folder / "mounted"
    mounted.mkdir()

    def apply(version: str, text: str) -> None:
        """Replace the file as the kubelet does: a new folder, and a link that is replaced in one step."""
        (mounted / version).mkdir()
        (mounted / version / "resources.yaml").write_text(text)
        (mounted / "..data_tmp").symlink_to(version)
        (mounted / "..data_tmp").rename(mounted / "..data")
        if not (mounted / "resources.yaml").is_symlink():
            (mounted / "resources.yaml").symlink_to("..data/resources.yaml")

    async with started(folder, None, FLUENCE_RESOURCES=str(mounted / "resources.yaml")) as plugin:
        await until(lambda: "offering no devices" in plugin.log(), "it waits")
        assert (await plugin.get("/readyz")) == (200, "ok")
        apply("..1", "resources: [{type: qpu}]")
        await until(lambda: kubelet.allocatable == {"qpu": 1000}, "the first type")
        apply("..2", "resources: [{type: qpu}, {type: qubit}]")
        await until(lambda: kubelet.allocatable == {"qpu": 1000, "qubit": 1000}, "the second type")
        assert len(kubelet.lists["qpu"]) == 1
        apply("..3", "resources: [{type: qubit}]")
        await until(lambda: kubelet.allocatable == {"qpu": 0, "qubit": 1000}, "the first type gone")
        await until(lambda: sockets(folder) == ["fluence-qubit.sock"], "its socket gone")


async def test_it_is_not_ready_but_healthy_without_a_kubelet(folder: Path) -> None:
    async with started(folder, resources_of(folder, "qpu")) as plugin:
        await until(lambda: sockets(folder) == ["fluence-qpu.sock"], "its socket")
        status, body = await plugin.get("/readyz")
        assert (status, body.splitlines()[0]) == (503, "[-]qpu failed: the kubelet's socket does not exist")
        assert await plugin.get("/healthz") == (200, "ok")
        assert plugin.log().count("waiting for the kubelet's socket in") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kubelet-dir", "{folder}/none"], "--kubelet-dir: directory {folder}/none does not exist"),
        (["--kubelet-dir", "{folder}/" + "d" * 100], "too long for socket paths"),
        (["--capacity", "0"], "--capacity: expected a whole number from 1 to 50000, the kubelet's limit, got 0"),
        (
            ["--capacity", "50001"],
            "--capacity: expected a whole number from 1 to 50000, the kubelet's limit, got 50001",
        ),
        (["--resources", "{folder}/none.yaml"], "{folder}/none.yaml: cannot be read"),
        (["--host", "no such host"], "--host: cannot bind no such host:0"),
    ],
)
def test_bad_input_is_one_line_and_status_2(folder: Path, options: list[str], message: str) -> None:
    (folder / ("d" * 100)).mkdir()
    given = ["--port", "0", "--kubelet-dir", str(folder)] + [each.format(folder=folder) for each in options]
    out = subprocess.run([*COMMAND, *given], capture_output=True, text=True, timeout=60)
    lines = out.stderr.splitlines()
    assert (out.returncode, len(lines)) == (2, 1), out.stderr
    assert lines[0].startswith("fluence: ")
    assert message.format(folder=folder) in lines[0]
    assert sockets(folder) == []
