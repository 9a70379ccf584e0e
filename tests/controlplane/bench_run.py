"""One contender's run of one workload: create, measure, check and delete all objects."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .bench_report import Result
from .bulk import Bulk, BulkError
from .contenders import FLUENCE, Contender
from .harness import ControlPlane
from .measured import Measured
from .observing import Observer, delivered
from .processes import Program, StartError
from .workloads import BOUND, EMPTIED, FREED, GROUPS, NODE, Turn, Workload, node, pods_of

_LATER = "later-"
_LATER_GROUPS = 100
_PROFILE_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Run:
    """One contender's run of a workload; `folder` is its own."""

    plane: ControlPlane
    folder: Path
    workload: Workload
    contender: Contender
    turn: Turn
    profiles: Path | None = None
    """The folder for py-spy's profile of fluence."""

    async def results(self, number: int) -> list[Result]:
        """Run and return the measurements of round `number`, or the failure. A full cluster has two: see FREED."""
        results = [Result(self.workload.name, self.contender.name, number, self.turn.pods)]
        async with Bulk(self.plane) as api:
            self._tell(f"{self.turn.nodes} nodes and {self.turn.pods} pods are made")
            await self._furnish(api)
            try:
                await self._measure(api, results)
            except* (StartError, BulkError) as failures:
                results[-1].failure = "; ".join(_texts(failures))
                self._tell(results[-1].failure)
            finally:
                await self._clear(api)
        return results

    # ------------------------------------------------------------------ objects

    async def _furnish(self, api: Bulk) -> None:
        zones, turn = self.workload.zones, self.turn
        nodes = [node(f"node-{number}", zones[number % len(zones)]) for number in range(turn.nodes)]
        await api.create_nodes(nodes)
        await api.create(pods_of(turn.aside), self.workload.others(turn))
        await api.create(GROUPS.format(turn.namespace), self.workload.groups(turn))
        await api.create(pods_of(turn.namespace), self.workload.measured(turn))

    async def _clear(self, api: Bulk) -> None:
        """Delete all objects that the next scheduler would see; events stay."""
        for namespace in (self.turn.namespace, self.turn.aside):
            await api.clear(pods_of(namespace))
        groups = GROUPS.format(self.turn.namespace)
        names = [group["metadata"]["name"] for group in (await api.request("GET", groups))["items"]]
        # no controller removes the finalizer
        await api.patch([f"{groups}/{name}" for name in names], {"metadata": {"finalizers": None}})
        await api.clear(groups)
        await api.clear("/api/v1/nodes")

    # ------------------------------------------------------------------ measurements

    async def _measure(self, api: Bulk, results: list[Result]) -> None:
        """Fill in the only result, and append those of further measurements of the same process."""
        (result,), turn = results, self.turn
        if self.workload.full:
            observer, reason = Observer(turn.pods, "reported"), "FailedScheduling"
            seeing = observer.reports(api, turn.namespace)
        else:
            observer, reason = Observer(turn.pods), "Scheduled"
            seeing = observer.binds(api, turn.namespace)
        watches = [seeing, self._progress(observer)]
        if self.workload.preempts:
            watches.append(observer.victims(api, turn.aside))
        async with _alongside(*watches):
            began = time.monotonic()
            process = await asyncio.to_thread(self.contender.start, self.plane, self.folder, self.workload, turn)
            with self._profiled(process), _ended(process):
                used: list[float] = []
                observer.at_first = lambda: used.append(process.cpu_seconds())
                async with _alongside(*([self.workload.beside(api, turn)] if self.workload.beside else [])):
                    await observer.finished(process)
                    result.cpu_binding = process.cpu_seconds() - used[0]
                result.first, result.seconds = observer.began - began, observer.last - observer.began
                if self.contender.events:
                    seen = await delivered(api, turn, reason)
                    result.events = len(seen)
                    result.events_after = max(0.0, max(seen.values(), default=0.0) - observer.last)
                result.cpu, result.memory = process.cpu_seconds(), process.peak_mib()
                nodes = {f"node-{number}" for number in range(turn.nodes)}
                await self._check(api, 0 if self.workload.full else turn.pods, nodes)
                if self.workload.gang > 1:
                    result.latencies = await self._latencies(api, observer, process)
                if self.workload.full and self.contender.events:
                    results.append(Result(FREED, result.contender, result.round, min(int(NODE["pods"]), turn.pods)))
                    await self._free(api, results[-1], process)
        self._tell(", ".join(f"{one.rate:.0f} pods/s, {one.events} events" for one in results))

    async def _free(self, api: Bulk, result: Result, process: Measured) -> None:
        """Empty a node, and measure the time until as many pods as it has room for are bound."""
        observer, running = Observer(result.pods), pods_of(self.turn.aside)
        on_it = await api.request("GET", running, query={"fieldSelector": f"spec.nodeName={EMPTIED}"})
        paths = [f"{running}/{pod['metadata']['name']}" for pod in on_it["items"]]
        async with _alongside(observer.binds(api, self.turn.namespace)):
            used, began = process.cpu_seconds(), time.monotonic()
            await api.delete(paths)
            await observer.finished(process)
            result.cpu = result.cpu_binding = process.cpu_seconds() - used
            result.first, result.seconds = observer.began - began, observer.last - began
            result.memory = process.peak_mib()
            await self._check(api, result.pods, {EMPTIED})

    async def _check(self, api: Bulk, bound: int, nodes: Collection[str]) -> None:
        """Raise BulkError unless so many measured pods are bound, all on these nodes, and all others stay pending."""
        for pod in (await api.request("GET", pods_of(self.turn.namespace)))["items"]:
            on = pod["spec"].get("nodeName")
            if on is not None:
                bound -= 1
            if pod["spec"]["schedulerName"] != self.turn.scheduler or (on is not None and on not in nodes):
                raise BulkError(f"{pod['metadata']['name']} is on {on}")
        if bound:
            raise BulkError(f"{abs(bound)} pods too {'few' if bound > 0 else 'many'} are bound")
        for pod in (await api.request("GET", pods_of(self.turn.aside)))["items"]:
            if "nodeName" in pod["spec"] and not pod["metadata"]["name"].startswith(BOUND):
                raise BulkError(f"{pod['metadata']['name']} was to stay pending and is on {pod['spec']['nodeName']}")

    async def _latencies(self, api: Bulk, observer: Observer, process: Measured) -> list[float]:
        """Add further groups one after the other; return the time of each, from its first pod to its last binding."""
        size = self.workload.gang
        count = min(_LATER_GROUPS, self.turn.pods // size)
        later = Turn(self.turn.scheduler, self.turn.namespace, self.turn.aside, self.turn.nodes, count * size)
        await api.create(GROUPS.format(later.namespace), self.workload.groups(later, _LATER))
        pods = list(self.workload.measured(later, _LATER))
        observer.wanted += len(pods)
        groups = [pods[first : first + size] for first in range(0, len(pods), size)]
        began = []
        for members in groups:
            began.append(time.monotonic())
            await api.create(pods_of(later.namespace), members)
        await observer.finished(process)
        ends = [max(observer.seen[pod["metadata"]["name"]] for pod in members) for members in groups]
        return [end - start for start, end in zip(began, ends, strict=True)]

    # ------------------------------------------------------------------ concurrent tasks

    async def _progress(self, observer: Observer) -> None:
        while True:
            await asyncio.sleep(5)
            self._tell(str(observer))

    @contextmanager
    def _profiled(self, process: Measured) -> Iterator[None]:
        """Record a profile; py-spy writes it when the process has ended."""
        if self.profiles is None or self.turn.scheduler != FLUENCE:
            yield
            return
        output = self.profiles / f"{self.workload.name}-{self.contender.name}.txt"
        command = ["py-spy", "record", "--pid", str(process.pid), "--rate", "200", "--format", "raw", "--nonblocking",
                   "--duration", "unlimited", "--output", str(output)]  # fmt: skip
        spy = Program("py-spy", command, self.folder / "py-spy.log")
        yield
        spy.wait_until(lambda: spy.status is not None, _PROFILE_PATIENCE)

    def _tell(self, text: str) -> None:
        who = f"{self.workload.name}, {self.contender.name}"
        print(f"{time.strftime('%H:%M:%S')} {who}: {text}", file=sys.stderr, flush=True)


@asynccontextmanager
async def _alongside(*works: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run these until the block ends; if one fails, the block fails."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        yield
        for task in tasks:
            task.cancel()


@contextmanager
def _ended(process: Measured) -> Iterator[None]:
    try:
        yield
    finally:
        process.stop()


def _texts(failures: BaseExceptionGroup[Exception]) -> Iterator[str]:
    for failure in failures.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            yield from _texts(failure)
        else:
            yield str(failure)
