"""The delays between requests to a kubelet, measured with a stopped clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fluence_plugins.device_advertisement.advertisement import Advertisement
from fluence_plugins.device_advertisement.devices import Devices
from fluence_plugins.device_advertisement.kubelet import Kubelet, UnavailableError
from fluence_plugins.device_advertisement.metrics import Metrics
from fluence_plugins.device_advertisement.plugin import DevicePlugin

from .fake_kubelet import until

ONE, ANOTHER = (1, 1, 1), (1, 2, 2)


class Unavailable(Kubelet):
    """A kubelet that cannot be reached; records the time of each try."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        super().__init__(folder)
        self.asked: list[float] = []
        self._clock = clock

    async def register(self, resource_name: str, endpoint: str) -> None:
        self.asked.append(self._clock())
        raise UnavailableError("connection refused")


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def asking(folder: Path) -> AsyncIterator[tuple[Advertisement, Unavailable, Clock]]:
    clock = Clock()
    kubelet = Unavailable(folder, clock)
    metrics = Metrics("0.1.0")
    metrics.add_type("qpu")
    advertisement = Advertisement(Devices("qpu", 1), folder, kubelet, metrics, clock)
    task = asyncio.create_task(advertisement.run())
    advertisement.check(ONE)
    await until(lambda: kubelet.asked, "the first try")
    try:
        yield advertisement, kubelet, clock
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await advertisement.close(withdraw=False)


async def pass_seconds(clock: Clock, advertisement: Advertisement, seconds: int, kubelet: tuple[int, int, int]) -> None:
    for _ in range(seconds):
        clock.now += 1
        advertisement.check(kubelet)
        for _ in range(5):  # due work runs without waiting
            await asyncio.sleep(0)


async def test_delays_double_up_to_half_a_minute(folder: Path) -> None:
    async with asking(folder) as (advertisement, kubelet, clock):
        await pass_seconds(clock, advertisement, 120, ONE)
        assert kubelet.asked == [0, 1, 3, 7, 15, 31, 61, 91]


async def test_another_kubelet_is_asked_at_once_and_resets_the_delay(folder: Path) -> None:
    async with asking(folder) as (advertisement, kubelet, clock):
        await pass_seconds(clock, advertisement, 20, ONE)
        assert kubelet.asked == [0, 1, 3, 7, 15]
        await pass_seconds(clock, advertisement, 4, ANOTHER)
        assert kubelet.asked[5:] == [21, 22, 24]


async def test_no_kubelet_is_asked_without_a_socket(folder: Path) -> None:
    async with asking(folder) as (advertisement, kubelet, clock):
        for _ in range(60):
            clock.now += 1
            advertisement.check(None)
            await asyncio.sleep(0)
        assert kubelet.asked == [0]


async def test_it_is_unhealthy_after_a_long_time_without_a_check(folder: Path) -> None:
    clock = Clock()
    plugin = DevicePlugin(folder, 1, Metrics("0.1.0"), clock=clock)
    clock.now = 29
    assert plugin.health() is None
    clock.now = 31
    assert plugin.health() == "the loop has not run for 31 s"
