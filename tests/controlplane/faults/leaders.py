"""Six schedulers with many gangs, killed, stopped, continued and restarted at random.

With leader election one leads at a time, on shared nodes and devices. Without it all six lead. There each gang has its
own nodes, because only the lease keeps two leaders apart on one node. The test checks that no gang is mixed from two
plans, and that each gang is complete in the end. It delays requests at random, removes nodes and replaces pods while
gangs are bound, so that six schedulers abort plans and make new ones at the same time.
"""

from __future__ import annotations

import http.client
import random
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..harness import ControlPlane
from ..invariants import InvariantError, Manifest, is_bound, of_one_plan, plan_of
from ..processes import StartError
from ..scheduler_process import SchedulerProcess, Settings
from .world import World, resources_of

REPLICAS = 6
GANG = 4
_BATCH = 20
_ROOM = "tests.example.com/room"
_PROVOKED = 0.5
"""Number of all gangs."""
_LATENCY = 0.1
"""Mean in seconds."""
_CALM = 240.0
"""Seconds within which a batch must be complete after the last disturbance."""


class Disturbance:
    """In this context, randomly kill, stop or continue a replica, often the leader.

    At least two always run. It uses its own thread, so it does not wait for the test.
    """

    def __init__(self, schedulers: list[SchedulerProcess], seed: int, mean_seconds: float) -> None:
        self._schedulers = schedulers
        self._chance = random.Random(seed)
        self._mean = mean_seconds
        self._stopped: set[SchedulerProcess] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disturbance")
        self.kills = self.stops = 0

    def __enter__(self) -> Disturbance:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Continue all replicas, and stop disturbing them."""
        self._over.set()
        self._thread.join()
        for scheduler in self._stopped:
            scheduler.go_on()
        self._stopped.clear()

    def _run(self) -> None:
        while not self._over.wait(self._chance.expovariate(1 / self._mean)):
            self._disturb(self._victim())

    def _victim(self) -> SchedulerProcess:
        if self._chance.random() < 0.5:
            for scheduler in self._schedulers:
                with suppress(OSError, http.client.HTTPException, StartError):
                    if scheduler not in self._stopped and scheduler.metrics().get("fluence_leader") == 1:
                        return scheduler
        return self._chance.choice(self._schedulers)

    def _disturb(self, victim: SchedulerProcess) -> None:
        if victim in self._stopped:
            victim.go_on()
            self._stopped.discard(victim)
        elif self._chance.random() < 0.5 or len(self._stopped) >= len(self._schedulers) - 2:
            victim.kill()
            self.kills += 1
        elif victim.running:
            victim.pause()
            self._stopped.add(victim)
            self.stops += 1


class Provocation:
    """While a gang is bound, remove one of its nodes, or replace a pod: then the leader has to make a new plan."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._chance = random.Random(seed)
        self._rooms: dict[str, list[str]] = {}
        self.remade: set[str] = set()
        """The gangs with a bound pod that has been replaced: later binds belong to no plan."""
        self.count = 0

    def expect(self, gang: str, nodes: list[str]) -> None:
        """Mark this gang for a disturbance, at random; one of these nodes is enough."""
        if self._chance.random() < _PROVOKED:
            self._rooms[gang] = nodes

    def step(self, gang: str, members: list[Manifest]) -> None:
        """Disturb the gang once it has a plan; then act as its controllers."""
        if gang in self._rooms and plan_of(self._world.group(gang)) is not None:
            nodes = self._rooms.pop(gang)
            self.count += 1
            if self._chance.random() < 0.5:
                self._world.delete_node(self._chance.choice(nodes))
            else:
                self._remake(gang, self._chance.choice(members)["metadata"]["name"])
        for pod in members:
            if pod["spec"].get("nodeName") in self._world.lost_nodes:
                self._remake(gang, pod["metadata"]["name"])

    def _remake(self, gang: str, name: str) -> None:
        gone = self._world.delete_pod(name)
        if is_bound(gone):
            self.remade.add(gang)
        self._world.create_pod(name, group=gang, device=False, nodeSelector={_ROOM: gang})


def six_leaders(plane: ControlPlane, folder: Path, *, elected: bool, gangs: int, seed: int,
                mean_seconds: float = 1.0) -> str:  # fmt: skip
    """Run the scenario; return a one-line summary. Raises AssertionError or TimeoutError."""
    devices = GANG * _BATCH // 2 if elected else 0
    settings = Settings(resources=resources_of(devices) if devices else "", election=elected, reconcile_seconds=10.0)
    with World(plane, folder, settings, may_exit=elected) as world:
        provocation = Provocation(world, seed)
        if elected:
            for _ in range(_BATCH // 2):  # shared nodes: half a batch fits at once
                world.add_node(cpu=GANG, devices=GANG)
        _start(world, elected, seed)
        with Disturbance(world.schedulers, seed, mean_seconds) as disturbance:
            for first in range(0, gangs, _BATCH):
                names = [f"gang-{number}" for number in range(first, min(gangs, first + _BATCH))]
                _batch(world, provocation, names, elected)
        return f"{gangs} gangs, {provocation.count} provoked, {disturbance.kills} kills, {disturbance.stops} stops"


def _start(world: World, elected: bool, seed: int) -> None:
    for number in range(REPLICAS):
        world.new_scheduler(replace(world.settings)).start()
        if not elected:
            chance = random.Random(f"{seed} {number}")
            world.proxies[number].latency = lambda chance=chance: chance.expovariate(1 / _LATENCY)  # type: ignore[misc]


def _batch(world: World, provocation: Provocation, names: list[str], elected: bool) -> None:
    """Create gangs, disturb and check them, and end each as soon as it is complete."""
    for name in names:
        selector = {}
        if not elected:
            selector = {"nodeSelector": {_ROOM: name}}  # more room than it needs: two plans could differ
            nodes = [world.add_node(cpu=GANG, devices=0, labels={_ROOM: name}) for _ in range(3)]
            provocation.expect(name, nodes)
        world.create_gang(name, GANG, device=elected, **selector)
    waiting = set(names)

    def all_whole() -> bool:
        world.check_now()
        for name in sorted(waiting):
            members = world.members(name)
            provocation.step(name, members)
            on_nodes = [pod for pod in members if is_bound(pod) and pod["spec"]["nodeName"] not in world.lost_nodes]
            if len(on_nodes) == GANG:
                waiting.discard(name)
                if name not in provocation.remade:
                    _judge(world, name)
                world.finish(world.members(name))
        return not waiting

    try:
        world.until(f"the whole of {len(names)} gangs", all_whole, _CALM)
    except TimeoutError as error:
        error.add_note("\n".join(f"{name}: {world.places(name)}: {world.group(name)}" for name in sorted(waiting)))
        raise
    for name in names:
        world.delete_gang(name)


def _judge(world: World, name: str) -> None:
    state = world.check_now()
    (group,) = [each for each in state.groups if each["metadata"]["name"] == name
                and each["metadata"]["namespace"] == world.namespace]  # fmt: skip
    mixed = of_one_plan(state, group)
    if mixed:
        raise InvariantError("\n".join(mixed))
