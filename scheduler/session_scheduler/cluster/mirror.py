"""A mirror of a live cluster: lists each kind, then delivers every change, even if watches break or history is lost.

One task per kind watches from the last known resourceVersion, and lists again if that is too old. In addition to the
watch it lists periodically, and compares: a change that the list shows and no event reported was missed, and is
delivered then. The scheduler's loop receives all changes. The mirror compares resourceVersions only for equality.
`refused_kinds` has the rules for kinds that the API server does not serve, or that the account has no permission to
list.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from itertools import chain
from typing import Any, TypeVar

import msgspec
import structlog

from session_scheduler.base.backoff import Backoff
from session_scheduler.base.clock import Clock
from session_scheduler.base.gathering import all_of
from session_scheduler.cluster.errors import ClusterError, Gone, Invalid, NotFound, TooManyRequests
from session_scheduler.cluster.port import Change, Listing, Reader, WatchEvent
from session_scheduler.cluster.refused_kinds import REFUSALS, RETRY_SECONDS, RetryLimit, is_rare, remedy
from session_scheduler.model.objects import KubeObject, ObjectName, name_of

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

Delivery = tuple[Change, KubeObject]
"""ADDED or MODIFIED with the new object, DELETED with the last known one. Never a bookmark."""
_FIRST_PAUSE = 0.1
"""Seconds before the first retry; doubled each time, minus a random part up to half."""
_LONGEST_PAUSE = 10.0
"""Upper limit of these pauses in seconds."""
_STABLE = 5.0
"""A watch that stays open for this many seconds works, even without an event."""
_FAILURES = 5
"""After this many watches in a row without an event the mirror lists again: the API server may not know the version,
for example after its etcd was restored from a backup."""
_RETRY_REFUSED = 30.0
"""Seconds between two tries to list a kind that the API server refused."""
_MAX_DELAY = 10.0
"""Seconds by which an event may come later than a list with its change; at most a quarter of the interval."""
_SPREAD = 0.1
"""The part by which the interval between two comparisons varies, so that the kinds are not all listed at once."""


class MirrorMeter:
    """Receives counts; this one ignores them. `kind` is the name of the type."""

    def event(self, kind: str) -> None:
        """A watch sent an event, possibly a bookmark."""

    def watch_ended(self, kind: str, why: str) -> None:
        """A watch ended: `Ended` without an error, else the name of the error."""

    def relisted(self, kind: str, why: str) -> None:
        """A kind was listed again: `Gone`, `Untold` (missed changes), or the error of its watches."""

    def missed(self, kind: str, count: int) -> None:
        """`count` objects changed while the watch was open, and it sent no event for them."""


class _Settings(msgspec.Struct, frozen=True):
    """Settings that all kinds share. All times are in seconds."""

    cluster: Reader
    deliver: Callable[[Change, KubeObject], None]
    reconcile_seconds: float
    clock: Clock
    sleep: Callable[[float], Awaitable[None]]
    chance: random.Random
    meter: MirrorMeter


class Mirror:
    """Mirrors all kinds of a cluster: first the existing objects, then every change, in order for each kind.

    `deliver` gets each change, one call at a time, and must not block; an exception from it ends `run`. DELETED comes
    with the last known state of the object. About every `reconcile_seconds` each kind is compared with a new list while
    its watch continues. A change counts as missed if no event reports it within a quarter of that time (at most 10 s).

    The API server may refuse kinds in `optional`, or not serve them. The mirror then logs a warning, treats the kind as
    empty, and retries periodically.
    """

    def __init__(
        self, cluster: Reader, kinds: Sequence[type[KubeObject]], deliver: Callable[[Change, KubeObject], None], *,
        clock: Clock, reconcile_seconds: float = 60.0, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: random.Random | None = None, meter: MirrorMeter | None = None,
        optional: Sequence[type[KubeObject]] = (),
    ) -> None:  # fmt: skip
        chance = chance or random.Random()  # noqa: S311 (spreads requests in time, not for security)
        settings = _Settings(cluster, deliver, reconcile_seconds, clock, sleep, chance, meter or MirrorMeter())
        self._followers = [_Follower(kind, settings, optional=kind in optional) for kind in kinds]
        self._synced = False

    @property
    def synced(self) -> bool:
        """Whether all kinds have been listed once."""
        return self._synced

    @property
    def refused(self) -> frozenset[type[KubeObject]]:
        """The optional kinds that the API server refused to list; the mirror knows none of their objects."""
        return frozenset(follower.type for follower in self._followers if follower.refused)

    async def start(self) -> list[KubeObject]:
        """List all kinds. Return all objects in the order of the kinds; deliver nothing.

        If the cluster does not respond, log a warning and retry. Raises Forbidden, Invalid or NotFound if the API
        server refuses a kind for longer than half a minute.
        """
        listed = await self._list_all()
        for follower, items in zip(self._followers, listed, strict=True):
            follower.known.replace(items)
        self._synced = True
        return list(chain.from_iterable(listed))

    async def resync(self) -> list[KubeObject]:
        """List all kinds again, after `run` was cancelled: deliver each difference. Return all objects.

        The lists are requested after this call, so they show every change that was acknowledged before it. Raises as
        `start` does.
        """
        listed = await self._list_all()
        for follower, items in zip(self._followers, listed, strict=True):
            follower.deliver(follower.known.replace(items))
        return list(chain.from_iterable(listed))

    async def _list_all(self) -> list[tuple[KubeObject, ...]]:
        """List all kinds but the last one at once, then the last one, which is pods.

        So the pods are never older than a PodGroup's plan. Otherwise a gang that is created meanwhile could have a plan
        and no pods, as if it had ended, and the scheduler would remove its plan.
        """
        *others, last = self._followers
        return [*await all_of(follower.list_all() for follower in others), await last.list_all()]

    async def run(self, *, compares: bool = True) -> None:
        """Deliver every change since `start` or `resync` until cancelled; then close all watches.

        If it `compares`, it lists each kind periodically to find missed changes.
        Raises an ExceptionGroup of unexpected errors, and of Invalid or NotFound if the API server refuses to list a
        kind for longer than half a minute.
        """
        if not self._synced:
            raise RuntimeError("call start before run")
        async with asyncio.TaskGroup() as group:
            for follower in self._followers:
                group.create_task(follower.follow(compares=compares), name=f"mirror of {follower.kind}")

    async def add(self, listing: Awaitable[Listing[KubeObject]], kind: type[KubeObject]) -> None:
        """Deliver the objects of a list of a part of the kind that are not known yet.

        The watch may be behind the list, or ahead of it: objects that the watch deletes during the list are not added.
        """
        follower = self._of(kind)
        with follower.known.noting_deleted() as deleted:
            found = (await listing).items
        for obj in found:
            if obj.metadata.uid not in deleted:
                follower.deliver(follower.known.add(obj))

    def drop(self, kind: type[KubeObject], keep: Callable[[KubeObject], bool]) -> None:
        """Deliver the deletion of all objects that are not to be kept; the source no longer reports them."""
        follower = self._of(kind)
        follower.deliver(follower.known.drop(keep))

    def _of(self, kind: type[KubeObject]) -> _Follower:
        return next(follower for follower in self._followers if follower.type is kind)


class _Relist(msgspec.Struct, frozen=True):
    """Why a kind has to be listed again."""

    why: str
    missed: frozenset[ObjectName] = frozenset()
    """Objects that changed while the watch was open, without an event."""


class _Follower:
    """Mirrors one kind: its objects, and the version to watch from."""

    def __init__(self, kind: type[KubeObject], settings: _Settings, *, optional: bool = False) -> None:
        self.kind = str(kind.__struct_config__.tag or kind.__name__)
        self.type = kind
        self._settings = settings
        self.known = KnownObjects()
        self._version = ""
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, settings.chance)
        self._events = 0
        self._optional = optional
        self.refused = False
        self._watches = 0
        """Number of watches that began, plus those that ended: odd while one is open."""

    async def list_all(self) -> tuple[KubeObject, ...]:
        """All objects; none if the API server refuses an optional kind."""
        try:
            listing = await self._list(
                RetryLimit(self.kind, *REFUSALS, seconds=0.0 if self._optional else RETRY_SECONDS)
            )
        except REFUSALS as refusal:
            if not self._optional:
                raise
            self.refused = True
            log = _log.info if is_rare(self.kind, refusal) else _log.warning
            log("cannot list a kind: treating it as empty until the API server allows listing it", kind=self.kind,
                why=str(refusal.__cause__), remedy=remedy(self.kind, refusal))  # fmt: skip
            return ()
        self.refused = False
        return listing.items

    def _retry_limit(self) -> RetryLimit:
        """Return the limit for retries after `start`. An optional kind has no limit."""
        return RetryLimit(self.kind) if self._optional else RetryLimit(self.kind, Invalid, NotFound)

    async def _until_served(self) -> None:
        while self.refused:
            await self._settings.sleep(_RETRY_REFUSED)
            with suppress(*REFUSALS):
                listing = await self._list(RetryLimit(self.kind, *REFUSALS, seconds=0.0))
                self.refused = False
        _log.info("the API server now allows listing a kind", kind=self.kind, objects=len(listing.items))
        self.deliver(self.known.replace(listing.items))

    async def follow(self, *, compares: bool) -> None:
        if self.refused:
            await self._until_served()
        while True:
            comparison = [self._compare_until_missed()] if compares else []
            relist = await _first_of(self._watch_until_relist(), *comparison)
            self._settings.meter.relisted(self.kind, relist.why)
            listing = await self._list(self._retry_limit())
            changes = self.known.replace(listing.items)
            self.deliver(changes)
            if relist.missed:
                self._settings.meter.missed(self.kind, len(relist.missed))
                _log.warning("the watch missed changes that a list shows", kind=self.kind,
                             count=len(relist.missed), delivered=len(changes))  # fmt: skip

    def deliver(self, changes: Iterable[Delivery]) -> None:
        """Pass changes on."""
        for change, obj in changes:
            self._settings.deliver(change, obj)

    async def _pause(self, request: str, error: ClusterError | None) -> None:
        """Wait, longer each time, and at least as long as the server asks."""
        pause = self._backoff.next()
        if isinstance(error, TooManyRequests):
            pause += error.retry_after
        if error is not None:
            _log.warning("retrying a failed request", request=f"{request} of {self.kind}",
                         after=round(pause, 3), why=str(error))  # fmt: skip
        await self._settings.sleep(pause)

    # -------------------------------------------------------------- lists

    async def _list(self, limit: RetryLimit) -> Listing[KubeObject]:
        """List until it succeeds. The next watch starts at the list's version."""
        while True:
            try:
                listing: Listing[KubeObject] = await self._settings.cluster.list(self.type)
            except ClusterError as error:
                limit.check(error, self._settings.clock.now())
                await self._pause("list", error)
            else:
                self._version = listing.resource_version
                return listing

    # -------------------------------------------------------------- watches

    async def _watch_until_relist(self) -> _Relist:
        """Watch repeatedly until the kind has to be listed again."""
        failures = 0
        while True:
            began, events = self._settings.clock.now(), self._events
            error = await self._watch()
            active = self._events > events
            stable = self._settings.clock.now() - began >= _STABLE
            # An error may come late, because the client retries the request.
            worked = active or (stable and error is None)
            failures = 0 if worked else failures + 1
            if worked and (stable or not isinstance(error, Gone)):
                self._backoff.reset()
            why = "Ended" if error is None else type(error).__name__
            self._settings.meter.watch_ended(self.kind, why)
            await self._pause("watch", error)
            if isinstance(error, Gone | Invalid | NotFound) or failures >= _FAILURES:
                return _Relist(why)

    async def _watch(self) -> ClusterError | None:
        """Process events until the watch ends; return its error. Exceptions from `deliver` pass through."""
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
                    self.deliver(self.known.apply(event))
        finally:
            self._watches += 1

    # -------------------------------------------------------------- comparisons

    async def _compare_until_missed(self) -> _Relist:
        """Compare with a new list periodically, until it shows a missed change."""
        settings = self._settings
        delay = min(_MAX_DELAY, settings.reconcile_seconds / 4)
        while True:
            await settings.sleep(settings.reconcile_seconds * settings.chance.uniform(1 - _SPREAD, 1 + _SPREAD))
            watches = self._watches
            with self.known.comparing() as comparison:
                try:
                    listing: Listing[KubeObject] = await settings.cluster.list(self.type)
                except ClusterError as error:
                    _log.warning("cannot list a kind to find missed events", kind=self.kind, why=str(error))
                    continue
                if not comparison.missed(listing.items):
                    continue
                await settings.sleep(delay)
                missed = comparison.missed(listing.items)
            if missed:
                was_open = watches % 2 == 1 and watches == self._watches
                return _Relist("Untold", frozenset(missed) if was_open else frozenset())


