"""The device plugin beside a kubelet, through restarts and failures of either; one process, time runs tenfold."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from fluence_plugins.device_advertisement import api_pb2 as api
from fluence_plugins.device_advertisement import kubelet as kubelet_module
from fluence_plugins.device_advertisement.metrics import Metrics
from fluence_plugins.device_advertisement.plugin import DevicePlugin
from fluence_plugins.resources.file import ResourcesFile

from .fake_kubelet import FakeKubelet, until


class Running:
    """A device plugin in this process."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self.metrics = Metrics("0.1.0")
        self.plugin = DevicePlugin(folder, capacity, self.metrics, tick=0.02, clock=lambda: 10 * time.monotonic())
        self.stop = asyncio.Event()

    def problems(self) -> dict[str, str | None]:
        return {state.type: state.problem for state in self.plugin.states()}

    def ready(self, *types: str) -> bool:
        return self.problems() == dict.fromkeys(types)

    def shown(self) -> str:
        return self.metrics.exposition()[0].decode()


@asynccontextmanager
async def running(
    folder: Path, *types: str, capacity: int = 3, resources: ResourcesFile | None = None
) -> AsyncIterator[Running]:
    it = Running(folder, capacity)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(it.plugin.run(types, resources, it.stop))
        try:
            yield it
        finally:
            it.stop.set()
            async with asyncio.timeout(10):
                await asyncio.wait((task,))


def sockets(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("fluence-*"))


async def test_each_type_is_registered_at_its_own_socket_with_all_its_devices(
    folder: Path, kubelet: FakeKubelet
) -> None:
    async with running(folder, "qpu", "qubit") as it:
        await until(lambda: kubelet.allocatable == {"qpu": 3, "qubit": 3}, "both lists were read")
        await until(lambda: it.ready("qpu", "qubit"), "Register has returned, too")
        assert sockets(folder) == ["fluence-qpu.sock", "fluence-qubit.sock"]
        assert sorted(kubelet.registered) == ["qpu", "qubit"]
        assert kubelet.lists["qpu"] == [["qpu-0", "qpu-1", "qpu-2"]]
        assert (folder / "fluence-qpu.sock").stat().st_mode & 0o777 == 0o600
    assert sockets(folder) == []


async def test_a_container_gets_its_devices_and_their_type_in_its_environment(
    folder: Path, kubelet: FakeKubelet
) -> None:
    async with running(folder, "qpu", capacity=20) as it:
        await until(lambda: it.ready("qpu"), "watched")
        env = await kubelet.allocate("qpu", "qpu-10", "qpu-9")
        assert env == {"FLUENCE_DEVICE_TYPE_QPU": "qpu", "FLUENCE_DEVICES_QPU": "qpu-9,qpu-10"}
        assert 'allocations_total{result="ok",type="qpu"} 1.0' in it.shown()


async def test_unknown_devices_are_refused_by_name(folder: Path, kubelet: FakeKubelet) -> None:
    async with running(folder, "qpu") as it:
        await until(lambda: it.ready("qpu"), "watched")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kubelet.allocate("qpu", "qpu-3")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == "'qpu-3' is not a device of type qpu; use qpu-0 to qpu-2"
        assert 'allocations_total{result="refused",type="qpu"} 1.0' in it.shown()


async def test_optional_calls_for_preferences_and_starts_are_answered(folder: Path, kubelet: FakeKubelet) -> None:
    async with running(folder, "qpu", capacity=20) as it:
        await until(lambda: it.ready("qpu"), "watched")
        options = await kubelet.ask("qpu", "GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
        assert (options.pre_start_required, options.get_preferred_allocation_available) == (False, False)
        wish = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=["qpu-11", "qpu-2", "qpu-3"], must_include_deviceIDs=["qpu-3"], allocation_size=2
        )
        request = api.PreferredAllocationRequest(container_requests=[wish])
        preferred = await kubelet.ask("qpu", "GetPreferredAllocation", request, api.PreferredAllocationResponse)
        assert list(preferred.container_responses[0].deviceIDs) == ["qpu-3", "qpu-2"]
        start = api.PreStartContainerRequest(devices_ids=["qpu-1"])
        assert await kubelet.ask("qpu", "PreStartContainer", start, api.PreStartContainerResponse) is not None


