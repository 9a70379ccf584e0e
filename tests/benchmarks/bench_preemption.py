"""The cost of preemption: a cluster full of pods of low priority, and new pods, gangs and device pods.

Not a test: run `make bench`. The same scheduler placed every running pod, so its graph holds that pod. A row measures
the time from the first preemptor's try until all are placed, including the evictions and the second tries.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.objects import KubeObject, Pod, PodGroup
from session_scheduler.offline.simulate import place_all
from session_scheduler.registry.registry import Registry
from session_scheduler.testing import gang, node, pod

QPU = "fluxion.flux-framework.org/qpu"
A_NODE = 4
"""The number of low-priority pods that fill a node."""


@dataclass(frozen=True)
class Kind:
    """The preemptors: gang size, devices per pod, and match policy (None: without fluence)."""

    name: str
    gang: int = 1
    qpus: int = 0
    policy: str | None = "first"
    cpu: str = "3"

    def config(self, folder: Path, nodes: int) -> SchedulerConfig:
        """The configuration of the whole product with one device per node, or of the core alone."""
        if self.policy is None:
            return SchedulerConfig(profiles=(Profile(plugins=(PluginConfig(name="fluence", enabled=False),)),))
        file = folder / "resources.yaml"
        file.write_text(f"resources:\n  - {{type: qpu, name: one, count: {nodes}}}\n")
        args = {"resources": str(file), "matchPolicy": self.policy}
        return SchedulerConfig(profiles=(Profile(plugins=(PluginConfig(name="fluence", args=args),)),))

    def running(self, nodes: int) -> Iterator[KubeObject]:
        """The nodes, and the pods that fill them; with devices, one pod of each node holds one."""
        whole = self.policy is not None and self.policy.endswith("nodex")
        yield from (node(f"n{index}", cpu="4", offers={QPU: "1000"}) for index in range(nodes))
        for index in range(nodes if whole else A_NODE * nodes):
            held = {QPU: "1"} if self.qpus and index % A_NODE == 0 else None
            yield pod(f"low{index}", cpu="3" if whole else "900m", requests=held, priority=index % 5)

    def preemptors(self, number: int) -> Iterator[KubeObject]:
        """The preempting pods."""
        asked = {QPU: str(self.qpus)} if self.qpus else None
        for index in range(number // self.gang):
            if self.gang > 1:
                yield from gang(f"high{index}", self.gang, cpu=self.cpu, requests=asked, priority=100)
            else:
                yield pod(f"high{index}", cpu=self.cpu, requests=asked, priority=100)


KINDS = (
    Kind("plain", policy=None),
    Kind("plain"),
    Kind("gangs of 20", gang=20, policy=None),
    Kind("gangs of 20", gang=20),
    Kind("device", qpus=1, cpu="100m"),
    Kind("whole node", policy="lonodex"),
)


async def measure(kind: Kind, nodes: int, preemptors: int, folder: Path) -> tuple[float, int, int]:
    """Returns seconds, placed preemptors, and evicted pods."""
    config = kind.config(folder, nodes)
    scheduler = Scheduler(
        MemoryCluster(list(kind.running(nodes))), config, Registry(BUILTIN).load_calls(config), StoppedClock()
    )
    await scheduler.start()
    await place_all(scheduler)
    for obj in kind.preemptors(preemptors):
        if isinstance(obj, Pod | PodGroup):
            await scheduler.event_handlers.apply("ADDED", await scheduler.cluster.create(obj))
    started = time.process_time()
    result = await place_all(scheduler)
    return time.process_time() - started, result["summary"]["scheduled"], len(result.get("preempted", ()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000])
    parser.add_argument("--preemptors", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=sorted({kind.name for kind in KINDS}))
    options = parser.parse_args()
    table = Table("nodes", "preemptors", "kind", "by", "cpu s", "ms/preemptor", "placed", "ended", box=None)
    for nodes in options.nodes:
        for kind in KINDS:
            if options.only and kind.name not in options.only:
                continue
            with tempfile.TemporaryDirectory() as folder:
                seconds, placed, ended = asyncio.run(measure(kind, nodes, options.preemptors, Path(folder)))
            by = "core" if kind.policy is None else f"core and graph ({kind.policy})"
            cost = f"{1000 * seconds / options.preemptors:.1f}"
            table.add_row(*map(str, (nodes, options.preemptors, kind.name, by, f"{seconds:.2f}", cost, placed, ended)))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
