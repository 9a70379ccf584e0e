"""A process that has imported the command `fluence` and forks itself for each start of it: `fork_server.py SOCKET`.

Imports are half the cost of a start, and the tests start hundreds. A client connects and sends {"arguments", "log"} as
one line of JSON. The server replies with the process's id on one line, and, when the process has ended, with its exit
status on another: minus the signal's number if a signal ended it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from importlib.metadata import entry_points
from typing import Any

_GROUPS = ("session_scheduler.plugins", "session_scheduler.commands", "fluence.webhook_handlers")
_ALSO = ("session_scheduler.cli", "session_scheduler.server.replica", "kubernetes.client", "kubernetes.config")
_PR_SET_PDEATHSIG = 1


def preload() -> None:
    """Import what a start imports. None of these modules starts a thread."""
    for name in _ALSO:
        importlib.import_module(name)
    for group in _GROUPS:
        for entry_point in entry_points(group=group):
            entry_point.load()
    gc.collect()
    gc.freeze()


def serve(path: str) -> dict[str, Any]:
    """Fork once for each client. Returns only in the new processes, each with its client's request."""
    reader, writer = socket.socketpair()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{path}.new")
    listener.listen()
    os.rename(f"{path}.new", path)  # clients connect as soon as it exists
    for one in (reader, writer):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno())
    asking: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(reader, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is reader:
                    reader.recv(4096)
                    _report_ended(asking)
                    continue
                connection, _ = listener.accept()
                request: dict[str, Any] = json.loads(connection.makefile().readline())
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for inherited in (connection, listener, reader, writer, *asking.values()):
                        inherited.close()
                    return request
                asking[pid] = connection
                connection.sendall(b"%d\n" % pid)


def _report_ended(asking: dict[int, socket.socket]) -> None:
    while asking:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with asking.pop(pid) as connection:
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def main() -> int:
    """Run the command in each new process: its output goes to the log, and the kernel kills it if the server dies."""
    preload()
    request = serve(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    from session_scheduler.cli import main as fluence

    sys.argv = ["fluence", *request["arguments"]]
    return fluence()


if __name__ == "__main__":
    sys.exit(main())
