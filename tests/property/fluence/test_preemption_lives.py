"""Preemption from the first preemptor's arrival to the last one's start: no pod too many ends, and every pod runs."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from session_scheduler.model.objects import KubeObject
from session_scheduler.testing import pod

from ...tools.examples import first
from .preempting_world import CORES, WHOLE, World, preemptor, singles, whole


def lived(world: World, preemptors: list[list[KubeObject]], steps: int) -> None:
    """They come one after the other while all else goes on, and then all is let come to its end."""
    left = list(preemptors)
    for _ in range(steps):
        if left and world.random.random() < 0.4:
            world.come(left.pop(0))
        world.step()
        check_gangs(world)
    for objects in left:
        world.come(objects)
    world.become_quiet()
    check_gangs(world)


def check_gangs(world: World) -> None:
    """No gang runs in part, and of who ends whole none is left where one has gone."""
    pods = world.pods()
    members: dict[str, set[bool]] = {}
    for one in pods.values():
        if one.spec.scheduling_group and one.metadata.name in world.came:
            members.setdefault(one.spec.scheduling_group.pod_group_name, set()).add(bool(one.spec.node_name))
    assert all(len(bound) == 1 for bound in members.values()), members


@pytest.mark.parametrize("lost", ["nothing", "nominations", "any request"])
@pytest.mark.parametrize("policy", ["first", "locality", "lonodex"])
@pytest.mark.parametrize("seed", first(range(25)))
def test_every_pod_runs_and_as_many_pods_end_as_take_their_places(
    seed: int, policy: str, lost: str, tmp_path: Path
) -> None:
    """A nomination that is not written ends no pod too many. Where any request, or answer, is lost, more may end: pods
    that were evicted before the scheduler found another way, and pods for a place that a nomination kept although no
    pod was evicted for it, because the nomination was written and the answer was lost.
    """
    faults = 0.0 if lost == "nothing" else 0.2
    random = Random(seed)
    nodes = random.randint(3, 6)
    places, cores = (nodes, CORES) if policy == "lonodex" else (CORES * nodes, 1)
    group, guarded = random.choice([0, 2, 3]), random.randint(0, 3)
    alone = places - group
    guarded, devices = min(guarded, alone), nodes
    world = World(random, tmp_path, nodes=nodes, policy=policy, faults=faults, guarded=guarded,
                  unwritten=lost == "nominations")  # fmt: skip
    world.fill([*singles(random, alone, devices, guarded, cores), *(whole(group, cores) if group else [])])
    assert len(world.before) == places
    room, devices, preemptors = alone - guarded, min(devices, alone - guarded), list[list[KubeObject]]()
    while room and random.random() < 0.9:
        size = min(room, random.choice([1, 1, 1, 2, 3]))
        asks = random.choice([0, 1]) if size <= devices else 0
        preemptors.append(preemptor(f"high{len(preemptors)}", size, cores=cores, devices=asks))
        room, devices = room - size, devices - asks * size
    never = [pod(f"never{n}", cpu="1", priority=10, preemption_policy="Never") for n in range(random.randint(0, 2))]
    world.come(never)
    lived(world, preemptors, random.randint(5, 40))
    bound, wanted = world.bound(), [one for one in world.came if not one.startswith("never")]
    assert [one for one in wanted if one not in bound] == []
    whole_gang = {name for name in world.before if name.startswith(WHOLE)}
    assert world.gone() & whole_gang in (set(), whole_gang)
    if lost == "any request":
        return
    assert not any(name.startswith("never") for name in bound)
    assert len(world.gone()) == len(wanted)
    assert not world.gone() & whole_gang
    assert sum(bool(world.before[name].metadata.labels) for name in world.gone()) <= world.allowed
