"""Programs that a harness starts and stops, each with its own handle and with its output in a file."""

from __future__ import annotations

import functools
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Self

_PAUSE = 0.05
_GRACE = 10.0
"""Seconds that a program has to end after SIGTERM."""

_PORTS = (15_000, 30_000)
_CHANCE = SystemRandom()  # two processes must not try the same ports in the same order

# For the kernel the parent is the thread that started a program, so one long-lived thread starts all of them.
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")


class StartError(Exception):
    """A program ended, or did not become ready; the text contains its last lines of output."""


class Program:
    """A running program. The kernel kills it when this process dies."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            start = functools.partial(subprocess.Popen, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            self._handle = _STARTER.submit(start, [*_dying_with_us(), *command]).result()

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until `ready()`. Raises StartError if the program ends before, or after a timeout."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self.status is not None:
                raise StartError(f"{self.name} ended with status {self.status}:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise StartError(f"{self.name} was not ready after {seconds:.0f} s:\n{self._tail()}")
            time.sleep(_PAUSE)

    @property
    def pid(self) -> int:
        """The process's id."""
        return int(self._handle.pid)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._handle.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._handle.kill()
        self._handle.wait()

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait."""
        if self.status is None:
            self._handle.terminate()

    @property
    def status(self) -> int | None:
        """Return the exit status, minus the signal's number after a signal; None while it runs."""
        return self._handle.poll()

    def stop(self, grace: float = _GRACE) -> None:
        """Send SIGTERM, and SIGKILL after `grace` seconds."""
        self.terminate()
        try:
            self._handle.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


class Served(ABC):
    """Programs as a context, entered once they are ready; on failure the started ones are stopped."""

    @abstractmethod
    def start(self) -> None:
        """Start them, and wait until they are ready."""

    @abstractmethod
    def stop(self) -> None:
        """Stop those that run."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _dying_with_us() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface without a listener.

    They are below the range from which the kernel assigns ports, so it does not assign them before they are used.
    """
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            with suppress(OSError):
                sockets.append(socket.create_server(("127.0.0.1", _CHANCE.randrange(*_PORTS))))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
