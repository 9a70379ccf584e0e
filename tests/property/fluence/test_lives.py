"""The live graph through random events: pods start and end, nodes change, appear and vanish, the scheduler restarts.

After every step: nothing is allocated twice; a live pod's resources are allocated or missing, but never another pod's;
an ended pod holds nothing; and the graph's free resources are exactly the unused ones.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import cycle, permutations
from typing import Any

import msgspec
import pytest

from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.matching.jobspecs import compute_jobspec_text
from fluence_plugins.fluence.plugin import FluencePlugin
from fluxion_cy import Busy, Unsatisfiable
from session_scheduler.base.clock import StoppedClock
from session_scheduler.builtin import BUILTIN
from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import PluginConfig, Profile, SchedulerConfig
from session_scheduler.engine.scheduler import Scheduler
from session_scheduler.model.groups import Phase
from session_scheduler.model.objects import Node, NodeStatus, ObjectMeta, Pod, PodGroup, PodStatus, Quantity
from session_scheduler.registry.registry import Registry

from ...tools.examples import first

RESOURCES = """
resources:
  - type: qdevice
    name: aurora
    attributes: {region: east}
    with: [{type: qpu, count: 2, with: [{type: qubit, count: 2}]}]
  - {type: qdevice, name: borealis, attributes: {region: west}, with: [{type: qpu}]}
  - {type: fpga, name: alveo, parent: n1, count: 2}
