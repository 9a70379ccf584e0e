"""Background tasks of plugins. They are not part of `signals`, because small programs import that module."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

from session_scheduler.base.signals import background

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def alongside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Run endless work as a task. The end of the context cancels the task and waits for it.

    A failure is logged at once with its traceback. Otherwise it would appear only when the program ends.
    """
    async with background(_logged(work)):
        yield


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:
        _log.exception("a background task failed; restart the process to resume its work")
        raise
