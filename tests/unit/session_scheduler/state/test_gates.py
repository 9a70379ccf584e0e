"""Pods that a plugin keeps out of the scheduling queue: no attempt, no backoff, no event, and what opens the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from session_scheduler import Gate, hookimpl
from session_scheduler.engine.explain import explain_pending
from session_scheduler.framework.observer import Observer
from session_scheduler.model.devices import DeviceClass, ResourceClaim
from session_scheduler.model.groups import Phase, Task
from session_scheduler.model.objects import Pod, PodStatus
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ..engine.requeue_world import Tries, devices, gpu_claim, gpus, observed

NOT_FOUND = 'could not find ResourceClaim "default/c"'


class KeepsOut:
    """Keeps every pod out until the claim "key" exists; with `answer`, it returns or raises that."""

    name = "keeps-out"

    def __init__(self, answer: object = None) -> None:
        self.answer = answer
        self.calls = 0

    @hookimpl
    def pre_enqueue(self, pod: Pod, objects: Callable[[type[Any]], Mapping[str, Any]]) -> Any:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        return None if "default/key" in objects(ResourceClaim) else Gate("no key", (ResourceClaim, "default/key"))


def user(name: str, *claims: str, **options: Any) -> Pod:
    entries = tuple({"name": f"e{n}", "resourceClaimName": one} for n, one in enumerate(claims))
    return pod(name, resource_claims=entries, **options)


def task_of(cluster: FakeCluster, name: str) -> Task:
    return next(task for task in cluster.scheduler.cache.tasks.values() if task.name == name)


def observed_run(cluster: FakeCluster, *objects: Any) -> Tries:
    cluster.nodes(1)
    cluster.add(*objects)
    tries = observed(cluster)
    cluster.run()
    return tries


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def test_a_pod_whose_claim_does_not_exist_is_not_attempted_and_gets_no_event(cluster: FakeCluster) -> None:
    tries = observed_run(cluster, user("p", "c"))
    assert tries.of == {}
    assert task_of(cluster, "p").phase is Phase.GATED
    assert cluster.scheduler.queue.is_active(task_of(cluster, "p").group.key, 0.0)  # no backoff once the gate opens
    assert cluster.scheduler.outcomes == {}
    cluster.assert_pending("p", NOT_FOUND)


class Gated(Observer):
    """Records the gated pods."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def gated(self, task: Task, reason: str) -> None:
        self.seen.append((task.name, reason))


def test_the_observer_sees_each_gate_that_a_cycle_finds_closed(cluster: FakeCluster) -> None:
    cluster.nodes(1)
    cluster.add(pod("p"), gpu_claim("other"))
    observer = cluster.start(KeepsOut()).observer = Gated()
    cluster.run(cycles=2)
    assert observer.seen == [("p", "no key")]
    cluster.add(pod("q"), gpu_claim("key"))
    cluster.run(cycles=2)
    assert observer.seen == [("p", "no key")]  # opened before the cycle


def test_explain_shows_what_keeps_a_pod_out(cluster: FakeCluster) -> None:
    cluster.nodes(1)
    cluster.add(pod("p"))
    cluster.run(KeepsOut(), cycles=1)
    (answer,) = explain_pending(cluster.scheduler)["pods"]
    assert answer["reason"] == "no key"


def test_the_awaited_object_opens_the_gate_at_once(cluster: FakeCluster) -> None:
    plugin = KeepsOut()
    cluster.nodes(1)
    cluster.add(pod("p"), pod("q"))
    cluster.run(plugin)
    calls = plugin.calls
    cluster.add(gpu_claim("another"))
    cluster.run()
    assert plugin.calls == calls
    cluster.assert_pending("p", "no key")
    cluster.add(gpu_claim("key"))
    cluster.run()
    cluster.assert_bound("p", "n1")
    cluster.assert_bound("q", "n1")


@pytest.mark.parametrize("answer", ["text", Gate(1), RuntimeError("broken")], ids=repr)  # type: ignore[arg-type]
def test_a_hook_that_fails_keeps_its_pod_out_and_is_reported(cluster: FakeCluster, answer: object) -> None:
    cluster.nodes(1)
    cluster.add(pod("p"))
    cluster.run(KeepsOut(answer))
    cluster.assert_pending("p", "plugin keeps-out failed in pre_enqueue: ")


def test_a_gang_waits_for_a_gated_member_and_starts_when_the_gate_opens(cluster: FakeCluster) -> None:
    cluster.nodes(1)
    cluster.add(devices(DeviceClass, "gpu"), gpus("s"))
    cluster.add(pod_group("g", 2), pod("g-0", group="g"), user("g-1", "c", group="g"))
    cluster.run()
    cluster.assert_pending("g-0", "1 of them gated")
    cluster.add(gpu_claim("c"))
    cluster.run()
    cluster.assert_bound("g-0", "n1")
    cluster.assert_bound("g-1", "n1")


def test_a_requeued_pod_whose_claim_is_gone_is_not_attempted(cluster: FakeCluster) -> None:
    tries = observed_run(cluster, gpu_claim("c"), user("p", "c", cpu="100"))
    assert tries.of == {"p": 1}
    cluster.delete(ResourceClaim, "c")
    cluster.scheduler.queue.requeue_now(task_of(cluster, "p").group.key, cluster.scheduler.clock.now())
    cluster.run()
    assert tries.of == {"p": 1}
    cluster.assert_pending("p", NOT_FOUND)
    cluster.delete(Pod, "p")
    cluster.run()
    assert cluster.scheduler.cache.gates.awaiting(gpu_claim("c")) == []


def test_no_resources_are_reserved_for_a_nominated_pod_that_is_gated(cluster: FakeCluster) -> None:
    high = user("high", "c", cpu="1", priority=10)
    cluster.add(node("n1", cpu="1"), pod("low", cpu="1"))
    cluster.add(msgspec.structs.replace(high, status=PodStatus(nominated_node_name="n1")))
    cluster.run()
    cluster.assert_bound("low", "n1")
    asyncio.run(cluster.scheduler.event_handlers.apply("ADDED", gpu_claim("c")))
    assert cluster.scheduler.cache.nominations.node_of(task_of(cluster, "high")) == "n1"
