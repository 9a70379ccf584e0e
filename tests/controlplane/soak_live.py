"""`make soak-live`: pods, groups and nodes come and go on a real API server for ten minutes.

It makes all changes of a second at once. It creates and deletes as many single pods as pods of gangs of five, the
oldest first. Now and then it cordons or uncordons a node, or deletes and recreates one with its pods. A few pods are
gated, and a few fit on no node. Every five seconds it records fluence's resident memory. At the end it makes no more
changes: soon all pods that can be bound must be bound, no invariant may be violated (`invariants.py`), and each pending
pod must be gated or have a reason. Memory must not grow.

`python -m tests.controlplane.soak_live [--nodes 1000] [--pods 10000] [--seconds 600] [--churn 40] [--json FILE]`;
the exit status is 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from .bulk import Bulk, BulkError, Manifest
from .contenders import CONTENDERS, FLUENCE
from .harness import ControlPlane
from .invariants import State, condition, has_ended, is_bound, is_leaving, read_state, violations_at_rest
from .measured import Measured
from .observing import changes
from .workloads import GROUPS, HIGH, WORKLOADS, Turn, node, pods_of

_GANG: Final = 5
_ROOM: Final = {"cpu": "32", "memory": "128Gi", "pods": "110"}
_NOW: Final = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
_SAMPLE_SECONDS: Final = 5.0
_FIRST_SECONDS: Final = 600.0
"""Maximum seconds for binding the first pods."""
_REST_SECONDS: Final = 120.0
"""Maximum seconds for binding all pods after the last change."""
_REPORT_SECONDS: Final = 30.0
"""Maximum seconds for the conditions of started gangs, which follow their last bindings."""
_NODE_EVERY: Final = 5
"""Seconds between two changes of nodes."""
_GROWTH: Final = 1.05
"""The memory of the last third, divided by that of the second, that counts as steady."""
_SLACK_MIB: Final = 8.0


@dataclass(slots=True)
class Found:
    """The measurements; times in seconds, memory in MiB."""

    nodes: int
    pods: int
    seconds: float
    created: int = 0
    """Number of created pods, including the first ones."""
    bound: int = 0
    """Number of bindings seen."""
    memory: list[float] = field(default_factory=list)
    """Resident memory by sample, once the first pods were bound."""
    pending: list[int] = field(default_factory=list)
    """Pending pods by sample."""
    rest: float | None = None
    """From the last change until all pods that can be bound were bound; None if that never happened."""
    problems: list[str] = field(default_factory=list)
    """Violated invariants and lost pods."""

    @property
    def thirds(self) -> tuple[float, float]:
        """Return the median memory of the second and of the last third."""
        third = max(1, len(self.memory) // 3)
        return median(self.memory[third : 2 * third] or self.memory), median(self.memory[-third:])

    def goals(self) -> Iterator[tuple[str, bool]]:
        """Return each goal, and whether it was met."""
        before, after = self.thirds
        yield (f"memory: {after:.0f} MiB in the last third, {before:.0f} in the one before",
               after <= _GROWTH * before + _SLACK_MIB)  # fmt: skip
        took = "never" if self.rest is None else f"{self.rest:.1f} s after the last change"
        yield f"all that can be bound is bound: {took} (goal: {_REST_SECONDS:.0f})", self.rest is not None
        yield f"lost pods and broken rules: {len(self.problems)}", not self.problems


# ---------------------------------------------------------------------- objects


def _pod(turn: Turn, name: str, gang: str = "", **spec: object) -> Manifest:
    requests = {"cpu": "100m", "memory": "500Mi"}
    container = {"name": "c", "image": "none", "resources": {"requests": requests, "limits": requests}}
    if gang:
        spec["schedulingGroup"] = {"podGroupName": gang}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": turn.namespace},
            "spec": {"schedulerName": turn.scheduler, "containers": [container], **spec}}  # fmt: skip


def _group(turn: Turn, name: str) -> Manifest:
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
            "metadata": {"name": name, "namespace": turn.namespace},
            "spec": {"schedulingPolicy": {"gang": {"minCount": _GANG}}}}  # fmt: skip


class Churn:
    """Creates and deletes pods, groups and nodes; knows the current ones."""

    def __init__(self, api: Bulk, turn: Turn, found: Found, chance: random.Random) -> None:
        self._api = api
        self._turn = turn
        self._found = found
        self._chance = chance
        self._names = itertools.count()
        self._units: deque[list[str]] = deque()
        """Pods that are created and deleted together, the oldest first; a gang is named by its first member."""
        self.alive: set[str] = set()
        """The existing pods that can be bound."""
        self._cordoned: set[str] = set()

    async def fill(self) -> None:
        """Create the initial nodes and pods."""
        turn = self._turn
        await self._api.create_nodes([node(f"node-{number}", room=_ROOM) for number in range(turn.nodes)])
        held = [_pod(turn, f"gated-{number}", schedulingGates=[{"name": "example.com/hold"}]) for number in range(5)]
        large = [_pod(turn, f"large-{number}", nodeSelector={"none": "has-it"}) for number in range(5)]
        await self._api.create(pods_of(turn.namespace), held + large)
        await self.come(turn.pods)

    async def come(self, number: int) -> None:
        """Create about so many pods, half of them in gangs."""
        alone = [[f"pod-{next(self._names)}"] for _ in range(number - number // 2)]
        gangs = [[f"gang-{first}-{member}" for member in range(_GANG)]
                 for first in itertools.islice(self._names, number // 2 // _GANG)]  # fmt: skip
        groups = [_group(self._turn, _gang_of(unit[0])) for unit in gangs]
        await self._api.create(GROUPS.format(self._turn.namespace), groups)
        units = alone + gangs
        self._chance.shuffle(units)
        self._units.extend(units)
        names = [name for unit in units for name in unit]
        self.alive.update(names)
        self._found.created += len(names)
        await self._api.create(
            pods_of(self._turn.namespace), [_pod(self._turn, name, _gang_of(name)) for name in names]
        )

    async def go(self, number: int) -> int:
        """Delete at least so many of the oldest pods, and complete gangs; return their number."""
        units: list[list[str]] = []
        while self._units and sum(map(len, units)) < number:
            units.append(self._units.popleft())
        names = [name for unit in units for name in unit]
        await self._delete(names)
        groups = GROUPS.format(self._turn.namespace)
        gone = [f"{groups}/{_gang_of(unit[0])}" for unit in units if _gang_of(unit[0])]
        await self._api.patch(gone, {"metadata": {"finalizers": None}})  # no controller removes it
        await asyncio.gather(*(self._api.request("DELETE", path, _NOW) for path in gone))
        return len(names)

    async def _delete(self, names: Sequence[str]) -> None:
        self.alive.difference_update(names)
        path = pods_of(self._turn.namespace)
        await asyncio.gather(
            *(self._api.request("DELETE", f"{path}/{name}", _NOW, expected=(200, 404)) for name in names)
        )

    async def change_node(self) -> None:
        """Cordon or uncordon a node, or delete it with its pods and create it again."""
        name = f"node-{self._chance.randrange(self._turn.nodes)}"
        if self._chance.random() < 0.5:
            self._cordoned ^= {name}
            await self._api.patch([f"/api/v1/nodes/{name}"], {"spec": {"unschedulable": name in self._cordoned}})
            return
        self._cordoned.discard(name)
        await self._api.request("DELETE", f"/api/v1/nodes/{name}", _NOW)
        query = {"fieldSelector": f"spec.nodeName={name}"}
        there = await self._api.request("GET", pods_of(self._turn.namespace), query=query)
        await self._delete([pod["metadata"]["name"] for pod in there["items"]])
        await self._api.create_nodes([node(name, room=_ROOM)])


def _gang_of(pod: str) -> str:
    return pod.rpartition("-")[0] if pod.startswith("gang-") else ""


# ---------------------------------------------------------------------- observation


class Watching:
    """The observations of a watch of the pods."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self.bound: set[str] = set()

    async def pods(self, api: Bulk, namespace: str) -> None:
        """Watch until cancelled. With a field selector each pod is an ADDED event when it is bound."""
        async for kind, pod in changes(api, pods_of(namespace), {"fieldSelector": "spec.nodeName!="}):
            if kind == "ADDED":
                self._found.bound += 1
                self.bound.add(pod["metadata"]["name"])
            elif kind == "DELETED":
                self.bound.discard(pod["metadata"]["name"])

    async def all_bound(self, churn: Churn, seconds: float) -> float | None:
        """Return the seconds until all pods that can be bound are; None after a timeout."""
        began = reported = time.monotonic()
        while not churn.alive <= self.bound:
            now = time.monotonic()
            if now - began > seconds:
                return None
            if now - reported > _SAMPLE_SECONDS:
                reported = now
                _tell(f"{len(churn.alive - self.bound)} of {len(churn.alive)} pods are to be bound")
            await asyncio.sleep(0.1)
        return time.monotonic() - began


