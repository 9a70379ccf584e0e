"""Plugins that loop for ever or block: the watchdog interrupts them, and only their own group fails, by name."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import uvloop
from structlog.testing import capture_logs

from session_scheduler import Session, hookimpl
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.framework.hooks import HookCall, PluginError
from session_scheduler.framework.watchdog import running, watch
from session_scheduler.model.objects import Pod
from session_scheduler.registry.validation import hook_calls
from session_scheduler.sdk.interruption import begin_update
from session_scheduler.testing import FakeCluster, gang, node, pod

from ..tools.preempting import ended

BRIEF = 0.5
"""The budget of a hanging plugin in seconds: longer than a busy machine delays one that does not hang."""
FOR_EVER = 3600.0


def loops(*_: Any) -> None:
    while True:
        pass


def pauses(*_: Any) -> None:
    time.sleep(FOR_EVER)


def swallows(*_: Any) -> None:
    """Catches everything, several times."""
    for _turn in range(3):
        with suppress(BaseException):
            loops()
    loops()


Hang = Callable[..., Any]


def is_bad(one: Any) -> bool:
    return one.name.startswith("bad")


class Plugin:
    """One callback or hook that hangs for bad pods; counts its events."""

    name = "mine"
    hook_seconds: float | None = BRIEF

    def __init__(self, register: Callable[[Session], None] = lambda session: None) -> None:
        self._register = register
        self.on: dict[str, int] = {}

    @hookimpl
    def class_key(self, pod: Any) -> bool:
        return is_bad(pod.metadata)

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_event_handler(allocate=lambda event: self.count(event, 1), deallocate=lambda e: self.count(e, -1))
        self._register(session)

    def count(self, event: Any, by: int) -> None:
        self.on[event.task.name] = self.on.get(event.task.name, 0) + by


def cases(hang: Hang) -> dict[str, Callable[[Session], None]]:
    def handler(event: Any) -> None:
        if event.task.name == "bad-1":
            hang()

    def bad(first: Any, *_: Any) -> Any:
        return hang() if is_bad(first) else None

    return {
        "job order": lambda session: session.add_job_order(lambda group: hang() if is_bad(group) else 0),
        "task order": lambda session: session.add_task_order(lambda task: hang() if is_bad(task) else 0),
        "pre-allocation": lambda session: session.add_pre_allocation(bad),
        "pre-predicate": lambda session: session.add_pre_predicate(bad),
        "predicate": lambda session: session.add_predicate(bad),
        "node order": lambda session: session.add_node_order(lambda task, node: hang() if is_bad(task) else 0),
        "subset nodes": lambda session: session.add_subset_nodes(bad),
        "bind mutation": lambda session: session.add_bind_mutation(bad),
        "allocate handler": lambda session: session.add_event_handler(allocate=handler),
    }


@pytest.mark.parametrize(
    ("kind", "hang"), [*((kind, loops) for kind in cases(loops)), ("predicate", pauses), ("job order", swallows)]
)
def test_a_callback_that_hangs_fails_its_own_group(kind: str, hang: Hang) -> None:
    plugin = Plugin(cases(hang)[kind])
    cluster = FakeCluster()
    cluster.nodes(3)
    cluster.add(pod("first"), gang("bad", 2), pod("last"))
    empty = cluster.start(plugin).cache.table.digest()
    cluster.run()
    cluster.assert_bound("first")
    cluster.assert_bound("last")
    for name in ("bad-0", "bad-1"):
        cluster.assert_pending(name, f"plugin mine failed in {kind}: no answer within 0.5 s")
    assert {name: count for name, count in plugin.on.items() if count} == {"first": 1, "last": 1}
    assert running.call is None
    for name in ("first", "last"):
        cluster.delete(Pod, name)
    cluster.run()
    assert cluster.scheduler.cache.table.digest() == empty


class Filters(Plugin):
    @hookimpl
    def filter(self, cls: Any, mask: Any) -> None:
        if is_bad(cls.pod.metadata):
            loops()


class Answers(Plugin):
    """Its answer hangs when the core iterates over it."""

    @hookimpl
    def node_subsets(self, session: Session, group: Any) -> Any:
        def masks() -> Any:
            yield session.table.valid()
            loops()

        return masks() if is_bad(group) else None


class Prebinds(Plugin):
    @hookimpl
    async def prebind(self, binding: Any) -> None:
        await asyncio.sleep(0)
        if is_bad(binding.task):
            pauses()


@pytest.mark.parametrize(
    ("plugin", "hook"), [(Filters(), "filter"), (Answers(), "node_subsets"), (Prebinds(), "prebind")]
)
def test_a_hook_that_hangs_fails_its_own_group(plugin: Plugin, hook: str) -> None:
    cluster = FakeCluster()
    cluster.nodes(2)
    cluster.add(pod("bad"), pod("good"))
    cluster.run(plugin)
    cluster.assert_bound("good")
    cluster.assert_pending("bad", f"plugin mine failed in {hook}: no answer within 0.5 s")


def test_the_configurations_budget_applies_to_plugins_without_their_own() -> None:
    class Silent:
        name = "silent"

        @hookimpl
        def on_session_open(self, session: Session) -> None:
            session.add_predicate(lambda *_: loops())

    cluster = FakeCluster(config=SchedulerConfig(hook_seconds=0.4))
    cluster.nodes(1)
    cluster.add(pod("p"))
    cluster.run(Silent())
    cluster.assert_pending("p", "plugin silent failed in predicate: no answer within 0.4 s")


class Preempts(Plugin):
    """Calls the core in an endless loop."""

    name = "DefaultPreemption"

    @hookimpl
    def postfilter(self, trial: Any) -> None:
        tasks = trial.running("n1")
        while True:
            trial.remove(tasks)
            trial.fits("n1")
            trial.put_back(tasks)


def test_an_endless_loop_of_core_calls_stops_between_two_calls() -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1, bound_to="n1"), pod("bad", cpu="1", priority=5))
    before = cluster.start(Preempts()).cache.table.digest()
    cluster.run()
    cluster.assert_pending("bad", "plugin DefaultPreemption failed in postfilter: no answer within 0.5 s")
    assert ended(cluster) == []
    assert cluster.scheduler.cache.table.digest() == before


# ------------------------------------------------------------------ where the watchdog must not interrupt


def late(plugin: str = "p", **more: Any) -> HookCall:
    hook_calls([("watched", Plugin(), None)])  # starts the watchdog
    return HookCall(plugin, "filter", more.pop("function"), BRIEF)


def test_a_call_that_ends_in_time_is_not_interrupted_later() -> None:
    """A signal after the call, or in a call without a budget, raises nothing."""
    call = late(function=lambda: 5)
    assert call() == 5
    signal.raise_signal(signal.SIGURG)
    running.call = call
    try:
        call.since = 0.0  # late, but it no longer runs
        signal.raise_signal(signal.SIGURG)
    finally:
        running.call = None
    unbounded = HookCall("p", "filter", lambda: signal.raise_signal(signal.SIGURG))
    unbounded()


def test_the_inner_of_two_calls_is_interrupted_and_named() -> None:
    inner = late("inner", function=loops)
    outer = HookCall("outer", "postfilter", lambda: inner(), FOR_EVER)
    with pytest.raises(PluginError, match="plugin outer failed in postfilter: PluginError: plugin inner failed"):
        outer()


def test_a_core_function_called_by_a_plugin_is_not_interrupted() -> None:
    """The core takes far longer than the budget: the call ends only back in the plugin's own code."""
    reached = []
    core: dict[str, Any] = {"__name__": "session_scheduler.state.cache", "time": time, "reached": reached}
    exec("def change(until):\n while time.perf_counter() < until: pass\n reached.append('the end')", core)

    def calls_the_core() -> None:
        core["change"](time.perf_counter() + 2 * BRIEF)
        loops()

    call = late(function=calls_the_core)
    with pytest.raises(PluginError, match="no answer within"):
        call()
    assert reached == ["the end"]


