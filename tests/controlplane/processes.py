"""Programs that a harness starts and ends: each by its own handle, with its output in a file."""

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
"""Seconds that a program is given to end after SIGTERM."""

_PORTS = (15_000, 30_000)
_CHANCE = SystemRandom()  # no two processes are to look at the same ports in the same order

# The kernel's "parent" is the thread that started a program, so one that lasts as long as this process starts them all.
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")


class StartError(Exception):
    """A program ended, or did not become ready; the text ends with the last lines that it wrote."""


class Program:
    """One running program. It is killed by the kernel, too, when this process dies."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            start = functools.partial(subprocess.Popen, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            self._handle = _STARTER.submit(start, [*_dying_with_us(), *command]).result()

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return once `ready()`. Raises StartError where the program ends before that, or the time is over."""
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
        """SIGKILL, as a crash."""
        self._handle.kill()
        self._handle.wait()

    def terminate(self) -> None:
        """Ask the program to end (SIGTERM), without waiting for it."""
        if self.status is None:
            self._handle.terminate()

    @property
    def status(self) -> int | None:
        """The exit status, minus the signal's number where one ended it; None while it runs."""
        return self._handle.poll()

    def stop(self, grace: float = _GRACE) -> None:
        """End the program: SIGTERM, and SIGKILL where that does not do within `grace` seconds."""
        self.terminate()
        try:
            self._handle.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


class Served(ABC):
    """Programs as a context: it begins once they serve, and they are ended, too, where they come up in part."""

    @abstractmethod
    def start(self) -> None:
        """Start them, and return once they serve."""

    @abstractmethod
    def stop(self) -> None:
        """End all that runs of them."""

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
    """Ports of the loopback interface that nobody listened on just now.

    Below those that the kernel gives to connections and to whoever asks for any: one of these might be taken again
    before it is listened on.
    """
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            with suppress(OSError):
                sockets.append(socket.create_server(("127.0.0.1", _CHANCE.randrange(*_PORTS))))
        return [taken.getsockname()[1] for taken in sockets]
    finally:
        for taken in sockets:
            taken.close()
