"""The recorder's queue: pending conditions and events by object, with a limit."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from session_scheduler.cluster.port import Event
from session_scheduler.model.objects import Pod, PodCondition, PodGroup

SIMILAR = 10
"""Different notes of one reason about one object within SIMILAR_SECONDS, as in client-go's correlator."""
SIMILAR_SECONDS = 600.0
FORGET_SECONDS = 1800.0
"""A series without events expires after this: half of the hour for which an API server keeps an event."""
COMBINED = "(combined from similar events): "
_BASES = 8

EventKey = tuple[str, str, bool, str]
"""Reason, action, whether it is a warning, and note: with the object's uid they identify an event."""


class Wanted(msgspec.Struct, frozen=True):
    """A condition to write, the object at the time of the request, and that time."""

    obj: Pod | PodGroup
    condition: PodCondition
    asked: datetime


class Series:
    """One event and its repeats."""

    __slots__ = ("count", "event", "heard", "key", "name", "namespace", "owner", "written", "written_at")

    def __init__(self, owner: ObjectReports, key: EventKey) -> None:
        self.owner = owner
        self.key = key
        self.event: Event | None = None
        """The last occurrence; None once it is written."""
        self.namespace = self.name = ""
        """The Event object; empty until it is created."""
        self.count = self.written = 0
        """The occurrences, and the written ones."""
        self.heard = self.written_at = 0.0
        """By the clock: the last occurrence and the last write."""

    def due(self, now: float, every: float) -> bool:
        """Whether to write it: the first two occurrences at once, later ones after `every` seconds."""
        return self.count > self.written and (self.written <= 1 or now - self.written_at >= every)


class ObjectReports:
    """The pending and written reports about one object."""

    __slots__ = (
        "_bases", "_version", "gone", "heard", "missed", "namespace", "seen", "series", "uid", "wanted", "writing",
        "written",
    )  # fmt: skip

    def __init__(self, uid: str, namespace: str) -> None:
        self.uid = uid
        self.namespace = namespace
        self.wanted: dict[str, Wanted] = {}
        """Conditions by type."""
        self.missed: dict[str, Wanted] = {}
        """Rejected conditions, to request again."""
        self.seen: Pod | None = None
        """The object of the last watch event since the first report about it."""
        self.writing: PodCondition | None = None
        self.written: dict[str, PodCondition] = {}
        self.series: dict[EventKey, Series] = {}
        self.heard = 0.0
        self.gone = False
        self._version = ""
        self._bases: tuple[str, ...] = ()

    # -------------------------------------------------------------- conditions

    def known(self, obj: Pod | PodGroup, type_: str) -> PodCondition | None:
        """The object's condition: the last written one, unless the object is newer."""
        written = self.written.get(type_)
        if written is not None and not _newer(obj.metadata.resource_version, self._version):
            return written
        return next((condition for condition in obj.status.conditions if condition.type == type_), None)

    def latest(self, obj: Pod | PodGroup, type_: str) -> PodCondition | None:
        """The condition after all pending writes."""
        if type_ in self.wanted:
            return self.wanted[type_].condition
        if self.writing is not None and self.writing.type == type_:
            return self.writing
        return self.known(obj, type_)

    def guard(self, version: str) -> str:
        """The current resourceVersion of an object of this version that no other client has written.

        Our writes compare versions: the current object differs from this version in our conditions only.
        """
        return self._version if version in self._bases else version

    def landed(self, guard: str, version: str, condition: PodCondition) -> None:
        """The condition was written: the object changed from version `guard` to `version`."""
        bases = self._bases if guard == self._version else ()
        self._bases = (*bases, guard)[-_BASES:]
        self._version = version
        self.written[condition.type] = condition

    def forget_written(self) -> None:
        """Forget the written conditions: trust the object alone."""
        self.written.clear()
        self._bases = ()
        self._version = ""

    # -------------------------------------------------------------- events

    def series_of(self, reason: str, action: str, note: str, *, warning: bool, now: float) -> Series:
        """The series of an event: a known or a new one, or a combined one if there are many similar ones."""
        key = (reason, action, warning, note)
        found = self.series.get(key)
        if found is None:
            self.series = {k: one for k, one in self.series.items() if now - one.heard < FORGET_SECONDS}
            if self._similar(key, now) >= SIMILAR:
                key = (reason, action, warning, COMBINED)
            found = self.series.setdefault(key, Series(self, key))
        found.heard = now
        return found

    def _similar(self, key: EventKey, now: float) -> int:
        recent = (series.key for series in self.series.values() if now - series.heard < SIMILAR_SECONDS)
        return sum(other[0] == key[0] and other[2] == key[2] for other in recent)

    def clear(self) -> None:
        """Drop all series: they refer to this object, and would keep it in memory."""
        self.series.clear()
        self.seen = None

    def drop(self, series: Series) -> None:
        """Forget a series; the next equal event starts a new one."""
        if self.series.get(series.key) is series:
            del self.series[series.key]


def _newer(version: str, than: str) -> bool:
    """Whether the first resourceVersion is certainly later: API servers assign increasing decimal numbers."""
    return version.isdecimal() and than.isdecimal() and int(version) > int(than)


def content(condition: PodCondition) -> tuple[str, str, str, str]:
    """The fields of a condition without its time."""
    return condition.type, condition.status, condition.reason, condition.message


def same(one: PodCondition | None, other: PodCondition) -> bool:
    """Whether both are equal apart from their times."""
    return one is not None and content(one) == content(other)