def test_numpy_is_not_interrupted() -> None:
    """A library's computation finishes first."""
    call = late(function=lambda: [np.linalg.svd(np.eye(60)) for _ in iter(int, 1)])
    with pytest.raises(PluginError, match="no answer within"):
        call()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_the_event_loop_continues_after_an_interruption(run: Callable[..., Any]) -> None:
    """The exception reaches no other work of the loop: timers, other tasks and other threads' calls still run."""

    async def beside(turns: list[int]) -> None:
        for turn in range(3):
            turns.append(turn)
            await asyncio.sleep(0.01)

    async def main() -> list[int]:
        turns: list[int] = []
        task = asyncio.ensure_future(beside(turns))
        for hang in (loops, pauses):
            with pytest.raises(PluginError, match="no answer within"):
                late(function=lambda hang=hang: hang())()
            await asyncio.sleep(0)
        await task
        assert await asyncio.to_thread(lambda: 5) == 5
        return turns

    assert run(main()) == [0, 1, 2]


def test_a_hang_in_another_thread_interrupts_no_other_call() -> None:
    """The watchdog cannot interrupt it, and does not interrupt the main thread's work meanwhile."""
    ended = threading.Event()
    call = late(function=ended.wait)
    thread = threading.Thread(target=call)
    thread.start()
    until = time.perf_counter() + 2 * BRIEF
    while time.perf_counter() < until:
        signal.raise_signal(signal.SIGURG)
    ended.set()
    thread.join()
    assert call.calls == 1


