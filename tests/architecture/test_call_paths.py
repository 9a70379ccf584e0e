"""Three call paths through the core, one test each. `trace.py` follows them and limits their length."""

from __future__ import annotations

import asyncio

from session_scheduler.actions.allocate import allocate
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.cluster.mirror import Mirror
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.loop import SchedulerLoop
from session_scheduler.engine.scheduler import KINDS, Scheduler
from session_scheduler.model.groups import Phase
from session_scheduler.registry.validation import hook_calls
from session_scheduler.reporting.live_observer import LiveObserver
from session_scheduler.reporting.metrics import Metrics
from session_scheduler.reporting.recorder import Recorder
from session_scheduler.testing import FakeCluster, node, pod

PATIENCE = 10.0


class TestClock:
    """The injected clock. It is outside the core, so the trace does not count its reads."""

    __test__ = False

    def now(self) -> float:
        return 0.0

    wall = now


def test_a_gang_is_allocated_and_committed() -> None:
    cluster = FakeCluster().nodes(3).gang("training", 3).schedule()
    assert all(cluster.node_of(f"training-{member}") for member in range(3))


async def test_a_watched_pod_enters_the_cache_and_the_queue() -> None:
    clock, cluster, metrics, due = TestClock(), MemoryCluster([node("n1")]), Metrics("1"), asyncio.Event()
    observer = LiveObserver(Recorder(cluster, clock=clock), metrics, clock, finished=due.set)
    calls = hook_calls([(name, plugin(None), None) for name, plugin in BUILTIN.items()])
    scheduler = Scheduler(cluster, SchedulerConfig(), {"fluence": calls}, clock, observer=observer)
    loop = SchedulerLoop(scheduler, observer, metrics, clock, due)
    mirror = Mirror(cluster, KINDS, loop.deliver, clock=clock)
    await scheduler.start(await mirror.start())
    watching, turning = asyncio.create_task(mirror.run()), asyncio.create_task(loop.run())
    try:
        created = cluster.put(pod("p"))
        async with asyncio.timeout(PATIENCE):
            while created.metadata.uid not in scheduler.cache.tasks:  # noqa: ASYNC110 (the scheduler signals no event for it)
                await asyncio.sleep(0.001)
    finally:
        await loop.stop(PATIENCE)
        watching.cancel()
        await asyncio.gather(watching, turning, return_exceptions=True)
    assert not turning.exception()


def test_a_gangs_decision_is_carried_out_until_its_pods_are_bound() -> None:
    cluster = FakeCluster().nodes(2).gang("training", 2)
    scheduler = cluster.start()
    (calls,) = scheduler.profiles.values()
    (group,) = scheduler.cache.pending_groups(lambda _: True)
    session = scheduler.sessions.open(calls, (group,), (), lambda: False)
    (decision,) = filter(None, allocate(session))
    scheduler.sessions.close(session)
    result = asyncio.run(
        scheduler.binder.carry_out(decision, calls, scheduler.gang_starts.plan_swap(group, decision.allocated))
    )
    assert not result.failures
    assert all(cluster.node_of(task.name) == task.node for task in decision.allocated)
    assert len(group.in_phase(Phase.ASSUMED)) == 2
