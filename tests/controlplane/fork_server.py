"""A process that has imported the command `fluence` and forks itself for each start of it: `fork_server.py SOCKET`.

Half of what a start costs is imports, and tests start hundreds. Who connects sends {"arguments", "log"} as a line of
JSON. The answers are lines, too: the process's id, and once it has ended its exit status, minus the signal's number
where one ended it.
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
    """Import what a start imports; nothing of it runs a thread yet."""
    for name in _ALSO:
        importlib.import_module(name)
    for group in _GROUPS:
        for entry_point in entry_points(group=group):
            entry_point.load()
    gc.collect()
    gc.freeze()


def serve(path: str) -> dict[str, Any]:
    """Fork for whoever connects. Returns in each new process, with what was asked for."""
    awake, wakes = socket.socketpair()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    for one in (awake, wakes):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    asking: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(awake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is awake:
                    awake.recv(4096)
                    _report_ended(asking)
                    continue
                connection, _ = listener.accept()
                request: dict[str, Any] = json.loads(connection.makefile().readline())
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for inherited in (connection, listener, awake, wakes, *asking.values()):
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
    """The command, in the new process: its output in the log, and it ends with the server."""
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
