"""The command `fluence`, started by forking a process that has imported it (see fork_server).

If a test changes the environment, such as PYTHONPATH, the command starts as a separate process instead.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from .processes import Program

_SERVER = Path(__file__).parent / "fork_server.py"
_PATIENCE = 60.0
_OF_PYTEST = "PYTEST_CURRENT_TEST"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != _OF_PYTEST}


_ENVIRONMENT = _environment()


class FluenceProgram(Program):
    """`fluence` with some arguments. It behaves as a separate process does, without the cost of its imports."""

    def __init__(self, name: str, arguments: Sequence[str | Path], log: Path) -> None:
        if _environment() != _ENVIRONMENT:
            super().__init__(name, [sys.executable, "-m", "session_scheduler.cli", *arguments], log)
            return
        self.name = name
        self.log = log
        self._handle: Any = _Forked(_server(), [str(one) for one in arguments], log)


@cache
def _server() -> Path:
    """The socket of this process's fork server, which ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="fork-server-")
    path = Path(folder.name) / "socket"
    server = Program("fork server", [sys.executable, "-P", _SERVER, path], path.with_name("log"))
    atexit.register(folder.cleanup)
    atexit.register(server.kill)
    server.wait_until(path.exists, _PATIENCE)
    return path


class _Forked:
    """A process of the fork server, with what `subprocess.Popen` says of its own."""

    def __init__(self, server: Path, arguments: Sequence[str], log: Path) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(server))
        self._connection.sendall(json.dumps({"arguments": arguments, "log": str(log)}).encode() + b"\n")
        self._answers = self._connection.makefile()
        self.pid = int(self._answers.readline())
        self._status: int | None = None
        self._reading = threading.Lock()  # one thread may poll while another kills and waits

    def poll(self) -> int | None:
        if not self._reading.acquire(blocking=False):
            return self._status  # another thread waits for the end
        try:
            return self._ended(0)
        finally:
            self._reading.release()

    def wait(self, timeout: float | None = None) -> int:
        status = None
        if self._reading.acquire(timeout=-1 if timeout is None else timeout):
            try:
                status = self._ended(timeout)
            finally:
                self._reading.release()
        if status is None:
            raise subprocess.TimeoutExpired("fluence", timeout or 0)
        return status

    def _ended(self, timeout: float | None) -> int | None:
        if self._status is None and select.select([self._connection], [], [], timeout)[0]:
            # Without an answer the server has died, and the kernel has killed its children.
            self._status = int(self._answers.readline() or -signal.SIGKILL)
            self._answers.close()
            self._connection.close()
        return self._status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)
