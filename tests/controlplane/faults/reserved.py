"""A gang with a reserved node and device until a pod with a deadline ends, and pods that use them meanwhile.

There are two devices. The first pod has one until it ends; the gang needs both. A short pod may use the other one until
then; an endless one may not, as long as the gang's reservation exists. Whatever write fails, the complete gang starts
before the endless pod, all pods are bound, and no device is allocated twice.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ..invariants import InvariantError, is_bound
from ..scheduler_process import Settings
from .device_pods import wait_bound, wait_told
from .world import World
from .writes import Life

SETTINGS = Settings(
    resources="resources: [{type: qpu, name: q, count: 2}]\n",
    more={"actions": ["allocate", "preempt", "backfill"]},
)
HOUR = 3600
SIZE = 2
"""Number of the gang's pods."""
WRITES = 10
"""Minimum number of writes of a run. There are more if the gang's reason changes while it waits."""


def begin(world: World) -> None:
    """Create the nodes, and the pod that uses a device."""
    for _ in range(2):
        world.add_node(cpu=3, devices=4)
    world.create_pod("first", activeDeadlineSeconds=HOUR)


def live(world: World, reached: Callable[[], None]) -> None:
    """The gang waits, a short pod uses its device, both pods end, the gang starts, and finally the endless pod."""
    world.schedulers[0].start()
    wait_bound(world, "first")
    reached()
    world.create_gang("gang", SIZE)
    wait_told(world, "gang-0")
    _wait_for_a_later_second(world)
    world.create_pod("endless")
    wait_told(world, "endless")
    reached()
    world.create_pod("short", activeDeadlineSeconds=HOUR // 6)
    wait_bound(world, "short")
    if is_bound(world.pod("endless")):
        raise InvariantError("an endless pod has the device that is kept for the gang")
    world.check()
    world.finish([world.pod("short"), world.pod("first")])
    world.wait_whole("gang", SIZE)
    reached()
    world.check()
    if is_bound(world.pod("endless")):
        raise InvariantError("the endless pod and the whole gang have more devices than there are")
    world.finish(world.members("gang"))
    wait_bound(world, "endless")
    world.create_pod("last")
    wait_bound(world, "last")
    world.check()


def _wait_for_a_later_second(world: World) -> None:
    """Wait for the next second: creationTimestamp has whole seconds, and the gang must precede the endless pod."""
    created = max(datetime.fromisoformat(one["metadata"]["creationTimestamp"]) for one in world.members("gang"))
    world.until("a later second than the gang's", lambda: datetime.now(UTC) >= created + timedelta(seconds=1))


RESERVED = Life(begin=begin, live=live, last=lambda world: [world.pod("last")], settings=SETTINGS)
