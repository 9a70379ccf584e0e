"""Observation of a cluster for a benchmark: watches, and when each object was first seen."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

from .bulk import Bulk, Manifest
from .invariants import condition
from .measured import Measured
from .processes import StartError
from .workloads import Turn, pods_of

_SILENCE = 120.0
"""Seconds without a binding or a report after which a contender counts as stuck."""
_EVENTS_SILENCE = 20.0


async def changes(api: Bulk, path: str, query: Mapping[str, str]) -> AsyncIterator[tuple[str, Manifest]]:
    """Yield (type, object) of existing and new objects, until cancelled.

    The API server closes watches that are read too slowly, which happens while all processors are busy. The next watch
    continues where the last one ended. Raises StartError if the history is gone.
    """
    place = dict(query)
    while True:
        response = await api.lines(path, place)
        try:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise StartError(f"a watch of {path} ended: {event['object']}")
                    place["resourceVersion"] = event["object"]["metadata"]["resourceVersion"]
                    yield event["type"], event["object"]
        except aiohttp.ClientError:
            pass
        finally:
            response.close()


@dataclass(slots=True)
class Observer:
    """When measured pods were seen bound, or reported as unschedulable, by this process's clock."""

    wanted: int
    verb: str = "bound"
    """The same for error messages and for the log."""
    at_first: Callable[[], None] = lambda: None
    """Called at the first sign of work."""
    began: float = 0.0
    """The time of the first sign of work."""
    seen: dict[str, float] = field(default_factory=dict)
    """The times by pod name."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def binds(self, api: Bulk, namespace: str) -> None:
        """Watch until cancelled. With a field selector each pod is an ADDED event when it is bound."""
        async for kind, pod in changes(api, pods_of(namespace), {"fieldSelector": "spec.nodeName!="}):
            if kind == "ADDED":
                self._saw(pod)

    async def reports(self, api: Bulk, namespace: str) -> None:
        """Watch until cancelled: a pod counts from its first condition `PodScheduled=False`."""
        async for _, pod in changes(api, pods_of(namespace), {}):
            reported = condition(pod, "PodScheduled")
            if reported is not None and reported["status"] == "False" and pod["metadata"]["name"] not in self.seen:
                self._saw(pod)

    async def victims(self, api: Bulk, namespace: str) -> None:
        """Watch until cancelled. A running pod's deletion is a sign of work, too."""
        async for kind, _ in changes(api, pods_of(namespace), {}):
            if kind == "DELETED":
                self.works()

    def _saw(self, pod: Manifest) -> None:
        self.works()
        self.seen[pod["metadata"]["name"]] = time.monotonic()
        self._news.set()

    def works(self) -> None:
        """Note a sign of the contender's work."""
        if not self.began:
            self.began = time.monotonic()
            self.at_first()

    async def finished(self, process: Measured) -> None:
        """Wait until all pods were seen. Raises StartError if nothing happens any more."""
        while len(self.seen) < self.wanted:
            self._news.clear()
            try:
                async with asyncio.timeout(_SILENCE):
                    await self._news.wait()
            except TimeoutError:
                raise StartError(f"{process.name}: {self}, and nothing happens:\n{process.tail()}") from None

    def __str__(self) -> str:
        return f"{len(self.seen)} of {self.wanted} pods are {self.verb}"

    @property
    def last(self) -> float:
        """The time of the last binding or report."""
        return max(self.seen.values())


async def delivered(api: Bulk, turn: Turn, reason: str) -> dict[str, float]:
    """Return when each pod's event with this reason was seen; ends once all are there, or none comes."""
    seen: dict[str, float] = {}
    path = f"/api/v1/namespaces/{turn.namespace}/events"
    watch = changes(api, path, {"fieldSelector": f"reason={reason},involvedObject.kind=Pod"})
    with suppress(TimeoutError):
        while len(seen) < turn.pods:
            async with asyncio.timeout(_EVENTS_SILENCE):
                _, event = await anext(watch)
            if event["reportingComponent"] == turn.scheduler:
                seen.setdefault(event["involvedObject"]["name"], time.monotonic())
    await watch.aclose()  # type: ignore[attr-defined]
    return seen
