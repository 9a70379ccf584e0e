"""The live scheduler's loop: each turn handles watch events, completes work in flight and opens sessions.

Watches only queue events, and binds run concurrently with the loop. The scheduler's state changes in a turn only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Never, Protocol

import structlog

from session_scheduler.base.clock import Clock
from session_scheduler.cluster.port import Change
from session_scheduler.engine.in_flight import raise_first
from session_scheduler.engine.scheduler import INGESTED_AT_ONCE, Scheduler
from session_scheduler.model.groups import Phase, Task
from session_scheduler.model.objects import KubeObject
from session_scheduler.reporting.live_observer import LiveObserver
from session_scheduler.reporting.metrics import PENDING_STATES, Metrics, Pending

_log = structlog.get_logger(__name__)
_TURN_SECONDS = 0.005
"""The minimum time between turns, so that a turn handles several events."""
_STANDBY_SECONDS = 1.0
"""The minimum time between two updates of a replica that stands by, and of an observer."""
_LONGEST_REST = 5.0
_CHECK_AGAIN = 1.0
"""Seconds between two checks of binds with unknown outcome."""
_AFTER_ERROR = 1.0
_REMIND = 10.0
"""Seconds between two checks for started gangs whose PodGroup lacks the condition."""
_INGESTED_SECONDS = 0.1
"""How long to handle events before yielding to other tasks."""
_STUCK = 60.0
"""Seconds without a finished turn after which the loop is unhealthy."""


class IdleTask(Protocol):
    """Work to run between two turns."""

    def next_time(self) -> float | None:
        """When to call `run`; None for never."""

    def run(self) -> None:
        """Do a part of the work if it is due. No turn starts before this returns."""


class Follower:
    """Keeps a scheduler's cache current while it decides nothing: on a standby, and for observers.

    The mirror calls `deliver`, which only queues events. The cache and the plugins change in `follow` and `absorb`.
    """

    def __init__(self, scheduler: Scheduler, due: asyncio.Event | None = None) -> None:
        """Setting `due` starts the next update."""
        self._scheduler = scheduler
        self._changes: deque[tuple[Change, KubeObject]] = deque()
        self._due = due or asyncio.Event()
        self.busy = asyncio.Lock()
        """Locked while an update changes the cache and the plugins: then no session may open."""

    def deliver(self, change: Change, obj: KubeObject) -> None:
        """Queue a watch event for the next update."""
        self._changes.append((change, obj))
        self._due.set()

    @property
    def queued(self) -> int:
        """The number of events that wait for an update."""
        return len(self._changes)

    async def follow(
        self, recovered: Callable[[], None] = lambda: None, updated: Callable[[], None] = lambda: None
    ) -> Never:
        """Keep the cache, and the plugins' view of nodes and bound pods, current while this process does not lead.

        Calls `recovered` after plugins recovered the allocations of pods, and `updated` after each update.
        """
        while True:
            self._due.clear()
            async with self.busy:
                await self.absorb()
                new = await self._scheduler.plugin_sync.follow()
            if new:
                recovered()
            updated()
            await asyncio.sleep(_STANDBY_SECONDS)
            await self._due.wait()

    async def absorb(self) -> None:
        """Update the cache with all queued events: requeue, report and write nothing."""
        number = 0
        while self._changes:
            number += 1
            if not number % INGESTED_AT_ONCE:
                await asyncio.sleep(0)
            change, obj = self._changes.popleft()
            try:
                self._scheduler.event_handlers.absorb(change, obj)
            except Exception:  # noqa: BLE001 (a bug with one object must not stop the others)
                _log.exception("an event handler failed", kind=type(obj).__name__, name=obj.key)


class SchedulerLoop(Follower):
    """Runs a started scheduler; before it leads, it only follows."""

    def __init__(
        self,
        scheduler: Scheduler,
        observer: LiveObserver,
        metrics: Metrics,
        clock: Clock,
        due: asyncio.Event | None = None,
    ) -> None:
        """Setting `due` starts the next turn."""
        super().__init__(scheduler, due)
        self._observer = observer
        self._metrics = metrics
        self._clock = clock
        self._plugins_changes: deque[tuple[str, Callable[[], None]]] = deque()
        self._stopping = False
        self._ended = asyncio.Event()
        self._ended.set()
        self._check_at = 0.0
        self._remind_at = 0.0
        self._decided_at = 0.0
        """When the last turn started its sessions."""
        self._turned: float | None = None
        self._idle_tasks: list[IdleTask] = []

    # ------------------------------------------------------------------ input

    def requeue(self, group: str, why: str) -> None:
        """Make a group (its key) active, at a plugin's request."""
        _log.debug("a plugin requeued a group", group=group, why=why)
        if group in self._scheduler.cache.groups:
            self._scheduler.queue.activate(group, self._clock.now())
        self._due.set()

    def add_idle_task(self, task: IdleTask) -> None:
        """Run the task between turns."""
        self._idle_tasks.append(task)

    def change(self, plugin: str, work: Callable[[], None]) -> None:
        """Call `work` in the next turn before any session, and requeue the groups that the plugin rejected."""
        self._plugins_changes.append((plugin, work))
        self._due.set()

    def problem(self) -> str | None:
        """Why the loop is unhealthy, or None."""
        if self._turned is None:
            return None  # the cluster is still being ingested
        seconds = self._clock.now() - self._turned
        return f"no cycle has finished for {seconds:.0f} s" if seconds > _STUCK else None

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Run turns until `stop`."""
        self._ended.clear()
        self._turned = self._clock.now()
        try:
            while not self._stopping:
                self._due.clear()
                await self._turn()
                for task in self._idle_tasks:
                    task.run()
                await self._rest()
        finally:
            self._ended.set()

    async def stop(self, seconds: float) -> bool:
        """Stop deciding, and wait up to `seconds` for the work in flight. Returns whether it ended."""
        self._stopping = True
        self._scheduler.stop()
        self._due.set()
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()  # the current turn may start more work
                while self._scheduler.in_flight:
                    self._due.clear()
                    try:
                        await self._scheduler.complete_finished()
                    except Exception:  # noqa: BLE001 (a bug in one bind must not stop the others)
                        _log.exception("an in-flight task failed")
                    if self._scheduler.in_flight:
                        await self._due.wait()
        except TimeoutError:
            _log.warning("binds are still in flight", number=len(self._scheduler.in_flight))
            await self._scheduler.in_flight.abandon()
            return False
        return True

    async def _turn(self) -> None:
        started = perf_counter()
        try:
            await self._ingest()
            await self._scheduler.complete_finished()
            self._change_plugins()
            self._check_again()
            self._decided_at = self._clock.now()
            await self._scheduler.decide()
        except Exception:  # noqa: BLE001 (a bug in one turn must not stop the loop)
            _log.exception("a scheduling cycle failed")
            self._metrics.cycle(perf_counter() - started, failed=True)
            self._due.set()  # its remaining work is due
            await asyncio.sleep(_AFTER_ERROR)
        else:
            self._metrics.cycle(perf_counter() - started)
        self._observer.report_incomplete(self._clock.now())
        self._turned = self._clock.now()

    async def _ingest(self) -> None:
        """Handle all queued events. Raises an unexpected error at the end."""
        errors: list[BaseException] = []
        number, checked = 0, perf_counter()
        while self._changes:
            number += 1
            if not number % INGESTED_AT_ONCE or perf_counter() - checked > _INGESTED_SECONDS:
                await asyncio.sleep(0)
                checked = perf_counter()
            change, obj = self._changes.popleft()
            try:
                await self._scheduler.event_handlers.apply(change, obj)
            except Exception as error:  # noqa: BLE001 (raised below)
                self._scheduler.event_handlers.failed(obj, error)
                errors.append(error)
            self._observer.seen(change, obj)
        raise_first(errors)

    def _change_plugins(self) -> None:
        while self._plugins_changes:
            plugin, work = self._plugins_changes.popleft()
            work()
            self._scheduler.queue.plugin_changed(plugin)

    def _check_again(self) -> None:
        now = self._clock.now()
        if self._scheduler.unknown_binds and now >= self._check_at:
            self._check_at = now + _CHECK_AGAIN
            self._scheduler.unknown_binds.start_checks(self._scheduler.completion.resolve)
        if now >= self._remind_at:
            self._remind_at = now + _REMIND
            self._scheduler.gang_starts.remind()

    async def _rest(self) -> None:
        """Wait until there is an event, or a group is due."""
        await asyncio.sleep(_TURN_SECONDS)
        if self._changes or self._scheduler.left_over:  # a failed turn leaves events
            return
        now, decided_at = self._clock.now(), self._decided_at  # not now: groups may have become due meanwhile
        times = (
            self._scheduler.queue.next_after(decided_at),
            self._scheduler.gang_starts.next_deadline(decided_at),
            self._check_at if self._scheduler.unknown_binds else None,
            self._observer.next_time(),
            *(task.next_time() for task in self._idle_tasks),
        )
        until = min((time for time in times if time is not None), default=now + _LONGEST_REST)
        try:
            async with asyncio.timeout(min(_LONGEST_REST, max(0.0, until - now))):
                await self._due.wait()
        except TimeoutError:
            return

    # ------------------------------------------------------------------ for metrics

    def pending(self) -> Pending:
        """The numbers of pending groups and pods by state, and of gangs with reserved nodes."""
        waiting, starts = self._waiting(), self._scheduler.cache.nominations.starts
        return Pending(
            groups={state: len({task.group for task in tasks}) for state, tasks in waiting.items()},
            pods={state: len(tasks) for state, tasks in waiting.items()},
            reserved=len({task.group for task in starts if task.node is None}),
        )

    def _waiting(self) -> dict[str, list[Task]]:
        """The pending tasks by state, without iterating over bound ones."""
        cache, queue, now = self._scheduler.cache, self._scheduler.queue, self._clock.now()
        found: dict[str, list[Task]] = {state: [] for state in PENDING_STATES}
        for task in cache.unbound.values():
            key = task.group.key
            waits = (
                "unschedulable" if queue.is_unschedulable(key) else "due" if queue.is_active(key, now) else "backoff"
            )
            found["gated" if task.phase is Phase.GATED else waits].append(task)
        groups = filter(None, map(cache.groups.get, self._scheduler.in_flight.groups))
        found["in_flight"] = [task for group in groups for task in group.in_phase(Phase.ASSUMED)]
        return found
