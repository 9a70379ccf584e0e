"""The mirror of a live cluster: lists each kind, then delivers every change, through broken watches and lost history.

Each kind has one task: it watches from the last version that it knows, and lists again where that is too old. Beside
the watch it lists now and then and compares: what the list has and no event brought was missed, and is delivered then.
The scheduler's loop gets what is delivered. resourceVersions are opaque: they are compared for equality only.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from session_scheduler.base.backoff import Backoff
from session_scheduler.base.clock import Clock
from session_scheduler.cluster.errors import ClusterError, Forbidden, Gone, Invalid, NotFound, TooManyRequests
from session_scheduler.cluster.port import Change, Cluster, Listing, WatchEvent
from session_scheduler.model.objects import KubeObject, ObjectName, name_of

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

Delivery = tuple[Change, KubeObject]
"""ADDED or MODIFIED with the object after it, DELETED with the last that is known of it. Never a bookmark."""
_FIRST_PAUSE = 0.1
"""Seconds before what failed or ended is asked for again; doubled each time, less a random part up to half."""
_LONGEST_PAUSE = 10.0
"""More of them change nothing."""
_LASTING = 5.0
"""A watch that was open for so many seconds works, even where it sent no event."""
_FAILURES = 5
"""After so many watches in a row that sent no event it is listed again: the API server may never have heard of the
version that they start from, as where its etcd was restored from a copy."""
_REFUSALS = (Forbidden, Invalid, NotFound)
"""A kind that the cluster does not know, or does not let us see."""
_PATIENCE = 30.0
"""Seconds that a refusal is borne which may pass: a starting API server does not know its roles and APIs yet."""
_WITHOUT = 30.0
"""Seconds between two tries of a kind that the cluster may refuse."""
_LATENESS = 10.0
"""Seconds that an event may come after the list that shows its change; never more than a quarter of the interval."""
_SPREAD = 0.1
"""The part by which the interval between two comparisons varies, so that kinds are not all listed at once."""


class MirrorMeter:
    """Counts what it is called for; this one nothing. `kind` is the type's name."""

    def event(self, kind: str) -> None:
        """A watch said something, if only that nothing happened."""

    def watch_ended(self, kind: str, why: str) -> None:
        """A watch ended: `Ended` as connections do, else the name of its error."""

    def relisted(self, kind: str, why: str) -> None:
        """A kind is listed again to go on from there: `Gone`, `Untold`, or the error of its watches."""

    def missed(self, kind: str, count: int) -> None:
        """The watch was open and sent no event for `count` objects that had changed."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """What all followers share. All times in seconds."""

    cluster: Cluster
    deliver: Callable[[Change, KubeObject], None]
    reconcile_seconds: float
    clock: Clock
    sleep: Callable[[float], Awaitable[None]]
    chance: random.Random
    meter: MirrorMeter


class Mirror:
    """Follows every kind of a cluster: what is there first, then every change, each kind in order.

    `deliver` is called for each change, one call at a time, and must not block; what it raises ends `run`. DELETED
    comes with the last that is known of the object. Each kind is compared with a new list about every
    `reconcile_seconds` while its watch goes on; what the list shows and no event tells within a quarter of that
    (10 s at most) was missed.

    A cluster may refuse the kinds of `optional`, or not know them: that is said once, and there are none until it no
    longer does, which is tried now and then.
    """

    def __init__(
        self, cluster: Cluster, kinds: Sequence[type[KubeObject]], deliver: Callable[[Change, KubeObject], None], *,
        clock: Clock, reconcile_seconds: float = 60.0, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: random.Random | None = None, meter: MirrorMeter | None = None,
        optional: Sequence[type[KubeObject]] = (),
    ) -> None:  # fmt: skip
        chance = chance or random.Random()  # noqa: S311 (spreads requests in time, guards nothing)
        settings = _Settings(cluster, deliver, reconcile_seconds, clock, sleep, chance, meter or MirrorMeter())
        self._followers = [_Follower(kind, settings, optional=kind in optional) for kind in kinds]
        self._synced = False

    @property
    def synced(self) -> bool:
        """Whether everything has been listed once."""
        return self._synced

    @property
    def refused(self) -> frozenset[type[KubeObject]]:
        """The optional kinds of which nothing is known, since the cluster refused them when they were listed first."""
        return frozenset(follower.type for follower in self._followers if follower.refused)

    async def start(self) -> list[KubeObject]:
        """List all kinds, in their order; returns everything and delivers nothing.

        Waits, with a warning at each try, for a cluster that does not answer. Raises Forbidden, Invalid or NotFound
        where a kind is refused for longer than half a minute.
        """
        found = [obj for follower in self._followers for obj in await follower.first()]
        self._synced = True
        return found

    async def run(self) -> None:
        """Deliver every change since `start`, until cancelled: all watches are closed then.

        Raises an ExceptionGroup of unexpected errors, and of Invalid or NotFound where a kind cannot be listed
        for longer than half a minute any more.
        """
        if not self._synced:
            raise RuntimeError("run before start: what is there is listed first")
        async with asyncio.TaskGroup() as group:
            for follower in self._followers:
                group.create_task(follower.follow(), name=f"mirror of {follower.kind}")


@dataclass(frozen=True, slots=True)
class _Broken:
    """Why following a kind begins with a new list."""

    why: str
    missed: frozenset[ObjectName] = frozenset()
    """What changed without an event, though the watch was open."""


class _Follower:
    """One kind: its objects, and from where it is watched."""

    def __init__(self, kind: type[KubeObject], settings: _Settings, *, optional: bool = False) -> None:
        self.kind = str(kind.__struct_config__.tag or kind.__name__)
        self.type = kind
        self._settings = settings
        self._known = KnownObjects()
        self._version = ""
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, settings.chance)
        self._events = 0
        self._optional = optional
        self.refused = False
        self._watches = 0
        """How many watches were begun or ended so far: odd while one is open."""

    async def first(self) -> tuple[KubeObject, ...]:
        try:
            listing = await self._list(_Patience(self.kind, *_REFUSALS, seconds=0.0 if self._optional else _PATIENCE))
        except _REFUSALS as refusal:
            if not self._optional:
                raise
            self.refused = True
            _log.warning("a kind is refused: there are none until it no longer is", kind=self.kind,
                         why=str(refusal.__cause__), remedy=remedy(self.kind, refusal))  # fmt: skip
            return ()
        self._known.replace(listing.items)
        return listing.items

    def _patience(self) -> _Patience:
        """While it runs: a kind that may be refused is waited for as long as it takes."""
        return _Patience(self.kind) if self._optional else _Patience(self.kind, Invalid, NotFound)

    async def _until_served(self) -> None:
        while self.refused:
            await self._settings.sleep(_WITHOUT)
            with suppress(*_REFUSALS):
                listing = await self._list(_Patience(self.kind, *_REFUSALS, seconds=0.0))
                self.refused = False
        _log.info("a kind is no longer refused", kind=self.kind, objects=len(listing.items))
        self._deliver(self._known.replace(listing.items))

    async def follow(self) -> None:
        if self.refused:
            await self._until_served()
        while True:
            broken = await _first(self._watch_on(), self._compare_on())
            self._settings.meter.relisted(self.kind, broken.why)
            listing = await self._list(self._patience())
            changes = self._known.replace(listing.items)
            self._deliver(changes)
            if broken.missed:
                self._settings.meter.missed(self.kind, len(broken.missed))
                _log.warning("a list shows changes that the watch did not tell", kind=self.kind,
                             count=len(broken.missed), delivered=len(changes))  # fmt: skip

    def _deliver(self, changes: Iterable[Delivery]) -> None:
        for change, obj in changes:
            self._settings.deliver(change, obj)

    async def _pause(self, request: str, error: ClusterError | None) -> None:
        """Wait, longer each time, and at least as long as the server asks for."""
        pause = self._backoff.next()
        if isinstance(error, TooManyRequests):
            pause += error.retry_after
        if error is not None:
            _log.warning("a request failed and is sent again", request=f"{request} of {self.kind}",
                         after=round(pause, 3), why=str(error))  # fmt: skip
        await self._settings.sleep(pause)

    # -------------------------------------------------------------- lists

    async def _list(self, patience: _Patience) -> Listing[KubeObject]:
        """List until that succeeds; watches go on from there."""
        while True:
            try:
                listing: Listing[KubeObject] = await self._settings.cluster.list(self.type)
            except ClusterError as error:
                patience.bear(error, self._settings.clock.now())
                await self._pause("list", error)
            else:
                self._version = listing.resource_version
                return listing

    # -------------------------------------------------------------- watches

    async def _watch_on(self) -> _Broken:
        """Watch again and again, until only a new list helps."""
        failures = 0
        while True:
            began, events = self._settings.clock.now(), self._events
            error = await self._watch()
            active = self._events > events
            lasted = self._settings.clock.now() - began >= _LASTING
            # An error may come late: the request was sent again meanwhile.
            worked = active or (lasted and error is None)
            failures = 0 if worked else failures + 1
            if worked and (lasted or not isinstance(error, Gone)):
                self._backoff.reset()
            why = "Ended" if error is None else type(error).__name__
            self._settings.meter.watch_ended(self.kind, why)
            await self._pause("watch", error)
            if isinstance(error, Gone | Invalid | NotFound) or failures >= _FAILURES:
                return _Broken(why)

    async def _watch(self) -> ClusterError | None:
        """Take events until the watch ends; returns its error. What `deliver` raises is raised."""
        self._watches += 1
        try:
            try:
                watch = self._settings.cluster.watch(self.type, self._version)
            except ClusterError as error:
                return error
            async with aclosing(watch) as events:
                while True:
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        return None
                    except ClusterError as error:
                        return error
                    self._events += 1
                    self._settings.meter.event(self.kind)
                    self._version = event.resource_version
                    self._deliver(self._known.apply(event))
        finally:
            self._watches += 1

    # -------------------------------------------------------------- comparisons

    async def _compare_on(self) -> _Broken:
        """Compare with a new list now and then, until it shows what no event brought."""
        settings = self._settings
        lateness = min(_LATENESS, settings.reconcile_seconds / 4)
        while True:
            await settings.sleep(settings.reconcile_seconds * settings.chance.uniform(1 - _SPREAD, 1 + _SPREAD))
            watches = self._watches
            with self._known.comparing() as comparison:
                try:
                    listing: Listing[KubeObject] = await settings.cluster.list(self.type)
                except ClusterError as error:
                    _log.warning("a kind could not be listed to find missed events", kind=self.kind, why=str(error))
                    continue
                if not comparison.missed(listing.items):
                    continue
                await settings.sleep(lateness)
                missed = comparison.missed(listing.items)
            if missed:
                was_open = watches % 2 == 1 and watches == self._watches
                return _Broken("Untold", frozenset(missed) if was_open else frozenset())


# ------------------------------------------------------------------ what is known


class KnownObjects:
    """The latest objects of one kind, by (API group, namespace, name)."""

    def __init__(self) -> None:
        self._objects: dict[ObjectName, KubeObject] = {}
        self._comparison: Comparison | None = None

    def apply(self, event: WatchEvent[KubeObject]) -> Sequence[Delivery]:
        """What a watch event changes. Another uid under a known name is another object: the old one was deleted."""
        if event.object is None or event.change is Change.BOOKMARK:
            return ()
        name = name_of(event.object)
        self._remember(name, event.object)
        if event.change is not Change.DELETED:
            return self._put(name, event.object)
        known = self._objects.pop(name, None)
        if known is None:
            return ()
        return ((Change.DELETED, event.object if _same(known, event.object) else known),)

    def replace(self, listed: Iterable[KubeObject]) -> list[Delivery]:
        """What a list changes: first all that is gone, then what is new or different, in the list's order."""
        named = {name_of(obj): obj for obj in listed}
        gone = [name for name in self._objects if name not in named]
        changes: list[Delivery] = [(Change.DELETED, self._objects.pop(name)) for name in gone]
        for name, obj in named.items():
            changes += self._put(name, obj)
        return changes

    def _put(self, name: ObjectName, obj: KubeObject) -> Sequence[Delivery]:
        known = self._objects.get(name)
        self._objects[name] = obj
        if known is None:
            return ((Change.ADDED, obj),)
        if not _same(known, obj):
            return ((Change.DELETED, known), (Change.ADDED, obj))
        if known.metadata.resource_version == obj.metadata.resource_version:
            return ()
        return ((Change.MODIFIED, obj),)

    # -------------------------------------------------------------- comparing with a list while events come

    @contextmanager
    def comparing(self) -> Iterator[Comparison]:
        """Remember what events say from here on, to compare all of it with a list that is asked for inside."""
        self._comparison = Comparison(self._objects)
        try:
            yield self._comparison
        finally:
            self._comparison = None

    def _remember(self, name: ObjectName, obj: KubeObject) -> None:
        if self._comparison is not None:
            known = self._objects.get(name)
            self._comparison.passed |= {(name, each.metadata.resource_version) for each in (known, obj) if each}


