"""What waits to be written about objects: remembered per object, bounded, given to writers one object at a time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from session_scheduler.cluster.port import Event
from session_scheduler.model.objects import Pod, PodCondition, PodGroup

SIMILAR = 10
"""Different notes of one reason that are recorded of one object within SIMILAR_SECONDS, as client-go's correlator."""
SIMILAR_SECONDS = 600.0
FORGET_SECONDS = 1800.0
"""A series is forgotten after such silence: half of the hour for which an API server keeps an event."""
COMBINED = "(combined from similar events): "
_BASES = 8

EventKey = tuple[str, str, bool, str]
"""Reason, action, whether it is a warning, note: with the object's uid what makes two events the same."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A condition to be written, the object as it was when that was asked, and the moment."""

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
        """Where it lies; empty until it is created."""
        self.count = self.written = 0
        """How often it happened, and how often it is said to have."""
        self.heard = self.written_at = 0.0
        """By the clock: when it last happened, and when it was last written."""

    def due(self, now: float, every: float) -> bool:
        """Whether it is to be written: itself and its first repeat at once, later ones after `every` seconds."""
        return self.count > self.written and (self.written <= 1 or now - self.written_at >= every)


class ObjectReports:
    """What is to be written and was written about one object."""

    __slots__ = (
        "_bases", "_version", "gone", "heard", "missed", "seen", "series", "uid", "wanted", "writing", "written",
    )  # fmt: skip

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.wanted: dict[str, Wanted] = {}
        """Conditions by type."""
        self.missed: dict[str, Wanted] = {}
        """Those that were refused, to be asked for again."""
        self.seen: Pod | None = None
        """The object as an event last showed it since there is something to be written of it."""
        self.writing: PodCondition | None = None
        self.written: dict[str, PodCondition] = {}
        self.series: dict[EventKey, Series] = {}
        self.heard = 0.0
        self.gone = False
        self._version = ""
        self._bases: tuple[str, ...] = ()

    # -------------------------------------------------------------- conditions

    def known(self, obj: Pod | PodGroup, type_: str) -> PodCondition | None:
        """The object's condition as far as is known: what was written last, unless the object is newer than that."""
        written = self.written.get(type_)
        if written is not None and not _newer(obj.metadata.resource_version, self._version):
            return written
        return next((condition for condition in obj.status.conditions if condition.type == type_), None)

    def latest(self, obj: Pod | PodGroup, type_: str) -> PodCondition | None:
        """The condition once all that is asked for is written."""
        if type_ in self.wanted:
            return self.wanted[type_].condition
        if self.writing is not None and self.writing.type == type_:
            return self.writing
        return self.known(obj, type_)

    def guard(self, version: str) -> str:
        """The resourceVersion that an object of this version has now if only we have written to it.

        Our writes are swaps: where this version was swapped for another, that one differs in our conditions only.
        """
        return self._version if version in self._bases else version

    def landed(self, guard: str, version: str, condition: PodCondition) -> None:
        """The condition was written: the object of version `guard` has become `version`."""
        bases = self._bases if guard == self._version else ()
        self._bases = (*bases, guard)[-_BASES:]
        self._version = version
        self.written[condition.type] = condition

    def forget_written(self) -> None:
        """Nothing is known of the object any more but what it shows."""
        self.written.clear()
        self._bases = ()
        self._version = ""

    # -------------------------------------------------------------- events

    def series_of(self, reason: str, action: str, note: str, *, warning: bool, now: float) -> Series:
        """The series that such an event belongs to; a new one, a combined one where there are many of its kind."""
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

    def let_go(self) -> None:
        """Nothing is to be written of the object any more: its series, which know it, are freed with it."""
        self.series.clear()
        self.seen = None

    def drop(self, series: Series) -> None:
        """Forget a series; the next such event starts another."""
        if self.series.get(series.key) is series:
            del self.series[series.key]


def _newer(version: str, than: str) -> bool:
    """Whether the first resourceVersion is certainly the later one: API servers give growing decimal numbers."""
    return version.isdecimal() and than.isdecimal() and int(version) > int(than)


def says(condition: PodCondition) -> tuple[str, str, str, str]:
    """What a condition says, without since when."""
    return condition.type, condition.status, condition.reason, condition.message


def same(one: PodCondition | None, other: PodCondition) -> bool:
    """Whether both say the same; when it began to be so is not compared."""
    return one is not None and says(one) == says(other)


Item = ObjectReports | Series
"""What a writer takes: an object's conditions, or one series of events."""
_Item = TypeVar("_Item", ObjectReports, Series)


class Lane(Generic[_Item]):
    """Things in the order of asking, nothing twice."""

    def __init__(self) -> None:
        self.items: OrderedDict[_Item, None] = OrderedDict()
        self._ready = asyncio.Semaphore(0)

    def add(self, item: _Item) -> None:
        """Add one that is not there, at the end."""
        self.items[item] = None
        self._ready.release()

    async def first(self) -> _Item:
        """Wait for one, and remove the first."""
        while True:
            await self._ready.acquire()
            if self.items:  # else it was taken back
                return self.items.popitem(last=False)[0]


class Waiting:
    """What waits for a writer; conditions and events each in a lane of their own, so that neither delays the other.

    At most `limit` things wait; what is over that are the oldest events, never conditions.
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
        """How many series of events wait."""
        return len(self._events.items)

    def __contains__(self, item: Item) -> bool:
        return item in self._conditions.items or item in self._events.items or item in self._writing

    def put(self, item: Item) -> list[Series]:
        """Add it unless it waits; what is being written is looked at again afterwards. Returns what had to go."""
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
        """The object whose conditions come next; `done` must follow."""
        reports = await self._conditions.first()
        self._writing.add(reports)
        return reports

    async def next_event(self) -> Series:
        """The event that comes next; `done` must follow."""
        series = await self._events.first()
        self._writing.add(series)
        return series

    def done(self, item: Item, *, again: bool) -> list[Series]:
        """What was taken is written or dropped; `again`: more was asked meanwhile. Returns what had to go."""
        self._writing.discard(item)
        if again:
            return self.put(item)
        self._complete(item)
        return []

    def take_back(self, reports: ObjectReports) -> tuple[int, int]:
        """Remove what waits about an object, but new events; returns how many conditions and repeated events went."""
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
        """Return when all that waits or is being written now is done with."""
        waiting: set[Item] = {*self._conditions.items, *self._events.items, *self._writing}
        if not waiting:
            return
        flush = (waiting, asyncio.Event())
        self._flushes.append(flush)
        try:
            await flush[1].wait()
        finally:
            self._flushes.remove(flush)
