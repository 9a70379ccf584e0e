"""The loop takes turns: apply changes, complete binds, open sessions; and its end."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from session_scheduler import Refusal, hookimpl
from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.errors import Forbidden, Unavailable
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.cluster.port import Change
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine import loop as engine_module
from session_scheduler.engine.loop import SchedulerLoop
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.callback_runner import CallbackRunner
from session_scheduler.model.objects import Pod
from session_scheduler.registry.validation import hook_calls
from session_scheduler.reporting.live_observer import LiveObserver
from session_scheduler.reporting.metrics import Metrics
from session_scheduler.reporting.recorder import Recorder
from session_scheduler.server.explain_endpoint import Explanations
from session_scheduler.testing import gang, node, pod

PATIENCE = 10.0


async def run_ready_tasks():
    """Let every task run that does not have to wait."""
    for _ in range(20):
        await asyncio.sleep(0)


class Slow:
    """Binds wait until `go` is set."""

    name = "slow"

    def __init__(self):
        self.go, self.waiting = asyncio.Event(), asyncio.Event()
        self.go.set()

    @hookimpl
    async def prebind(self, binding):
        self.waiting.set()
        await self.go.wait()


class World:
    def __init__(self, *objects):
        self.clock = StoppedClock()
        self.cluster = MemoryCluster([node("n1"), *objects])
        self.metrics = Metrics("1")
        self.slow = Slow()
        self.stopped = False
        due = asyncio.Event()
        observer = LiveObserver(Recorder(self.cluster, clock=self.clock), self.metrics, self.clock, finished=due.set)
        listed = [(name, builtin(None), None) for name, builtin in BUILTIN.items()]
        calls = hook_calls([*listed, ("slow", self.slow, None)])
        self.scheduler = Scheduler(self.cluster, SchedulerConfig(), {"fluence": calls}, self.clock, observer=observer)
        self.engine = SchedulerLoop(self.scheduler, observer, self.metrics, self.clock, due)
        self.explanations = Explanations(self.scheduler, self.clock, due.set)
        self.engine.add_idle_task(self.explanations)

    @asynccontextmanager
    async def running(self):
        await self.scheduler.start()
        task = asyncio.ensure_future(self.engine.run())
        try:
            yield self
        finally:
            if self.scheduler.in_flight or not task.done():
                self.stopped = self.stopped or await self.engine.stop(PATIENCE)
            await asyncio.wait_for(task, PATIENCE)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    def pod(self, name="p"):
        return self.cluster._get(Pod, ("", "default", name))

    def deliver(self, obj, change=Change.ADDED):
        self.engine.deliver(change, self.cluster.put(obj))

    async def until(self, holds):
        async with asyncio.timeout(PATIENCE):
            while not holds():  # noqa: ASYNC110 (no event reports it)
                await asyncio.sleep(0.001)

    async def until_no_more_turns(self):
        """Wait until the loop has ended, and those that wait for its end have run."""
        await self.until(self.engine._ended.is_set)
        await run_ready_tasks()

    def cycles(self, result):
        text = self.metrics.exposition()[0].decode()
        lines = [line for line in text.splitlines() if line.startswith("fluence_cycles_total") and result in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines)


async def test_a_delivered_pod_is_bound_without_another_call():
    async with World().running() as world:
        world.deliver(pod("p"))
        await world.until(lambda: world.pod().spec.node_name == "n1")
        await world.until(
            lambda: (
                world.engine.pending().pods == {"due": 0, "backoff": 0, "unschedulable": 0, "gated": 0, "in_flight": 0}
            )
        )


async def test_changes_are_applied_in_order():
    async with World(node("n2")).running() as world:
        world.deliver(pod("p", cpu="3"))
        await world.until(lambda: world.pod().spec.node_name)
        gone = world.pod()
        world.engine.deliver(Change.MODIFIED, gone)
        world.engine.deliver(Change.DELETED, gone)
        await world.until(lambda: not world.scheduler.cache.tasks)


async def test_turns_continue_while_binds_are_in_flight():
    async with World().running() as world:
        world.slow.go.clear()
        world.deliver(pod("p"))
        await asyncio.wait_for(world.slow.waiting.wait(), PATIENCE)
        world.deliver(pod("gated", gates=["later"]))
        await world.until(
            lambda: (
                world.engine.pending().pods == {"due": 0, "backoff": 0, "unschedulable": 0, "gated": 1, "in_flight": 1}
            )
        )
        assert world.engine.pending().groups == {"due": 0, "backoff": 0, "unschedulable": 0, "gated": 1, "in_flight": 1}
        world.slow.go.set()
        await world.until(lambda: world.engine.pending().pods["in_flight"] == 0)


async def test_a_pod_deleted_before_its_bind_does_not_block_another_with_its_name():
    async with World().running() as world:
        world.slow.go.clear()
        world.deliver(pod("p"))
        await asyncio.wait_for(world.slow.waiting.wait(), PATIENCE)
        first = world.pod()
        await world.cluster.delete(first, grace_seconds=0)
        world.engine.deliver(Change.DELETED, first)
        world.slow.go = asyncio.Event()
        world.slow.go.set()
        world.deliver(pod("p"))
        await world.until(lambda: world.pod().spec.node_name == "n1")


async def test_a_pod_whose_deletion_begins_before_its_bind_frees_its_place():
    async with World().running() as world:
        world.slow.go.clear()
        world.deliver(pod("p", cpu="4"))
        await asyncio.wait_for(world.slow.waiting.wait(), PATIENCE)
        world.slow.go = asyncio.Event()
        world.slow.go.set()
        world.deliver(pod("q", cpu="4"))
        await world.until(lambda: world.engine.pending().groups["unschedulable"] == 1)
        ending = world.pod()
        ending = replace(ending, metadata=replace(ending.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
        world.deliver(ending, Change.MODIFIED)
        await world.until(lambda: world.pod("q").spec.node_name == "n1")
        assert not world.pod().spec.node_name


async def test_a_group_requeued_in_its_backoff_is_attempted_when_no_other_is_due(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_module, "_LONGEST_REST", 3600.0)
    async with World().running() as world:
        pending = world.scheduler.queue
        pending._initial = pending._maximum = 3600.0
        world.deliver(pod("p", cpu="9"))
        await world.until(lambda: world.engine.pending().groups["unschedulable"] == 1)
        world.engine.deliver(Change.ADDED, world.cluster.put(node("n2", cpu="16")))
        world.deliver(pod("q", cpu="99"))
        await world.until(lambda: world.pod().spec.node_name == "n2")


async def test_a_backoff_that_ends_between_the_cycle_and_the_rest_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(engine_module, "_LONGEST_REST", 3600.0)
    world, failing = World(), [True]
    bind, decide = world.cluster.bind, world.scheduler.decide

    async def bound(*arguments, **more):
        if failing:
            failing.clear()
            raise Forbidden("a test")
        return await bind(*arguments, **more)

    async def decided():
        await decide()
        end = world.scheduler.queue.next_after(world.clock.now())
        if end is not None and not world.scheduler.in_flight and not world.engine._due.is_set():
            world.clock.advance(end - world.clock.now())

    world.cluster.bind, world.scheduler.decide = bound, decided  # type: ignore[method-assign]
    async with world.running():
        world.deliver(pod("p"))
        await world.until(lambda: world.pod().spec.node_name == "n1")


async def test_a_failed_turn_is_counted_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_module, "_AFTER_ERROR", 0.0)
    async with World().running() as world:
        apply, failed = world.scheduler.event_handlers.apply, []

        async def fails_once(change, obj):
            if not failed:
                failed.append(obj)
                raise RuntimeError("a bug")
            await apply(change, obj)

        world.scheduler.event_handlers.apply = fails_once
        world.deliver(pod("lost"))
        world.deliver(pod("p"))
        await world.until(lambda: world.pod().spec.node_name)
        assert world.cycles("error") == 1


async def test_an_unschedulable_group_is_retried_when_it_is_requeued():
    async with World().running() as world:
        world.deliver(pod("p", cpu="9"))
        await world.until(lambda: world.engine.pending().groups["unschedulable"] == 1)
        refused_before = world.scheduler.queue._waiting["Pod default/p"].refused
        world.engine.requeue("Pod default/p", "a test")
        await world.until(lambda: world.scheduler.queue._waiting["Pod default/p"].refused > refused_before)


async def test_an_unknown_bind_is_checked_again_after_a_second():
    async with World().running() as world:
        bind, patch, asked = world.cluster.bind, world.cluster.patch_metadata, []

        async def unanswered(*_, **__):
            asked.append(world.clock.now())
            raise Unavailable("timeout")

        world.cluster.bind = world.cluster.patch_metadata = unanswered
        world.deliver(pod("p"))
        # the bind, its touch, and the first check, whose answer was lost
        await world.until(lambda: len(asked) >= 3 and not world.scheduler.in_flight)
        world.cluster.bind, world.cluster.patch_metadata = bind, patch
        assert len(world.scheduler.unknown_binds) == 1
        world.clock.advance(1.0)
        world.engine.requeue("unknown", "time has passed")
        await world.until(lambda: not world.scheduler.unknown_binds)
        world.clock.advance(1.0)
        world.engine.requeue("Pod default/p", "a test")
        await world.until(lambda: world.pod().spec.node_name == "n1")


async def test_gangs_without_a_started_condition_are_checked_every_ten_seconds():
    world = World()
    remind, times = world.scheduler.gang_starts.remind, []

    def reminded():
        times.append(world.clock.now())
        remind()

    world.scheduler.gang_starts.remind = reminded  # type: ignore[method-assign]
    async with world.running():
        await world.until(lambda: times == [0])
        for _ in range(2):
            turned = len(times)
            world.clock.advance(9)
            world.engine.requeue("unknown", "a turn")
            await world.until(lambda: world.engine._turned == world.clock.now())
            assert len(times) == turned
            world.clock.advance(1)
            world.engine.requeue("unknown", "a turn")
            await world.until(lambda turned=turned: len(times) > turned)
    assert times == [0, 10, 20]


# ------------------------------------------------------------------ the end


async def test_stopping_completes_the_work_in_flight_and_decides_nothing_more():
    world = World()
    async with world.running():
        world.slow.go.clear()
        world.deliver(pod("p"))
        await asyncio.wait_for(world.slow.waiting.wait(), PATIENCE)
        stopping = asyncio.ensure_future(world.engine.stop(PATIENCE))
        world.deliver(pod("later"))
        await world.until_no_more_turns()
        assert not stopping.done()
        world.slow.go.set()
        assert await stopping is True
    assert world.pod().spec.node_name == "n1"
    assert not world.pod("later").spec.node_name


async def test_work_that_does_not_end_in_time_is_cancelled():
    world = World()
    async with world.running():
        world.slow.go.clear()
        world.deliver(pod("p"))
        await asyncio.wait_for(world.slow.waiting.wait(), PATIENCE)
        assert await world.engine.stop(0.02) is False
        world.stopped = True
    assert not world.pod().spec.node_name


async def test_an_unexpected_error_does_not_affect_other_binds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_module, "_AFTER_ERROR", 0.0)
    world = World(pod("bad"), pod("p"))
    bind = world.cluster.bind

    async def breaks(namespace, name, **options):
        if name == "bad":
            raise OSError("boom")
        await bind(namespace, name, **options)

    world.cluster.bind = breaks  # type: ignore[method-assign]
    async with world.running():
        world.slow.go.clear()
        await world.until(lambda: len(world.scheduler.in_flight) == 2)
        stopping = asyncio.ensure_future(world.engine.stop(PATIENCE))
        await world.until_no_more_turns()
        assert not stopping.done()
        world.slow.go.set()
        assert await stopping is True
    assert world.pod().spec.node_name == "n1"


async def test_stopping_waits_for_a_turn_that_has_started_work():
    world = World()
    async with world.running():
        decide, inside, go_on = world.scheduler.decide, asyncio.Event(), asyncio.Event()

        async def slowly():
            await decide()
            if world.scheduler.cache.tasks:
                inside.set()
                await go_on.wait()

        world.scheduler.decide = slowly  # type: ignore[method-assign]
        world.deliver(pod("p"))
        await asyncio.wait_for(inside.wait(), PATIENCE)
        stopping = asyncio.ensure_future(world.engine.stop(PATIENCE))
        await world.until(lambda: world.scheduler.stopping)
        await run_ready_tasks()
        assert not stopping.done()
        go_on.set()
        assert await stopping is True
        assert world.pod().spec.node_name == "n1"


async def test_a_session_starts_no_further_group_once_the_scheduler_is_stopping():
    world = World()
    world.scheduler.stopping = True
    world.deliver(pod("p"))
    async with world.running():
        await world.until(lambda: world.scheduler.cache.tasks and not world.engine._changes)
        await world.engine.stop(PATIENCE)
    assert world.pod().spec.node_name == ""


async def test_a_loop_without_a_turn_for_a_minute_is_not_healthy():
    world = World()
    world.clock.advance(61)
    assert world.engine.problem() is None  # it has not begun: filling the cache may take long
    async with world.running():
        await world.until(lambda: world.engine._turned is not None)
        world.clock.advance(61)
        assert world.engine.problem() == "no cycle has finished for 61 s"
        world.engine.requeue("Pod default/p", "test")
        await world.until(lambda: world.engine.problem() is None)


@pytest.mark.parametrize("times", [1, 2])
async def test_an_engine_that_never_ran_stops_at_once(times):
    for _ in range(times):
        assert await World().engine.stop(PATIENCE) is True


async def test_a_bug_with_one_group_is_reported_and_later_groups_are_attempted(monkeypatch: pytest.MonkeyPatch):
    asked = CallbackRunner.pre_predicate

    def broken(runner, task):
        if task.name == "bad":
            raise ZeroDivisionError("a bug")
        return asked(runner, task)

    monkeypatch.setattr(CallbackRunner, "pre_predicate", broken)
    monkeypatch.setattr(engine_module, "_AFTER_ERROR", 0.0)
    async with World(pod("bad"), pod("good")).running() as world:
        await world.until(lambda: world.pod("good").spec.node_name)
        assert world.cycles("error") == 1
        assert not world.scheduler.queue.is_active("Pod default/bad", world.clock.now())
        (reason,) = world.scheduler.outcomes["Pod default/bad"].reasons.values()
        assert reason == "the scheduler failed: ZeroDivisionError: a bug"


async def test_other_tasks_run_while_many_objects_are_added():
    others = 0

    async def go_on():
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    world = World()
    beside = asyncio.ensure_future(go_on())
    pods = [world.cluster.put(pod(f"p{number}", scheduler="another")) for number in range(2000)]
    await run_ready_tasks()
    before = others
    await world.scheduler.start([node("n1"), *pods])
    assert others - before >= 2
    for one in pods:
        world.engine.deliver(Change.MODIFIED, one)
    before = others
    await world.engine._ingest()
    assert others - before >= 2
    beside.cancel()
    await asyncio.wait([beside])


# ------------------------------------------------------------------ /explain


async def test_a_waiting_pod_is_explained_between_two_turns_with_the_last_cycles_reason():
    async with World().running() as world:
        world.deliver(pod("large", cpu="9"))
        await world.until(lambda: world.engine.pending().pods["unschedulable"] == 1)
        before = world.scheduler.cache.table.digest()
        status, reported = await world.explanations.ask("default", "large")
        assert (status, reported["phase"], reported["node"]) == (200, "pending", None)
        assert reported["lastCycle"].startswith("0/1 nodes are available: 1 Insufficient cpu.")
        assert reported["nodes"]["n1"]["fitsIf"] == [
            {"plugin": "NodeResourcesFit", "changes": ["9 cpu were free on n1 (4 of 4 now)"]}
        ]
        assert (reported["refusals"], reported["leftOut"], reported["gang"]) == ({"NodeResourcesFit": 1}, 0, None)
        assert world.scheduler.cache.table.digest() == before
        json.dumps(reported)


async def test_a_pod_that_fits_has_the_reason_of_a_gang_that_does_not():
    async with World().running() as world:
        for obj in gang("g", 2, cpu="3"):
            world.deliver(obj)
        await world.until(lambda: world.engine.pending().pods["unschedulable"] == 2)
        _, reported = await world.explanations.ask("default", "g-0")
        assert reported["nodes"]["n1"]["fits"]
        assert reported["reason"].startswith("pod group is unschedulable, waiting for minCount pods from a gang to be ")


async def test_the_explanation_of_a_bound_pod_has_its_node_and_an_unknown_pod_is_an_error():
    async with World().running() as world:
        world.deliver(pod("p"))
        await world.until(lambda: world.pod().spec.node_name == "n1")
        await world.until(lambda: world.engine.pending().pods["in_flight"] == 0)
        assert (await world.explanations.ask("default", "p"))[1]["node"] == "n1"
        status, reported = await world.explanations.ask("default", "q")
        assert status == 404
        assert reported["error"].startswith("pod default/q: ")


async def test_explanations_are_limited_in_number_and_in_nodes():
    async with World(*(node(f"m{number}", cpu="1") for number in range(150))).running() as world:
        world.deliver(pod("p", cpu="3", gates=["later"]))
        await world.until(lambda: world.engine.pending().pods["gated"] == 1)
        answers = await asyncio.gather(*(world.explanations.ask("default", "p") for _ in range(20)))
        assert [status for status, _ in answers] == [200] * 16 + [503] * 4
        reported = answers[0][1]
        assert (len(reported["nodes"]), reported["leftOut"]) == (100, 51)
        assert (reported["refusals"], reported["nodes"]["n1"]["fits"]) == ({"NodeResourcesFit": 150}, True)


async def test_a_bug_in_an_explanation_is_its_own(monkeypatch: pytest.MonkeyPatch):
    async with World().running() as world:
        monkeypatch.setattr("session_scheduler.server.explain_endpoint.explained", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await world.explanations.ask("default", "p")
        world.deliver(pod("p"))
        await world.until(lambda: world.pod().spec.node_name == "n1")


async def test_a_plugins_change_runs_between_sessions_and_requeues_the_pods_it_refused():
    open_, seen = [False], []

    class Gate:
        name = "gate"

        @hookimpl
        def on_session_open(self, session):
            seen.append("opens")

        @hookimpl
        def on_session_close(self, session):
            seen.append("closes")

        @hookimpl
        def events_to_register(self):
            return []

        @hookimpl
        def prefilter(self, session, group):
            return None if open_[0] else Refusal("closed")

    def change():
        open_[0] = True
        seen.append("changed")

    world = World(pod("p"))
    calls = hook_calls([*((name, builtin(None), None) for name, builtin in BUILTIN.items()), ("gate", Gate(), None)])
    due = asyncio.Event()
    observer = LiveObserver(Recorder(world.cluster, clock=world.clock), world.metrics, world.clock, finished=due.set)
    world.scheduler = Scheduler(world.cluster, SchedulerConfig(), {"fluence": calls}, world.clock, observer=observer)
    world.engine = SchedulerLoop(world.scheduler, observer, world.metrics, world.clock, due)
    async with world.running():
        await world.until(lambda: any(map(world.scheduler.queue.is_unschedulable, world.scheduler.cache.groups)))
        world.engine.change("gate", change)
        world.clock.advance(60)
        await world.until(lambda: bool(world.pod().spec.node_name))
    assert seen[seen.index("changed") - 1] == "closes"


async def test_a_plugins_failed_change_is_reported_and_the_next_turn_runs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_module, "_AFTER_ERROR", 0.0)
    world = World()
    changed = []
    async with world.running():
        world.engine.change("slow", lambda: 1 // 0)  # type: ignore[arg-type]
        world.engine.change("slow", lambda: changed.append(1))
        await world.until(lambda: changed == [1])