async def test_the_plugin_waits_for_a_kubelet(folder: Path) -> None:
    kubelet = FakeKubelet(folder)
    async with running(folder, "qpu") as it:
        await until(lambda: sockets(folder), "the socket")
        assert it.problems() == {"qpu": "the kubelet's socket does not exist"}
        await kubelet.start()
        await until(lambda: it.ready("qpu"), "watched")
    await kubelet.stop()


async def test_after_a_restart_of_the_kubelet_the_plugin_registers_with_a_new_socket(
    folder: Path, kubelet: FakeKubelet
) -> None:
    async with running(folder, "qpu", "qubit") as it:
        for _ in range(3):
            await until(lambda: it.ready("qpu", "qubit"), "watched")
            await kubelet.stop()
            await until(lambda: not any(state.streams for state in it.plugin.states()), "no streams")
            await kubelet.start()
            await until(lambda: kubelet.allocatable == {"qpu": 3, "qubit": 3}, "watched by the new one")
            assert "qpu-0" in (await kubelet.allocate("qpu", "qpu-0"))["FLUENCE_DEVICES_QPU"]


async def test_the_plugin_registers_with_another_kubelet_at_the_same_path(folder: Path, kubelet: FakeKubelet) -> None:
    async with running(folder, "qpu"):
        await until(lambda: kubelet.allocatable == {"qpu": 3}, "watched")
        inode = (folder / "fluence-qpu.sock").stat().st_ino
        other = FakeKubelet(folder)
        await other.start(remove_sockets=False)
        await until(lambda: other.allocatable == {"qpu": 3}, "watched by the other")
        assert kubelet.allocatable == {"qpu": 3}
        assert (folder / "fluence-qpu.sock").stat().st_ino == inode
        await other.stop()


async def test_the_plugin_registers_again_after_the_kubelet_drops_it(folder: Path, kubelet: FakeKubelet) -> None:
    async with running(folder, "qpu") as it:
        await until(lambda: kubelet.allocatable == {"qpu": 3}, "watched")
        await kubelet.drop("qpu")
        assert kubelet.allocatable == {"qpu": 0}
        await until(lambda: kubelet.allocatable == {"qpu": 3}, "watched again")
        await until(lambda: it.ready("qpu"), "ready again")


async def test_the_plugin_registers_again_if_the_kubelet_never_watches(folder: Path, kubelet: FakeKubelet) -> None:
    kubelet.blind = True
    async with running(folder, "qpu") as it:
        await until(lambda: len(kubelet.registered) == 2, "two registrations")
        assert it.problems() == {"qpu": "registered, but the kubelet does not watch the devices"}
        assert 'advertised{type="qpu"} 0.0' in it.shown()
        kubelet.blind = False
        await until(lambda: it.ready("qpu"), "watched")