"""
KINDS = ("qdevice", "qpu", "qubit", "fpga")


class Life:
    """One scheduler on a cluster that a seeded random source changes."""

    def __init__(self, seed: int, file: str, policy: str, *counting: str) -> None:
        """`counting`: the cpu accounting of the first scheduler, of the second, and so on."""
        self.chance = random.Random(seed)
        self.arguments = {"resources": file, "matchPolicy": policy}
        counting = counting or ("cores",)
        self.counting = cycle(counting)
        self.cpus = ("0", "100m", "1", "1500m") if "auto" in counting else ("1", "2")
        self.cluster = MemoryCluster([self._node("n0", 4)])
        self.clock = StoppedClock()
        self.count = 0
        self.got: dict[str, set[str]] = {}
        """The resources that each live pod got, by uid."""

    def _node(self, name: str, cores: int) -> Node:
        offers: dict[str, Quantity] = {"cpu": str(cores), "memory": "8Gi", "pods": "50"}
        offers |= {f"fluxion.flux-framework.org/{kind}": "1000" for kind in KINDS}
        return Node(metadata=ObjectMeta(name=name, uid=name), status=NodeStatus(allocatable=offers))

    async def start(self) -> None:
        arguments = self.arguments | {"cpuAccounting": next(self.counting)}
        plugins = (PluginConfig(name="fluence", args=arguments),)
        self.config = SchedulerConfig(profiles=(Profile(plugins=plugins),))
        self.scheduler = Scheduler(self.cluster, self.config, Registry(BUILTIN).load_calls(self.config), self.clock)
        await self.scheduler.start()
        self.known = await self._objects()

    @property
    def plugin(self) -> FluencePlugin:
        found = self.scheduler.profiles["fluence"].instances["fluence"]
        assert isinstance(found, FluencePlugin)
        return found

    async def _objects(self) -> dict[tuple[str, str], Any]:
        kinds: tuple[type[Any], ...] = (Node, PodGroup, Pod)
        return {
            (kind.__name__, obj.metadata.uid): obj for kind in kinds for obj in (await self.cluster.list(kind)).items
        }

    async def deliver(self) -> None:
        """Send the changes to the scheduler, as watches do."""
        now = await self._objects()
        for key, obj in self.known.items():
            if key not in now:
                await self.scheduler.event_handlers.apply("DELETED", obj)
        for key, obj in now.items():
            if self.known.get(key) != obj:
                await self.scheduler.event_handlers.apply("MODIFIED" if key in self.known else "ADDED", obj)
        self.known = now

    # ------------------------------------------------------------------ events

    async def pod_comes(self) -> None:
        size = self.chance.choice([1, 1, 2, 3])
        self.count += 1
        name = f"g{self.count}"
        if size > 1:
            policy = {"gang": {"minCount": size}}
            group = {
                "kind": "PodGroup",
                "metadata": {"name": name, "namespace": "d"},
                "spec": {"schedulingPolicy": policy},
            }
            await self.cluster.create(msgspec.convert(group, PodGroup))
        asked = {"cpu": self.chance.choice(self.cpus), "memory": self.chance.choice(["0", "1Gi", "1000Mi"])}
        limits = dict[str, str]()
        if self.chance.random() < 0.6:
            limits[f"fluxion.flux-framework.org/{self.chance.choice(KINDS)}"] = str(self.chance.randint(1, 2))
        for index in range(size):
            spec: dict[str, Any] = {
                "schedulerName": "fluence",
                "containers": [{"name": "c", "resources": {"requests": asked | limits, "limits": limits}}],
            }
            if size > 1:
                spec["schedulingGroup"] = {"podGroupName": name}
            metadata = {"name": f"{name}-{index}", "namespace": "d"}
            await self.cluster.create(msgspec.convert({"kind": "Pod", "metadata": metadata, "spec": spec}, Pod))

    async def foreign_pod_comes(self) -> None:
        self.count += 1
        node = self.chance.choice([node.metadata.name for node in (await self.cluster.list(Node)).items] or ["n0"])
        asked = {"cpu": self.chance.choice(["100m", "900m", "1500m"])}
        spec = {"schedulerName": "x", "nodeName": node, "containers": [{"name": "c", "resources": {"requests": asked}}]}
        metadata = {"name": f"f{self.count}", "namespace": "d", "uid": f"f{self.count}"}
        self.cluster.put(msgspec.convert({"kind": "Pod", "metadata": metadata, "spec": spec}, Pod))

    async def pod_ends(self) -> None:
        pods = [pod for pod in (await self.cluster.list(Pod)).items if not pod.terminal]
        if not pods:
            return
        pod = self.chance.choice(pods)
        self.got.pop(pod.metadata.uid, None)
        if self.chance.random() < 0.5:
            await self.cluster.delete(pod, grace_seconds=0)
        else:
            self.cluster.put(msgspec.structs.replace(pod, status=PodStatus(phase="Succeeded")))

    async def node_changes(self) -> None:
        name = f"n{self.chance.randint(0, 2)}"
        self.cluster.put(self._node(name, self.chance.randint(1, 6)))

    async def node_goes(self) -> None:
        nodes = (await self.cluster.list(Node)).items
        if len(nodes) > 1:
            await self.cluster.delete(self.chance.choice(nodes))

    async def restart(self) -> None:
        await self.start()

    async def step(self) -> None:
        happens = self.chance.choices(
            [self.pod_comes, self.foreign_pod_comes, self.pod_ends, self.node_changes, self.node_goes, self.restart],
            [8, 2, 6, 3, 1, 1],
        )[0]
        await happens()
        await self.deliver()
        self.clock.advance(60)
        await self.scheduler.cycle()
        await self.deliver()
        self.check(happens.__name__)

    # ------------------------------------------------------------------ checks

    def check(self, after: str) -> None:
        live = self.plugin.live
        tasks = {task.uid: task for task in self.scheduler.cache.tasks.values()}
        held: Counter[str] = Counter()
        for uid, share in live.holdings.shares.items():
            assert uid in tasks, (after, "allocated to a pod that ended", uid)
            assert tasks[uid].phase in (Phase.BOUND, Phase.RELEASING), (after, tasks[uid])
            for part in share.values():
                held.update(f"{host.path}/core{core}" for host in part.hosts for core in host.cores)
                held.update(device.path for device in part.devices)
        assert not [path for path, times in held.items() if times > 1], (after, held)
        devices = [path for path in held if "/core" not in path]
        assert not [(a, b) for a in devices for b in devices if b.startswith(a + "/")], (after, devices)
        self._check_kept(after)
        self._check_free(after, held, tasks)

    def _check_kept(self, after: str) -> None:
        """A live pod's resources are allocated or missing: no other pod has them."""
        live = self.plugin.live
        for uid in {*live.holdings.shares, *live.holdings.missing}:
            parts = [
                *live.holdings.shares.get(uid, {}).values(),
                *(part for _, part in live.holdings.missing.get(uid, ())),
            ]
            has = {d.path for part in parts for d in part.devices} | {h.path for part in parts for h in part.hosts}
            assert self.got.setdefault(uid, has) == has, (after, uid, self.got[uid], has)
        there = [d.path for parts in live.holdings.missing.values() for _, part in parts for d in part.devices]
        assert not [path for path in there if path in live.graph.virtual], (
            after,
            "not allocated",
            there,
        )

    def _check_free(self, after: str, held: Counter[str], tasks: dict[str, Any]) -> None:
        live = self.plugin.live
        if live.accounting.millicores:
            self._check_free_millicores(after, tasks)
            return
        found = live.matcher.find("sched-now=free")
        free = Counter(
            vertex["metadata"]["paths"]["containment"].split("/")[2]
            for vertex in (found["graph"]["nodes"] if found else [])
            if vertex["metadata"]["type"] == "core"
        )
        for name in live.graph.host_ranks:
            total = (
                self.scheduler.cache.table.all_rows().allocatable("cpu")[self.scheduler.cache.table.row_of[name]]
                // 1000
            )
            ours = sum(path.startswith(f"/cluster/{name}/core") for path in held)
            on_it = [task for task in tasks.values() if task.node == name]
            strangers = [task for task in on_it if live.holdings.of_pod(task.uid, name) is None]
            foreign = -(-sum(task.cls.requests.get("cpu", 0) for task in strangers) // 1000)
            assert free[name] == max(0, total - ours - foreign), (after, name, free[name], total, ours, foreign)

    def _check_free_millicores(self, after: str, tasks: dict[str, Any]) -> None:
        """A pod with all free millicores fits, and one with a millicore more does not."""
        live, first = self.plugin.live, self.plugin.live.allocations.next_jobid
        table = self.scheduler.cache.table
        for name, rank in live.graph.host_ranks.items():
            total = table.all_rows().allocatable("cpu")[table.row_of[name]]
            used = sum(self._millicores_of(task, name) for task in tasks.values() if task.node == name)
            left = max(0, int(total) - used)
            live.allocations.retract(
                [live.allocations.match_on(rank, compute_jobspec_text(PodShape(left, pods=1), 1)).jobid], (), first
            )
            with pytest.raises((Busy, Unsatisfiable)):
                live.allocations.match_on(rank, compute_jobspec_text(PodShape(left + 1, pods=1), 1))
            assert live.allocations.next_jobid == first, after

    def _millicores_of(self, task: Any, host: str) -> int:
        """What a pod uses of its node: with `auto`, whole cores if it holds any and is of a gang or has devices."""
        cpu: int = task.cls.requests.get("cpu", 0)
        live = self.plugin.live
        is_whole = not task.group.single or any(name.startswith("fluxion.") for name in task.cls.requests)
        if live.accounting.cpu == "auto" and is_whole and live.holdings.of_pod(task.uid, host) is not None:
            return max(1000, -(-cpu // 1000) * 1000)
        return cpu


def lived(life: Life) -> None:
    async def live() -> None:
        await life.start()
        for _ in range(60):
            await life.step()

    asyncio.run(live())


@pytest.fixture
def file(tmp_path: Any) -> str:
    path = tmp_path / "resources.yaml"
    path.write_text(RESOURCES)
    return str(path)


@pytest.mark.parametrize("policy", ["first", "low", "high"])
@pytest.mark.parametrize("seed", first(range(6)))
def test_random_events_allocate_nothing_twice_and_lose_nothing(seed: int, policy: str, file: str) -> None:
    lived(Life(seed, file, policy))


@pytest.mark.parametrize(
    "counting",
    [("auto",), ("millicores",), *permutations(("auto", "cores", "millicores"), 2)],
)
@pytest.mark.parametrize("seed", first(range(6)))
def test_the_same_holds_in_the_other_ways_of_accounting_and_with_changing_ones(
    seed: int, counting: tuple[str, ...], file: str
) -> None:
    lived(Life(seed, file, "first", *counting))
