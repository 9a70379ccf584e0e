"""The resources file on disk, as scheduler, device plugin and webhook read it; the latter two follow its changes.

Where the file comes from the environment, there may be none: then nothing is modelled. In a cluster it is a mounted
ConfigMap, which the kubelet changes by putting another folder in its place: so what is watched is what the path leads
to. Light: imports nothing that a device plugin would not need anyway.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from fluence_plugins.resources.config import ResourcesConfig, load_resources
from fluence_plugins.resources.errors import ResourcesError
from session_scheduler.errors import FluenceError

RESOURCES_ENV = "FLUENCE_RESOURCES"
CAPACITY_ENV = "FLUENCE_RESOURCE_CAPACITY"
DEFAULT_CAPACITY = 1000
FOLLOW_SECONDS = 2.0
"""How often a followed file is looked at: one system call each time."""
_MOST_BYTES = 2 << 20
"""What is read of a file at most; its text may have half of it."""

log = logging.getLogger(__name__)

_State = tuple[int, int, int, int]
"""Device, inode, size and time of the last change."""


class ResourcesFile:
    """One resources file. `optional`: that there is none means that nothing is modelled."""

    def __init__(self, path: str, *, optional: bool = False) -> None:
        self.path = path
        self._optional = optional
        self._seen: _State | None = None

    @classmethod
    def configured(cls, path: str | None = None) -> ResourcesFile | None:
        """The file of this name, which must be there; else that of FLUENCE_RESOURCES, which may be missing; else None.

        A Deployment names the place where the ConfigMap will be mounted, whether or not there is one yet.
        """
        if path:
            return cls(path)
        named = os.environ.get(RESOURCES_ENV)
        return cls(named, optional=True) if named else None

    def load(self) -> ResourcesConfig:
        """The resource trees now. Raises ResourcesError or DocumentError, naming the file."""
        return load_resources(self.read(), self.path)

    def read(self) -> str:
        """The file's text now; empty where there is none and need be none. Raises ResourcesError."""
        self._seen = self._state()
        try:
            with Path(self.path).open("rb") as file:
                data = file.read(_MOST_BYTES)
            text = data.decode(errors="ignore" if len(data) == _MOST_BYTES else "strict")  # cut, and too large anyway
        except FileNotFoundError:
            if self._optional:
                log.warning("no file %s: no devices are modelled", self.path)
                return ""
            raise self._unreadable("No such file or directory") from None
        except UnicodeDecodeError:
            raise self._unreadable("it is not UTF-8") from None
        except (OSError, ValueError) as error:  # the latter: a name that no file can have
            raise self._unreadable(getattr(error, "strerror", None) or str(error)) from None
        return text

    def _unreadable(self, why: str) -> ResourcesError:
        return ResourcesError(f"{self.path}: cannot be read ({why}): name a readable resources file")

    def changed(self) -> bool:
        """Whether the path leads to something else than when it was last loaded."""
        return self._state() != self._seen

    def _state(self) -> _State | None:
        try:
            found = Path(self.path).stat()
        except (OSError, ValueError):
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    async def changes(
        self,
        failed: Callable[[FluenceError], None] = lambda _: None,
        *,
        every: float = FOLLOW_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> AsyncGenerator[ResourcesConfig]:
        """Yield what the file holds whenever that changes after `load`; looks every so many seconds, without end.

        A file that cannot be used is logged and told to `failed`; what held before goes on to hold. It is not looked
        at again before it changes.
        """
        while True:
            await sleep(every)
            if not self.changed():
                continue
            try:
                config = self.load()
            except FluenceError as error:
                log.warning("the resources stay as they were: %s", error)
                failed(error)
                continue
            yield config


def capacity() -> int:
    """How many of each type a node advertises (FLUENCE_RESOURCE_CAPACITY). Raises ResourcesError."""
    text = os.environ.get(CAPACITY_ENV, str(DEFAULT_CAPACITY))
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text[:11]) < 2**31:
        raise ResourcesError(f"{CAPACITY_ENV}: {text[:40]!r} is no capacity: use a whole number from 1 on, as 1000")
    return int(text)
