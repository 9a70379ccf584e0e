"""How many requests are in flight at once: as many as the configuration says, and never more."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from session_scheduler.cluster.errors import Unavailable
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.model.objects import Pod, PodGroup
from session_scheduler.testing import FakeCluster, gang, pod

AT_ONCE = 3
_TURNS = 20
"""Turns of the event loop that a request takes: whoever may come in beside it has come in then."""


class Counted:
    """Lets a cluster's requests take a while, and counts them: all, and by kind, the most that there were at once."""

    def __init__(self, memory):
        self.most, self._now = Counter(), Counter()
        for name in ("bind", "patch_metadata", "get", "create", "delete", "evict"):
            setattr(memory, name, self._slowly(name, getattr(memory, name)))

    def _slowly(self, name, request):
        async def ask(*arguments, **options):
            kind = type(arguments[0]) if isinstance(arguments[0], PodGroup | Pod) else None
            what = ("all", name if kind is None else f"{name} {kind.__name__}")
            self._now.update(what)
            self.most |= self._now
            try:
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
                return await request(*arguments, **options)
            finally:
                self._now.subtract(what)

        return ask


class Cluster(FakeCluster):
    """One event loop for all cycles: who waits for his turn in one may do so in the next."""

    def __init__(self, runner):
        super().__init__(config=SchedulerConfig(bindings_in_flight=AT_ONCE), checked=False)
        self.nodes(4)
        self._runner = runner

    def run(self, cycles=1):  # type: ignore[override]  # what runs is given to `start`
        for _ in range(cycles):
            self._runner.run(self._cycle())


@pytest.fixture
def cluster():
    with asyncio.Runner() as runner:
        yield Cluster(runner)


def test_as_many_pods_are_bound_at_once_as_the_configuration_says_and_no_more(cluster: Cluster):
    cluster.add(pod(f"p{number}") for number in range(4 * AT_ONCE))
    cluster.start()
    counted = Counted(cluster.memory)
    cluster.run()
    assert all(cluster.placements().values())
    assert counted.most == {"all": AT_ONCE, "bind": AT_ONCE}


def test_plans_and_binds_share_what_may_be_under_way_at_once(cluster: Cluster):
    for number in range(3 * AT_ONCE):
        cluster.add(gang(f"g{number}", 2))
    cluster.start()
    counted = Counted(cluster.memory)
    cluster.run()
    assert all(cluster.placements().values())
    assert counted.most["patch_metadata PodGroup"] == AT_ONCE
    assert counted.most["bind"] == AT_ONCE
    assert counted.most["all"] == AT_ONCE


def test_pods_are_touched_and_looked_at_within_the_same_bound(cluster: Cluster):
    cluster.add(gang("g", 4 * AT_ONCE))
    cluster.start()
    bind = cluster.memory.bind

    async def unanswered(*_, **__):
        raise Unavailable("timeout")

    cluster.memory.bind = unanswered  # type: ignore[method-assign]
    counted = Counted(cluster.memory)
    cluster.run(cycles=2)
    assert counted.most["patch_metadata Pod"] == AT_ONCE
    assert counted.most["all"] == AT_ONCE
    cluster.memory.bind = bind  # type: ignore[method-assign]
    cluster.advance(1)
    cluster.run(cycles=2)
    assert all(cluster.placements().values())
    assert counted.most["all"] == AT_ONCE


def test_evictions_stay_within_the_same_bound(cluster: Cluster):
    cluster.add(gang("g", 4 * AT_ONCE))
    cluster.start()
    counted = Counted(cluster.memory)
    bind = cluster.memory.bind

    async def refused_for_one(namespace, name, **options):
        if name == "g-0":
            raise Unavailable("timeout")
        await bind(namespace, name, **options)

    cluster.memory.bind = refused_for_one  # type: ignore[method-assign]
    cluster.run()
    cluster.advance(61)
    counted.most.clear()
    cluster.run()
    assert cluster.find(Pod, "g-1").metadata.deletion_timestamp is not None
    assert counted.most["evict Pod"] == AT_ONCE
