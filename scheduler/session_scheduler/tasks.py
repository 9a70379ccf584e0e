"""A plugin's tasks beside what it serves. Apart from `stopping`, which programs import that must stay small."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Never

import structlog

from session_scheduler.errors import FluenceError
from session_scheduler.stopping import background

if TYPE_CHECKING:
    from session_scheduler.cluster.port import Cluster, Kube

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def alongside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """The work, which is to go on without end, as a task that is cancelled and awaited at the end of the context.

    Should it fail, that is logged at once, with where: nobody else would know before the program ends.
    """
    async with background(_told(work)):
        yield


async def _told(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:
        _log.exception("a task has failed that was to go on: what it does is not done until a restart")
        raise


async def follow(
    cluster: Cluster,
    kind: type[Kube],
    begin: Callable[[tuple[Kube, ...]], Callable[[Kube, bool], None]],
    *,
    failed: Callable[[FluenceError], None],
    pause: float,
) -> Never:
    """All objects of a kind to `begin`, and to what that returns each change: the object, and whether it is gone.

    Where that fails, and where a watch ends that told nothing, it begins anew `pause` seconds later, without end.
    """
    while True:
        try:
            await _list_and_watch(cluster, kind, begin)
        except FluenceError as error:
            failed(error)
        await asyncio.sleep(pause)


async def _list_and_watch(
    cluster: Cluster, kind: type[Kube], begin: Callable[[tuple[Kube, ...]], Callable[[Kube, bool], None]]
) -> None:
    """Until a watch ends that told nothing. Raises FluenceError."""
    listing = await cluster.list(kind)
    take = begin(listing.items)
    version, told = listing.resource_version, True
    while told:
        told = False
        async with aclosing(cluster.watch(kind, version)) as events:
            async for event in events:
                version, told = event.resource_version, True
                if event.object is not None:
                    take(event.object, event.change == "DELETED")
