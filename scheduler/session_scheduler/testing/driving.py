"""A cluster in memory with the real scheduler over it, turned by hand in a stopped clock's time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from session_scheduler.config.settings import DEFAULT_SCHEDULER_NAME, SchedulerConfig
from session_scheduler.engine.completion import Bound
from session_scheduler.engine.in_flight import raise_first
from session_scheduler.engine.scheduler import KINDS, Scheduler
from session_scheduler.model.objects import KubeObject
from session_scheduler.testing.chosen import Chosen, name_of
from session_scheduler.testing.clock import FakeClock
from session_scheduler.testing.faults import FaultyCluster
from session_scheduler.testing.invariants import check_invariants, given_now

_ALL_AT_ONCE = 1_000_000
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_Answer = TypeVar("_Answer")


class DrivenCluster:
    """Objects, plugins, a clock, and the scheduler; what is added after a cycle reaches it as watch events do."""

    def __init__(
        self, *, config: SchedulerConfig | None = None, evaluation: str = "heap", checked: bool = True
    ) -> None:
        # No bind waits for another: each run has an event loop of its own, and what waits in one belongs to it.
        self.config = config or SchedulerConfig(bindings_in_flight=_ALL_AT_ONCE)
        self.clock = FakeClock(wall=_FIRST.timestamp())
        self.memory = FaultyCluster(now=self._time, binds_volumes=True)
        self._chosen = Chosen()
        self._evaluation = evaluation
        self._checked = checked
        self._given: dict[Hashable, int] = {}
        """What of overcommitted nodes and of gangs in part is no work of the last cycle's decisions."""
        self._ticks = 0
        self._scheduler: Scheduler | None = None
        self._known: dict[str, KubeObject] = {}

    def _time(self) -> datetime:
        """Each object is one second younger than the one before it, the clock's time apart."""
        self._ticks += 1
        return _FIRST + timedelta(seconds=self._ticks + self.clock.now())

    @property
    def checked(self) -> bool:
        """Whether the invariants are checked after each cycle, and at the end of a test with the fixtures."""
        return self._checked

    # ------------------------------------------------------------------ the scheduler

    def start(self, *plugins: object) -> Scheduler:
        """Start the scheduler over what is there, with these plugins, as they are, after those chosen before."""
        for plugin in plugins:
            self._chosen.add(name_of(plugin), plugin)
        profiles = {DEFAULT_SCHEDULER_NAME: self._chosen.calls(self.config.hook_seconds)}
        scheduler = Scheduler(self.memory, self.config, profiles, self.clock, evaluation=self._evaluation)
        self._known = self._objects()  # what it writes at its start is delivered to it, as from a watch
        finished(_started(scheduler))
        self._scheduler = scheduler
        return scheduler

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler under test; it exists from the first `schedule`, `run` or `start` on."""
        if self._scheduler is None:
            raise RuntimeError("the scheduler was not started: call schedule(), run() or start() first")
        return self._scheduler

    def run(self, *plugins: object, cycles: int = 1) -> list[Bound]:
        """Run cycles; the first call starts the scheduler, so only it may name plugins. Returns what was decided."""
        if self._scheduler is None:
            self.start(*plugins)
        elif plugins:
            raise RuntimeError("the scheduler runs already: name the plugins in the first run(…)")
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
        """The scheduler, started if it was not, with all that has changed."""
        scheduler = self._scheduler or self.start()
        before = given_now(scheduler)
        finished(self._deliver())
        after = given_now(scheduler)
        self._given.update({what: now for what, now in after.items() if now > before.get(what, 0)})
        return scheduler

    def _due(self) -> list[str]:
        """The groups (keys) that the next cycle would try, backoffs apart."""
        scheduler, now = self.scheduler, self.clock.now()
        waiting = scheduler.cache.pending_groups(lambda group: scheduler.queue.is_active(group.key, now))
        held = scheduler.gang_starts.holds_back
        return [group.key for group in waiting if not scheduler.unknown_binds.is_busy(group.key) and not held(group)]

    # ------------------------------------------------------------------ what it receives

    async def _deliver(self) -> None:
        """Bring the scheduler what changed since it last did."""
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
        """Every object, by a name of its own, in the order in which the scheduler must know them."""
        found: dict[str, KubeObject] = {}
        for kind in KINDS:
            found.update((f"{obj.api_version} {kind.__name__} {obj.key}", obj) for obj in self.memory.objects(kind))
        return found


def finished(work: Coroutine[Any, Any, _Answer]) -> _Answer:
    """What asynchronous work answers, done at once. Raises RuntimeError inside of an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise RuntimeError("FakeCluster has event loops of its own: use it in a test that is no coroutine (`def test_…`)")


async def _started(scheduler: Scheduler) -> None:
    await scheduler.start()
    await complete_in_flight(scheduler)


async def complete_in_flight(scheduler: Scheduler) -> None:
    """Let work end that an event began: the event loop that it runs in ends with this."""
    errors: list[BaseException] = []
    await scheduler.in_flight.wait(errors)
    await scheduler.in_flight.complete_ended(errors)
    raise_first(errors)
