"""Asynchronous hooks that never return: only the group of the plugin is affected."""

from __future__ import annotations

import asyncio

import pytest

from session_scheduler import hookimpl
from session_scheduler.binding import binder
from session_scheduler.framework import hooks, watchdog
from session_scheduler.framework.hooks import PATIENCE, HookCall, PluginError
from session_scheduler.framework.watchdog import begin_update
from session_scheduler.model.objects import Pod
from session_scheduler.testing import FakeCluster, gang, pod

BRIEF = 0.05
LONG = 20.0
"""Timeout in seconds for a test that must not hang."""
DEFAULTS = HookCall.wait.__kwdefaults__ or {}
SHIPPED = {"cancel": binder._CANCEL_SECONDS, "others": DEFAULTS["patience"]}


class Hanging:
    """Its hooks never return for pods with this name prefix."""

    def __init__(self, name="hanging", prebind="-", cancel="-"):
        self.name, self._prebind, self._cancel = name, prebind, cancel
        self.cancelled = []

    @hookimpl
    async def prebind(self, binding):
        if binding.task.name.startswith(self._prebind):
            await asyncio.Event().wait()

    @hookimpl
    async def cancel(self, allocation):
        self.cancelled.append(allocation.pod.metadata.name)
        if allocation.pod.metadata.name.startswith(self._cancel):
            await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DEFAULTS, "patience", BRIEF)
    monkeypatch.setattr(binder, "_CANCEL_SECONDS", BRIEF)


def started(plugin, *objects):
    cluster = FakeCluster()
    cluster.nodes(2)
    cluster.add(*objects)
    cluster.start(*plugin if isinstance(plugin, tuple) else (plugin,))
    return cluster


def cycle(cluster):
    asyncio.run(asyncio.wait_for(cluster._cycle(), LONG))


def test_the_time_out_of_cancel_is_a_second_and_of_other_hooks_half_a_minute():
    assert 0 < SHIPPED["cancel"] <= 1.0
    assert SHIPPED["others"] == PATIENCE <= 30.0


def test_a_prebind_that_never_returns_fails_only_its_group():
    plugin = Hanging(prebind="g-1")
    cluster = started(plugin, gang("g", 2), gang("h", 2), pod("p"))
    cycle(cluster)
    for name in ("h-0", "h-1", "p"):
        cluster.assert_bound(name)
    for name in ("g-0", "g-1"):
        cluster.assert_pending(name, "plugin hanging failed in prebind: no answer within 0.05 s (pod default/g-1 of")
    assert sorted(plugin.cancelled) == ["g-0", "g-1"]
    assert not cluster.scheduler.in_flight


def test_a_group_is_bound_once_its_prebind_returns_in_a_later_attempt():
    plugin = Hanging(prebind="g-1")
    cluster = started(plugin, gang("g", 2))
    cycle(cluster)
    plugin._prebind = "-"
    cluster.advance(1)
    cycle(cluster)
    cluster.assert_bound("g-0")
    cluster.assert_bound("g-1")


def test_a_cancel_that_never_returns_delays_neither_other_plugins_nor_the_turn(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(DEFAULTS, "patience", 2 * LONG)  # the default of other hooks is too long
    hanging, other = Hanging(cancel="p"), Hanging("other")
    cluster = started((hanging, other), pod("p", cpu="4"))
    cycle(cluster)
    cluster.delete(Pod, "p")
    cluster.add(pod("q", cpu="4"))
    cycle(cluster)
    assert (hanging.cancelled, other.cancelled) == (["p"], ["p"])
    cluster.assert_bound("q")
    assert "no answer within 0.05 s" in capfd.readouterr().out


async def test_a_cancellation_from_outside_is_not_a_failure_of_the_hook():
    began = asyncio.Event()

    async def prebind(binding):
        began.set()
        await asyncio.Event().wait()

    waiting = asyncio.ensure_future(HookCall("p", "prebind", prebind).wait(None, patience=LONG))
    await began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_hooks_own_time_out_is_reported_as_its_error():
    async def prebind(binding):
        raise TimeoutError("no daemon")

    with pytest.raises(PluginError, match="plugin p failed in prebind: TimeoutError: no daemon"):
        await HookCall("p", "prebind", prebind).wait(None)


async def test_a_hook_that_awaits_several_times_gets_each_result_and_exception():
    seen = []

    async def prebind(binding):
        for number in range(3):
            await asyncio.sleep(0)
            seen.append(await asyncio.wait_for(asyncio.sleep(0, number), LONG))
        try:
            await asyncio.wait_for(asyncio.Event().wait(), BRIEF)
        except TimeoutError:
            return seen
        return None

    assert await HookCall("p", "prebind", prebind).wait(None, patience=LONG) == [0, 1, 2]


async def test_a_hook_that_does_not_wait_returns_at_once():
    async def prebind(binding):
        return binding

    waiting = HookCall("p", "prebind", prebind).wait("answer")
    with pytest.raises(StopIteration, match="answer"):
        waiting.send(None)


async def test_a_hook_is_called_again_after_a_time_out_although_another_call_has_begun_an_update(
    monkeypatch: pytest.MonkeyPatch,
):
    now = 100.0
    for module in (hooks, watchdog):
        monkeypatch.setattr(module, "perf_counter", lambda: now)
    resume = asyncio.Event()

    async def prebind(pod):
        nonlocal now
        if pod == "waits":
            await resume.wait()
        now += 6.0 if pod == "late" else 0.0
        begin_update()
        return pod

    call = HookCall("p", "prebind", prebind, 5.0)
    waiting = asyncio.ensure_future(call.wait("waits"))
    await asyncio.sleep(0)
    with pytest.raises(PluginError, match="no answer within 5 s"):
        await call.wait("late")
    resume.set()
    assert await waiting == "waits"
    with pytest.raises(PluginError, match="no answer within 5 s"):
        await call.wait("next")
    now += 4.0
    assert await call.wait("next") == "next"
