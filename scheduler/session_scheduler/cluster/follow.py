"""A simple list-and-watch loop over a cluster's port, for the tasks of plugins.

Unlike a mirror it lists all objects again after each failure, and reports failures to its caller.
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
    """Pass all objects of a kind to `begin`, and each change to the callable that `begin` returns.

    That callable gets the object and whether it was deleted. After an error, or a watch that ends without an event,
    the loop lists again `pause` seconds later. It never ends.
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
