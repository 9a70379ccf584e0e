"""An attempt that comes to nothing by an error, or where no pod can preempt, ends the pod's nomination; a refusal of
which preemption says something else does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler import hookimpl
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.errors import Forbidden
from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.objects import Pod, PodStatus
from session_scheduler.registry.registry import Registry
from session_scheduler.testing import FakeCluster, node, pod


class Fails:
    """A filter that fails for pods."""

    name = "fails"

    @hookimpl
    def filter(self, cls, nodes, mask):
        raise RuntimeError("it fails")


def nominated(name: str, **options: Any) -> Pod:
    return replace(pod(name, **options), status=PodStatus(nominated_node_name="n1"))


def get(cluster: FakeCluster, name: str) -> Pod:
    return asyncio.run(cluster.memory.get(Pod, "default", name))


def kept(cluster: FakeCluster, name: str) -> bool:
    """Whether a pod is nominated, here and on the API server alike."""
    written = get(cluster, name)
    task = cluster.scheduler.cache.tasks[written.metadata.uid]
    known = cluster.scheduler.cache.nominations.node_of(task) or ""
    assert known == written.status.nominated_node_name
    return bool(known)


def test_an_attempt_that_fails_by_an_error_ends_it() -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu="1"), nominated("first", cpu="1", priority=10))
    cluster.run(Fails())
    cluster.assert_pending("first", "it fails")
    assert not kept(cluster, "first")


def test_a_bind_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu="1"), nominated("first", cpu="1", priority=10))

    async def refuse(*_: Any, **__: Any) -> None:
        raise Forbidden("pods cannot be bound")

    monkeypatch.setattr(cluster.memory, "bind", refuse)
    cluster.run()
    cluster.assert_pending("first")
    assert not kept(cluster, "first")


def test_where_nobody_can_preempt_a_refusal_ends_it() -> None:
    config = SchedulerConfig(profiles=(Profile(plugins=(PluginConfig(name="DefaultPreemption", enabled=False),)),))
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1, bound_to="n1"))
    cluster.add(nominated("first", cpu="1", priority=10))
    scheduler = Scheduler(cluster.memory, config, Registry(BUILTIN).load_calls(config), cluster.clock)

    async def once() -> None:
        await scheduler.start()
        await scheduler.cycle()

    asyncio.run(once())
    assert get(cluster, "first").status.nominated_node_name == ""


def test_while_the_victims_end_it_stays() -> None:
    cluster = FakeCluster(checked=False)
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1", priority=1, bound_to="n1"), pod("high", cpu="1", priority=10))
    cluster.run(cycles=2)
    assert kept(cluster, "high")
    cluster.scheduler.queue.requeue_now("Pod default/high", cluster.clock.now())
    cluster.run()
    assert kept(cluster, "high")
