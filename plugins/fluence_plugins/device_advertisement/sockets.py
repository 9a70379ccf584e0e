"""Sockets in the kubelet's directory: created atomically, recognised by inode, and removed only if they are still ours.

A server binds a temporary path, which is then renamed to the type's path. So the path always leads to a listening
server, and a successor replaces it in one step. gRPC removes the bound path when a server stops; that is the temporary
one, which no longer exists. Every function here makes a few system calls.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

from fluence_plugins.device_advertisement.naming import (
    LONGEST_SOCKET_NAME,
    LONGEST_SOCKET_PATH,
    SOCKET_PREFIX,
    SOCKET_SUFFIX,
)
from session_scheduler.errors import InputError

Identity = tuple[int, int, int]
"""Device, inode and creation time in nanoseconds, because inode numbers are reused soon."""
_TEMPORARY: Final = f"{SOCKET_PREFIX}~"
"""No type's socket starts with it."""


def identity(path: Path) -> Identity | None:
    """The identity of the socket at a path; None if there is no socket."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def is_served(path: Path) -> bool:
    """Whether a process listens there. A socket left behind by a killed process refuses connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # a full backlog means a listener; other errors are inconclusive
            return True
    return True


def check_folder(folder: Path) -> None:
    """Raise InputError unless sockets can be created there."""
    if not os.path.isdir(folder):
        raise InputError(
            f"--kubelet-dir: directory {folder} does not exist; use the directory that contains kubelet.sock"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--kubelet-dir: {folder} is not writable; run as a user with write permission, usually root")
    most = LONGEST_SOCKET_PATH - 1 - LONGEST_SOCKET_NAME
    if len(os.fsencode(folder)) > most:
        raise InputError(f"--kubelet-dir: {folder} is too long for socket paths; use at most {most} bytes")


def remove_stale(folder: Path) -> list[str]:
    """Remove our sockets that no process serves, left behind by a kill. Returns their names."""
    removed = []
    for path in sorted(folder.glob(f"{SOCKET_PREFIX}*{SOCKET_SUFFIX}")):
        found = identity(path)
        if found and not is_served(path) and identity(path) == found:
            with suppress(FileNotFoundError):
                path.unlink()
            removed.append(path.name)
    return removed


class Place(Enum):
    """What is at the path of our socket."""

    OURS = "ours"
    FREE = "free"
    """Nothing, or a socket that no process serves."""
    TAKEN = "taken"
    """A socket that another process serves."""


class OwnSocket:
    """A path in the directory, and the socket that we created there."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self._ours: Identity | None = None

    def temporary(self) -> Path:
        """A new path to bind; it is no longer than the final one."""
        return self.path.with_name(f"{_TEMPORARY}{secrets.token_hex(6)}{SOCKET_SUFFIX}")

    def put(self, bound: Path) -> None:
        """Move the socket to its path, replacing what is there; only this user may connect. Raises OSError."""
        bound.chmod(0o600)
        bound.rename(self.path)
        self._ours = identity(self.path)

    def place(self) -> Place:
        """What the path leads to now."""
        found = identity(self.path)
        if found and found == self._ours:
            return Place.OURS
        return Place.TAKEN if found and is_served(self.path) else Place.FREE

    def is_ours(self) -> bool:
        """Whether the path leads to our socket, with one system call."""
        return self._ours is not None and identity(self.path) == self._ours

    def remove(self) -> None:
        """Remove the socket if it is still ours. Idempotent."""
        if self.is_ours():
            with suppress(OSError):  # the directory is gone or no longer writable
                self.path.unlink()
        self._ours = None