Item = ObjectReports | Series
"""A unit of work: an object's conditions, or one series of events."""
_Item = TypeVar("_Item", ObjectReports, Series)


class Lane(Generic[_Item]):
    """A queue without duplicates: FIFO within a namespace, and the namespaces in turn.

    So a namespace with thousands of pending pods does not delay the reports about the others.
    """

    def __init__(self) -> None:
        self._turns: OrderedDict[str, OrderedDict[_Item, None]] = OrderedDict()
        """The items by namespace, the next one first; none is empty."""
        self._length = 0
        self._filled = asyncio.Event()
        """Set while there is an item."""

    def __len__(self) -> int:
        return self._length

    def __contains__(self, item: _Item) -> bool:
        return item in self._turns.get(_namespace(item), ())

    def __iter__(self) -> Iterator[_Item]:
        return itertools.chain.from_iterable(self._turns.values())

    def add(self, item: _Item) -> None:
        """Append an item that is not in the queue."""
        self._turns.setdefault(_namespace(item), OrderedDict())[item] = None
        self._length += 1
        self._filled.set()

    def remove(self, item: _Item) -> None:
        """Remove an item that is in the queue."""
        namespace = _namespace(item)
        items = self._turns[namespace]
        del items[item]
        self._length -= 1
        if not items:
            del self._turns[namespace]
        if not self._length:
            self._filled.clear()

    async def filled(self) -> None:
        """Wait until there is an item."""
        while not self._length:
            await self._filled.wait()

    async def first(self) -> _Item:
        """Wait for an item, and remove the next."""
        await self.filled()
        return self.pop()

    def pop(self) -> _Item:
        """Remove the next item; there must be one."""
        namespace = next(iter(self._turns))
        item = next(iter(self._turns[namespace]))
        self.remove(item)
        if namespace in self._turns:
            self._turns.move_to_end(namespace)
        return item

    def drop(self) -> _Item:
        """Remove the oldest item of the namespace with the most."""
        namespace = max(self._turns, key=lambda each: len(self._turns[each]))
        item = next(iter(self._turns[namespace]))
        self.remove(item)
        return item


def _namespace(item: Item) -> str:
    return item.namespace if isinstance(item, ObjectReports) else item.owner.namespace


class Waiting:
    """The items that wait for a writer: conditions and events in separate queues, so that neither delays the other.

    At most `limit` events wait. Beyond it the namespace with the most events loses its oldest. Conditions have no
    limit: each object has at most a few.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._conditions: Lane[ObjectReports] = Lane()
        self._events: Lane[Series] = Lane()
        self._writing: set[Item] = set()
        self._flushes: list[tuple[set[Item], asyncio.Event]] = []

    def __len__(self) -> int:
        return len(self._conditions) + len(self._events)

    @property
    def conditions(self) -> int:
        """The number of objects with waiting conditions."""
        return len(self._conditions)

    @property
    def events(self) -> int:
        """The number of waiting series."""
        return len(self._events)

    def __contains__(self, item: Item) -> bool:
        waits = item in self._conditions if isinstance(item, ObjectReports) else item in self._events
        return waits or item in self._writing

    def put(self, item: Item) -> list[Series]:
        """Add an item unless it waits or is being written. Returns the dropped series."""
        if item not in self:
            if isinstance(item, ObjectReports):
                self._conditions.add(item)
            else:
                self._events.add(item)
        dropped = []
        while len(self._events) > self._limit:
            series = self._events.drop()
            self._complete(series)
            dropped.append(series)
        return dropped

    async def next_conditions(self) -> ObjectReports:
        """The next object with conditions to write; call `done` after it."""
        reports = await self._conditions.first()
        self._writing.add(reports)
        return reports

    def pop_conditions(self) -> ObjectReports:
        """Like `next_conditions`, but without waiting; call it only while `conditions` is not 0."""
        reports = self._conditions.pop()
        self._writing.add(reports)
        return reports

    async def await_events(self) -> None:
        """Wait until `events` is not 0."""
        await self._events.filled()

    def pop_event(self) -> Series:
        """The next series to write; call it only while `events` is not 0, and `done` after it."""
        series = self._events.pop()
        self._writing.add(series)
        return series

    def done(self, item: Item, *, again: bool) -> list[Series]:
        """The item was written or dropped; `again`: it has more to write. Returns the dropped series."""
        self._writing.discard(item)
        if again:
            return self.put(item)
        self._complete(item)
        return []

    def withdraw(self, reports: ObjectReports) -> tuple[int, int]:
        """Remove an object's waiting items except new events. Returns the numbers of conditions and repeated events."""
        series = [one for one in reports.series.values() if one.name and one in self._events]
        for one in series:
            self._events.remove(one)
            self._complete(one)
        if reports not in self._conditions:
            return 0, len(series)
        self._conditions.remove(reports)
        self._complete(reports)
        return 1, len(series)

    def _complete(self, item: Item) -> None:
        for waiting, over in self._flushes:
            waiting.discard(item)
            if not waiting:
                over.set()

    async def flushed(self) -> None:
        """Wait until all current items are written or dropped."""
        waiting: set[Item] = {*self._conditions, *self._events, *self._writing}
        if not waiting:
            return
        flush = (waiting, asyncio.Event())
        self._flushes.append(flush)
        try:
            await flush[1].wait()
        finally:
            self._flushes.remove(flush)
