"""The recorder's queue: pending conditions and events by object, with a limit."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

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


@dataclass(frozen=True, slots=True)
class Wanted:
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
        "_bases", "_version", "gone", "heard", "missed", "seen", "series", "uid", "wanted", "writing", "written",
    )  # fmt: skip

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.wanted: dict[str, Wanted] = {}
        """Conditions by type."""
        self.missed: dict[str, Wanted] = {}
        """Rejected conditions, to request again."""
        self.seen: Pod | None = None
        """The object of the last watch event, while something about it is pending."""
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
    """Whether the first resourceVersion is certainly later: API servers assign growing decimal numbers."""
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
    """A FIFO queue without duplicates."""

    def __init__(self) -> None:
        self.items: OrderedDict[_Item, None] = OrderedDict()
        self._ready = asyncio.Semaphore(0)

    def add(self, item: _Item) -> None:
        """Append an item that is not in the queue."""
        self.items[item] = None
        self._ready.release()

    async def first(self) -> _Item:
        """Wait for an item, and remove the first."""
        while True:
            await self._ready.acquire()
            if self.items:  # else it was withdrawn
                return self.items.popitem(last=False)[0]


class Waiting:
    """The items that wait for a writer: conditions and events in separate lanes, so that neither delays the other.

    At most `limit` items wait; beyond it the oldest events are dropped, never conditions.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._conditions: Lane[ObjectReports] = Lane()
        self._events: Lane[Series] = Lane()
        self._writing: set[Item] = set()
        self._flushes: list[tuple[set[Item], asyncio.Event]] = []

    def __len__(self) -> int:
        return len(self._conditions.items) + len(self._events.items)

    @property
    def events(self) -> int:
        """The number of waiting series."""
        return len(self._events.items)

    def __contains__(self, item: Item) -> bool:
        return item in self._conditions.items or item in self._events.items or item in self._writing

    def put(self, item: Item) -> list[Series]:
        """Add an item unless it waits or is being written. Returns the dropped series."""
        if item not in self:
            if isinstance(item, ObjectReports):
                self._conditions.add(item)
            else:
                self._events.add(item)
        dropped = []
        while len(self) > self._limit and self._events.items:
            series, _ = self._events.items.popitem(last=False)
            self._complete(series)
            dropped.append(series)
        return dropped

    async def next_conditions(self) -> ObjectReports:
        """The next object with conditions to write; call `done` after it."""
        reports = await self._conditions.first()
        self._writing.add(reports)
        return reports

    async def next_event(self) -> Series:
        """The next series to write; call `done` after it."""
        series = await self._events.first()
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
        series = [one for one in reports.series.values() if one.name and one in self._events.items]
        for one in series:
            del self._events.items[one]
            self._complete(one)
        if reports not in self._conditions.items:
            return 0, len(series)
        del self._conditions.items[reports]
        self._complete(reports)
        return 1, len(series)

    def _complete(self, item: Item) -> None:
        for waiting, over in self._flushes:
            waiting.discard(item)
            if not waiting:
                over.set()

    async def flushed(self) -> None:
        """Wait until all current items are written or dropped."""
        waiting: set[Item] = {*self._conditions.items, *self._events.items, *self._writing}
        if not waiting:
            return
        flush = (waiting, asyncio.Event())
        self._flushes.append(flush)
        try:
            await flush[1].wait()
        finally:
            self._flushes.remove(flush)
