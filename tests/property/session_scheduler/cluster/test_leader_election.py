"""With any failures of the replicas' requests, at most one replica leads at a time, and one leads in the end."""

from __future__ import annotations

import random

import pytest

from session_scheduler.cluster.memory import MemoryCluster

from ....tools.examples import first
from ....unit.session_scheduler.cluster.election_time import Replica, Time, check_one_leads, lease_in


@pytest.mark.parametrize("seed", first(range(8)))
async def test_two_replicas_never_lead_at_once(seed: int) -> None:
    chance, cluster, time = random.Random(seed), MemoryCluster(), Time()
    replicas = [Replica(f"replica-{number}", cluster, time).start() for number in range(4)]
    time.each.append(lambda: check_one_leads(*replicas))
    for _ in range(150):
        link = chance.choice(replicas).link
        link.down, link.deaf = chance.random() < 0.4, chance.random() < 0.3
        link.seconds = chance.choice((0.0, 0.0, 1.0, 7.0))
        if chance.random() < 0.1:
            await time.settle()
            await cluster.patch_metadata(await lease_in(cluster), annotations={"touched": str(time.now())})
        await time.pass_by(chance.uniform(0.1, 12.0))
    assert sum(len(replica.terms) for replica in replicas) > 5
    for replica in replicas:
        replica.link.down = replica.link.deaf = False
        replica.link.seconds = 0.0
    await time.pass_by(40)
    assert sum(replica.leading for replica in replicas) == 1
    for replica in replicas:
        await replica.kill()
