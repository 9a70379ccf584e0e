"""The queue finds the groups that fit freed nodes, as a comparison of each class with each node does."""

from __future__ import annotations

import random

import pytest

from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.objects import Node, Pod
from session_scheduler.state.rejections import LOWEST, Place
from session_scheduler.state.scheduling_queue import SchedulingQueue
from session_scheduler.testing import node, pod

PROFILE = "fluence"
HINTS = (
    ClusterEventWithHint(Node, ActionType.ADD, None, lambda cls: cls.requests),
    ClusterEventWithHint(Pod, ActionType.DELETE, None, lambda cls: cls.requests),
)


class World:
    """A queue over a table of nodes; each group is a pod with a class of its own."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.table = NodeTable()
        self.classes = ClassTable(self.table)
        self.queue = SchedulingQueue(
            hints=lambda *_: HINTS, table=self.table, place_of=lambda key: Place("q", (int(key),))
        )
        self.nodes: list[str] = []
        self.waiting: dict[str, dict[str, int]] = {}

    def refuse(self, number: int) -> None:
        """Reject a group."""
        kind = f"x.org/{self.choose.randrange(20)}"
        requests = {kind: self.choose.randrange(1, 4)} if self.choose.random() < 0.5 else {}
        cls = self.classes.of(pod(f"p{number}", cpu=self.choose.randrange(1, 9), requests=requests))
        key = str(number)
        self.queue.failed(key, 0.0, frozenset({(cls, frozenset({"P"}))}))
        self.waiting[key] = dict(cls.requests)

    def free(self, number: int) -> None:
        """Add a node."""
        offers = {f"x.org/{self.choose.randrange(20)}": self.choose.randrange(4)}
        added = node(f"n{number}", cpu=self.choose.randrange(1, 9), offers=offers)
        self.table.put(added)
        self.nodes.append(added.metadata.name)
        self.queue.happened(ClusterEvent(Node, ActionType.ADD, None, added))

    def expected(self) -> list[str]:
        """The groups that fit any of the nodes, in order."""
        found = []
        for key, requests in self.waiting.items():
            for name in self.nodes:
                row = self.table.row_of[name]
                free = dict(zip(self.table.resources.names, self.table.free([row])[:, 0].tolist(), strict=False))  # type: ignore[arg-type]
                if all(amount <= free.get(resource, 0) for resource, amount in requests.items()):
                    found.append(key)
                    break
        return sorted(found, key=int)

    def taken(self) -> list[str]:
        """The groups that the queue returns; they leave it."""
        fitting = self.queue.fitting(PROFILE, None)
        found: list[str] = []
        while fitting is not None and fitting.first("q") is not None:
            found.append(self.queue.requeue_next(fitting, "q"))
        for key in found:
            del self.waiting[key]
            self.queue.placed(key)
        if fitting is not None:
            self.queue.fitted(PROFILE, fitting)
        assert not self.queue.has_freed(PROFILE)
        self.nodes.clear()
        return found


@pytest.mark.parametrize("seed", range(5))
def test_the_groups_that_fit_a_freed_node_are_taken_in_order(seed: int) -> None:
    world = World(seed)
    number = 0
    for _ in range(30):
        for _ in range(world.choose.choice((1, 20))):
            number += 1
            world.refuse(number)
        for key in world.choose.sample(sorted(world.waiting), len(world.waiting) // 4):
            world.queue.placed(key)  # its row is used again
            del world.waiting[key]
        for _ in range(world.choose.choice((1, 3, 300))):
            number += 1
            world.free(number)
        expected = world.expected()
        assert world.taken() == expected
    assert world.taken() == []


def test_events_of_unknown_nodes_and_of_nodes_without_waiting_groups_are_not_kept() -> None:
    world = World(0)
    world.free(1)
    assert not world.queue.has_freed(PROFILE)
    world.refuse(2)
    world.queue.happened(ClusterEvent(Pod, ActionType.DELETE, pod("p", bound_to="gone"), None))
    assert world.queue.fitting(PROFILE, None) is None
    assert not world.queue.has_freed(PROFILE)


def test_many_changes_of_a_group_cost_one_look_at_its_place() -> None:
    world, read, order = World(0), list[str](), {"1": 1}

    def place_of(key: str) -> Place:
        read.append(key)
        return Place("q", (order[key],))

    world.queue = SchedulingQueue(hints=lambda *_: HINTS, table=world.table, place_of=place_of)
    reject(world, "1", cpu=1)
    world.free(2)
    before = len(read)
    order["1"] = 2
    for _ in range(100):
        world.queue.changed_order("1")
    world.queue.changed_order("gone")
    assert len(read) == before
    fitting = world.queue.fitting(PROFILE, None)
    assert fitting is not None
    assert fitting.first("q") == (2,)
    assert len(read) == before + 2  # to compare, and to enter it again


def test_a_place_that_changes_in_a_session_counts_when_the_session_closes() -> None:
    world, priorities = World(0), {"1": 5, "2": LOWEST}
    running = world.classes.of(pod("running", cpu=1000))
    world.queue = SchedulingQueue(
        hints=lambda *_: HINTS, table=world.table, place_of=lambda key: Place("q", (key,), priorities[key]),
        evictable=lambda _: [(0, running)],
    )  # fmt: skip
    for key in priorities:
        reject(world, key, cpu=900)
    world.free(3)
    fitting = world.queue.fitting(PROFILE, None)
    assert fitting is not None
    assert world.queue.requeue_next(fitting, "q") == "1"
    priorities["2"] = 5
    world.queue.changed_order("2")
    world.queue.fitted(PROFILE, fitting)
    assert world.queue.has_freed(PROFILE)


def reject(world: World, key: str, cpu: int) -> None:
    """Reject a group of one pod with this request."""
    cls = world.classes.of(pod(f"p{key}", cpu=cpu))
    world.queue.failed(key, 0.0, frozenset({(cls, frozenset({"P"}))}))