async def _reported(plane: ControlPlane) -> State:
    """Return the state once it violates no invariant, or after a timeout."""
    deadline = time.monotonic() + _REPORT_SECONDS
    while True:
        state = await asyncio.to_thread(read_state, plane)
        if not violations_at_rest(state) or time.monotonic() > deadline:
            return state
        await asyncio.sleep(0.5)


def _lost(state: State, alive: set[str]) -> Iterator[str]:
    """Return pods that could be bound and are not, and pending pods without a reason."""
    for pod in state.pods:
        name = pod["metadata"]["name"]
        if is_bound(pod) or has_ended(pod) or is_leaving(pod):
            continue
        if name in alive:
            yield f"pod {name} is not bound: {condition(pod, 'PodScheduled')}"
        elif condition(pod, "PodScheduled") is None:
            yield f"pod {name} is pending, and nothing says why"


# ---------------------------------------------------------------------- the whole run


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


async def _sampled(process: Measured, churn: Churn, watching: Watching, found: Found) -> None:
    while True:
        found.memory.append(process.resident_mib())
        found.pending.append(len(churn.alive - watching.bound))
        _tell(
            f"{found.created} pods made, {found.bound} bound, {found.pending[-1]} pending, {found.memory[-1]:.0f} MiB"
        )
        await asyncio.sleep(_SAMPLE_SECONDS)