# ------------------------------------------------------------------ known objects


class KnownObjects:
    """The latest objects of one kind, by (API group, namespace, name)."""

    def __init__(self) -> None:
        self._objects: dict[ObjectName, KubeObject] = {}
        self._comparison: Comparison | None = None
        self._deleted: set[str] | None = None
        """Gets the uids of the objects that events delete."""
        self._ahead: dict[ObjectName, str] = {}
        """The uids of the objects that `add` put in and that no event has brought since."""

    def apply(self, event: WatchEvent[KubeObject]) -> Sequence[Delivery]:
        """Return the changes of a watch event. Another uid under a known name means that the old object was deleted."""
        if event.object is None or event.change is Change.BOOKMARK:
            return ()
        name, uid = name_of(event.object), event.object.metadata.uid
        self._remember(name, event.object)
        if self._ahead.get(name, uid) != uid:
            return ()  # an object that `add` found replaced: the watch is behind that list
        self._ahead.pop(name, None)
        if event.change is not Change.DELETED:
            return self._put(name, event.object)
        if self._deleted is not None:
            self._deleted.add(uid)
        known = self._objects.pop(name, None)
        if known is None:
            return ()
        return ((Change.DELETED, event.object if _same(known, event.object) else known),)

    def replace(self, listed: Iterable[KubeObject]) -> list[Delivery]:
        """Return the changes of a list: first deletions, then new and changed objects in the list's order."""
        named = {name_of(obj): obj for obj in listed}
        gone = [name for name in self._objects if name not in named]
        changes: list[Delivery] = [(Change.DELETED, self._objects.pop(name)) for name in gone]
        self._ahead.clear()
        for name, obj in named.items():
            changes += self._put(name, obj)
        return changes

    def add(self, obj: KubeObject) -> Sequence[Delivery]:
        """Return the change of an object that no event of the watch has brought."""
        name = name_of(obj)
        if name in self._objects:
            return ()
        self._remember(name, obj)
        self._ahead[name] = obj.metadata.uid
        return self._put(name, obj)

    def drop(self, keep: Callable[[KubeObject], bool]) -> list[Delivery]:
        """Forget all objects that are not to be kept. Return their deletions."""
        dropped = [(name, obj) for name, obj in self._objects.items() if not keep(obj)]
        for name, obj in dropped:
            self._remember(name, obj)
            self._ahead.pop(name, None)
            del self._objects[name]
        return [(Change.DELETED, obj) for _, obj in dropped]

    @contextmanager
    def noting_deleted(self) -> Iterator[set[str]]:
        """Collect the uids of the objects that events delete in this context."""
        deleted: set[str] = set()
        self._deleted = deleted
        try:
            yield deleted
        finally:
            self._deleted = None

    def _put(self, name: ObjectName, obj: KubeObject) -> Sequence[Delivery]:
        known = self._objects.get(name)
        if known is not None and _same(known, obj) and known.metadata.resource_version == obj.metadata.resource_version:
            return ()  # keep the known object, which the cache has, too
        self._objects[name] = obj
        if known is None:
            return ((Change.ADDED, obj),)
        if not _same(known, obj):
            return ((Change.DELETED, known), (Change.ADDED, obj))
        return ((Change.MODIFIED, obj),)

    # -------------------------------------------------------------- comparison with a list during a watch

    @contextmanager
    def comparing(self) -> Iterator[Comparison]:
        """Record all events in this context, to compare them with a list that is requested inside it."""
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
    """Compares a list with the known objects, while events continue to arrive."""

    def __init__(self, objects: dict[ObjectName, KubeObject]) -> None:
        self._objects = objects
        self.passed: set[tuple[ObjectName, str]] = set()
        """Names and resourceVersions that events brought or replaced during the comparison."""

    def missed(self, listed: Iterable[KubeObject]) -> set[ObjectName]:
        """Return the names whose listed state was never known: they changed or were deleted without an event."""
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


async def _first_of(*parts: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of the first part to end; cancel the others and wait for their end."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in parts]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    return next(task.result() for task in tasks if not task.cancelled())
