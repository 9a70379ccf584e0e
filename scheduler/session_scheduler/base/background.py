"""A plugin's tasks beside what it serves. Apart from `stopping`, which programs import that must stay small."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

from session_scheduler.base.signals import background

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def alongside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """The work, which is to go on without end, as a task that is cancelled and awaited at the end of the context.

    Should it fail, that is logged at once, with where: else it would show only when the program ends.
    """
    async with background(_logged(work)):
        yield


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:
        _log.exception("a task has failed that was to go on: what it does is not done until a restart")
        raise
