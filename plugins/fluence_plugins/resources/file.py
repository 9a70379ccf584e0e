"""The resources file on disk. Scheduler, device plugin and webhook read it; the latter two watch it for changes.

If only the environment names the file, it may be missing: then no devices are modelled. In a cluster the file is a
mounted ConfigMap, which the kubelet updates by replacing a directory, so the watch follows the path's target. This
module imports nothing that the device plugin does not need anyway.
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
"""How often a watched file is checked, with one system call each time."""
_MOST_BYTES = 2 << 20
"""How much of a file is read; its text may have half of that."""

log = logging.getLogger(__name__)

_State = tuple[int, int, int, int]
"""Device, inode, size and modification time."""


class ResourcesFile:
    """A resources file. `optional`: if it is missing, nothing is modelled."""

    def __init__(self, path: str, *, optional: bool = False) -> None:
        self.path = path
        self._optional = optional
        self._seen: _State | None = None

    @classmethod
    def configured(cls, path: str | None = None) -> ResourcesFile | None:
        """The file with this path, which must exist; else the one of FLUENCE_RESOURCES, which may be missing; else
        None.

        A Deployment sets the path at which the ConfigMap will be mounted, even if there is none yet.
        """
        if path:
            return cls(path)
        named = os.environ.get(RESOURCES_ENV)
        return cls(named, optional=True) if named else None

    def load(self) -> ResourcesConfig:
        """Load the resource trees. Raises ResourcesError or DocumentError, which name the file."""
        return load_resources(self.read(), self.path)

    def read(self) -> str:
        """Read the file's text; empty if an optional file is missing. Raises ResourcesError."""
        self._seen = self._state()
        try:
            with Path(self.path).open("rb") as file:
                data = file.read(_MOST_BYTES)
            text = data.decode(errors="ignore" if len(data) == _MOST_BYTES else "strict")  # truncated: too large anyway
        except FileNotFoundError:
            if self._optional:
                log.warning("no file %s: no devices are modelled", self.path)
                return ""
            raise self._unreadable("No such file or directory") from None
        except UnicodeDecodeError:
            raise self._unreadable("it is not UTF-8") from None
        except (OSError, ValueError) as error:  # ValueError: an invalid path
            raise self._unreadable(getattr(error, "strerror", None) or str(error)) from None
        return text

    def _unreadable(self, why: str) -> ResourcesError:
        return ResourcesError(f"{self.path}: cannot be read ({why}); name a readable resources file")

    def forget(self) -> None:
        """Let the file count as changed."""
        self._seen = None

    def changed(self) -> bool:
        """Whether the file has changed since it was last loaded."""
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
        """Yield the new configuration after each change; checks at this interval, forever.

        An invalid file is logged and passed to `failed`; the last configuration stays valid. The file is not read again
        before it changes.
        """
        while True:
            await sleep(every)
            if not self.changed():
                continue
            try:
                config = self.load()
            except FluenceError as error:
                log.warning("cannot reload the resources, keeping the old ones: %s", error)
                failed(error)
                continue
            yield config


def capacity() -> int:
    """How many units of each type a node advertises (FLUENCE_RESOURCE_CAPACITY). Raises ResourcesError."""
    text = os.environ.get(CAPACITY_ENV, str(DEFAULT_CAPACITY))
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text[:11]) < 2**31:
        raise ResourcesError(
            f"{CAPACITY_ENV}: {text[:40]!r} is not a valid capacity; use a whole number of at least 1, such as 1000"
        )
    return int(text)
