"""The scheduler follows its resources file while it runs: what the file says now is taken over between sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

from session_scheduler.errors import FluenceError
from session_scheduler.sdk.tasks import alongside

if TYPE_CHECKING:
    from fluence_plugins.resources.config import ResourcesConfig
    from fluence_plugins.resources.file import ResourcesFile
    from session_scheduler.sdk.bindings import Runtime

log = logging.getLogger("fluence")


class ResourcesReload:
    """Passes each configuration that the file (None: there is none to follow) comes to hold to `apply`.

    `apply` raises FluenceError where it cannot be used, and changes nothing then.
    """

    def __init__(self, file: ResourcesFile | None, apply: Callable[[ResourcesConfig], None]) -> None:
        self._file = file
        self._apply = apply
        self.usable = True
        """Whether what the file says now is what holds."""
        self.changes = 0
        """How often another configuration was taken over."""

    def load(self) -> ResourcesConfig | None:
        """What the file says now; None without a file. Raises ResourcesError or DocumentError."""
        return self._file.load() if self._file is not None else None

    def check(self) -> None:
        """Take over what the file says if it has changed, at once. What cannot be used is logged."""
        if self._file is None or not self._file.changed():
            return
        try:
            config = self._file.load()
        except FluenceError as error:
            log.warning("the resources stay as they were: %s", error)
            self.usable = False
        else:
            self._take_over(config)

    def serve(
        self, runtime: Runtime, plugin: str, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> AbstractAsyncContextManager[None] | None:
        """A context in which the file is followed, for the plugin of that name; None without a file."""
        if self._file is None:
            return None
        return alongside(self._follow(partial(self._file.changes, self._failed, sleep=sleep), runtime, plugin))

    async def _follow(
        self, changes: Callable[[], AsyncGenerator[ResourcesConfig]], runtime: Runtime, plugin: str
    ) -> None:
        while True:
            try:
                async for config in changes():
                    runtime.change(plugin, partial(self._take_over, config))
            except Exception:  # a bug, which is logged; the file is read again when it changes again
                self.usable = False
                log.exception("the resources stay as they were: an unexpected error")

    def _failed(self, _: FluenceError) -> None:
        self.usable = False

    def _take_over(self, config: ResourcesConfig) -> None:
        try:
            self._apply(config)
        except FluenceError as error:
            log.warning("the resources stay as they were: %s", error)
            self.usable = False
        except Exception:  # a bug, which the caller of the change logs
            self.usable = False
            raise
        else:
            self.usable = True
            self.changes += 1
