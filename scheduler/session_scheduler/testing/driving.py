"""A cluster in memory with the real scheduler and a stopped clock; tests run its cycles."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from session_scheduler.config.settings import DEFAULT_SCHEDULER_NAME, SchedulerConfig
from session_scheduler.engine.completion import Bound
from session_scheduler.engine.in_flight import raise_first
from session_scheduler.engine.scheduler import KINDS, Scheduler
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.model.objects import KubeObject
from session_scheduler.testing.chosen import Chosen, name_of
from session_scheduler.testing.clock import FakeClock
from session_scheduler.testing.faults import FaultyCluster
from session_scheduler.testing.invariants import check_invariants, given_now

_ALL_AT_ONCE = 1_000_000
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_Answer = TypeVar("_Answer")


class DrivenCluster:
    """Objects, plugins, a clock and the scheduler, which receives changes after a cycle as watch events."""

    def __init__(
        self, *, config: SchedulerConfig | None = None, evaluation: str = "heap", checked: bool = True
    ) -> None:
        # Every bind must complete in the event loop of its run, so none waits for another.
        self.config = config or SchedulerConfig(bindings_in_flight=_ALL_AT_ONCE)
        self.clock = FakeClock(wall=_FIRST.timestamp())
        self.memory = FaultyCluster(now=self._time, binds_volumes=True)
        self._chosen = Chosen()
        self._evaluation = evaluation
        self._checked = checked
        self._given: dict[Hashable, int] = {}
        """The overcommitted nodes and incomplete gangs that the last cycle did not cause."""
        self._ticks = 0
        self._scheduler: Scheduler | None = None
        self._known: dict[str, KubeObject] = {}

    def _time(self) -> datetime:
        """Each object is created one second after the one before it, plus the clock's time."""
        self._ticks += 1
        return _FIRST + timedelta(seconds=self._ticks + self.clock.now())

    @property
    def checked(self) -> bool:
        """Whether invariants are checked after each cycle, and by the fixtures at the end of a test."""
        return self._checked

    # ------------------------------------------------------------------ the scheduler

    def start(self, *plugins: object) -> Scheduler:
        """Start the scheduler over the objects; `plugins` are instances to add."""
        for plugin in plugins:
            self._chosen.add(name_of(plugin), plugin)
        profiles = {DEFAULT_SCHEDULER_NAME: self._chosen.calls(self.config.hook_seconds)}
        scheduler = self._new_scheduler(profiles)
        self._known = self._objects()  # later writes reach it as watch events
        finished(_started(scheduler))
        self._scheduler = scheduler
        return scheduler

    def _new_scheduler(self, profiles: Mapping[str, HookCalls]) -> Scheduler:
        return Scheduler(self.memory, self.config, profiles, self.clock, evaluation=self._evaluation)

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler under test; the first `schedule`, `run` or `start` creates it."""
        if self._scheduler is None:
            raise RuntimeError("the scheduler is not started; call schedule(), run() or start() first")
        return self._scheduler

    def run(self, *plugins: object, cycles: int = 1) -> list[Bound]:
        """Run cycles. The first call starts the scheduler, so only it may name plugins. Returns the decisions."""
        if self._scheduler is None:
            self.start(*plugins)
        elif plugins:
            raise RuntimeError("the scheduler is already running; name the plugins in the first run(…)")
        done: list[Bound] = []
        for _ in range(cycles):
            decided = finished(self._cycle())
            done.extend(decided)
            failed = (bound.decision.group.key for bound in decided if bound.failed or bound.unknown)
            self._given.update(dict.fromkeys(failed, 0))
            if self._checked:
                check_invariants(self.scheduler, self._given)
        return done

    async def _cycle(self) -> list[Bound]:
        await self._deliver()
        self._given = given_now(self.scheduler) if self._checked else {}
        done = await self.scheduler.cycle()
        await self._deliver()
        await complete_in_flight(self.scheduler)
        return done

    def _sync(self) -> Scheduler:
        """The scheduler, started if necessary, with all changes delivered."""
        scheduler = self._scheduler or self.start()
        before = given_now(scheduler)
        finished(self._deliver())
        after = given_now(scheduler)
        self._given.update({what: now for what, now in after.items() if now > before.get(what, 0)})
        return scheduler

    def _due(self) -> list[str]:
        """The keys of the groups that the next cycle would try."""
        scheduler, now = self.scheduler, self.clock.now()
        waiting = scheduler.cache.pending_groups(lambda group: scheduler.queue.is_active(group.key, now))
        held = scheduler.gang_starts.holds_back
        return [group.key for group in waiting if not scheduler.unknown_binds.is_busy(group.key) and not held(group)]

    # ------------------------------------------------------------------ events

    async def _deliver(self) -> None:
        """Deliver the changes since the last call to the scheduler."""
        current, known = self._objects(), self._known
        self._known = current
        for name, obj in known.items():
            if name not in current or current[name].metadata.uid != obj.metadata.uid:
                await self.scheduler.event_handlers.apply("DELETED", obj)
        for name, obj in current.items():
            before = known.get(name)
            if before is None or before.metadata.uid != obj.metadata.uid:
                await self.scheduler.event_handlers.apply("ADDED", obj)
            elif before is not obj:
                await self.scheduler.event_handlers.apply("MODIFIED", obj)

    def _objects(self) -> dict[str, KubeObject]:
        """Every object by a unique name, in the order in which the scheduler needs them."""
        found: dict[str, KubeObject] = {}
        for kind in KINDS:
            found.update((f"{obj.api_version} {kind.__name__} {obj.key}", obj) for obj in self.memory.objects(kind))
        return found


def finished(work: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Run a coroutine to completion. Raises RuntimeError inside an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise RuntimeError("FakeCluster runs its own event loops; use it in a synchronous test (`def test_…`)")


async def _started(scheduler: Scheduler) -> None:
    await scheduler.start()
    await complete_in_flight(scheduler)


async def complete_in_flight(scheduler: Scheduler) -> None:
    """Wait for the work in flight, before its event loop ends."""
    errors: list[BaseException] = []
    await scheduler.in_flight.wait(errors)
    await scheduler.in_flight.complete_ended(errors)
    raise_first(errors)
