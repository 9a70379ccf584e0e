"""Advertises one type to the kubelet: serves a socket, registers it, and repeats both when the kubelet loses it.

`check`, called once a second, detects what is due; `run` does it. A registration is lost if the kubelet restarts (it
creates a new kubelet.sock and deletes all sockets in its directory, ours included), or if the kubelet drops the plugin
(the ListAndWatch stream ends). The latter also happens if a predecessor with the same resource ends after this process
has registered.
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
"""How long the kubelet may take to open its stream after it has answered Register."""
STEADY_SECONDS: Final = 10.0
"""The end of a registration that lasted this long is not a failure."""

log = logging.getLogger(__name__)


class Advertisement:
    """Advertises one type until `close`."""

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
        """Whether the path has been ours: another process that takes it later is a successor."""
        self._due = asyncio.Event()
        self._observed: Identity | None = None
        self._registered: Identity | None = None
        self._registered_at = 0.0
        self._opened_before = 0
        self._wait = FIRST_WAIT
        self._not_before = 0.0
        self._failure: str | None = None

    # ------------------------------------------------------------------ checks, once a second

    def check(self, kubelet: Identity | None) -> None:
        """Trigger `run` if something is due. `kubelet`: the identity of its socket, if it exists."""
        now = self._clock()
        if kubelet != self._observed:  # a new kubelet: forget the backoff
            self._observed = kubelet
            self._wait, self._not_before = FIRST_WAIT, now
        elif self._is_watched() and now - self._registered_at >= STEADY_SECONDS:
            self._wait = FIRST_WAIT
        if now >= self._not_before and (not self._socket.is_ours() or self._must_register(now)):
            self._due.set()

    def _must_register(self, now: float) -> bool:
        if self._observed is None:
            return False
        if self._registered != self._observed:
            return True
        return not self._is_watched() and (self._was_watched() or now - self._registered_at >= STREAM_SECONDS)

    def _is_watched(self) -> bool:
        return self._server is not None and self._server.streams > 0

    def _was_watched(self) -> bool:
        return self._server is not None and self._server.opened > self._opened_before

    def state(self) -> TypeState:
        """The state for metrics and probes."""
        streams = self._server.streams if self._server else 0
        return TypeState(self._devices.type, self._devices.capacity, streams, self._problem())

    def _problem(self) -> str | None:
        if self._failure:
            return self._failure
        if self._observed is None:
            return "the kubelet's socket does not exist"
        if self._registered != self._observed:
            return "not registered yet"
        return None if self._is_watched() else "registered, but the kubelet does not watch the devices"

    # ------------------------------------------------------------------ actions

    async def run(self) -> None:
        """Do what `check` found, one action at a time, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            if not self._socket.is_ours() and not await self._bound():
                continue
            if self._server is not None and self._must_register(self._clock()):
                await self._register(self._server)

    async def _bound(self) -> bool:
        """Serve at a new socket. A predecessor's socket is replaced; a successor's stays if it is served."""
        if self._began and self._socket.place() is Place.TAKEN:
            self._failed(f"another process now serves {self._socket.path}")
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
            self._failed(f"cannot serve {self._socket.path}: {error.strerror or error}")
            return False
        self._server, self._registered, self._failure = server, None, None
        self._began = True
        return True

    async def _register(self, server: DevicePluginServer) -> None:
        kubelet, name = self._observed, resource_name(self._devices.type)
        self._opened_before = server.opened  # before the call: the stream may open before it returns
        try:
            await self._kubelet.register(name, self._socket.path.name)
        except UnavailableError as error:
            self._metrics.registered(self._devices.type, "unavailable")
            self._failed(f"cannot reach the kubelet: {error}")
            return
        except RefusedError as error:
            self._metrics.registered(self._devices.type, "refused")
            self._failed(f"the kubelet rejected the registration: {error}")
            return
        self._metrics.registered(self._devices.type, "ok")
        self._registered, self._registered_at, self._failure = kubelet, self._clock(), None
        self._delay()
        log.info("%s: registered %d devices with the kubelet", name, self._devices.capacity)

    def _failed(self, why: str) -> None:
        if why != self._failure:  # log it only once
            log.warning("%s: %s", resource_name(self._devices.type), why)
        self._failure = why
        self._registered = None
        self._delay()

    def _delay(self) -> None:
        self._not_before = self._clock() + self._wait
        self._wait = min(2 * self._wait, LONGEST_WAIT)

    # ------------------------------------------------------------------ shutdown

    async def close(self, *, withdraw: bool) -> None:
        """Stop serving and remove the socket. `withdraw`: first send the kubelet an empty device list.

        Call it after `run` has ended. Idempotent; if it is cancelled, it still removes the socket.
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
