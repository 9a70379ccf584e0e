"""Random rounds of pods that share claims, or whose queues limit devices by model: all modes decide the same.

Pods preempt, victims terminate early or late, and claims are freed, so that each round starts from what the earlier
rounds left: nominations, victims that are still running, and shared claims without an allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from session_scheduler.config.settings import DeviceResourceConfig, QueueConfig, SchedulerConfig
from session_scheduler.model.devices import DeviceClass, ResourceClaim, ResourceClaimStatus, ResourceSlice
from session_scheduler.model.objects import KubeObject, Pod
from session_scheduler.model.queues import QUEUE_LABEL
from session_scheduler.testing import FakeCluster, node, pod, pod_group

from ....tools.examples import first
from .test_claims import DRIVER, FAST, MODES, REQUESTS, claim, made, seen

ROUNDS = 5
SEEDS = (470, 68, *range(38))
"""The first ones found a fault, in each of the worlds."""
GPU, MODEL, A100 = "nvidia.com/gpu", "model", "a100.fluence.flux-framework.org/devices"


@dataclass(frozen=True)
class Round:
    """New objects, the number of cycles with them, and whether victims end afterwards, and free their claims."""

    objects: Sequence[KubeObject]
    cycles: int
    victims_end: bool
    claims_are_freed: bool


@dataclass(frozen=True)
class World:
    """A cluster and its rounds."""

    objects: Sequence[KubeObject]
    rounds: Sequence[Round]
    config: SchedulerConfig


def rounds(chance: Random, pods: Callable[[str, str, int], KubeObject], **group_fields: Any) -> list[Round]:
    """Some single pods and gangs for each round. `pods` makes a pod from its name, its group and its priority."""
    found, count = [], 0
    for number in range(ROUNDS):
        objects: list[KubeObject] = []
        for _ in range(chance.randint(1, 4)):
            name, size = f"p{count}", chance.choice([1, 1, 1, 2, 3])
            count += 1
            group = name if size > 1 and chance.random() < 0.7 else ""
            priority = chance.choice([0, 1, 5, 5, 9] if number else [0, 0, 1, 5])
            if group:
                objects.append(pod_group(name, chance.choice([None, 1, size]), priority=priority, **group_fields))
            objects += [pods(f"{name}-{index}", group, priority) for index in range(size)]
        found.append(Round(objects, chance.choice([1, 2, 3]), chance.random() < 0.5, chance.random() < 0.6))
    return found


def sharing_claims(chance: Random) -> World:
    """Pods use claims without an allocation, and several pods use the same claim."""
    objects: list[KubeObject] = [
        made(DeviceClass, "gpu", spec={}), made(DeviceClass, "fast", spec={"selectors": [FAST]}),
    ]  # fmt: skip
    for name in (f"n{index}" for index in range(chance.randint(1, 3))):
        objects.append(node(name, cpu=chance.choice(["4", "6"]), memory="8Gi"))
        devices = [{"name": f"d{number}", "attributes": {"fast": {"bool": chance.random() < 0.5}}}
                   for number in range(chance.randint(0, 3))]  # fmt: skip
        if devices:
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": DRIVER, "nodeName": name, "devices": devices, "pool": pool}
            objects.append(made(ResourceSlice, f"{name}-devices", spec=spec))
    claims = [f"s{number}" for number in range(chance.randint(2, 5))]
    objects += [claim(name, REQUESTS[chance.choice([0, 0, 0, 0, 1, 2, 5])]) for name in claims]

    def user(name: str, group: str, priority: int) -> Pod:
        names = chance.sample(claims, chance.choice([0, 1, 1, 1, 2]))
        entries = tuple({"name": f"e{place}", "resourceClaimName": one} for place, one in enumerate(names))
        return pod(name, group=group, cpu=chance.choice(["0", "1", "2", "3"]), priority=priority,
                   resource_claims=entries)  # fmt: skip

    return World(objects, rounds(chance, user), SchedulerConfig(bindings_in_flight=1000))


def limited_by_model(chance: Random) -> World:
    """Two queues have limits of A100 devices, which some nodes have. Pods may ask for a model, or for any."""
    objects = [node(f"n{index}", cpu=chance.choice(["8", "16"]), memory="64Gi", offers={GPU: chance.choice([2, 4])},
                    labels={MODEL: chance.choice(["A100", "A100", "T4"])})
               for index in range(chance.randint(2, 4))]  # fmt: skip
    queue = chance.choice("ab")
    config = SchedulerConfig(
        bindings_in_flight=1000,
        queues=tuple(QueueConfig(name=name, limit={A100: chance.choice([2, 4, 6])}) for name in "ab"),
        device_resources=(DeviceResourceConfig(name="a100", resources=(GPU,), node_selector={MODEL: "A100"}),),
    )

    def user(name: str, group: str, priority: int) -> Pod:
        if not group and chance.random() < 0.1:  # of another scheduler
            return pod(name, cpu="1", priority=priority, requests={GPU: 1}, scheduler="other", bound_to="n0")
        selector = chance.choice([{}, {}, {MODEL: "A100"}, {MODEL: "T4"}])
        return pod(name, group=group, queue=queue if group else chance.choice("ab"), priority=priority,
                   cpu=chance.choice(["0", "2", "4"]), requests={GPU: chance.choice([1, 2, 2, 4])},
                   node_selector=selector)  # fmt: skip

    return World(objects, rounds(chance, user, labels={QUEUE_LABEL: queue}), config)


def free_claims(cluster: FakeCluster) -> None:
    """Do as Kubernetes' controller of claims: remove pods that are gone, and deallocate claims without pods."""
    there = {one.metadata.uid for one in cluster.memory.objects(Pod)}
    for one in list(cluster.memory.objects(ResourceClaim)):
        left = tuple(user for user in one.status.reserved_for if user.uid in there)
        if left != one.status.reserved_for:
            status = replace(one.status, reserved_for=left) if left else ResourceClaimStatus()
            cluster.add(replace(one, status=status))


def decisions(world: World, mode: Any) -> list[object]:
    """Placements, reasons, nominations and allocations after each step."""
    cluster, found = FakeCluster(evaluation=mode, config=world.config), list[object]()
    cluster.add(world.objects)
    for one in world.rounds:
        cluster.add(one.objects)
        cluster.run(cycles=one.cycles)
        found.append(seen(cluster))
        if one.victims_end:
            cluster.finish_deletions()
            if one.claims_are_freed:
                free_claims(cluster)
            cluster.run()
            found.append(seen(cluster))
        cluster.advance(20)
    cluster.run()
    return [*found, seen(cluster)]


@pytest.mark.parametrize("make", [sharing_claims, limited_by_model])
@pytest.mark.parametrize("seed", first(SEEDS))
def test_all_evaluation_modes_decide_the_same_in_each_round(seed: int, make: Callable[[Random], World]) -> None:
    answers = [decisions(make(Random(seed)), mode) for mode in MODES]
    assert answers[0] == answers[1], "naive and board"
    assert answers[0] == answers[2], "naive and heap"
