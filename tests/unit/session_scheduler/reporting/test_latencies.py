"""The histograms of the times that pods wait, and kube-scheduler's names, over a real scheduler in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.errors import Forbidden
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.cluster.port import Change
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.engine.loop import SchedulerLoop
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.objects import KubeObject
from session_scheduler.registry.validation import hook_calls
from session_scheduler.reporting.live_observer import LiveObserver
from session_scheduler.reporting.metrics import ATTEMPTS, OTHER, Metrics
from session_scheduler.reporting.recorder import Recorder
from session_scheduler.testing import gang, node, pod, priority_class

CREATED = "2026-01-01T00:00:00Z"
WALL = 1767225600.0
"""`CREATED` as Unix time."""


class World(MemoryCluster):
    """A cluster, its scheduler, and a clock that starts when pods are created."""

    def __init__(self, *, kube_scheduler: bool = True, **config: Any) -> None:
        super().__init__()
        self.rejects = False
        self.clock = StoppedClock(500.0, wall=WALL)
        self.metrics = Metrics("1", kube_scheduler=kube_scheduler)
        listed = [(name, builtin(None), None) for name, builtin in BUILTIN.items()]
        profiles = {"fluence": hook_calls(listed)}
        due = asyncio.Event()
        observer = LiveObserver(Recorder(self, clock=self.clock), self.metrics, self.clock, profiles, due.set)
        self.scheduler = Scheduler(self, SchedulerConfig(**config), profiles, self.clock, observer=observer)
        self.loop = SchedulerLoop(self.scheduler, observer, self.metrics, self.clock, due)
        self.metrics.follow_pending(self.loop.pending)

    def _publish(self, change: Change, obj: Any) -> None:
        super()._publish(change, obj)
        self.loop.deliver(change, obj)

    async def bind(self, *arguments: Any, **options: Any) -> Any:
        if self.rejects:
            raise Forbidden("a test")
        return await super().bind(*arguments, **options)

    def add(self, *objects: KubeObject) -> None:
        for one in objects:
            self.put(replace(one, metadata=replace(one.metadata, creation_timestamp=CREATED)))

    async def turns(self, number: int = 2) -> None:
        for _ in range(number):
            await self.loop._turn()
            for _ in range(20):
                await asyncio.sleep(0)

    def samples(self, name: str) -> dict[str, float]:
        """The samples of a metric that are not 0, by their labels."""
        lines = [line.rpartition(" ") for line in self.metrics.exposition()[0].decode().splitlines()]
        found = {head.removeprefix(name).strip("{}"): float(value) for head, _, value in lines
                 if head.partition("{")[0] == name}  # fmt: skip
        return {labels: value for labels, value in found.items() if value}


async def started(*objects: KubeObject, **options: Any) -> World:
    world = World(**options)
    await world.scheduler.start()
    world.add(node("n1"), *objects)
    return world


async def test_a_pod_s_latency_is_from_its_creation_to_its_bind_by_queue_and_attempts() -> None:
    queues = tuple(QueueConfig(name=name) for name in ("a", "b"))
    world = await started(pod("first", queue="a"), pod("late", queue="b", cpu="5"), queues=queues)
    world.clock.advance(2.0)
    await world.turns()
    world.clock.advance(20.0)
    world.add(node("n2", cpu="8"))
    await world.turns()
    assert world.samples("fluence_pod_scheduling_seconds_sum") == {
        'attempts="1",queue="a"': 2.0,
        'attempts="2-4",queue="b"': 22.0,
    }


async def test_the_wait_of_a_queue_is_from_the_last_attempt_to_the_one_that_places_the_group() -> None:
    world = await started(pod("late", cpu="5"))
    world.clock.advance(3.0)
    await world.turns()
    assert world.samples("fluence_queue_wait_seconds_count") == {}
    world.clock.advance(20.0)
    world.add(node("n2", cpu="8"))
    await world.turns()
    assert world.samples("fluence_queue_wait_seconds_sum") == {'queue="default"': 20.0}


async def test_a_failed_bind_counts_as_an_attempt() -> None:
    world = await started(pod("p"))
    world.rejects = True
    await world.turns()
    world.rejects = False
    world.clock.advance(5.0)
    await world.turns()
    assert world.samples("fluence_pod_scheduling_seconds_count") == {'attempts="2-4",queue="default"': 1.0}
    assert world.samples("scheduler_pod_scheduling_attempts_sum") == {"": 2.0}


async def test_the_start_of_a_gang_is_measured_once_from_its_first_pod_to_its_last_bind() -> None:
    world = await started(*gang("g", 2))
    world.clock.advance(7.0)
    await world.turns()
    assert world.samples("fluence_gang_start_seconds_sum") == {'queue="default"': 7.0}
    world.clock.advance(100.0)
    world.add(pod("g-2", group="g"))
    await world.turns(4)
    assert world.samples("fluence_gang_start_seconds_count") == {'queue="default"': 1.0}
    assert world.samples("fluence_pod_scheduling_seconds_count") == {'attempts="1",queue="default"': 3.0}


async def test_a_pod_that_joins_a_running_group_waits_from_its_own_arrival() -> None:
    world = await started(*gang("g", 2))
    await world.turns()
    world.clock.advance(100.0)
    world.add(pod("g-2", group="g"))
    await world.turns(1)
    world.clock.advance(0.5)
    await world.turns(2)
    assert world.samples("fluence_queue_wait_seconds_sum") == {}
    assert world.samples("scheduler_pod_scheduling_sli_duration_seconds_count") == {'attempts="1"': 3.0}
    assert world.samples("scheduler_pod_scheduling_sli_duration_seconds_sum") == {'attempts="1"': 0.5}


def test_many_queues_share_the_label_other() -> None:
    metrics = Metrics("1")
    for number in range(150):
        metrics.pod_scheduled(f"q{number}", 1, 1.0)
    metrics.queue_waited("q149", 1.0)
    metrics.gang_started("q0", 1.0)
    text = metrics.exposition()[0].decode()
    assert 'fluence_pod_scheduling_seconds_count{attempts="1",queue="q99"} 1.0' in text
    assert f'fluence_pod_scheduling_seconds_count{{attempts="1",queue="{OTHER}"}} 50.0' in text
    assert f'fluence_queue_wait_seconds_count{{queue="{OTHER}"}} 1.0' in text
    assert 'fluence_gang_start_seconds_count{queue="q0"} 1.0' in text
    assert text.count("fluence_pod_scheduling_seconds_count") == 101


def test_attempts_have_four_labels() -> None:
    metrics = Metrics("1", kube_scheduler=True)
    assert metrics.kube_scheduler is not None
    for attempts in range(1, 40):
        metrics.pod_scheduled("a", attempts, 1.0)
        metrics.kube_scheduler.scheduled(attempts, 1.0)
    text = metrics.exposition()[0].decode()
    for label, number in {"1": 1, "2-4": 3, "5-14": 10, "15+": 25}.items():
        assert f'fluence_pod_scheduling_seconds_count{{attempts="{label}",queue="a"}} {number}.0' in text
    assert [most for most, _ in ATTEMPTS] == [1, 4, 14]
    assert 'scheduler_pod_scheduling_sli_duration_seconds_count{attempts="14"} 1.0' in text
    assert 'scheduler_pod_scheduling_sli_duration_seconds_count{attempts="15+"} 25.0' in text


# ------------------------------------------------------------------ kube-scheduler's names


async def test_kube_scheduler_s_names_are_off_by_default() -> None:
    world = await started(pod("p"), kube_scheduler=False)
    await world.turns()
    text = world.metrics.exposition()[0].decode()
    assert "fluence_pod_scheduling_seconds" in text
    assert "scheduler_" not in text.replace("fluence_", "")
    assert SchedulerConfig().kube_scheduler_metrics is False


async def test_attempts_are_counted_and_timed_by_result_and_profile() -> None:
    world = await started(pod("p"), pod("large", cpu="9"))
    await world.turns()
    attempts = {'profile="fluence",result="scheduled"': 1.0, 'profile="fluence",result="unschedulable"': 1.0}
    assert world.samples("scheduler_schedule_attempts_total") == attempts
    assert world.samples("scheduler_scheduling_attempt_duration_seconds_count") == attempts
    world.rejects = True
    world.add(pod("rejected"))
    await world.turns()
    assert world.samples("scheduler_schedule_attempts_total")['profile="fluence",result="error"'] == 1.0


async def test_pods_are_counted_in_the_queue_that_they_are_in() -> None:
    world = await started(pod("large", cpu="9"), pod("gated", gates=["later"]), pod("foreign", scheduler="another"))
    await world.turns()
    assert world.samples("scheduler_pending_pods") == {'queue="unschedulable"': 1.0, 'queue="gated"': 1.0}
    assert world.samples("scheduler_queue_incoming_pods_total") == {
        'event="PodAdd",queue="active"': 1.0,
        'event="PodAdd",queue="gated"': 1.0,
        'event="ScheduleAttemptFailure",queue="unschedulable"': 1.0,
    }
    world.add(node("n2", cpu="16"))
    await world.turns()
    assert world.samples("scheduler_queue_incoming_pods_total")['event="NodeAdd",queue="active"'] == 1.0
    assert world.samples("scheduler_pending_pods") == {'queue="gated"': 1.0}


async def test_preemptions_are_counted_with_their_victims() -> None:
    world = await started(priority_class("high", 100), pod("low", cpu="3"))
    await world.turns()
    world.add(pod("large", cpu="9", priority=100), pod("high", cpu="3", priority=100))
    await world.turns()
    assert world.samples("scheduler_preemption_victims_sum") == {"": 1.0}
    assert world.samples("scheduler_preemption_victims_count") == {"": 1.0}
    assert world.samples("scheduler_preemption_attempts_total") == {"": 2.0}


UPSTREAM: dict[str, tuple[str, Iterable[str], int]] = {
    "scheduler_schedule_attempts": ("counter", ("result", "profile"), 0),
    "scheduler_scheduling_attempt_duration_seconds": ("histogram", ("result", "profile"), 15),
    "scheduler_pod_scheduling_sli_duration_seconds": ("histogram", ("attempts",), 20),
    "scheduler_pod_scheduling_attempts": ("histogram", (), 5),
    "scheduler_queue_incoming_pods": ("counter", ("queue", "event"), 0),
    "scheduler_preemption_attempts": ("counter", (), 0),
    "scheduler_preemption_victims": ("histogram", (), 7),
    "scheduler_pending_pods": ("gauge", ("queue",), 0),
}
"""Type, labels and number of buckets in kube-scheduler. Source: pkg/scheduler/metrics/metrics.go, Kubernetes 1.36."""


@pytest.mark.parametrize("name", UPSTREAM)
async def test_a_metric_has_kube_scheduler_s_type_labels_and_buckets(name: str) -> None:
    world = await started(pod("p"), pod("large", cpu="9"))
    await world.turns()
    kind, labels, buckets = UPSTREAM[name]
    (family,) = [family for family in world.metrics._registry.collect() if family.name == name]
    assert family.type == kind
    assert {label for sample in family.samples for label in sample.labels} - {"le"} == set(labels)
    bounds = {sample.labels["le"] for sample in family.samples if "le" in sample.labels}
    assert len(bounds) == (buckets + 1 if buckets else 0)
