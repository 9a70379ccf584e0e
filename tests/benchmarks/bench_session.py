"""The cost of a cycle: 10 plugins with callbacks, 50 queues, 5,000 nodes, 10,000 pending pods.

Not a test: run `make bench`. The first cycle places all pods that fit. The second opens with the remaining pods and a
few new ones, the third without new pods: the cost of opening a session depends on the changes, not on the size. The
pods belong to every queue in turn, half of them preemptible. A second cluster starts full, and queues reclaim their
shares: `--full` measures only that one. `--json` prints the figures, CPU seconds included, to compare two checkouts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from session_scheduler.base.clock import StoppedClock
from session_scheduler.base.garbage_collection import collect_rarely
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.hookspecs import Scope, hookimpl
from session_scheduler.model.groups import Group, Task
from session_scheduler.model.objects import KubeObject
from session_scheduler.registry.registry import Registry
from session_scheduler.registry.validation import hook_calls
from session_scheduler.testing import node, pod

PLUGINS = 10
CREATED = datetime(2000, 1, 1, tzinfo=UTC)
"""The time of creation of each pod: with that of the system, pods of one second come before the others."""
A_NODE = 8
"""The number of one-CPU pods that fill a node."""


class Policy:
    """A plugin with a callback of each frequent kind, each of little cost."""

    def __init__(self, number: int) -> None:
        self.name = f"policy-{number}"
        self._number = number
        self._allocated: Counter[str] = Counter()

    @hookimpl
    def on_session_open(self, session: Any) -> None:
        """Register the callbacks; every second plugin scores nodes by a value that is constant in a session."""
        session.add_job_order(self._job_order)
        session.add_pre_predicate(self._pre_predicate)
        session.add_event_handler(self._placed, self._placed)
        if self._number % 2:
            session.add_preemptable(self._may_end, alike=True)

    @hookimpl
    def score(self, mask: Any) -> Any:
        """The same score for all nodes."""
        return mask.astype("int64")

    score_scope = Scope.STATIC

    def _job_order(self, group: Group) -> int:
        return len(group.name) % (self._number + 1)

    def _pre_predicate(self, task: Task, group: Group) -> None:
        del task, group

    def _placed(self, event: Any) -> None:
        self._allocated[event.task.group.queue] += 1

    def _may_end(self, group: Group, victim: Group) -> bool:
        return group is not victim


def queues(count: int, cores: int) -> Iterable[QueueConfig]:
    """A tree of two levels in which each queue has a part of the cores."""
    tops = max(1, count // 10)
    for number in range(tops):
        yield QueueConfig(name=f"top-{number}", deserved={"cpu": cores // tops})
    for number in range(count - tops):
        parent = f"top-{number % tops}"
        yield QueueConfig(name=f"queue-{number}", parent=parent, deserved={"cpu": cores // (count - tops)})


def plugins(calls: HookCalls) -> HookCalls:
    """The default profile plus ten plugins."""
    own = [(name, instance, None) for name, instance in calls.instances.items() if name != "fluence"]
    return hook_calls([*own, *((f"policy-{number}", Policy(number), None) for number in range(PLUGINS))])


def objects(nodes: int, pods: int, names: list[str], *, full: bool) -> Iterable[KubeObject]:
    """Nodes and pods of each queue in turn; with `full`, the first two queues fill the cluster."""
    for number in range(nodes):
        yield node(f"n{number}", cpu=str(A_NODE))
    for number in range(nodes * A_NODE if full else 0):
        yield pod(f"r{number}", cpu="1", queue=names[number % 2], bound_to=f"n{number % nodes}")
    for number in range(pods):
        yield pod(f"p{number}", cpu="1", queue=names[number % len(names)], priority=number % 2 * 100)


def seconds(profiles: Mapping[str, HookCalls]) -> Counter[str]:
    return Counter(next(iter(profiles.values())).seconds())


async def measure(options: argparse.Namespace, *, full: bool) -> list[dict[str, Any]]:
    """The figures of each cycle."""
    found: list[dict[str, Any]] = []
    config = SchedulerConfig(
        bindings_in_flight=1_000_000, cycle_seconds=3600,
        queues=tuple(queues(options.queues, options.nodes * A_NODE)),
    )  # fmt: skip
    profiles = {name: plugins(calls) for name, calls in Registry(BUILTIN).load_calls(config).items()}
    cluster = MemoryCluster(now=lambda: CREATED)
    names = [queue.name for queue in config.queues if queue.parent]
    for obj in objects(options.nodes, options.pods, names, full=full):
        cluster.put(obj)
    scheduler = Scheduler(cluster, config, profiles, StoppedClock())
    await scheduler.start()
    late = [pod(f"late{number}", cpu="1", queue=names[number % len(names)]) for number in range(100)]
    for number, new in enumerate(([], late, [])):
        for obj in new:
            await scheduler.event_handlers.apply("ADDED", cluster.put(obj))
        before, started = seconds(profiles), time.perf_counter()
        calls = next(iter(profiles.values()))
        scheduler.sessions.close(scheduler.sessions.open(calls, ()))
        opened, cpu = time.perf_counter(), time.process_time()
        done = await scheduler.cycle()
        cpu_seconds, cycle_seconds = time.process_time() - cpu, time.perf_counter() - opened
        found.append({
            "cluster": "full" if full else "empty", "cycle": number + 1, "placed": sum(len(one.bound) for one in done),
            "waiting": len(scheduler.cache.unbound), "victims": len(scheduler.cache.preempted),
            "openSeconds": opened - started, "cycleSeconds": cycle_seconds, "cpuSeconds": cpu_seconds,
            "pluginSeconds": dict((seconds(profiles) - before).most_common(4)),
        })  # fmt: skip
    return found


def table_of(cycles: Iterable[Mapping[str, Any]]) -> Table:
    """The figures as a table."""
    table = Table("cluster", "cycle", "placed", "waiting", "victims", "open ms", "cycle s", "cpu s", "cpu us/pod",
                  "dearest plugins, s", box=None)  # fmt: skip
    for one in cycles:
        dearest = ", ".join(f"{name} {spent:.2f}" for name, spent in one["pluginSeconds"].items())
        each = 1e6 * one["cpuSeconds"] / max(1, one["placed"] + one["waiting"])
        table.add_row(one["cluster"], *(str(one[name]) for name in ("cycle", "placed", "waiting", "victims")),
                      f"{1000 * one['openSeconds']:.1f}", f"{one['cycleSeconds']:.2f}", f"{one['cpuSeconds']:.2f}",
                      f"{each:.0f}", dearest)  # fmt: skip
    return table


def main() -> None:
    """Measure both clusters and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--queues", type=int, default=50)
    parser.add_argument("--full", action="store_true", help="only the full cluster")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    collect_rarely()  # as the scheduler does
    clusters = (True,) if options.full else (False, True)
    cycles = [one for full in clusters for one in asyncio.run(measure(options, full=full))]
    if options.json:
        print(json.dumps(cycles, indent=2))
    else:
        Console(width=160).print(table_of(cycles))


if __name__ == "__main__":
    main()