async def test_the_plugin_registers_again_if_the_kubelet_never_answers(
    folder: Path, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kubelet_module.REGISTER_SECONDS <= 15
    monkeypatch.setattr(kubelet_module, "REGISTER_SECONDS", 0.1)
    kubelet.silent = True
    async with running(folder, "qpu") as it:
        await until(lambda: len(kubelet.registered) == 2, "two registrations")
        assert 'registrations_total{result="unavailable",type="qpu"}' in it.shown()
        assert "cannot reach the kubelet" in str(it.problems()["qpu"])
        kubelet.silent = False
        await until(lambda: it.ready("qpu"), "watched")


async def test_a_refusal_is_logged_and_retried_with_growing_delays(
    folder: Path, kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet.refusal = "the ResourceName is invalid"
    async with running(folder, "qpu") as it:
        await until(lambda: len(kubelet.registered) == 3, "tried three times")
        assert it.problems() == {"qpu": "the kubelet rejected the registration: the ResourceName is invalid"}
        assert 'registrations_total{result="refused",type="qpu"}' in it.shown()
        kubelet.refusal = None
        await until(lambda: it.ready("qpu"), "watched")
    logged = [record.message for record in caplog.records if "rejected" in record.message]
    assert logged == [
        "fluxion.flux-framework.org/qpu: the kubelet rejected the registration: the ResourceName is invalid"
    ]


async def test_a_removed_type_has_no_devices_before_its_socket_is_removed(folder: Path, kubelet: FakeKubelet) -> None:
    path = folder / "resources.yaml"
    path.write_text("resources: [{type: qpu}, {type: qubit}]")
    resources = ResourcesFile(str(path))
    resources.load()
    async with running(folder, "qpu", "qubit", resources=resources) as it:
        await until(lambda: kubelet.allocatable == {"qpu": 3, "qubit": 3}, "watched")
        path.write_text("resources: [{type: qubit}, {type: photonics}]")
        await until(lambda: it.ready("photonics", "qubit"), "the new types")
        await until(lambda: kubelet.lists["qpu"][1:] == [[]], "a last list, which is empty")
        assert len(kubelet.lists["qubit"]) == 1
        assert sockets(folder) == ["fluence-photonics.sock", "fluence-qubit.sock"]
        assert 'type="qpu"' not in it.shown()
        path.write_text("resources: [{type: [}")
        await until(lambda: "config_last_load_successful 0.0" in it.shown(), "the failed load in the metrics")
        assert it.ready("photonics", "qubit")


async def test_a_successor_keeps_its_sockets_when_its_predecessor_ends(folder: Path, kubelet: FakeKubelet) -> None:
    async with running(folder, "qpu", capacity=3) as old:
        await until(lambda: kubelet.allocatable == {"qpu": 3}, "the old one is listed")
        async with running(folder, "qpu", capacity=5) as new:
            await until(lambda: kubelet.allocatable == {"qpu": 5}, "the new one is listed")
            await until(lambda: "another process now serves" in str(old.problems()["qpu"]), "the old one sees it")
            inode = (folder / "fluence-qpu.sock").stat().st_ino
            old.stop.set()
            await until(lambda: not old.plugin.states()[0].streams, "the old one has ended")
            await until(lambda: len(kubelet.lists["qpu"]) == 3, "a third list, since the kubelet dropped the plugin")
            await until(lambda: new.ready("qpu"), "watched")
            assert kubelet.allocatable == {"qpu": 5}
            assert (folder / "fluence-qpu.sock").stat().st_ino == inode
    assert sockets(folder) == []


async def test_a_predecessor_takes_over_again_after_its_successor_is_killed(folder: Path, kubelet: FakeKubelet) -> None:
    async with running(folder, "qpu") as it:
        await until(lambda: it.ready("qpu"), "watched")
        other = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), folder / "other.sock")
        (folder / "other.sock").rename(folder / "fluence-qpu.sock")
        await until(lambda: "another process now serves" in str(it.problems().get("qpu")), "it sees the other")
        other.close()
        await other.wait_closed()
        await until(lambda: it.ready("qpu"), "its own socket again")


async def test_only_its_own_stale_sockets_are_removed_at_the_start(folder: Path, kubelet: FakeKubelet) -> None:
    for name in ("fluence-gone.sock", "fluence-~0123.sock", "nvidia.sock"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(folder / name))
    (folder / "fluence-notes.sock").write_text("no socket")
    async with running(folder, "qpu") as it:
        await until(lambda: it.ready("qpu"), "watched")
        assert sockets(folder) == ["fluence-notes.sock", "fluence-qpu.sock"]
        assert (folder / "nvidia.sock").exists()


async def test_ending_while_a_type_is_withdrawn_leaves_no_socket(folder: Path, kubelet: FakeKubelet) -> None:
    path = folder / "resources.yaml"
    path.write_text("resources: [{type: qpu}]")
    resources = ResourcesFile(str(path))
    resources.load()
    async with running(folder, "qpu", resources=resources) as it:
        await until(lambda: it.ready("qpu"), "watched")
        path.write_text("resources: [{type: qubit}]")
        await until(lambda: not it.ready("qpu"), "the type is leaving")
        it.stop.set()
    assert sockets(folder) == []


async def test_a_removed_folder_is_logged_once_and_used_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = folder / "plugins"
    place.mkdir()
    async with running(place, "qpu") as it:
        await until(lambda: sockets(place) == ["fluence-qpu.sock"], "the socket")
        (place / "fluence-qpu.sock").unlink()
        place.rmdir()
        await until(lambda: "cannot be bound" in str(it.problems()["qpu"]), "the reported problem")
        place.mkdir()
        await until(lambda: sockets(place) == ["fluence-qpu.sock"], "the socket again")
    assert sum("cannot be bound" in record.message for record in caplog.records) == 1


async def test_a_folder_that_refuses_sockets_is_reported_and_retried(folder: Path, kubelet: FakeKubelet) -> None:
    (folder / "fluence-qpu.sock").mkdir()
    async with running(folder, "qpu") as it:
        await until(lambda: "cannot serve" in str(it.problems().get("qpu")), "the reported problem")
        assert sockets(folder) == ["fluence-qpu.sock"]
        (folder / "fluence-qpu.sock").rmdir()
        await until(lambda: it.ready("qpu"), "watched")
