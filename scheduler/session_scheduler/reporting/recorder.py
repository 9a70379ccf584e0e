"""Writes events and conditions to the API server asynchronously; `messages` has their texts.

The methods of `Recorder` queue a request; `run` writes it. It skips a condition that the object already has, merges
duplicate requests, and records a repeated event as a series, like client-go's recorder.
Source: client-go tools/events/event_broadcaster.go (series) and tools/record/events_cache.go (similar events).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Literal, TypeVar

import structlog
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from session_scheduler.base.clock import Clock, utc_now
from session_scheduler.cluster.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    NotFound,
    NotLeading,
    TooManyRequests,
    Unavailable,
)
from session_scheduler.cluster.port import EVENT_NOTE_LIMIT, Cluster, Event, EventSeries, event_name, event_namespace
from session_scheduler.model.group_api import SCHEDULED
from session_scheduler.model.objects import KubeObject, Pod, PodCondition, PodGroup
from session_scheduler.model.times import time_text
from session_scheduler.reporting import messages
from session_scheduler.reporting.messages import POD_SCHEDULED, Message
from session_scheduler.reporting.metrics import ReportMetrics
from session_scheduler.reporting.recorder_queue import (
    COMBINED,
    FORGET_SECONDS,
    Item,
    ObjectReports,
    Series,
    Waiting,
    Wanted,
    content,
    same,
)

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")
_Item = TypeVar("_Item", ObjectReports, Series)

_REPEAT_SECONDS = 360.0
"""The interval between two writes of a series, as in client-go."""
_REMEMBERED = 32_768
"""The number of objects to remember: more than the pending pods of a large cluster. With fewer, each round would start
a new event about each pod. With one event each they take some 30 MB."""
_PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each retry of a transient error."""
_LONGEST_PAUSE = 10.0
_SWAPS = 5
"""Attempts to write a group's condition against concurrent writers."""
_QUIET_SECONDS = 60.0
_MANY_EVENTS = 4_000
"""A backlog that is written within about 5 s once nothing precedes it."""
_EVENT_PATIENCE_SECONDS = 10.0
"""How long events wait for conditions before one writer writes them beside the conditions."""
_IDLE_CHECK_SECONDS = 0.05
_TIDY_SECONDS = 30.0
_AGAIN = 100
"""How many rejected requests are retried at once: the API server may reject more of them."""
_MESSAGE_LIMIT = 32_768
"""The limit of a condition's message in characters (metav1.Condition)."""
_ELLIPSIS = " ..."
_TERMINATING = "because it is being terminated"
"""A permanent error: the namespace is being deleted (apiserver, plugin/namespace/lifecycle)."""
_TRANSIENT = (Unavailable, TooManyRequests, Forbidden)
_EXPECTED = (Conflict, NotFound, NotLeading)
"""A concurrent write, a deleted object, or another leader: not logged."""


