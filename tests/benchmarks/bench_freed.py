"""The cost of freed capacity: full nodes, thousands of pending pods of many shapes, and one node that is emptied.

Not a test: run `make bench`. Every pending pod was refused before. Then the pods of one node end, all before the next
cycle or one before each cycle, and cycles run until nothing more is bound. An *attempt* is one group that a session
tried to place.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.engine.completion import Bound
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.observer import Observer
from session_scheduler.framework.statement import PlacementResult
from session_scheduler.model.objects import KubeObject, Pod
from session_scheduler.registry.registry import Registry
from session_scheduler.testing import node, pod

CORES = 64
A_NODE = 16
"""The number of running pods that fill a node."""
AT_ONCE, ONE_BY_ONE = "all at once", "one by one"


class Attempts(Observer):
    """Counts the groups that sessions tried to place."""

    def __init__(self) -> None:
        self.count = 0

    def decided(self, outcome: PlacementResult) -> None:
        """Count one."""
        self.count += 1


def objects(nodes: int, pods: int, shapes: int) -> Iterator[KubeObject]:
    """Full nodes, and pending pods; an empty node fits some 110 of them."""
    for number in range(nodes):
        yield node(f"n{number}", cpu=CORES, memory="256Gi")
        for place in range(A_NODE):
            yield pod(f"r{number}-{place}", cpu=CORES // A_NODE, bound_to=f"n{number}")
    for number in range(pods):
        shape = number % shapes
        yield pod(f"p{number}", cpu=f"{400 + shape}m", memory=f"{64 + shape}Mi")


async def measure(table: Table, options: argparse.Namespace, how: str, *, fluence: bool) -> None:
    """Add one row to the table."""
    plugins = () if fluence else (PluginConfig(name="fluence", enabled=False),)
    config = SchedulerConfig(
        bindings_in_flight=1_000_000, cycle_seconds=3600, profiles=(Profile(plugins=plugins),)
    )  # fmt: skip
    cluster, attempts = MemoryCluster(), Attempts()
    for obj in objects(options.nodes, options.pods, options.shapes):
        cluster.put(obj)
    clock = StoppedClock()
    profiles = Registry(BUILTIN).load_calls(config)
    scheduler = Scheduler(cluster, config, profiles, clock, observer=attempts)
    await scheduler.start()
    refused = await cpu_seconds(scheduler.cycle)
    empty = [one for one in (await cluster.list(Pod)).items if one.spec.node_name == "n0"]
    attempts.count = bound = 0
    started = time.process_time()
    for one in empty:
        await scheduler.event_handlers.apply("DELETED", one)
        if how == ONE_BY_ONE:
            bound += bindings(await scheduler.cycle())
    idle = 0
    while idle < 3:
        some = bindings(await scheduler.cycle())
        bound, idle = bound + some, 0 if some else idle + 1
    seconds = time.process_time() - started
    quiet = await cpu_seconds(scheduler.cycle)
    table.add_row(how, "yes" if fluence else "no", f"{refused:.2f}", str(bound), str(attempts.count), f"{seconds:.3f}",
                  f"{1000 * quiet:.2f}")  # fmt: skip


async def cpu_seconds(work: Callable[[], Awaitable[object]]) -> float:
    """The processor time of an awaited call."""
    started = time.process_time()
    await work()
    return time.process_time() - started


def bindings(done: Sequence[Bound]) -> int:
    """The number of pods that a cycle bound."""
    return sum(len(one.bound) for one in done)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=3000)
    parser.add_argument("--shapes", type=int, default=300)
    options = parser.parse_args()
    table = Table("pods end", "fluence", "refused, s", "bound", "attempts", "freed, s", "quiet cycle, ms", box=None)
    for fluence in (False, True):
        for how in (AT_ONCE, ONE_BY_ONE):
            asyncio.run(measure(table, options, how, fluence=fluence))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
