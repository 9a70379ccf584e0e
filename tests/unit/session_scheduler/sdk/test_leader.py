"""One replica of a plugin's own server: standing by, serving while it leads, losing the lease, ending.

The cluster is in memory. Time stands still unless a test moves it. Tests poll for what no event reports, turn by turn.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import pytest

from session_scheduler.base.clock import StoppedClock
from session_scheduler.base.signals import background, first_of, stop_on_signals
from session_scheduler.cluster.errors import NotLeading
from session_scheduler.config.settings import LeaderElection
from session_scheduler.framework.bindings import Runtime
from session_scheduler.sdk import leader
from session_scheduler.sdk.leader import LOST, Leadership

from .leading_cluster import Cluster, live

ELECTION = LeaderElection(retry_seconds=0.01)
"""Between tries it really waits; everything else is by the clock that the tests move."""
PATIENCE = 20.0
LEADING = {"leading": None}
STANDING_BY = {"standing-by": None}
SILENT = {"standing-by": "the lease has not been read recently; see the log"}


class World:
    """A replica, its cluster and what it serves: `reported` has what serve's context saw, with the lease's holder."""

    def __init__(self, election=ELECTION):
        self.clock, self.cluster, self.stop = StoppedClock(), Cluster(), asyncio.Event()
        self.leadership = Leadership(election)
        self.runtime: Runtime | None = None
        self.reported = []
        self.ending = asyncio.Event()
        self.ending.set()

    def serve(self, runtime):
        @asynccontextmanager
        async def serving():
            self.runtime = runtime
            self.reported.append("begun")
            try:
                yield
            finally:
                await self.ending.wait()
                self.reported.append(f"ended; the lease is {'mine' if self.mine else 'not mine'}")

        return serving()

    @property
    def mine(self):
        return self.leadership._elector is not None and self.cluster.holder == self.leadership._elector.identity

    @property
    def ready(self):
        return self.leadership.problems()

    @asynccontextmanager
    async def running(self, serve=None):
        self.life = asyncio.ensure_future(self.leadership.run(live(self.cluster), self.stop, serve or self.serve))
        try:
            yield self
        finally:
            self.ending.set()
            self.stop.set()
            await asyncio.wait([self.life], timeout=PATIENCE)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def status(self):
        return await asyncio.wait_for(asyncio.shield(self.life), PATIENCE)

    async def until(self, holds):
        async with asyncio.timeout(PATIENCE):
            while not holds():
                assert not self.life.done(), self.life.result()
                await asyncio.sleep(0.001)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch):
    made = World()
    monkeypatch.setattr(leader, "SystemClock", lambda: made.clock)
    return made


# ------------------------------------------------------------------ standby


async def test_before_it_runs_it_neither_leads_nor_is_ready(world: World):
    assert not world.leadership.leading
    assert world.ready == SILENT


async def test_a_replica_that_has_seen_another_leader_is_ready_and_serves_nothing(world: World):
    world.cluster.give_lease_to("another")
    async with world.running():
        await world.until(lambda: world.ready == STANDING_BY)
        assert not world.leadership.leading
        with pytest.raises(NotLeading):
            world.cluster.check()
        world.stop.set()
        assert await world.status() == 0
    assert world.reported == []
    assert world.cluster.holder == "another"
    assert world.cluster.leases_written == []


async def test_a_replica_that_has_not_seen_the_lease_lately_is_not_ready(world: World):
    world.cluster.silent = True
    async with world.running():
        assert world.ready == SILENT
        world.cluster.give_lease_to("another")
        world.cluster.silent = False
        await world.until(lambda: world.ready == STANDING_BY)
        world.cluster.silent = True
        for _ in range(4):  # not at once: the lease must not end for a replica that still reads it
            world.clock.advance(4)
        await world.until(lambda: world.ready == SILENT)


async def test_a_replica_that_stands_by_serves_once_the_lease_has_ended(world: World):
    world.cluster.give_lease_to("another")
    async with world.running():
        await world.until(lambda: world.ready == STANDING_BY)
        world.clock.advance(16)
        await world.until(lambda: world.reported == ["begun"])
        assert world.ready == LEADING
        assert world.mine


# ------------------------------------------------------------------ leading


async def test_a_leader_serves_with_an_api_and_may_write(world: World):
    async with world.running():
        await world.until(lambda: world.reported)
        assert world.leadership.leading
        assert world.ready == LEADING
        assert world.runtime
        assert world.runtime.elected
        assert world.runtime.cluster is world.cluster
        assert world.runtime.api
        assert world.runtime.api.client is world.cluster.client
        world.cluster.check()


async def test_a_leader_that_is_stopped_gives_the_lease_back_after_it_has_left_serve(world: World):
    world.ending.clear()
    async with world.running():
        await world.until(lambda: world.reported)
        world.stop.set()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert world.mine
        assert world.reported == ["begun"]
        world.ending.set()
        assert await world.status() == 0
    assert world.reported == ["begun", "ended; the lease is mine"]
    assert world.cluster.lease is not None
    assert world.cluster.holder is None
    with pytest.raises(NotLeading):
        world.cluster.check()


async def test_a_lease_is_renewed_while_the_leader_is_slow_to_end(world: World):
    world.ending.clear()
    async with world.running():
        await world.until(lambda: world.reported)
        world.stop.set()
        written = len(world.cluster.leases_written)
        await world.until(lambda: len(world.cluster.leases_written) > written + 2)
        assert world.leadership.leading


async def test_without_election_it_serves_at_once_and_writes_no_lease():
    world = World(LeaderElection(enabled=False))
    assert world.ready == LEADING
    async with world.running():
        await world.until(lambda: world.reported)
        assert world.runtime
        assert world.runtime.elected
        world.stop.set()
        assert await world.status() == 0
    assert world.reported == ["begun", "ended; the lease is not mine"]
    assert world.cluster.lease is None


# ------------------------------------------------------------------ losing the lease


async def test_a_leader_whose_lease_another_one_has_leaves_serve_and_ends_with_a_failure(world: World):
    async with world.running():
        await world.until(lambda: world.reported)
        world.cluster.give_lease_to("another")
        assert await world.status() == LOST == 1
    assert world.reported == ["begun", "ended; the lease is not mine"]
    assert world.cluster.holder == "another"
    assert not world.leadership.leading


async def test_a_leader_that_cannot_renew_its_lease_ends_in_time_and_gives_nothing_back(world: World):
    async with world.running():
        await world.until(lambda: world.reported)
        world.cluster.renewals_fail = True
        world.clock.advance(9)
        await asyncio.sleep(0)
        assert world.ready == LEADING
        world.clock.advance(2)
        assert world.runtime
        assert not world.runtime.elected
        with pytest.raises(NotLeading):
            world.cluster.check()
        assert await world.status() == LOST
    assert world.reported == ["begun", "ended; the lease is mine"]
    assert None not in world.cluster.leases_written


# ------------------------------------------------------------------ failing


@pytest.mark.parametrize("enabled", [True, False])
async def test_what_serve_raises_ends_the_run_with_it(monkeypatch: pytest.MonkeyPatch, enabled):
    world = World(LeaderElection(retry_seconds=0.01, enabled=enabled))
    monkeypatch.setattr(leader, "SystemClock", lambda: world.clock)

    @asynccontextmanager
    async def serve(runtime):
        raise ValueError("no")
        yield

    async with world.running(serve):
        with pytest.raises(ValueError, match="no"):
            await world.status()
    assert world.cluster.holder is None  # another replica need not wait for its end


async def test_a_run_that_is_cancelled_leaves_serve(world: World):
    async with world.running():
        await world.until(lambda: world.reported)
        world.life.cancel()
        with pytest.raises(asyncio.CancelledError):
            await world.status()
    assert world.reported == ["begun", "ended; the lease is mine"]


# ------------------------------------------------------------------ the end of tasks


async def never():
    await asyncio.Event().wait()


async def fails():
    raise ValueError("no")


async def nothing():
    return


async def test_the_first_work_to_end_ends_the_others():
    left = []

    async def works():
        try:
            await never()
        finally:
            left.append("works")

    await first_of(works(), asyncio.sleep(0))
    assert left == ["works"]
    with pytest.raises(ValueError, match="no"):
        await first_of(never(), fails())
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_work_is_waited_for_unless_it_is_to_stop_or_a_task_beside_it_fails():
    stop = asyncio.Event()
    async with background(never()) as others:
        await asyncio.wait_for(first_of(nothing(), stop.wait(), beside=others), PATIENCE)
        with pytest.raises(ValueError, match="no"):
            await first_of(fails(), stop.wait(), beside=others)
        stop.set()
        await asyncio.wait_for(first_of(never(), stop.wait(), beside=others), PATIENCE)
        assert not others[0].done()
    async with background(fails()) as others:
        with pytest.raises(ValueError, match="no"):
            await asyncio.wait_for(first_of(never(), beside=others), PATIENCE)
        with pytest.raises(ValueError, match="no"):  # it was not seen when it failed
            await asyncio.wait_for(first_of(never(), beside=others), PATIENCE)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_task_beside_a_work_may_end():
    async with background(nothing(), asyncio.sleep(0)) as others:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(first_of(never(), beside=others), 0.01)
        await asyncio.wait_for(first_of(asyncio.sleep(0.01), beside=others), PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_sets_the_event_and_a_second_one_after_it_is_ignored(number):
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        with stop_on_signals() as stop:
            assert not stop.is_set()
            os.kill(os.getpid(), number)
            await asyncio.wait_for(stop.wait(), PATIENCE)
        os.kill(os.getpid(), number)
        await asyncio.sleep(0)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
