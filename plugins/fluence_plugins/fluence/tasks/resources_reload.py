"""The task that follows the resources file: it claims and applies each change between two sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
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

    For an invalid one, `apply` raises FluenceError and changes nothing.
    """

    def __init__(
        self,
        file: ResourcesFile | None,
        apply: Callable[[ResourcesConfig], None],
        in_use: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """`in_use` returns the names that only this scheduler may have now."""
        self._file = file
        self._apply = apply
        self._in_use = in_use
        self._claimed: set[str] = set()
        self._unapplied = 0
        """The number of claimed changes that are not applied yet."""
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
            log.warning("keeping the previous resources: %s", error)
            self.usable = False
        else:
            self._apply_config(config)

    def serve(
        self, runtime: Runtime, plugin: str, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> AbstractAsyncContextManager[None] | None:
        """A context that follows the file for the plugin of that name; None without a file."""
        if self._file is None:
            return None

        async def look(seconds: float) -> None:
            await sleep(seconds)
            await self._claim_in_use(runtime, plugin)

        self._claimed = {*self._in_use()}
        changes = partial(self._file.changes, self._failed, sleep=look)
        return alongside(self._follow(self._file, changes, runtime, plugin))

    async def _follow(
        self, file: ResourcesFile, changes: Callable[[], AsyncGenerator[ResourcesConfig]], runtime: Runtime, plugin: str
    ) -> None:
        refused = ""
        while True:
            try:
                async for config in changes():
                    try:
                        await self._claim(runtime, plugin, exclusive_names(config).union(self._in_use(), self._claimed))
                    except FluenceError as error:  # another scheduler has one of them: retry
                        if str(error) != refused:
                            log.warning("keeping the previous resources: %s", error)
                        refused, self.usable = str(error), False
                        file.forget()
                    else:
                        refused = ""
                        self._unapplied += 1
                        runtime.change(plugin, partial(self._apply_claimed, config))
            except Exception:  # a bug: the next change of the file is read again
                self.usable = False
                log.exception("keeping the previous resources: an unexpected error")

    async def _claim_in_use(self, runtime: Runtime, plugin: str) -> None:
        """Claim what is in use now. Other names are released: they were claimed for a change that failed, or the last
        pod that held them has ended.
        """
        names = {*self._in_use()}
        if self._unapplied or names == self._claimed:
            return
        try:
            await self._claim(runtime, plugin, names)
        except FluenceError as error:
            log.warning("cannot claim the resources that pods hold: %s", error)

    async def _claim(self, runtime: Runtime, plugin: str, names: set[str]) -> None:
        await runtime.claim(plugin, {"resource": names})
        self._claimed = names

    def _failed(self, _: FluenceError) -> None:
        self.usable = False

    def _apply_claimed(self, config: ResourcesConfig) -> None:
        self._unapplied -= 1
        self._apply_config(config)

    def _apply_config(self, config: ResourcesConfig) -> None:
        try:
            self._apply(config)
        except FluenceError as error:
            log.warning("keeping the previous resources: %s", error)
            self.usable = False
        except Exception:  # a bug, which the caller logs
            self.usable = False
            raise
        else:
            self.usable = True
            self.changes += 1
