"""Objects of any kind of an API server, those that there are and every change of them, for plugins' own tasks. Public.

    WIDGETS = Resource(Widget, "example.com/v1", "widgets", lax=True)

    follower = Follower(api, [WIDGETS], take)
    for widget in await follower.start():
        ...
    await follower.run()  # calls take(Change.MODIFIED, widget), without end

A type is a msgspec struct like those of `model.objects`: `metadata` is an ObjectMeta, each field has a default, and
`api_version` is the resource's by default. It goes on through all that can happen to a watch. A kind that the API
server does not serve, or refuses, has no objects until it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, cast

from session_scheduler.base.clock import Clock, SystemClock
from session_scheduler.cluster.dynamic_client import KubeApi
from session_scheduler.cluster.kube_kinds import Resource
from session_scheduler.cluster.kube_lists import list_all
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.kube_watch import watch_one
from session_scheduler.cluster.mirror import Mirror
from session_scheduler.cluster.port import Change, Cluster, Listing, WatchEvent

RECONCILE_SECONDS = 300.0
"""About how often all objects are listed and compared with what the watch told."""


class Follower(Mirror):
    """Follows the objects of some resources. `start` once, then `run`."""

    def __init__(
        self, api: KubeApi, resources: Sequence[Resource[Any]], take: Callable[[Change, Any], None], *,
        reconcile_seconds: float = RECONCILE_SECONDS, clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        """`take` is called for each change, one call at a time, and must not block; what it raises ends `run`."""
        kinds = [resource.kind for resource in resources]
        served = cast("Cluster", _Served(api.client, resources))  # all of it that a Mirror asks for
        super().__init__(served, kinds, take, clock=clock or SystemClock(), sleep=sleep,
                         reconcile_seconds=reconcile_seconds, optional=kinds)  # fmt: skip


class _Served:
    """What is listed and watched, by type."""

    def __init__(self, client: ApiClient, resources: Sequence[Resource[Any]]) -> None:
        self._client = client
        self._resources = {resource.kind: resource for resource in resources}

    async def list(self, kind: type[Any]) -> Listing[Any]:
        """See `port.Cluster`."""
        return await list_all(self._client, self._resources[kind])

    def watch(self, kind: type[Any], resource_version: str) -> AsyncGenerator[WatchEvent[Any], None]:
        """See `port.Cluster`."""
        return watch_one(self._client, self._resources[kind], resource_version)


__all__ = ["Change", "Follower", "Resource"]
