"""The cost of observing 5,000 nodes and 50,000 pods, with 200 changes between two observations.

Not a test: run `make bench`. The times are CPU milliseconds: the first observation, one after pods were bound, one
after pods came and went, one after a node changed, one as a user of one of fifty namespaces sees it, and one without a
change. `--json` prints them, to compare two checkouts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Iterable
from statistics import median

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.objects import KubeObject, Pod
from session_scheduler.observation.observer import Observer
from session_scheduler.registry.registry import Registry
from session_scheduler.testing import node, pod, pod_group

NAMESPACES = 50
QUEUES = 20
A_GANG = 10
GPUS = 8
WAITS = 10
"""One pod of so many waits."""
ROUNDS = 7


def member(number: int, nodes: int, *, bound: bool) -> Pod:
    """A pod with one of twenty requests; every second gang has GPUs."""
    gang, namespace = number // A_GANG, f"team-{number // A_GANG % NAMESPACES}"
    gpu = {"nvidia.com/gpu": "1"} if gang % 8 == 0 else {}
    return pod(f"p-{number}", namespace=namespace, cpu=f"{100 + 10 * (gang % 20)}m", group=f"g-{gang}", requests=gpu,
               queue=f"queue-{gang % QUEUES}", bound_to=f"n-{number % nodes}" if bound else "")  # fmt: skip


def objects(nodes: int, pods: int) -> Iterable[KubeObject]:
    """The nodes in racks of twenty, half of them with GPUs; gangs of ten pods; one gang in ten waits."""
    for number in range(nodes):
        labels = {"topology.kubernetes.io/zone": f"z{number % 3}", "example.com/rack": f"r{number // 20}"}
        offers = {"nvidia.com/gpu": str(GPUS)} if number % 2 else {}
        yield node(f"n-{number}", cpu="64", memory="512Gi", labels=labels, offers=offers)
    for gang in range(pods // A_GANG):
        yield pod_group(f"g-{gang}", A_GANG, namespace=f"team-{gang % NAMESPACES}")
    for number in range(pods):
        yield member(number, nodes, bound=number // A_GANG % WAITS > 0)


def cpu_milliseconds(work: Callable[[], object]) -> float:
    """The CPU time of a call."""
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1000


async def measure(nodes: int, pods: int, changes: int) -> dict[str, float]:
    """The median of each figure over some rounds."""
    config = SchedulerConfig(queues=tuple(QueueConfig(name=f"queue-{number}") for number in range(QUEUES)))
    scheduler = Scheduler(MemoryCluster(), config, Registry(BUILTIN).load_calls(config), StoppedClock())
    cluster = MemoryCluster()
    await scheduler.start([cluster.put(obj) for obj in objects(nodes, pods)])
    observer = Observer(scheduler, "a benchmark", evaluates=False)
    found: dict[str, list[float]] = {"first": [cpu_milliseconds(observer.observe)]}
    waiting = [task.pod for task in scheduler.cache.tasks.values() if task.node is None]
    number = pods

    def note(what: str, work: Callable[[], object]) -> None:
        found.setdefault(what, []).append(cpu_milliseconds(work))

    def apply(change: str, one: Pod) -> None:
        scheduler.event_handlers.absorb(change, one)

    for turn in range(ROUNDS):
        for place, one in enumerate(waiting[turn * changes : (turn + 1) * changes]):
            apply("MODIFIED", replace(one, spec=replace(one.spec, node_name=f"n-{place % nodes}")))
        observer.notify()
        note("bound", observer.observe)
        gone = [task.pod for task in scheduler.cache.tasks.values() if task.node is not None][: changes // 2]
        for one in gone:
            apply("DELETED", one)
        for _ in gone:
            apply("ADDED", cluster.put(member(number, nodes, bound=False)))
            number += 1
        observer.notify()
        note("came and went", observer.observe)
        scheduler.event_handlers.absorb("MODIFIED", cluster.put(node(f"n-{turn}", cpu="64", memory="500Gi")))
        observer.notify()
        note("a node changed", observer.observe)
        note("seen by a user", lambda: observer.observe().seen_by(frozenset({"team-7"})))
        note("unchanged", observer.observe)
    return {what: median(times) for what, times in found.items()}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.nodes, options.pods, options.changes))
    if options.json:
        print(json.dumps(figures))
        return
    table = Table(
        "observation", "CPU ms", title=f"{options.nodes} nodes, {options.pods} pods, {options.changes} changes"
    )
    for what, milliseconds in figures.items():
        table.add_row(what, f"{milliseconds:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