class Comparison:
    """A list against what is known, while events go on: what passed during it is known too."""

    def __init__(self, objects: dict[ObjectName, KubeObject]) -> None:
        self._objects = objects
        self.passed: set[tuple[ObjectName, str]] = set()
        """Names and resourceVersions that events brought or replaced since the comparison began."""

    def missed(self, listed: Iterable[KubeObject]) -> set[ObjectName]:
        """The names of which the list says what was at no moment known: changed or deleted, and no event said so."""
        versions = {name_of(obj): obj.metadata.resource_version for obj in listed}
        missed = {name for name, version in versions.items() if not self._was_known(name, version)}
        for name, obj in self._objects.items():
            if name not in versions and (name, obj.metadata.resource_version) not in self.passed:
                missed.add(name)
        return missed

    def _was_known(self, name: ObjectName, version: str) -> bool:
        known = self._objects.get(name)
        return (known is not None and known.metadata.resource_version == version) or (name, version) in self.passed


def _same(one: KubeObject, other: KubeObject) -> bool:
    return one.metadata.uid == other.metadata.uid


# ------------------------------------------------------------------ patience


class _Patience:
    """Bears refusals of some types for a while, and every other error for ever."""

    def __init__(self, kind: str, *refusals: type[ClusterError], seconds: float = _PATIENCE) -> None:
        self._kind = kind
        self._refusals = refusals
        self._seconds = seconds
        self._since: float | None = None

    def bear(self, error: ClusterError, now: float) -> None:
        """Raises the error, with what can be done about it, where nothing else came for too long."""
        if not isinstance(error, self._refusals):
            self._since = None
            return
        if self._since is None:
            self._since = now
        if now - self._since >= self._seconds:
            raise type(error)(f"{self._kind} cannot be listed, for {now - self._since:.0f} s now: {error}: "
                              f"{remedy(self._kind, error)}") from error  # fmt: skip


def remedy(kind: str, error: ClusterError) -> str:
    """What can be done about a kind that is refused; whoever waits for it needs no new start."""
    if isinstance(error, Forbidden):
        return f"grant this account get, list and watch of {kind} objects (RBAC: its ClusterRole)"
    return f"check that the API server serves {kind} objects"


async def _first(*parts: Coroutine[Any, Any, _T]) -> _T:
    """What the first part to end returns; the others are cancelled and have ended by then."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in parts]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    return next(task.result() for task in tasks if not task.cancelled())
