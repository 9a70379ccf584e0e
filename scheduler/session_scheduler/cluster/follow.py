"""The simple list-and-watch loop of plugins' own tasks over a cluster's port.

Unlike a mirror it passes everything again after each failure, and reports failures to its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Never

from session_scheduler.cluster.port import Cluster, Kube
from session_scheduler.errors import FluenceError


async def follow(
    cluster: Cluster,
    kind: type[Kube],
    begin: Callable[[tuple[Kube, ...]], Callable[[Kube, bool], None]],
    *,
    failed: Callable[[FluenceError], None],
    pause: float,
) -> Never:
    """All objects of a kind to `begin`, and to what that returns each change: the object, and whether it is gone.

    Where that fails, and where a watch ends that sent no event, it begins again `pause` seconds later, without end.
    """
    while True:
        try:
            listing = await cluster.list(kind)
            take = begin(listing.items)
            version, active = listing.resource_version, True
            while active:
                active = False
                async with aclosing(cluster.watch(kind, version)) as events:
                    async for event in events:
                        version, active = event.resource_version, True
                        if event.object is not None:
                            take(event.object, event.change == "DELETED")
        except FluenceError as error:
            failed(error)
        await asyncio.sleep(pause)
