from __future__ import annotations

import asyncio

import msgspec
import pytest

from session_scheduler.cluster.errors import Conflict, Invalid, Unavailable
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.model.objects import ObjectMeta
from session_scheduler.model.queue_objects import Queue, QueueObjectSpec, QueueStatus
from session_scheduler.reporting.queue_status import QueueStatusWriter
from session_scheduler.testing.builders import pod
from session_scheduler.testing.fake_cluster import FakeCluster

LABEL = {"fluence.flux-framework.org/queue": "a"}


class World:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.nodes(1)
        self.cluster.add(Queue(metadata=ObjectMeta(name="a")), pod("p", labels=LABEL))
        self.cluster.run()
        self.writer = QueueStatusWriter(self.cluster.memory, self.cluster.scheduler.cache, clock=self.cluster.clock)

    def report(self, after: float = 0.0) -> str:
        """Report once. Returns the queue's resourceVersion after it."""
        self.cluster.clock.advance(after)
        asyncio.run(self.writer.write())
        self.cluster.run()
        return self.found().metadata.resource_version

    def found(self, name: str = "a") -> Queue:
        return next(one for one in self.cluster.memory.objects(Queue) if one.key == name)


def test_a_changed_status_is_written_with_a_minimum_interval() -> None:
    world = World()
    first = world.report()
    assert world.found().status.allocated == {"cpu": "100m", "memory": "100Mi", "pods": "1"}
    assert world.report(60) == first, "expected no write without a change"
    world.cluster.add(pod("q", labels=LABEL))
    world.cluster.run()
    second = world.report()
    assert second != first
    world.cluster.add(pod("r", labels=LABEL))
    world.cluster.run()
    assert world.report(1) == second, "expected no write within the interval"
    assert world.report(5) != second
    assert world.found().status.allocated["pods"] == "3"


def test_a_queue_that_is_no_longer_ready_is_reported_soon_with_the_time() -> None:
    world = World()
    world.report()
    (before,) = world.found().status.conditions
    wrong = msgspec.structs.replace(world.found(), spec=QueueObjectSpec(parent="nowhere"))
    world.cluster.add(wrong)
    world.cluster.run()
    world.report(1)
    (said,) = world.found().status.conditions
    assert (before.status, said.status, said.reason) == ("True", "False", "ParentMissing")
    assert world.found().status.allocated == {}


def test_a_failed_write_is_retried_later() -> None:
    world = World()

    async def fails(*_: object) -> Queue:
        raise Unavailable("not now")

    write, world.cluster.memory.write_queue_status = world.cluster.memory.write_queue_status, fails  # type: ignore[method-assign, assignment]
    world.report()
    world.cluster.memory.write_queue_status = write  # type: ignore[method-assign]
    world.report(5)
    assert world.found().status.conditions[0].status == "True"


def test_a_status_does_not_overwrite_a_newer_foreign_write() -> None:
    world = World()
    stale = world.found()
    world.report()
    with pytest.raises(Conflict):
        asyncio.run(world.cluster.memory.write_queue_status(stale, QueueStatus()))
    with pytest.raises(Invalid):
        asyncio.run(world.cluster.memory.write_queue_status(Queue(metadata=ObjectMeta(name="a")), QueueStatus()))


def test_the_status_of_an_object_that_the_configuration_overrides_says_so() -> None:
    config = SchedulerConfig(bindings_in_flight=100, queues=(QueueConfig(name="a", limit={"pods": 1}),))
    cluster = FakeCluster(config=config)
    cluster.nodes(1)
    cluster.add(Queue(metadata=ObjectMeta(name="a")), pod("p", labels=LABEL), pod("q", labels=LABEL))
    cluster.run()
    writer = QueueStatusWriter(cluster.memory, cluster.scheduler.cache, clock=cluster.clock)
    (queue,) = cluster.memory.objects(Queue)
    (said,) = writer.status(queue).conditions
    assert (said.status, said.reason) == ("False", "Configured")
    assert sum(node is not None for node in cluster.placements().values()) == 1