async def _churned(churn: Churn, seconds: float, rate: int) -> None:
    end = time.monotonic() + seconds
    for second in itertools.count(1):
        began = time.monotonic()
        if began >= end:
            return
        await churn.come(await churn.go(rate))
        if second % _NODE_EVERY == 0:
            await churn.change_node()
        await asyncio.sleep(max(0.0, began + 1 - time.monotonic()))


async def soak(
    plane: ControlPlane, folder: Path, nodes: int, pods: int, seconds: float, rate: int, seed: int = 1
) -> Found:
    """Create everything, start fluence, and measure. The class HIGH must exist."""
    found = Found(nodes, pods, seconds)
    turn = Turn(FLUENCE, plane.new_namespace(), "", nodes, pods)
    contender = next(one for one in CONTENDERS if one.name == FLUENCE)
    watching = Watching(found)
    async with Bulk(plane) as api, asyncio.TaskGroup() as tasks:
        churn = Churn(api, turn, found, random.Random(seed))
        _tell(f"{nodes} nodes and {pods} pods are made")
        await churn.fill()
        watch = tasks.create_task(watching.pods(api, turn.namespace))
        process = await asyncio.to_thread(contender.start, plane, folder, WORKLOADS[0], turn)
        try:
            if await watching.all_bound(churn, _FIRST_SECONDS) is None:
                found.problems.append(f"the first pods are not bound: {process.tail()}")
            else:
                sampling = tasks.create_task(_sampled(process, churn, watching, found))
                try:
                    await _churned(churn, seconds, rate)
                except BulkError as error:
                    found.problems.append(str(error))
                found.rest = await watching.all_bound(churn, _REST_SECONDS)
                sampling.cancel()
            state = await _reported(plane)
            found.problems += [*violations_at_rest(state), *_lost(state, churn.alive)]
        finally:
            watch.cancel()
            process.stop()
    return found


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="soak_live", description="Pods and nodes come and go; nothing is lost.")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=10_000, help="there at any moment")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--churn", type=int, default=40, help="pods that go, and come, each second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write everything into this file, too")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="soak-live-"))
    (folder / "plane").mkdir()
    with ControlPlane(folder / "plane") as plane:
        plane.create(HIGH)
        found = asyncio.run(
            soak(plane, folder, options.nodes, options.pods, options.seconds, options.churn, options.seed)
        )
    for problem in found.problems[:20]:
        print(problem)
    reached = list(found.goals()) if found.memory else [("the first pods are bound", False)]
    print(
        f"{found.created} pods made, {found.bound} bound, most pending {max(found.pending, default=0)}; logs: {folder}"
    )
    for text, met in reached:
        print(f"{'met   ' if met else 'MISSED'} {text}")
    if options.json:
        options.json.write_text(json.dumps({**asdict(found), "goals": reached}, indent=2) + "\n")
    return 0 if all(met for _, met in reached) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
