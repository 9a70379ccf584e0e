"""A gang of 64 behind running work, on hosts and on devices: it starts no later than a brute-force search says, while
short groups are filled in around it, none of which delays it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tools.real_engine import embedded_only

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.model.objects import Pod
from session_scheduler.model.times import time_text
from session_scheduler.testing.builders import gang, node
from session_scheduler.testing.fake_cluster import FakeCluster

from ...tools.examples import first

pytestmark = embedded_only  # the library has no clock

DURATION = "fluence.flux-framework.org/duration"
QPU = "fluxion.flux-framework.org/qpu"
GANG, SHORT = 64, 200
MINUTE = 60
_BACKOFF = 20.0


@dataclass
class _Shape:
    """What one kind of world is made of: hosts, their cores, devices; what a pod of the gang and another pod take."""

    nodes: int
    cores: int
    member: int
    devices: int = 0
    """Each pod of the gang takes one, and some others do."""


@dataclass
class _World:
    """Pods end when they said, to the second; short groups come all the time."""

    shape: _Shape
    folder: Path
    seed: int
    ends: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, int] = field(default_factory=dict)
    filled: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        trees = f"resources: [{{type: qpu, name: q, count: {self.shape.devices}}}]" if self.shape.devices else ""
        file = self.folder / "resources.yaml"
        file.write_text(trees)
        config = SchedulerConfig(bindings_in_flight=1_000, actions=("allocate", "preempt", "backfill"), seed=self.seed)
        self.cluster = FakeCluster(config=config, checked=False)
        self.plugin = FluencePlugin(FluenceArguments(resources=str(file)))
        offers = {QPU: "1000"}
        self.cluster.add(*(node(f"n{i}", cpu=str(self.shape.cores), offers=offers) for i in range(self.shape.nodes)))
        self.cluster.start(self.plugin)

    def group(self, name: str, size: int, cores: int, minutes: int, devices: bool) -> None:
        """A group of so many pods, each for so many minutes."""
        requests = {QPU: "1"} if devices else {}
        annotations = {DURATION: f"{minutes}m"}
        for one in gang(name, size, cpu=str(cores), requests=requests, annotations=annotations):
            self.cluster.add(one)
            if isinstance(one, Pod):
                self.seconds[one.metadata.name] = minutes * MINUTE

    def fill(self) -> None:
        """Running work: groups of any size, some with devices, none longer than five hours."""
        for number in range(self.random.randint(self.shape.nodes, 2 * self.shape.nodes)):
            devices = bool(self.shape.devices) and self.random.random() < 0.6
            self.group(f"work{number}", self.random.randint(1, 4), self.random.randint(1, self.shape.cores // 2),
                       self.random.randint(30, 300), devices)  # fmt: skip
        self.turn()
        for task in [task for task in self.cluster.scheduler.cache.tasks.values() if task.node is None]:
            self.cluster.delete(Pod, task.name)
            del self.seconds[task.name]

    def short(self, number: int) -> None:
        devices = bool(self.shape.devices) and self.random.random() < 0.5
        self.group(f"short{number}", self.random.randint(1, 3), self.random.randint(1, 2),
                   self.random.randint(1, 120), devices)  # fmt: skip

    @property
    def wall(self) -> float:
        return self.cluster.clock.wall()

    def turn(self) -> None:
        for _ in range(2):
            self.cluster.run()
            self.begin()
        self.no_device_is_shared()

    def begin(self) -> None:
        """Kubelets begin with what was bound."""
        for task in self.cluster.scheduler.cache.bound_tasks():
            if task.name in self.seconds and task.name not in self.ends:
                begun = replace(task.pod.status, start_time=time_text(datetime.fromtimestamp(self.wall, UTC)))
                self.cluster.add(replace(self.cluster.find(Pod, task.name), status=begun))
                self.ends[task.name] = self.wall + self.seconds[task.name]
                self.filled += task.name.startswith("short")

    def no_device_is_shared(self) -> None:
        shares = self.plugin.live.holdings.shares.values()
        held = Counter(device.path for share in shares for part in share.values() for device in part.devices)
        assert max(held.values(), default=0) <= 1

    def pass_time(self, until: float) -> None:
        """Let time pass; what ends meanwhile ends on its second, and what then can start does."""
        while self.ends:
            name = min(self.ends, key=lambda name: (self.ends[name], name))
            if self.ends[name] > until:
                break
            self.cluster.advance(max(0.0, self.ends[name] - self.wall))
            self.end_due()
        self.cluster.advance(max(0.0, until - self.wall))

    def end_due(self) -> None:
        for name in [name for name, end in self.ends.items() if end <= self.wall]:
            self.cluster.end(name)
            del self.ends[name], self.seconds[name]

    def brute_force(self) -> float:
        """The first end of running work by which the gang's pods fit, were nothing else to start."""
        tasks = {task.name: task for task in self.cluster.scheduler.cache.bound_tasks()}
        for end in sorted({self.wall, *self.ends.values()}):
            running = [tasks[name] for name, last in self.ends.items() if last > end]
            used = Counter[str]()
            for task in running:
                used[task.node or ""] += -(-task.cls.requests["cpu"] // 1000)
            room = sum((self.shape.cores - used[f"n{i}"]) // self.shape.member for i in range(self.shape.nodes))
            held = sum(task.cls.requests.get(QPU, 0) for task in running)
            if room >= GANG and (not self.shape.devices or self.shape.devices - held >= GANG):
                return end
        raise AssertionError("the gang never fits")


SHAPES = [_Shape(nodes=20, cores=16, member=4), _Shape(nodes=12, cores=16, member=2, devices=70)]


@pytest.mark.parametrize("seed", first(range(2)))
@pytest.mark.parametrize("shape", SHAPES, ids=["hosts", "devices"])
def test_a_gang_starts_when_brute_force_says_while_short_groups_are_filled_in(
    shape: _Shape, seed: int, tmp_path: Path
) -> None:
    world = _World(shape, tmp_path, seed)
    world.fill()
    best = world.brute_force()
    world.group("gang", GANG, shape.member, 600, bool(shape.devices))
    world.turn()
    starts = set(world.cluster.scheduler.cache.nominations.starts.values())
    if not world.cluster.node_of("gang-0"):
        assert {start <= best for start in starts} == {True}, (starts, best)
    number = 0
    while world.wall < best and not world.cluster.node_of("gang-0"):
        for _ in range(20):
            if number < SHORT:
                world.short(number)
                number += 1
        world.cluster.advance(_BACKOFF)
        world.turn()
        world.pass_time(min(best, world.wall + 10 * MINUTE))
    world.end_due()
    for _ in range(3):
        world.cluster.advance(_BACKOFF)
        world.turn()
    assert all(world.cluster.node_of(f"gang-{index}") for index in range(GANG)), "the gang is late"
    assert world.filled >= SHORT // 4, "what was to be filled in was not"
