"""Informer for objects of any kind, for the tasks of plugins: public as `sdk.dynamic_informer`.

    WIDGETS = Resource(Widget, "example.com/v1", "widgets", lax=True)

    follower = Follower(api, [WIDGETS], take)
    for widget in await follower.start():
        ...
    await follower.run()  # calls take(Change.MODIFIED, widget), until cancelled

A type is a msgspec struct like those of `model.objects`: `metadata` is an ObjectMeta, each field has a default, and
the default of `api_version` is the resource's. The informer survives every error of a watch. A kind that the API
server does not serve, or forbids, has no objects until that changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from session_scheduler.base.clock import Clock, SystemClock
from session_scheduler.cluster.dynamic_client import KubeApi
from session_scheduler.cluster.kube_kinds import Resource
from session_scheduler.cluster.kube_lists import list_all
from session_scheduler.cluster.kube_requests import ApiClient
from session_scheduler.cluster.kube_watch import watch_one
from session_scheduler.cluster.mirror import Mirror
from session_scheduler.cluster.port import Change, Listing, WatchEvent

RECONCILE_SECONDS = 300.0
"""Seconds, on average, between two lists that are compared with the objects known from the watch."""


class Follower(Mirror):
    """Lists and watches the objects of some resources. Call `start` once, then `run`."""

    def __init__(
        self, api: KubeApi, resources: Sequence[Resource[Any]], take: Callable[[Change, Any], None], *,
        reconcile_seconds: float = RECONCILE_SECONDS, clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        """`take` gets each change, one call at a time, and must not block. An exception from it ends `run`."""
        kinds = [resource.kind for resource in resources]
        super().__init__(_Served(api.client, resources), kinds, take, clock=clock or SystemClock(), sleep=sleep,
                         reconcile_seconds=reconcile_seconds, optional=kinds)  # fmt: skip


class _Served:
    """Reads any resources; implements `port.Reader`."""

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
