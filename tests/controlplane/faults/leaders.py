"""Six schedulers at once over many gangs, killed, stopped, continued and started again at random.

With election one leads at a time, on shared nodes and devices. Without it all six believe that they lead: there each
gang has nodes of its own, because two leaders on one node are kept apart by nothing but the lease; what must hold is
that no gang is mixed from two plans, and that each is whole in the end.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

from ..harness import ControlPlane
from ..invariants import InvariantError, is_bound, of_one_plan
from ..scheduler_process import SchedulerProcess, Settings
from .world import World, resources_of

REPLICAS = 6
GANG = 4
_BATCH = 20
_ROOM = "tests.example.com/room"
_CALM = 240.0
"""Seconds for a batch to be whole after the last disturbance."""


class Disturbance:
    """Every now and then one replica is killed, stopped or continued; at most all but one are stopped."""

    def __init__(self, world: World, seed: int, mean_seconds: float) -> None:
        self._world = world
        self._chance = random.Random(seed)
        self._mean = mean_seconds
        self._stopped: set[SchedulerProcess] = set()
        self._next = time.monotonic() + mean_seconds
        self.kills = self.stops = 0

    def step(self) -> None:
        """Do what is due."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._chance.expovariate(1 / self._mean)
        victim = self._chance.choice(self._world.schedulers)
        if victim in self._stopped:
            victim.go_on()
            self._stopped.discard(victim)
        elif self._chance.random() < 0.5 or len(self._stopped) >= len(self._world.schedulers) - 2:
            victim.kill()
            self.kills += 1
        elif victim.running:
            victim.pause()
            self._stopped.add(victim)
            self.stops += 1

    def end(self) -> None:
        """Let everybody go on."""
        for scheduler in self._stopped:
            scheduler.go_on()
        self._stopped.clear()


def six_leaders(plane: ControlPlane, folder: Path, *, elected: bool, gangs: int, seed: int,
                mean_seconds: float = 1.5) -> str:  # fmt: skip
    """Returns what was done, in a line. Raises AssertionError or TimeoutError."""
    devices = GANG * _BATCH // 2 if elected else 0
    settings = Settings(resources=resources_of(devices) if devices else "", election=elected, reconcile_seconds=10.0)
    with World(plane, folder, settings, may_exit=elected) as world:
        disturbance = Disturbance(world, seed, mean_seconds)
        if elected:
            for _ in range(_BATCH // 2):  # shared: half a batch fits at once
                world.add_node(cpu=GANG, devices=GANG)
        for _ in range(REPLICAS):
            world.new_scheduler(replace(settings)).start()
        try:
            for first in range(0, gangs, _BATCH):
                _batch(world, disturbance, [f"gang-{i}" for i in range(first, min(gangs, first + _BATCH))], elected)
        finally:
            disturbance.end()
        return f"{gangs} gangs, {disturbance.kills} kills, {disturbance.stops} stops"


def _batch(world: World, disturbance: Disturbance, names: list[str], elected: bool) -> None:
    """Gangs come, are bound under disturbance, judged, and end as soon as they are whole."""
    for name in names:
        selector = {}
        if not elected:
            selector = {"nodeSelector": {_ROOM: name}}
            for _ in range(2):  # more room than it needs: two plans could differ
                world.add_node(cpu=GANG, devices=0, labels={_ROOM: name})
        world.create_gang(name, GANG, device=elected, **selector)
    waiting = set(names)

    def all_whole() -> bool:
        disturbance.step()
        world.check_now()
        for name in sorted(waiting):
            members = world.members(name)
            if sum(map(is_bound, members)) == GANG:
                waiting.discard(name)
                _judge(world, name)
                world.finish(members)
        return not waiting

    world.until(f"the whole of {len(names)} gangs", all_whole, _CALM)
    for name in names:
        world.delete_gang(name)


def _judge(world: World, name: str) -> None:
    state = world.check_now()
    (group,) = [each for each in state.groups if each["metadata"]["name"] == name
                and each["metadata"]["namespace"] == world.namespace]  # fmt: skip
    mixed = of_one_plan(state, group)
    if mixed:
        raise InvariantError("\n".join(mixed))
