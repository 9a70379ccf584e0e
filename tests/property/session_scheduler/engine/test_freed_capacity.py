"""Freed capacity: a scheduler that compares free amounts places the same pods as one that retries all groups."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine import scheduler as service
from session_scheduler.model.events import EVERY_EVENT
from session_scheduler.model.objects import KubeObject, Node, Pod, Taint, Toleration
from session_scheduler.testing import FakeCluster, gang, node, pod

from ....tools.attempts import Attempts
from ....tools.examples import first
from ....tools.observing import observe

STEPS = 60
NODES = 4
CPU = (1, 2, 3, 4)
KINDS = ("pods", "pods", "pod", "gang", "end", "end", "end", "end", "node", "goes", "shrink", "taint", "change", "time")
DEDICATED = (Taint(key="dedicated", effect="NoSchedule"),)
ORDERED = ("plain", "priorities", "preemption")
"""Without queues, the order of groups does not depend on which groups wait."""
DRAWN: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "priorities": {"priorities": True},
    "preemption": {"priorities": True, "preempts": True},
    "queues": {"queues": ("a", "b")},
}


class World:
    """One scheduler and its cluster. Two of them with the same seed get the same steps as long as they agree."""

    def __init__(self, seed: int, *, priorities: bool = False, preempts: bool = False, queues: Any = ()) -> None:
        self.choose = random.Random(seed)
        actions = ("allocate", "preempt") if preempts else ("allocate",)
        self.cluster = FakeCluster(checked=False, config=SchedulerConfig(actions=actions, bindings_in_flight=10**6))
        self.priorities, self.queues = priorities, queues
        self.number = 0
        for index in range(NODES):
            self.cluster.add(node(f"n{index}", cpu=4, memory="4Gi", pods=8))
        for name in queues:
            self.cluster.queue(name)
        self.attempts = observe(self.cluster.start(), Attempts())

    def step(self) -> None:
        """Change something, then run cycles until nothing more is placed."""
        kind = self.choose.choice(KINDS)
        getattr(self, f"_{kind}")()
        self.finish()

    def finish(self) -> None:
        """Run cycles until nothing changes."""
        for _ in range(30):
            self.cluster.advance(11)
            before = self.cluster.memory.version
            self.cluster.run()
            self.cluster.finish_deletions()
            if self.cluster.memory.version == before:
                return

    def _options(self) -> dict[str, Any]:
        choose = self.choose
        self.number += 1
        options: dict[str, Any] = {"cpu": choose.choice(CPU), "memory": choose.choice(("100Mi", "1Gi", "3Gi"))}
        if choose.random() < 0.3:
            options["tolerations"] = (Toleration(operator="Exists"),)
        if choose.random() < 0.1:
            options["host_port"] = 80
        # each its own, so that the order is unique
        options["priority"] = 1000 * choose.randrange(3) + self.number if self.priorities else -self.number
        if self.queues:
            options["queue"] = choose.choice(self.queues)
        return options

    def _pod(self) -> None:
        self.cluster.add(pod(f"p{self.number}", **self._options()))

    def _pods(self) -> None:
        for _ in range(4):
            self._pod()

    def _gang(self) -> None:
        options = self._options()
        del options["memory"]
        self.cluster.add(gang(f"g{self.number}", self.choose.choice((2, 3)), **options))

    def _end(self) -> None:
        placed = self._placed()
        for key in self.choose.sample(placed, min(len(placed), self.choose.choice((1, 1, 2, 5)))):
            self.cluster.delete(Pod, key.partition("/")[2])

    def _node(self) -> None:
        index = self.choose.randrange(NODES)
        self.cluster.add(node(f"n{index}", cpu=self.choose.choice((3, 4, 6)), memory="4Gi", pods=8))

    def _goes(self) -> None:
        name = f"n{self.choose.randrange(NODES)}"
        if self._find(Node, name) is not None:
            self.cluster.delete(Node, name, "")

    def _taint(self) -> None:
        known = self._find(Node, f"n{self.choose.randrange(NODES)}")
        if known is not None:
            self.cluster.add(replace(known, spec=replace(known.spec, taints=() if known.spec.taints else DEDICATED)))

    def _change(self) -> None:
        """End pods and change waiting ones, in any order."""
        steps = [self._end, self._changed_pods]
        self.choose.shuffle(steps)
        for step in steps:
            step()

    def _changed_pods(self) -> None:
        waiting = sorted(key for key, where in self.cluster.placements().items() if not where)
        for key in self.choose.sample(waiting, min(len(waiting), self.choose.choice((1, 3, 20)))):
            known = self._find(Pod, key.partition("/")[2])
            tolerations = () if known.spec.tolerations else (Toleration(operator="Exists"),)
            self.cluster.add(replace(known, spec=replace(known.spec, tolerations=tolerations)))

    def _shrink(self) -> None:
        placed = self._placed()
        if placed:
            known = self._find(Pod, self.choose.choice(placed).partition("/")[2])
            (container,) = known.spec.containers
            requests = {**container.resources.requests, "cpu": "500m"}
            resources = replace(container.resources, requests=requests)
            containers = (replace(container, resources=resources),)
            self.cluster.add(replace(known, spec=replace(known.spec, containers=containers)))

    def _time(self) -> None:
        self.cluster.advance(self.choose.choice((0.5, 20)))

    def _placed(self) -> list[str]:
        return sorted(key for key, where in self.cluster.placements().items() if where)

    def _find(self, kind: type[KubeObject], name: str) -> Any:
        try:
            return self.cluster.find(kind, name, "" if kind is Node else "default")
        except LookupError:
            return None

    def retry_all(self) -> None:
        """Requeue every group."""
        queue = self.cluster.scheduler.queue
        for key in list(queue._waiting):
            queue.requeue_now(key, self.cluster.clock.now())
        self.finish()


@pytest.mark.parametrize("drawn", ORDERED)
@pytest.mark.parametrize("seed", first(range(40)))
def test_freed_capacity_is_used_as_if_every_event_retried_all_groups(seed: int, drawn: str) -> None:
    compared = World(seed, **DRAWN[drawn])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "registered_hints", lambda *_, **__: lambda *_: EVERY_EVENT)
        naive = World(seed, **DRAWN[drawn])
    for _ in range(STEPS):
        compared.step()
        naive.step()
        assert compared.cluster.placements() == naive.cluster.placements()
    assert compared.attempts.of.total() < naive.attempts.of.total()


@pytest.mark.parametrize("drawn", DRAWN)
@pytest.mark.parametrize("seed", first(range(100, 120)))
def test_no_group_that_fits_stays_unschedulable(seed: int, drawn: str) -> None:
    world = World(seed, **DRAWN[drawn])
    for _ in range(STEPS):
        world.step()
        before = world.cluster.placements()
        world.retry_all()
        assert world.cluster.placements() == before
