"""In any order of events, a bound pod never gets the condition unscheduled, and all conditions end correct."""

from __future__ import annotations

import asyncio
import random

import pytest

from session_scheduler.cluster.errors import Unavailable
from session_scheduler.model.objects import Pod
from session_scheduler.testing.builders import pod

from ....tools.examples import first
from ....unit.session_scheduler.reporting.recorder_world import World, turns

PODS = 6


class Life:
    """Pods that are touched, bound, deleted and reported on, from possibly outdated reads and with failing writes."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.world = World(in_flight=3)
        self.read = {}
        self.bound = set()

    async def start(self):
        for number in range(PODS):
            self.read[f"pod-{number}"] = [self.world.cluster.put(pod(f"pod-{number}"))]

    async def step(self):
        name = self.chance.choice(sorted(self.read))
        act = self.chance.choices((self.report, self.touch, self.bind, self.wait, self.hold), (8, 2, 0.3, 4, 1))[0]
        await act(name)

    async def report(self, name):
        known = self.chance.choice(self.read[name][-3:])
        self.world.cluster.done_but_lost = self.chance.random() < 0.5
        for kind in ("condition", "event", "repeat"):
            self.world.cluster.faults[kind] = self.chance.choices(
                ([], [Unavailable("lost")], [Unavailable("lost")] * 9), (8, 2, 0.2)
            )[0]
        self.world.recorder.unschedulable(known, self.chance.choice(("no cpu", "no memory", "no port")))

    async def touch(self, name):
        await self.world.cluster.patch_metadata(self.read[name][-1], annotations={"touched": str(self.chance.random())})
        await self.look(name)

    async def bind(self, name):
        if name not in self.bound:
            current = await self.look(name)
            await self.world.bind(current)
            self.bound.add(name)
            if self.chance.random() < 0.5:
                self.world.recorder.scheduled(current, "n1")

    async def wait(self, name):
        await turns(self.chance.randrange(30))
        await self.look(name)
        self.world.clock.advance(self.chance.choice((0, 1, 100)))
        self.world.recorder.tidy()

    async def hold(self, name):
        cluster = self.world.cluster
        if cluster.held is not None:
            cluster.held.set()
        cluster.held = asyncio.Event() if self.chance.random() < 0.5 else None

    async def look(self, name):
        self.read[name].append(await self.world.cluster.get(Pod, "default", name))
        return self.read[name][-1]

    async def status(self, name):
        """Read the status without updating the recorder's view."""
        conditions = (await self.world.cluster.get(Pod, "default", name)).status.conditions
        return [(c.status, c.message) for c in conditions if c.type == "PodScheduled"]

    async def end(self):
        cluster = self.world.cluster
        cluster.faults.clear()
        if cluster.held is not None:
            cluster.held.set()
            cluster.held = None
        await self.world.flush()


@pytest.mark.parametrize("seed", first(range(40)))
async def test_a_bound_pod_keeps_its_condition_and_the_others_get_theirs(seed):
    life = Life(seed)
    await life.start()
    async with life.world.running():
        for _ in range(80):
            await life.step()
            for name in life.bound:
                assert await life.status(name) == [("True", "")]
        await life.end()
        waiting = sorted(life.read.keys() - life.bound)
        for name in waiting:
            life.world.recorder.unschedulable(await life.look(name), f"in the end of {name}")
        await life.world.flush()
        for name in waiting:
            assert await life.status(name) == [("False", f"in the end of {name}")]
        for name in life.bound:
            assert await life.status(name) == [("True", "")]


@pytest.mark.parametrize("seed", first(range(10)))
async def test_every_occurrence_is_counted_in_the_end(seed):
    chance = random.Random(seed)
    world = World(in_flight=2)
    pods = [world.cluster.put(pod(f"pod-{number}")) for number in range(4)]
    asked = 0
    async with world.running():
        for _ in range(150):
            known, note = chance.choice(pods), chance.choice(("no cpu", "no memory"))
            world.recorder.event(known, "FailedScheduling", "Scheduling", note, warning=True)
            asked += 1
            await turns(chance.randrange(4))
            world.clock.advance(chance.choice((0, 0, 1, 100)))
        await world.flush()
        world.clock.advance(360)
        world.recorder.tidy()
        await world.flush()
    assert sum(world.counts()) == asked
    assert len(world.cluster.events) == 8
    assert len(world.cluster.asked) < asked
