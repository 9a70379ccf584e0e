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

    def write(self, after: float = 0.0) -> str:
        """Look once; the queue's resourceVersion then."""
        self.cluster.clock.advance(after)
        asyncio.run(self.writer.write())
        self.cluster.run()
        return self.found().metadata.resource_version

    def found(self, name: str = "a") -> Queue:
        return next(one for one in self.cluster.memory.objects(Queue) if one.key == name)


def test_a_status_is_written_where_it_has_changed_and_seldom() -> None:
    world = World()
    first = world.write()
    assert world.found().status.allocated == {"cpu": "100m", "memory": "100Mi", "pods": "1"}
    assert world.write(60) == first, "nothing has changed"
    world.cluster.add(pod("q", labels=LABEL))
    world.cluster.run()
    second = world.write()
    assert second != first
    world.cluster.add(pod("r", labels=LABEL))
    world.cluster.run()
    assert world.write(1) == second, "it was written a moment ago"
    assert world.write(5) != second
    assert world.found().status.allocated["pods"] == "3"


def test_that_a_queue_is_ready_no_more_is_told_soon_and_since_when() -> None:
    world = World()
    world.write()
    (before,) = world.found().status.conditions
    wrong = msgspec.structs.replace(world.found(), spec=QueueObjectSpec(parent="nowhere"))
    world.cluster.add(wrong)
    world.cluster.run()
    world.write(1)
    (said,) = world.found().status.conditions
    assert (before.status, said.status, said.reason) == ("True", "False", "ParentMissing")
    assert world.found().status.allocated == {}


def test_a_cluster_that_does_not_answer_is_told_later() -> None:
    world = World()

    async def fails(*_: object) -> Queue:
        raise Unavailable("not now")

    write, world.cluster.memory.write_queue_status = world.cluster.memory.write_queue_status, fails  # type: ignore[method-assign, assignment]
    world.write()
    world.cluster.memory.write_queue_status = write  # type: ignore[method-assign]
    world.write(5)
    assert world.found().status.conditions[0].status == "True"


def test_a_status_is_not_written_over_what_others_have_written_since() -> None:
    world = World()
    stale = world.found()
    world.write()
    with pytest.raises(Conflict):
        asyncio.run(world.cluster.memory.write_queue_status(stale, QueueStatus()))
    with pytest.raises(Invalid):
        asyncio.run(world.cluster.memory.write_queue_status(Queue(metadata=ObjectMeta(name="a")), QueueStatus()))


def test_an_object_that_the_configuration_has_too_says_that_it_does_not_count() -> None:
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
