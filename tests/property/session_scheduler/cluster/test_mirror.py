"""After any events of a cluster and its watches, the reported changes add up to the existing objects."""

from __future__ import annotations

import random

import pytest

from session_scheduler.cluster.errors import ClusterError, Forbidden, Gone, NotFound, TooManyRequests, Unavailable
from session_scheduler.cluster.port import WatchEvent
from session_scheduler.model.objects import KubeObject, Node, ObjectMeta, Pod, PodGroup

from ....tools.examples import first
from ....unit.session_scheduler.cluster.mirror_world import KINDS, SECOND_API, Faulty, World

FAULTS: tuple[ClusterError, ...] = (Unavailable("503"), Forbidden("403"), TooManyRequests("429", 3.0), Gone("410"),
                                    NotFound("404"))  # fmt: skip


def an_object(chance: random.Random) -> KubeObject:
    """An object with one of a few names, so that names repeat; its labels differ each time."""
    number = chance.randrange(5)
    metadata = ObjectMeta(name=f"o{number}", namespace="ns", labels={"random": str(chance.random())})
    objects: list[KubeObject] = [
        Pod(metadata=metadata),
        Node(metadata=ObjectMeta(name=f"o{number}", labels=metadata.labels)),
        PodGroup(metadata=metadata),
        PodGroup(api_version=SECOND_API, metadata=metadata),
    ]
    return chance.choice(objects)


async def something_happens(cluster: Faulty, chance: random.Random) -> None:
    """One random event."""
    step = chance.random()
    if step < 0.5:
        cluster.put(an_object(chance))
    elif step < 0.8:
        kinds: tuple[type[Pod | Node | PodGroup], ...] = (Pod, Node, PodGroup)
        items: list[KubeObject] = [obj for kind in kinds for obj in (await cluster.now(kind)).items]
        if items:
            ended = chance.choice(items)
            await cluster.delete(ended)
            if chance.random() < 0.5:  # another object of that name, perhaps before a watcher sees the deletion
                cluster.put(an_object(chance))
    elif step < 0.87:
        cluster.end_watches()
    elif step < 0.92:
        cluster.end_watches()
        for _ in range(3):
            await something_happens(cluster, chance)
        cluster.forget_history()
    else:
        cluster.send_bookmarks()


@pytest.mark.parametrize("loss", [0.0, 0.1])
@pytest.mark.parametrize("seed", first(range(12)))
async def test_the_reported_changes_add_up_to_the_existing_objects(seed: int, loss: float) -> None:
    chance = random.Random(seed)
    world = World(*(an_object(chance) for _ in range(4)), kinds=KINDS, seed=seed)
    cluster = world.cluster

    def fault() -> ClusterError | None:
        return chance.choice(FAULTS) if chance.random() < 0.2 else None

    def loses(event: WatchEvent[KubeObject]) -> bool:
        return chance.random() < loss

    def seconds() -> float:
        return chance.uniform(0.0, 1.0) if chance.random() < 0.2 else 0.0

    async with world.running():
        cluster.list_error = cluster.watch_error = fault
        cluster.loses = loses
        cluster.seconds = seconds
        for _ in range(150):
            for _ in range(chance.randrange(4)):
                await something_happens(cluster, chance)
            await world.time.advance(chance.choice([0.0, 0.02, 0.1, 1.0, 5.0, 20.0]))
        cluster.list_error = cluster.watch_error = lambda: None
        cluster.loses = lambda event: False
        cluster.seconds = lambda: 0.0
        # Without losses, the longest pause of a watch and of the next list suffices; with them, only a reconciliation.
        await world.time.advance(30.0 if loss == 0.0 else 100.0)
        await world.is_mirrored()
    assert world.meter.lists
    assert loss or not world.meter.lost
