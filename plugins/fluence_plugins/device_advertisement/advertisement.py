"""One type's life beside the kubelet: a socket of its own, registered, watched; again whenever one of these is lost.

`look` says cheaply, once a second, whether something is to be done; `run` does it. What is lost and how it shows:
the kubelet was started anew (another kubelet.sock; it has removed every socket in the folder, ours too), or it dropped
the plugin without that (the ListAndWatch stream ended: it does so too when a predecessor, whom it knows under the same
resource, ends after this process has registered).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from fluence_plugins.device_advertisement.devices import Devices
from fluence_plugins.device_advertisement.kubelet import Kubelet, RefusedError, UnavailableError
from fluence_plugins.device_advertisement.metrics import Metrics, TypeState
from fluence_plugins.device_advertisement.naming import socket_name
from fluence_plugins.device_advertisement.server import DevicePluginServer
from fluence_plugins.device_advertisement.sockets import Identity, OwnSocket, Place
from fluence_plugins.resources.names import resource_name

FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 30.0
STREAM_SECONDS: Final = 5.0
"""How long after an answer to Register the kubelet may take to open its stream."""
STEADY_SECONDS: Final = 10.0
"""A registration that has held for so long is no failure when it ends."""

log = logging.getLogger(__name__)


class Advertisement:
    """One type, offered to the kubelet until `close`."""

    def __init__(
        self, devices: Devices, folder: Path, kubelet: Kubelet, metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._devices = devices
        self._kubelet = kubelet
        self._metrics = metrics
        self._clock = clock
        self._socket = OwnSocket(folder, socket_name(devices.type))
        self._server: DevicePluginServer | None = None
        self._began = False
        """Whether the name was ours once: who takes it after that is a successor."""
        self._due = asyncio.Event()
        self._seen: Identity | None = None
        self._registered: Identity | None = None
        self._registered_at = 0.0
        self._opened_before = 0
        self._wait = FIRST_WAIT
        self._not_before = 0.0
        self._failure: str | None = None

    # ------------------------------------------------------------------ what is asked once a second

    def check(self, kubelet: Identity | None) -> None:
        """Let `run` act if something is due. `kubelet`: its socket, if there is one."""
        now = self._clock()
        if kubelet != self._seen:  # another one: what an earlier one answered does not matter
            self._seen = kubelet
            self._wait, self._not_before = FIRST_WAIT, now
        elif self._is_watched() and now - self._registered_at >= STEADY_SECONDS:
            self._wait = FIRST_WAIT
        if now >= self._not_before and (not self._socket.is_ours() or self._must_register(now)):
            self._due.set()

    def _must_register(self, now: float) -> bool:
        if self._seen is None:
            return False
        if self._registered != self._seen:
            return True
        return not self._is_watched() and (self._was_watched() or now - self._registered_at >= STREAM_SECONDS)

    def _is_watched(self) -> bool:
        return self._server is not None and self._server.streams > 0

    def _was_watched(self) -> bool:
        return self._server is not None and self._server.opened > self._opened_before

    def state(self) -> TypeState:
        """What metrics and probes show."""
        streams = self._server.streams if self._server else 0
        return TypeState(self._devices.type, self._devices.capacity, streams, self._problem())

    def _problem(self) -> str | None:
        if self._failure:
            return self._failure
        if self._seen is None:
            return "the kubelet's socket is not there"
        if self._registered != self._seen:
            return "not registered yet"
        return None if self._is_watched() else "registered, but the kubelet does not watch its devices"

    # ------------------------------------------------------------------ what is done

    async def run(self) -> None:
        """Do what `check` finds, one thing after the other, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            if not self._socket.is_ours() and not await self._bound():
                continue
            if self._server is not None and self._must_register(self._clock()):
                await self._register(self._server)

    async def _bound(self) -> bool:
        """Serve at a new socket. A predecessor's is replaced; a successor's, while it is served, is left alone."""
        if self._began and self._socket.place() is Place.TAKEN:
            self._failed(f"another process serves {self._socket.path} now")
            return False
        await self._stop_server()
        server = DevicePluginServer(self._devices, self._metrics)
        bound = self._socket.temporary()
        try:
            await server.start(bound)
            self._socket.put(bound)
        except BaseException as error:
            await server.stop()
            with suppress(OSError):
                bound.unlink()
            if not isinstance(error, OSError):
                raise
            self._failed(f"{self._socket.path} cannot be served: {error.strerror or error}")
            return False
        self._server, self._registered, self._failure = server, None, None
        self._began = True
        return True

    async def _register(self, server: DevicePluginServer) -> None:
        kubelet, name = self._seen, resource_name(self._devices.type)
        self._opened_before = server.opened  # before the call: the stream may open before the answer is here
        try:
            await self._kubelet.register(name, self._socket.path.name)
        except UnavailableError as error:
            self._metrics.registered(self._devices.type, "unavailable")
            self._failed(f"the kubelet cannot be reached: {error}")
            return
        except RefusedError as error:
            self._metrics.registered(self._devices.type, "refused")
            self._failed(f"the kubelet refused it: {error}")
            return
        self._metrics.registered(self._devices.type, "ok")
        self._registered, self._registered_at, self._failure = kubelet, self._clock(), None
        self._delay()
        log.info("%s: %d registered with the kubelet", name, self._devices.capacity)

    def _failed(self, why: str) -> None:
        if why != self._failure:  # once, not with every try
            log.warning("%s: %s", resource_name(self._devices.type), why)
        self._failure = why
        self._registered = None
        self._delay()

    def _delay(self) -> None:
        self._not_before = self._clock() + self._wait
        self._wait = min(2 * self._wait, LONGEST_WAIT)

    # ------------------------------------------------------------------ the end

    async def close(self, *, withdraw: bool) -> None:
        """Stop serving and remove the socket. `withdraw`: tell the kubelet first that there are no devices any more.

        For use once `run` has ended. Idempotent; cut short, it still removes the socket.
        """
        try:
            if withdraw and self._server is not None:
                await self._server.withdraw()
        finally:
            self._socket.remove()
        await self._stop_server()

    async def _stop_server(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