@pytest.mark.parametrize("kind", ["job order", "predicate"])
def test_other_tasks_run_after_each_timeout(kind: str) -> None:
    """Otherwise the lease would expire while several pods meet the same plugin."""
    turns, seen = [0], []

    def hangs(*_: Any) -> None:
        seen.append(turns[0])
        loops()

    async def decide(scheduler: Any) -> None:
        async def count() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await scheduler.cycle()
        counting.cancel()

    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod(f"bad{number}") for number in range(3))
    asyncio.run(decide(cluster.start(Plugin(cases(hangs)[kind]))))
    assert len(seen) == len(set(seen)) == 3


def test_a_session_that_does_not_open_fails_the_due_groups_and_opens_again() -> None:
    hanging = [True]
    plugin = Plugin(lambda session: loops() if hanging[0] else None)
    cluster = FakeCluster()
    cluster.nodes(1)
    cluster.add(pod("p"))
    cluster.run(plugin)
    cluster.assert_pending("p", "plugin mine failed in on_session_open: no answer within 0.5 s")
    hanging[0] = False
    cluster.advance(60)
    cluster.run()
    cluster.assert_bound("p")


def test_the_text_of_a_late_exception_is_not_interrupted() -> None:
    """The core formats it outside the plugin's own code, where nothing could handle an interruption."""

    class SlowTextError(Exception):
        def __str__(self) -> str:
            end = time.perf_counter() + 2 * BRIEF
            while time.perf_counter() < end:
                pass
            return "a slow text"

    def raises() -> None:
        raise SlowTextError

    watch.over(BRIEF)
    with pytest.raises(PluginError, match="a slow text"):
        HookCall("p", "prefilter", raises, BRIEF)()


@pytest.mark.parametrize("hook", ["prebind_needed", "prebind"])
def test_a_hook_that_hangs_outside_a_session_is_called_only_once(hook: str) -> None:
    asked = []

    def hangs(pod: int) -> None:
        asked.append(pod)
        loops()

    watch.over(BRIEF)
    call = HookCall("p", hook, hangs, BRIEF)
    for number in range(3):
        with pytest.raises(PluginError, match="no answer within") as refused:
            call(number)
        assert refused.value.late
    assert asked == [0]


def test_the_log_has_the_line_at_which_a_plugin_was_interrupted() -> None:
    with capture_logs() as logs, pytest.raises(PluginError, match="no answer within"):
        late("slow", function=loops)()
    (entry,) = logs
    assert (entry["plugin"], entry["hook"], entry["error"]) == ("slow", "filter", "no answer within 0.5 s")
    assert entry["file"] == __file__
    assert entry["line"] in range(loops.__code__.co_firstlineno, loops.__code__.co_firstlineno + 4)


# ------------------------------------------------------------------ updates of a plugin's state


def test_a_hook_is_not_interrupted_after_it_begins_an_update() -> None:
    state = []

    def updates() -> str:
        begin_update()
        state.append("began")
        until = time.perf_counter() + 3 * BRIEF
        while time.perf_counter() < until:
            pass
        state.append("ended")
        return "answer"

    call = late(function=updates)
    assert call() == "answer"
    assert state == ["began", "ended"]


def test_an_update_does_not_begin_after_the_time_limit() -> None:
    """`pauses` is interrupted by the signal; here the core's function raises the interruption itself."""
    state = []
    call = late(function=lambda: [begin_update(), state.append("began")])
    call.budget = 0.0
    with pytest.raises(PluginError, match="no answer within"):
        call()
    assert state == []


def test_the_next_call_of_a_hook_that_updated_has_its_time_limit_again() -> None:
    hangs = [False]

    def updates() -> None:
        if hangs[0]:
            loops()
        begin_update()

    call = late(function=updates)
    call()
    hangs[0] = True
    with pytest.raises(PluginError, match="no answer within"):
        call()


def test_an_update_outside_of_a_hook_needs_no_protection() -> None:
    begin_update()
