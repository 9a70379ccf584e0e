"""A full cluster, preemptors that come while others' victims still end, and a scheduler that is started over.

All that happens is what one random source says. Every pod takes whole cores and every core is taken, so what has gone
in the end beyond what the preemptors took has ended for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.cluster.errors import Unavailable
from session_scheduler.model.meta import LabelSelector, ObjectMeta
from session_scheduler.model.objects import KubeObject, Pod
from session_scheduler.model.policy import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from session_scheduler.testing import FakeCluster, gang, node, pod, pod_group

QPU = "fluxion.flux-framework.org/qpu"
CORES = 4
GUARDED = {"guarded": "yes"}
SELECTOR = PodDisruptionBudgetSpec(selector=LabelSelector(match_labels=GUARDED))
WHOLE, SINGLE = "whole", "single"
"""The gang that is evicted all-or-nothing, and the names of the pods that can be evicted alone."""


class World:
    """`policy` is how the graph matches, `faults` how likely a request about a pod is lost; or where `unwritten` how
    likely a nomination, or its end, is not written.
    """

    def __init__(
        self, random: Random, folder: Path, *, nodes: int, policy: str, faults: float, guarded: int,
        unwritten: bool = False,
    ) -> None:  # fmt: skip
        self.random = random
        self.faults = faults
        self._unwritten = unwritten
        self._policy = policy
        self._file = folder / "resources.yaml"
        self._file.write_text(f"resources:\n  - {{type: qpu, name: one, count: {nodes}}}\n")
        self.cluster = FakeCluster()
        self.cluster.add(node(f"n{number}", cpu=str(CORES), offers={QPU: "1000"}) for number in range(nodes))
        self.allowed = random.randint(0, guarded)
        self.came: list[str] = []
        """The preemptors' pods."""
        self._break()

    # ------------------------------------------------------------------ what there is

    def pods(self) -> dict[str, Pod]:
        return {one.metadata.name: one for one in asyncio.run(self.cluster.memory.list(Pod)).items}

    def bound(self) -> set[str]:
        return {name for name, one in self.pods().items() if one.spec.node_name}

    def fill(self, running: list[KubeObject]) -> None:
        """Let these run, the first of them the longest, in any order."""
        self.cluster.add(running)
        self.start()
        self.before = {name: one for name, one in self.pods().items() if one.spec.node_name}
        for one in self.before.values():
            since = f"2026-01-01T00:00:{self.random.randint(0, 59):02}Z"
            self.cluster.add(replace(one, status=replace(one.status, phase="Running", start_time=since)))
        self.control()

    def gone(self) -> set[str]:
        """Who ran at first and does not any more."""
        return self.before.keys() - self.pods().keys()

    # ------------------------------------------------------------------ what others do

    def control(self) -> None:
        """The disruption controller writes how many guarded pods may go now."""
        guarded = [one for one in self.before.values() if one.metadata.labels == GUARDED]
        there = [one for name, one in self.pods().items() if one.metadata.labels == GUARDED]
        healthy = sum(one.metadata.deletion_timestamp is None for one in there)
        status = PodDisruptionBudgetStatus(
            disruptions_allowed=max(0, self.allowed - (len(guarded) - healthy)),
        )
        named = ObjectMeta(name="budget", namespace="default")
        self.cluster.add(PodDisruptionBudget(metadata=named, spec=SELECTOR, status=status))

    def come(self, objects: Sequence[KubeObject]) -> None:
        self.cluster.add(objects)
        self.came += [one.metadata.name for one in objects if isinstance(one, Pod)]

    def end_some(self, share: float) -> None:
        """Kubelets end some of the pods that are being deleted."""
        for one in self.pods().values():
            if one.metadata.deletion_timestamp and self.random.random() < share:
                self.cluster.delete(Pod, one.metadata.name)

    def _break(self) -> None:
        """Requests about pods may be lost, before or after they were done."""
        memory: Any = self.cluster.memory
        if self._unwritten:
            memory.patch_status = self._refused(memory.patch_status)
            return
        memory.delete, memory.patch_status = self._lossy(memory.delete), self._lossy(memory.patch_status)

    def _refused(self, do: Any) -> Any:
        async def done_or_not(*arguments: Any, **options: Any) -> Any:
            if options.get("nominated_node_name") is not None and self.random.random() < self.faults:
                raise Unavailable("timeout")
            return await do(*arguments, **options)

        return done_or_not

    def _lossy(self, do: Any) -> Any:
        async def done_or_lost(*arguments: Any, **options: Any) -> Any:
            lost = self.random.random() < self.faults and "grace_seconds" not in options
            if lost and self.random.random() < 0.5:
                raise Unavailable("timeout")
            done = await do(*arguments, **options)
            if lost:
                raise Unavailable("timeout")
            return done

        return done_or_lost

    # ------------------------------------------------------------------ the scheduler

    def start(self) -> None:
        """Start the scheduler (over): it knows what the cluster says, and nothing else.

        That takes longer than the disruption controller takes.
        """
        if self.cluster._scheduler is not None:
            self.control()
        self.cluster._scheduler = None
        arguments = FluenceArguments(resources=str(self._file), match_policy=self._policy)
        self.cluster.run(FluencePlugin(arguments))

    def step(self) -> None:
        what = self.random.random()
        if what < 0.5:
            self.cluster.run()
        elif what < 0.7:
            self.end_some(self.random.choice([0.2, 0.5, 1.0]))
        elif what < 0.8:
            self.cluster.advance(self.random.choice([0.5, 3.0, 12.0]))
        elif what < 0.9:
            self.control()
        else:
            self.start()

    def become_quiet(self) -> None:
        """No more faults. Time enough for every backoff, too little for the periodic requeue of unschedulable pods."""
        self.faults = 0.0
        for _ in range(14):
            self.cluster.run()
            self.end_some(1.0)
            self.control()
            self.cluster.advance(15)


def singles(random: Random, count: int, devices: int, guarded: int, cores: int) -> list[KubeObject]:
    """Pods that can end alone; the first ones hold a device each, the last ones are guarded."""
    made: list[KubeObject] = []
    for number in range(count):
        held = {QPU: "1"} if number < devices else None
        labels = GUARDED if number >= count - guarded else {}
        made.append(pod(f"{SINGLE}{number}", cpu=str(cores), memory="1Mi", requests=held, labels=labels,
                        priority=random.randint(0, 2)))  # fmt: skip
    return made


def whole(size: int, cores: int) -> list[KubeObject]:
    """A gang that is evicted all-or-nothing, more important than the pods that can be evicted alone."""
    group = pod_group(WHOLE, size, disruption_mode="PodGroup")
    return [group, *(pod(f"{WHOLE}-{n}", group=WHOLE, cpu=str(cores), memory="1Mi", priority=3) for n in range(size))]


def preemptor(name: str, size: int, *, cores: int = 1, devices: int = 0, priority: int = 10) -> list[KubeObject]:
    """A pod alone, or a gang."""
    asked: dict[str, Any] = {"cpu": str(cores), "memory": "1Mi", "priority": priority}
    if devices:
        asked["requests"] = {QPU: str(devices)}
    return [pod(name, **asked)] if size == 1 else list(gang(name, size, **asked))
