"""Sockets in the kubelet's folder: put there whole, known again by inode, and removed only where they are still ours.

A server is bound under a temporary name, which is then renamed to the type's: so the name always leads to a server that
listens, a successor replaces what is there in one step, and what the gRPC library removes when a server stops, the
temporary name, is gone long since. Every call here is a system call or two.
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
"""Device, inode and time of creation, in nanoseconds: an inode's number is soon used again."""
_TEMPORARY: Final = f"{SOCKET_PREFIX}~"
"""No type's name begins so."""


def identity(path: Path) -> Identity | None:
    """What tells the socket of this name from another one that takes its place; None where there is no socket."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def is_served(path: Path) -> bool:
    """Whether a process listens there. A socket that a killed one left behind refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # so many wait already that it must be listened to; or it is not for us to say
            return True
    return True


def check_folder(folder: Path) -> None:
    """Raise InputError unless sockets can be put there."""
    if not folder.is_dir():
        raise InputError(f"--kubelet-dir: {folder}: no such folder: name that of the kubelet's kubelet.sock")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--kubelet-dir: {folder}: cannot be written: run as the user who may, root as a rule")
    most = LONGEST_SOCKET_PATH - 1 - LONGEST_SOCKET_NAME
    if len(os.fsencode(folder)) > most:
        raise InputError(f"--kubelet-dir: {folder}: too long for paths of sockets: at most {most} bytes")


def remove_stale(folder: Path) -> list[str]:
    """Remove sockets of ours that nobody serves, as a kill leaves them. Returns their names."""
    removed = []
    for path in sorted(folder.glob(f"{SOCKET_PREFIX}*{SOCKET_SUFFIX}")):
        found = identity(path)
        if found and not is_served(path) and identity(path) == found:
            with suppress(FileNotFoundError):
                path.unlink()
            removed.append(path.name)
    return removed


class Place(Enum):
    """What is at the name of our socket."""

    OURS = "ours"
    FREE = "free"
    """Nothing, or nothing that is served."""
    TAKEN = "taken"
    """A socket that another process serves."""


class OwnSocket:
    """A name in the folder, and the socket that we put there."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / name
        self._ours: Identity | None = None

    def temporary(self) -> Path:
        """A new path to bind; it is as short as the name that it will have."""
        return self.path.with_name(f"{_TEMPORARY}{secrets.token_hex(6)}{SOCKET_SUFFIX}")

    def put(self, bound: Path) -> None:
        """Give the socket its name, whatever has it now; only this user may connect. Raises OSError."""
        bound.chmod(0o600)
        bound.rename(self.path)
        self._ours = identity(self.path)

    def place(self) -> Place:
        """What the name leads to now."""
        found = identity(self.path)
        if found and found == self._ours:
            return Place.OURS
        return Place.TAKEN if found and is_served(self.path) else Place.FREE

    def is_ours(self) -> bool:
        """Whether the name leads to our socket: one system call."""
        return self._ours is not None and identity(self.path) == self._ours

    def remove(self) -> None:
        """Remove the socket where it is still ours. Idempotent."""
        if self.is_ours():
            with suppress(OSError):  # the folder is gone, or not ours to write any more
                self.path.unlink()
        self._ours = None
