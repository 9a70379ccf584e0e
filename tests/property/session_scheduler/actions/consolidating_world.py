"""Random fragmented clusters with controllers, and pods and gangs that fit only after other pods move."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from session_scheduler.config.settings import ConsolidationConfig, SchedulerConfig
from session_scheduler.model.groups import Group
from session_scheduler.model.meta import LabelSelector, ObjectMeta
from session_scheduler.model.objects import KubeObject, Pod, SchedulingGroup
from session_scheduler.model.policy import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from session_scheduler.testing.builders import gang, node, pod, pod_group
from session_scheduler.testing.fake_cluster import FakeCluster

from ....tools.replacing import of_controller, replacement

APPS = ("x", "y", "z")


class World:
    """Partly full nodes, and pods and gangs that need more than most nodes have free."""

    def __init__(
        self, seed: int, prepare: Callable[[FakeCluster], object] | None = None, *, gangs: bool = False
    ) -> None:
        """`prepare` adds plugins, which then place the initial pods; without it these pods are bound already.

        `gangs`: some of the initial pods are members of gangs, which may move as a whole.
        """
        self.chance = chance = random.Random(seed)
        config = SchedulerConfig(
            bindings_in_flight=1_000,
            actions=("allocate", "consolidate"),
            seed=seed,
            consolidation=ConsolidationConfig(move_gangs=gangs),
        )
        self._gangs: dict[str, int] | None = {} if gangs else None
        """By gang: its number of members."""
        self.cluster = FakeCluster(config=config).without("DefaultPreemption")
        if prepare is not None:
            prepare(self.cluster)
        self._bound = prepare is None
        self.nodes = {f"n{number}": chance.choice([4, 6, 8]) for number in range(chance.randint(2, 6))}
        self.cluster.add(node(name, cpu=cpu) for name, cpu in self.nodes.items())
        self.ran: set[str] = set()
        """The names of the initial pods."""
        for name, cpu in self.nodes.items():
            self._fill(name, cpu)
        self.cluster.add(pod_group(name, count) for name, count in (self._gangs or {}).items())
        self.budgets = {app: chance.randint(0, 3) for app in APPS}
        self.cluster.add(budget(app, allowed) for app, allowed in self.budgets.items())
        self.moved: list[Pod] = []
        self.late: list[Pod] = []

    def _fill(self, name: str, cpu: int) -> None:
        chance = self.chance
        left = chance.randint(cpu // 2, cpu)
        ports = {1, 2, 3}
        while left > 0 and chance.random() < 0.9:
            size = chance.randint(1, min(3, left))
            left -= size
            port = ports.pop() if ports and chance.random() < 0.2 else 0
            one = pod(f"r{len(self.ran)}", cpu=size, bound_to=name if self._bound else "", host_port=port,
                      priority=chance.choice([0, 0, 5, 50]), labels={"app": chance.choice(APPS)})  # fmt: skip
            self.ran.add(one.metadata.name)
            if self._gangs is not None and chance.random() < 0.5:
                name_of_gang = f"gang{chance.randint(0, 2)}"
                self._gangs[name_of_gang] = self._gangs.get(name_of_gang, 0) + 1
                one = replace(one, spec=replace(one.spec, scheduling_group=SchedulingGroup(name_of_gang)))
                self.cluster.add(of_controller(one, name_of_gang, "Job"))
                continue
            self.cluster.add(of_controller(one) if chance.random() < 0.85 else one)

    def waiting(self) -> Iterable[KubeObject]:
        chance = self.chance
        for number in range(chance.randint(1, 4)):
            size, cpu, priority = chance.choice([1, 1, 2, 3, 4]), chance.randint(2, 6), chance.choice([0, 5, 50])
            if size == 1:
                yield pod(f"w{number}", cpu=cpu, priority=priority)
            else:
                yield from gang(f"w{number}", size, cpu=cpu, priority=priority)

    def turn(self) -> None:
        """Run a cycle, finish some deletions, and recreate some evicted pods: before, with or after their deletion."""
        self.cluster.run()
        leaving = [one for one in self.pods() if one.metadata.deletion_timestamp]
        new = [one for one in leaving if one.metadata.uid not in {known.metadata.uid for known in self.moved}]
        self.moved += new
        self.late += [replacement(one) for one in new]
        self.chance.shuffle(self.late)
        while self.late and self.chance.random() < 0.7:
            self.cluster.add(self.late.pop())
        if self.chance.random() < 0.6:
            self.cluster.finish_deletions()
        self.cluster.advance(1.0)

    def pods(self) -> Sequence[Pod]:
        return self.cluster.memory.objects(Pod)

    def runs(self) -> set[str]:
        alive = (one for one in self.pods() if one.spec.node_name and not one.metadata.deletion_timestamp)
        return {one.metadata.name for one in alive}


def budget(app: str, allowed: int) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=app, namespace="default"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": app})),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed),
    )


def check_that_moved_pods_run_again(world: World) -> int:
    """Add pending pods and run cycles. Check that moved pods run again and their groups run; returns their number."""
    cluster = world.cluster
    cluster.run()
    before = world.runs()
    moved_for: dict[Group, None] = {}
    cluster.scheduler.observer.moves = lambda group, victims: moved_for.setdefault(group)  # type: ignore[method-assign]
    cluster.add(world.waiting())
    for _ in range(25):
        world.turn()
    assert not [one for one in world.pods() if one.metadata.deletion_timestamp], "no pods move any longer"
    assert {name.rstrip("+") for name in world.runs()} >= before
    assert bool(moved_for) == bool(world.moved)
    assert all(group.started >= group.min_count for group in moved_for)
    assert not [one.metadata.name for one in world.moved if one.metadata.name.endswith("+")], "a pod moved twice"
    return len(world.moved)
