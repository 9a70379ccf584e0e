"""The device plugin: which types it offers, and the loop that checks all of them once a second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from fluence_plugins.device_advertisement.advertisement import Advertisement
from fluence_plugins.device_advertisement.devices import Devices
from fluence_plugins.device_advertisement.kubelet import Kubelet
from fluence_plugins.device_advertisement.metrics import Metrics, TypeState
from fluence_plugins.device_advertisement.sockets import remove_stale
from fluence_plugins.resources.config import resource_types
from fluence_plugins.resources.file import ResourcesFile
from session_scheduler.errors import FluenceError

TICK_SECONDS: Final = 1.0
STUCK_SECONDS: Final = 30.0
_END_SECONDS: Final = 3.0

log = logging.getLogger(__name__)


class DevicePlugin:
    """Offers types to the kubelet of a directory, `capacity` devices each."""

    def __init__(
        self,
        folder: Path,
        capacity: int,
        metrics: Metrics,
        *,
        tick: float = TICK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._capacity = capacity
        self._metrics = metrics
        self._tick = tick
        self._clock = clock
        self._kubelet = Kubelet(folder)
        self._offered: dict[str, tuple[Advertisement, asyncio.Task[None]]] = {}
        self._leaving: set[Advertisement] = set()
        self._ticked = clock()
        metrics.follow(self.states)

    def states(self) -> list[TypeState]:
        """The states of all offered types, sorted."""
        return [self._offered[each][0].state() for each in sorted(self._offered)]

    def health(self) -> str | None:
        """None while the loop makes progress; else the problem."""
        silent = self._clock() - self._ticked
        return None if silent < STUCK_SECONDS else f"the loop has not run for {silent:.0f} s"

    async def run(self, types: Sequence[str], resources: ResourcesFile | None, stop: asyncio.Event) -> None:
        """Offer the types, and later those of the changed file, until `stop`. Removes all of its sockets at the end."""
        for name in remove_stale(self._folder):
            log.info("removed the stale socket %s", name)
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._offer(types, tasks)
                running = [tasks.create_task(self._watch_kubelet())]
                if resources is not None:
                    running.append(tasks.create_task(self._follow(resources, tasks)))
                await stop.wait()
                log.info("shutting down: the kubelet has no devices until another device plugin registers")
                for task in (*running, *(task for _, task in self._offered.values())):
                    task.cancel()
        finally:
            await self._close()

    async def _watch_kubelet(self) -> None:
        reported = False
        while True:
            kubelet = self._kubelet.identity()
            if kubelet is None and not reported:
                log.warning("waiting for the kubelet's socket in %s", self._folder)
            reported = kubelet is None
            for advertisement, _ in self._offered.values():
                advertisement.check(kubelet)
            self._ticked = self._clock()
            await asyncio.sleep(self._tick)

    async def _follow(self, resources: ResourcesFile, tasks: asyncio.TaskGroup) -> None:
        def failed(_: FluenceError) -> None:
            self._metrics.config_loaded(False)

        async for config in resources.changes(failed):
            self._metrics.config_loaded(True)
            await self._offer(resource_types(config), tasks)

    async def _offer(self, types: Sequence[str], tasks: asyncio.TaskGroup) -> None:
        """Offer exactly these types; first withdraw those that are gone, concurrently."""
        left = sorted(set(self._offered) - set(types))
        new = sorted(set(types) - set(self._offered))
        await asyncio.gather(*map(self._withdraw, left))
        for each in new:
            self._metrics.add_type(each)
            devices = Devices(each, self._capacity)
            advertisement = Advertisement(devices, self._folder, self._kubelet, self._metrics, self._clock)
            self._offered[each] = advertisement, tasks.create_task(advertisement.run())
        if left or new or not types:
            log.info("offering %s", ", ".join(sorted(self._offered)) or "no devices: the configuration has no types")

    async def _withdraw(self, resource_type: str) -> None:
        advertisement, task = self._offered.pop(resource_type)
        self._leaving.add(advertisement)
        task.cancel()
        await asyncio.wait((task,))
        await advertisement.close(withdraw=True)
        self._leaving.discard(advertisement)
        self._metrics.remove_type(resource_type)
        log.info("withdrew %s, which the configuration no longer contains", resource_type)

    async def _close(self) -> None:
        advertisements = [*self._leaving, *(advertisement for advertisement, _ in self._offered.values())]
        try:
            async with asyncio.timeout(_END_SECONDS):
                await asyncio.gather(*(advertisement.close(withdraw=False) for advertisement in advertisements))
        except TimeoutError:  # the sockets are already removed
            log.warning("servers did not stop within %.0f s: exiting without waiting for them", _END_SECONDS)