class Recorder:
    """Queues conditions and events, and writes them while `run` runs. For one event loop; not for threads.

    `clock` measures intervals, `now` returns the times to write. `in_flight` is the number of concurrent requests, half
    of them for conditions only; `limit` the number of waiting reports, beyond which the oldest events are dropped.
    Without `events` it writes conditions only. `sleep` waits between retries. While `busy` (pods are being bound), it
    writes one event at a time, unless many wait. While conditions wait, events wait, too: for 10 s, then it writes one
    at a time. So pods start sooner, conditions show sooner why pods are pending, and the events follow.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Clock,
        now: Callable[[], datetime] = utc_now,
        events: bool = True,
        in_flight: int = 16,
        limit: int = 50_000,
        busy: Callable[[], bool] = lambda: False,
        meter: ReportMetrics | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._now = now
        self._events = events
        self._in_flight = in_flight
        self._busy = busy
        self._meter = meter or ReportMetrics(CollectorRegistry())
        self._sleep = sleep
        self._waiting = Waiting(limit)
        self._reports: OrderedDict[str, ObjectReports] = OrderedDict()
        self._owed: dict[Series, None] = {}
        self._missed: dict[ObjectReports, None] = {}
        """Objects with rejected conditions."""
        self._names = itertools.count(int(now().timestamp() * 1e9))
        self._unwritten = 0
        self._quiet_until = float("-inf")
        self._blocked_since: float | None = None
        """Since when events have been waiting for conditions; None if they are not."""
        self._events_in_flight = 0
        """The requests for events that wait for the API server's response."""
        self._flushing = False

    # -------------------------------------------------------------- pods and groups

    def scheduled(self, pod: Pod, node: str) -> None:
        """The pod was bound; the bind set its condition."""
        self._withdraw(pod)
        self.record(pod, messages.assigned(pod, node))

    def unschedulable(self, pod: Pod, reason_text: str) -> None:
        """No node was found for the pod."""
        self.condition(pod, POD_SCHEDULED, "False", messages.UNSCHEDULABLE, reason_text)
        self.record(pod, messages.failed_scheduling(reason_text))

    def gated(self, pod: Pod, reason_text: str) -> None:
        """A plugin keeps the pod out of the queue: a condition only, since this was not an attempt."""
        self.condition(pod, POD_SCHEDULED, "False", messages.UNSCHEDULABLE, reason_text)

    def nominated(self, pod: Pod, reason_text: str) -> None:
        """Like `unschedulable`; the condition is written with `nominatedNodeName`."""
        self._withdraw(pod)
        self.record(pod, messages.failed_scheduling(reason_text))

    def _withdraw(self, pod: Pod) -> None:
        """Drop the pod's pending condition; one in flight is not written again if it is rejected."""
        reports = self._reports.get(pod.metadata.uid)
        if reports is not None:
            reports.wanted.pop(POD_SCHEDULED, None)
            reports.missed.pop(POD_SCHEDULED, None)
            if reports.writing is not None and reports.writing.type == POD_SCHEDULED:
                reports.writing = None

    def failed(self, pod: Pod, reason_text: str) -> None:
        """Scheduling the pod failed with an internal error."""
        self.condition(pod, POD_SCHEDULED, "False", messages.SCHEDULER_ERROR, reason_text)
        self.record(pod, messages.failed_scheduling(reason_text))

    def group(self, group: PodGroup, status: Literal["True", "False"], reason: str, message: str) -> None:
        """Whether the group is scheduled; the reasons are Scheduled, Unschedulable and SchedulerError.

        As in kube-scheduler, a scheduled group keeps its condition; failures of later pods are events only.
        """
        if status == "False":
            latest = self._reports_of(group).latest(group, SCHEDULED)
            if latest is None or latest.status != "True":
                self.condition(group, SCHEDULED, status, reason, message)
            self.record(group, messages.failed_scheduling(message))
        elif self.condition(group, SCHEDULED, status, reason, message):
            self.record(group, messages.started(message))

    # -------------------------------------------------------------- requests

    def condition(self, obj: Pod | PodGroup, type: str, status: str, reason: str, message: str) -> bool:  # noqa: A002
        """Queue a condition for the object as in `obj`. Returns whether it is new. Never raises or waits."""
        try:
            return self._ask(obj, PodCondition(type, status, reason, message[:_MESSAGE_LIMIT]))
        except Exception:  # noqa: BLE001 (a report must not stop a cycle)
            self._broken("condition")
            return False

    def _ask(self, obj: Pod | PodGroup, condition: PodCondition) -> bool:
        if isinstance(obj, Pod) and obj.spec.node_name and condition.type == POD_SCHEDULED:
            return False  # the bind set it
        reports = self._reports_of(obj)
        reports.missed.pop(condition.type, None)
        is_new = not same(reports.latest(obj, condition.type), condition)
        if isinstance(obj, PodGroup) and not obj.native:  # its API has no conditions: only remember it
            reports.written[condition.type] = condition
        elif is_new or reports in self._waiting:  # even an equal one: its guard is a newer version
            reports.wanted[condition.type] = Wanted(obj, condition, self._now())
            self._lost(self._waiting.put(reports))
        return is_new

    def record(self, regarding: KubeObject, message: Message) -> None:
        """Queue an event with this message. Never raises or waits."""
        self.event(regarding, message.reason, message.action, message.note, warning=message.warning)

    def event(self, regarding: KubeObject, reason: str, action: str, note: str, *, warning: bool = False) -> None:
        """Queue an event about the object. Never raises or waits."""
        if not self._events:
            return
        try:
            self._happened(regarding, reason, action, note, warning=warning)
        except Exception:  # noqa: BLE001 (a report must not stop a cycle)
            self._broken("event")

    def _happened(self, regarding: KubeObject, reason: str, action: str, note: str, *, warning: bool) -> None:
        now = self._clock.now()
        note = cut(note, EVENT_NOTE_LIMIT)
        series = self._reports_of(regarding).series_of(reason, action, note, warning=warning, now=now)
        if series.key[-1] == COMBINED:
            note = cut(COMBINED + note, EVENT_NOTE_LIMIT)
        series.event = Event(regarding, reason, action, note, warning, self._now())
        series.count += 1
        if series.due(now, _REPEAT_SECONDS):
            self._lost(self._waiting.put(series))
        else:
            self._owed[series] = None

    def forget(self, uid: str) -> None:
        """The object was deleted: drop its reports except new events.

        A new event may be the reason for the deletion, whose watch event arrived first.
        """
        reports = self._reports.pop(uid, None)
        if reports is not None:
            reports.gone = True
            reports.wanted.clear()
            reports.missed.clear()
            conditions, events = self._waiting.withdraw(reports)
            self._count("condition", "Forgotten", conditions)
            self._count("event", "Forgotten", events)
            self._pay_off(reports.series.values())
            reports.clear()

    def seen(self, obj: Pod) -> None:
        """The pod changed: queue its pending and rejected conditions again, with the new version."""
        reports = self._reports.get(obj.metadata.uid)
        if reports is None:
            return
        reports.seen = obj
        if obj.spec.node_name:
            self._withdraw(obj)
        for wanted in (*reports.wanted.values(), *reports.missed.values()):
            self.condition(obj, *content(wanted.condition))

    # -------------------------------------------------------------- writing

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as writers:
            for number in range(max(1, self._in_flight // 2)):
                next_event = partial(self._next_event, first=number == 0)
                writers.create_task(self._write_on("condition", self._waiting.next_conditions, self._write_conditions))
                writers.create_task(self._write_on("event", next_event, self._write_event))
            writers.create_task(self._tidy_on())

    async def flush(self) -> None:
        """Write all queued reports, events beside conditions, or drop them; `run` must be running."""
        self._flushing = True
        try:
            await self._waiting.flushed()
        finally:
            self._flushing = False

    async def _write_on(
        self, kind: str, take: Callable[[], Awaitable[_Item]], write: Callable[[_Item], Awaitable[None]]
    ) -> None:
        while True:
            await self._write(kind, await take(), write)

    async def _write(self, kind: str, item: _Item, write: Callable[[_Item], Awaitable[None]]) -> None:
        try:
            await write(item)
        except ClusterError as error:
            self._failed(item, kind, error)
        except Exception:  # noqa: BLE001 (one report must not stop the others)
            self._give_up(item)
            self._broken(kind)
        finally:
            self._lost(self._waiting.done(item, again=self._again(item)))

    async def _next_event(self, *, first: bool) -> Series:
        """The next event, once it may be written. Until then, all writers of events but the first write conditions."""
        while True:
            if not self._waiting.events:
                self._blocked_since = None
                await self._waiting.await_events()
            if self._may_write_event():
                return self._waiting.pop_event()
            if self._waiting.conditions and not first:
                await self._write("condition", self._waiting.pop_conditions(), self._write_conditions)
            else:
                await self._sleep(_IDLE_CHECK_SECONDS)

    def _may_write_event(self) -> bool:
        if self._flushing or self._waiting.events >= _MANY_EVENTS:
            return True
        if not self._waiting.conditions and (not self._events_in_flight or not self._busy()):
            self._blocked_since = None
            return True
        now = self._clock.now()
        if self._blocked_since is None:
            self._blocked_since = now
        return not self._events_in_flight and now - self._blocked_since >= _EVENT_PATIENCE_SECONDS

    def _again(self, item: Item) -> bool:
        if isinstance(item, ObjectReports):
            return bool(item.wanted)
        kept = item.owner.series.get(item.key) is item and not item.owner.gone
        return kept and item.due(self._clock.now(), _REPEAT_SECONDS)

    async def _write_conditions(self, reports: ObjectReports) -> None:
        """Write the conditions in sequence: each write changes the version that guards the next."""
        while reports.wanted:
            wanted = reports.wanted.pop(next(iter(reports.wanted)))
            reports.writing = wanted.condition
            try:
                await self._write_condition(reports, wanted)
            except (Conflict, *_TRANSIENT) as error:
                withdrawn = reports.gone or reports.writing is not wanted.condition
                if not withdrawn and wanted.condition.type not in reports.wanted:
                    now = replace(wanted, obj=reports.seen or wanted.obj)
                    is_newer = now.obj.metadata.resource_version != wanted.obj.metadata.resource_version
                    if isinstance(error, Conflict) and is_newer:
                        reports.wanted[wanted.condition.type] = now  # the conflicting write has been seen
                    else:
                        reports.missed[wanted.condition.type] = now
                        self._missed[reports] = None
                raise
            finally:
                reports.writing = None

    async def _write_condition(self, reports: ObjectReports, wanted: Wanted) -> None:
        obj = wanted.obj
        for left in reversed(range(_SWAPS)):
            known = reports.known(obj, wanted.condition.type)
            if same(known, wanted.condition):
                return
            condition = wanted.condition.since([known] if known else [], time_text(wanted.asked))
            try:
                await self._swap(reports, obj, condition)
            except Conflict:
                reports.forget_written()
                if isinstance(obj, Pod) or not left:
                    raise
            else:
                return
            fresh = await self._persist(lambda: self._get(wanted.obj), reports)
            if fresh.metadata.uid != reports.uid:
                raise NotFound(f"{obj.key} was recreated")
            obj = fresh

    async def _swap(self, reports: ObjectReports, obj: Pod | PodGroup, condition: PodCondition) -> None:
        """Write the condition unless another client has written the object since `obj`. Raises Conflict."""
        guard = reports.guard(obj.metadata.resource_version)
        if not guard:
            raise Conflict(f"{obj.key}: no resourceVersion to guard the write")
        patched = await self._persist(
            lambda: self._cluster.patch_status(obj, conditions=[condition], resource_version=guard), reports
        )
        reports.landed(guard, patched.metadata.resource_version, condition)
        self._meter.written("condition")

    async def _get(self, obj: Pod | PodGroup) -> Pod | PodGroup:
        place = (obj.metadata.namespace, obj.metadata.name)
        return await self._cluster.get(type(obj), *place, api_version=obj.api_version)

    async def _write_event(self, series: Series) -> None:
        event, count = series.event, series.count
        if event is None:
            return
        if series.name:
            repeats = EventSeries(count, event.time or self._now())
            try:
                place = (series.namespace, series.name)
                await self._persist(lambda: self._send_event(self._cluster.repeat_event(*place, repeats)))
            except NotFound:  # the API server's event expired: start a new series
                series.name = ""
        if not series.name:
            await self._create(series, event)
            count = 1
        series.written, series.written_at = count, self._clock.now()
        if series.count == count:
            series.event = None
            self._pay_off([series])
        elif not series.owner.gone:
            self._owed[series] = None
        self._meter.written("event")

    async def _create(self, series: Series, event: Event) -> None:
        event = replace(event, name=event_name(event.regarding, f"{next(self._names):x}"))
        with suppress(AlreadyExists):  # by an earlier attempt with a lost response
            await self._persist(lambda: self._send_event(self._cluster.record_event(event)))
        series.namespace, series.name = event_namespace(event.regarding), event.name

    async def _send_event(self, request: Awaitable[object]) -> None:
        self._events_in_flight += 1
        try:
            await request
        finally:
            self._events_in_flight -= 1

    async def _persist(self, send: Callable[[], Awaitable[_T]], unless_gone: ObjectReports | None = None) -> _T:
        for pause in _PAUSES:
            try:
                return await send()
            except _TRANSIENT as error:
                if (unless_gone is not None and unless_gone.gone) or _TERMINATING in str(error):
                    raise
                asked = error.retry_after if isinstance(error, TooManyRequests) else 0.0
                await self._sleep(max(pause, min(asked, _LONGEST_PAUSE)))
        return await send()

    # -------------------------------------------------------------- failures

    def _failed(self, item: Item, kind: str, error: ClusterError) -> None:
        self._give_up(item)
        self._count(kind, type(error).__name__, 1)
        if isinstance(error, _EXPECTED) or _TERMINATING in str(error):
            return
        self._unwritten += 1
        if self._clock.now() >= self._quiet_until:
            _log.warning("writing conditions and events failed", dropped=self._unwritten, why=str(error))
            self._unwritten, self._quiet_until = 0, self._clock.now() + _QUIET_SECONDS

    def _give_up(self, item: Item) -> None:
        """Forget the request, so that the next occurrence is reported."""
        if isinstance(item, ObjectReports):
            item.forget_written()
        else:
            item.owner.drop(item)
            self._pay_off([item])

    def _lost(self, dropped: Iterable[Series]) -> None:
        for series in dropped:
            if not series.name:  # a written series only loses a count
                self._give_up(series)
            self._count("event", "Full", 1)

    def _broken(self, kind: str) -> None:
        _log.exception("a condition or event was dropped after an unexpected error", kind=kind)
        self._count(kind, "Unexpected", 1)

    def _count(self, kind: str, why: str, count: int) -> None:
        for _ in range(count):
            self._meter.dropped(kind, why)

    def _pay_off(self, series: Iterable[Series]) -> None:
        for one in series:
            self._owed.pop(one, None)

    # -------------------------------------------------------------- memory

    def _reports_of(self, obj: KubeObject) -> ObjectReports:
        uid = obj.metadata.uid
        reports = self._reports.get(uid)
        if reports is None:
            reports = self._reports[uid] = ObjectReports(uid, obj.metadata.namespace)
            if len(self._reports) > _REMEMBERED:
                self._forget_oldest()
        self._reports.move_to_end(uid)
        reports.heard = self._clock.now()
        return reports

    def _forget_oldest(self) -> None:
        """Forget the object without reports for the longest time; one with pending reports moves to the end."""
        uid, reports = self._reports.popitem(last=False)
        if reports in self._waiting or any(series in self._waiting for series in reports.series.values()):
            self._reports[uid] = reports
        else:
            reports.clear()

    def tidy(self) -> None:
        """Queue due repeats and rejected conditions, and forget objects without recent reports.

        `run` calls it periodically.
        """
        now = self._clock.now()
        missed = [reports for reports in self._missed if reports.missed]  # the others were written or queued since
        self._missed = dict.fromkeys(missed[_AGAIN:])
        for wanted in [wanted for reports in missed[:_AGAIN] for wanted in reports.missed.values()]:
            self.condition(wanted.obj, *content(wanted.condition))
        for series in [one for one in self._owed if one.due(now, _REPEAT_SECONDS)]:
            self._lost(self._waiting.put(series))
        silent = itertools.takewhile(lambda reports: now - reports.heard >= FORGET_SECONDS, self._reports.values())
        for _ in list(silent):
            self._forget_oldest()

    async def _tidy_on(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            self.tidy()


def cut(text: str, limit: int) -> str:
    """The text in at most `limit` bytes of UTF-8, cut between words if possible, with an ellipsis."""
    if len(text) * 4 <= limit or len(text.encode()) <= limit:
        return text
    head = text.encode()[: limit - len(_ELLIPSIS)].decode(errors="ignore")
    words, _, last = head.rpartition(" ")
    return (words if words and len(last) < limit // 8 else head) + _ELLIPSIS
