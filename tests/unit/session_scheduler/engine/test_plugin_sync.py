"""What a standby looks at: its cost depends on the pods that changed, not on those that it knows."""

from __future__ import annotations

from collections.abc import Sequence

from session_scheduler import hookimpl
from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.bindings import HELD_ANNOTATION, Allocation, Holding
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import KubeObject
from session_scheduler.registry.validation import hook_calls
from session_scheduler.testing import node, pod

KNOWN = 300


class Looks(dict[str, Task]):
    """Counts the tasks that are looked up or iterated over."""

    number = 0

    def get(self, key, default=None):
        self.number += 1
        return super().get(key, default)

    def values(self):
        self.number += len(self)
        return super().values()


class Holds:
    """Recovers and frees what pods hold."""

    def __init__(self) -> None:
        self.called: list[str] = []

    @hookimpl
    def recover(self, holdings: Sequence[Holding]) -> None:
        self.called += [f"recover {holding.task.name}" for holding in holdings]

    @hookimpl
    async def cancel(self, allocation: Allocation) -> None:
        self.called.append(f"cancel {allocation.pod.metadata.name}")


async def test_a_standby_looks_at_the_pods_that_changed_and_at_no_others() -> None:
    holds, cluster = Holds(), MemoryCluster()
    calls = hook_calls([*((name, builtin(None), None) for name, builtin in BUILTIN.items()), ("holds", holds, None)])
    scheduler = Scheduler(cluster, SchedulerConfig(), {"fluence": calls}, StoppedClock())
    looks = scheduler.cache.tasks = Looks()

    async def follow(change: str, *objects: KubeObject) -> list[str]:
        for obj in objects:
            scheduler.event_handlers.absorb(change, obj)
        looks.number, holds.called = 0, []
        await scheduler.plugin_sync.follow()
        return holds.called

    bound = [cluster.put(pod(f"p{number}", bound_to="n1")) for number in range(KNOWN)]
    assert len(await follow("ADDED", cluster.put(node("n1")), *bound)) == KNOWN
    await follow("MODIFIED", cluster.put(node("n1", labels={"changed": "yes"})))
    assert looks.number == 0
    new = cluster.put(pod("new", bound_to="n1"))
    assert await follow("ADDED", new) == ["recover new"]
    assert looks.number <= 3
    changed = cluster.put(pod("p0", bound_to="n1", annotations={HELD_ANNOTATION: "{}"}))
    assert await follow("MODIFIED", changed) == ["cancel p0", "recover p0"]
    assert await follow("DELETED", bound[1], new) == ["cancel p1", "cancel new"]
    assert looks.number <= 6
