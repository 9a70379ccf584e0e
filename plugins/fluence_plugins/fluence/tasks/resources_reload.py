"""The task that follows the resources file: it applies each change between two sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

from fluence_plugins.resources.config import exclusive_names
from session_scheduler.errors import FluenceError
from session_scheduler.sdk.tasks import alongside

if TYPE_CHECKING:
    from fluence_plugins.resources.config import ResourcesConfig
    from fluence_plugins.resources.file import ResourcesFile
    from session_scheduler.sdk.bindings import Runtime

log = logging.getLogger("fluence")


class ResourcesReload:
    """Passes each new configuration of the file (None: no file) to `apply`.

    `apply` raises FluenceError for an invalid one, and changes nothing then.
    """

    def __init__(self, file: ResourcesFile | None, apply: Callable[[ResourcesConfig], None]) -> None:
        self._file = file
        self._apply = apply
        self.usable = True
        """Whether the present content of the file is applied."""
        self.changes = 0
        """The number of applied changes."""

    def load(self) -> ResourcesConfig | None:
        """The configuration in the file; None without a file. Raises ResourcesError or DocumentError."""
        return self._file.load() if self._file is not None else None

    def check(self) -> None:
        """Apply the file now if it has changed. An invalid one is logged."""
        if self._file is None or not self._file.changed():
            return
        try:
            config = self._file.load()
        except FluenceError as error:
            log.warning("the resources stay as they were: %s", error)
            self.usable = False
        else:
            self._apply_config(config)

    def serve(
        self, runtime: Runtime, plugin: str, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> AbstractAsyncContextManager[None] | None:
        """A context that follows the file for the plugin of that name; None without a file."""
        if self._file is None:
            return None
        changes = partial(self._file.changes, self._failed, sleep=sleep)
        return alongside(self._follow(self._file, changes, runtime, plugin))

    async def _follow(
        self, file: ResourcesFile, changes: Callable[[], AsyncGenerator[ResourcesConfig]], runtime: Runtime, plugin: str
    ) -> None:
        refused = ""
        while True:
            try:
                async for config in changes():
                    try:
                        await runtime.claim(plugin, {"resource": exclusive_names(config)})
                    except FluenceError as error:  # another scheduler has one of them: retry
                        if str(error) != refused:
                            log.warning("the resources stay as they were: %s", error)
                        refused, self.usable = str(error), False
                        file.forget()
                    else:
                        refused = ""
                        runtime.change(plugin, partial(self._apply_config, config))
            except Exception:  # a bug: the next change of the file is read again
                self.usable = False
                log.exception("the resources stay as they were: an unexpected error")

    def _failed(self, _: FluenceError) -> None:
        self.usable = False

    def _apply_config(self, config: ResourcesConfig) -> None:
        try:
            self._apply(config)
        except FluenceError as error:
            log.warning("the resources stay as they were: %s", error)
            self.usable = False
        except Exception:  # a bug, which the caller logs
            self.usable = False
            raise
        else:
            self.usable = True
            self.changes += 1
