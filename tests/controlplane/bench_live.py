"""`make bench-live`: how fast pods are bound on a real API server, by kube-scheduler, by fluence, and at most.

Every contender has a namespace, nodes and pods of its own; those of the one before are deleted first. All pods exist
before the contender starts, so nobody waits for their creation. One observer, a watch of this process, notes when it
sees each pod bound: pods/s is counted from the first to the last. Events are written beside and after that; "events
pods/s" counts until the last event. Contenders take turns over several rounds, each second round backwards.

`python -m tests.controlplane.bench_live [--nodes 1000] [--pods 5000] [--rounds 2] [--only NAME,NAME] [--json FILE]`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import yaml

from . import binaries
from .bulk import Bulk, Manifest
from .harness import ControlPlane
from .measured import Measured
from .processes import StartError, free_ports
from .scheduler_process import Settings, kubeconfig_for

GANG = 20
_NODE = {"cpu": "32", "memory": "128Gi", "pods": "110"}
_POD = {"cpu": "100m", "memory": "500Mi"}
_SILENCE = 60.0
"""Seconds without any bind after which a contender is given up."""
_EVENTS_SILENCE = 5.0
_POLL = 0.1
_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/{}/podgroups"
Start = Callable[[ControlPlane, Path, str], Measured]


@dataclass(frozen=True, slots=True)
class Contender:
    """Who binds, and what."""

    name: str
    scheduler: str
    start: Start
    gang: int = 1
    events: bool = True


@dataclass(slots=True)
class Result:
    """One contender's run. Times in seconds, memory in MiB."""

    contender: str
    round: int
    pods: int
    first: float = 0.0
    """From the start of the process to the first pod bound."""
    seconds: float = 0.0
    """From the first pod bound to the last."""
    events: int = 0
    events_seconds: float = 0.0
    """From the first pod bound to the last event; as `seconds` where there are none."""
    cpu: float = 0.0
    """Processor time of the contender from its start to its last event."""
    cpu_binding: float = 0.0
    """The part of it that was between the first pod bound and the last."""
    memory: float = 0.0
    """Its largest resident size."""

    @property
    def rate(self) -> float:
        """Pods bound in a second."""
        return (self.pods - 1) / self.seconds if self.seconds else 0.0

    @property
    def events_rate(self) -> float:
        """Pods in a second where it is over with the last event only."""
        return (self.pods - 1) / self.events_seconds if self.events_seconds else 0.0


# ------------------------------------------------------------------ contenders


def _raw(plane: ControlPlane, folder: Path, namespace: str) -> Measured:
    kubeconfig = plane.kubeconfig("admin")
    command = [sys.executable, "-m", "tests.controlplane.raw_binder", kubeconfig, namespace]
    return Measured("raw", command, folder / "raw.log")


def _kube_scheduler(plane: ControlPlane, folder: Path, _: str) -> Measured:
    """With its defaults, but without the limit of requests per second, which is far below what is measured here."""
    config = folder / "kube-scheduler.yaml"
    kubeconfig = plane.kubeconfig("system:kube-scheduler")
    config.write_text(yaml.safe_dump({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 100_000, "burst": 100_000},
        "leaderElection": {"leaderElect": False},
    }))  # fmt: skip
    command = [binaries.find("kube-scheduler")["kube-scheduler"], f"--config={config}", "--secure-port=0"]
    return Measured("kube-scheduler", command, folder / "kube-scheduler.log")


def _fluence(*, events: bool) -> Start:
    def start(plane: ControlPlane, folder: Path, _: str) -> Measured:
        (port,) = free_ports(1)
        ours = {"backoff": {}, "events": events}
        settings = Settings(gang_bind_timeout_seconds=60, reconcile_seconds=60, more=ours)
        config = folder / "fluence.yaml"
        config.write_text(yaml.safe_dump(settings.configuration(port, None)))
        command = [sys.executable, "-m", "session_scheduler.cli", "run", "--config", config,
                   "--kubeconfig", kubeconfig_for(plane, folder)]  # fmt: skip
        return Measured("fluence", command, folder / "fluence.log")

    return start


CONTENDERS = (
    Contender("raw", "nobody", _raw, events=False),
    Contender("kube-scheduler", "default-scheduler", _kube_scheduler),
    Contender("fluence", "fluence", _fluence(events=True)),
    Contender("fluence-no-events", "fluence", _fluence(events=False), events=False),
    Contender("fluence-gangs", "fluence", _fluence(events=True), gang=GANG),
)


# ------------------------------------------------------------------ what there is to do


def _node(name: str) -> Manifest:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    labels = {"kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"capacity": _NODE, "allocatable": _NODE, "conditions": [ready]}}  # fmt: skip


def _pod(namespace: str, number: int, contender: Contender) -> Manifest:
    spec: Manifest = {
        "schedulerName": contender.scheduler,
        "containers": [{"name": "c", "image": "none", "resources": {"requests": _POD}}],
    }
    if contender.gang > 1:
        spec["schedulingGroup"] = {"podGroupName": f"gang-{number // contender.gang}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}", "namespace": namespace},
            "spec": spec}  # fmt: skip


def _group(namespace: str, number: int, size: int) -> Manifest:
    return {"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
            "metadata": {"name": f"gang-{number}", "namespace": namespace},
            "spec": {"schedulingPolicy": {"gang": {"minCount": size}}}}  # fmt: skip


async def _furnish(api: Bulk, namespace: str, nodes: int, pods: int, contender: Contender) -> None:
    await api.create_nodes([_node(f"{namespace}-node-{number}") for number in range(nodes)])
    if contender.gang > 1:
        groups = [_group(namespace, number, contender.gang) for number in range(pods // contender.gang)]
        await api.create(_GROUPS.format(namespace), groups)
    await api.create(f"/api/v1/namespaces/{namespace}/pods",
                     [_pod(namespace, number, contender) for number in range(pods)])  # fmt: skip


async def _clear(api: Bulk, namespace: str, pods: int, contender: Contender) -> None:
    await api.clear(f"/api/v1/namespaces/{namespace}/pods")
    if contender.gang > 1:  # no controller is there that takes the finalizer away
        groups = _GROUPS.format(namespace)
        names = [f"{groups}/gang-{number}" for number in range(pods // contender.gang)]
        await api.patch(names, {"metadata": {"finalizers": None}})
        await api.clear(groups)
    await api.clear(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    await api.clear("/api/v1/nodes")


# ------------------------------------------------------------------ observing

_VERSION = re.compile(rb'"resourceVersion":"(\d+)"')


def _version(line: bytes) -> str:
    """The resourceVersion of an event's object."""
    found = _VERSION.search(line)
    if found is None:
        raise StartError(f"a watch ended: {line[:300].decode(errors='replace')}")
    return found.group(1).decode()


@dataclass(slots=True)
class Observer:
    """When pods were seen bound, by this process's clock."""

    wanted: int
    times: list[float] = field(default_factory=list)
    at_first: Callable[[], None] = lambda: None
    all_bound: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self, api: Bulk, namespace: str) -> None:
        """Until cancelled. A field selector makes each pod an ADDED event when it is bound.

        The API server closes watches that are read too slowly, as this one may be while all the processors are busy.
        """
        path = f"/api/v1/namespaces/{namespace}/pods"
        query = {"fieldSelector": "spec.nodeName!="}
        while True:
            response = await api.lines(path, query)
            try:
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    now = time.monotonic()
                    for line in lines:
                        if line.startswith(b'{"type":"ADDED"'):
                            self._seen(now)
                    if lines:
                        query["resourceVersion"] = _version(lines[-1])
            except aiohttp.ClientError:
                pass  # as when it ends: the next one goes on where this one was
            finally:
                response.close()

    def _seen(self, now: float) -> None:
        if not self.times:
            self.at_first()
        self.times.append(now)
        if len(self.times) == self.wanted:
            self.all_bound.set()

    async def finished(self, process: Measured) -> None:
        """Return when all are bound. Raises StartError where nothing happens any more."""
        while not self.all_bound.is_set():
            seen = len(self.times)
            with suppress(TimeoutError):
                async with asyncio.timeout(_SILENCE):
                    await self.all_bound.wait()
            if len(self.times) == seen:
                raise StartError(f"{process.name}: {seen} of {self.wanted} pods are bound, and nothing happens:\n"
                                 f"{process.tail()}")  # fmt: skip


async def _events(api: Bulk, namespace: str, wanted: int) -> tuple[int, float]:
    """How many events there are once all are, or no more come, and when the last was seen."""
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    count, at = -1, time.monotonic()
    while count < wanted and time.monotonic() - at < _EVENTS_SILENCE:
        now = await api.count(path)
        if now > count:
            count, at = now, time.monotonic()
        await asyncio.sleep(_POLL)
    return count, at


# ------------------------------------------------------------------ one run


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@contextmanager
def _ended(process: Measured) -> Iterator[None]:
    try:
        yield
    finally:
        process.stop()


async def _run(plane: ControlPlane, folder: Path, contender: Contender, round_: int, nodes: int, pods: int) -> Result:
    namespace = await asyncio.to_thread(plane.new_namespace)
    result = Result(contender.name, round_, pods)
    async with Bulk(plane) as api:
        _tell(f"{contender.name}: {nodes} nodes and {pods} pods are made")
        await _furnish(api, namespace, nodes, pods, contender)
        try:
            await _measure(api, plane, folder, namespace, contender, result)
        finally:
            _tell(f"{contender.name}: all of it is deleted")
            await _clear(api, namespace, pods, contender)
    return result


async def _measure(
    api: Bulk, plane: ControlPlane, folder: Path, namespace: str, contender: Contender, result: Result
) -> None:
    observer = Observer(result.pods)
    watch = asyncio.ensure_future(observer.watch(api, namespace))
    progress = asyncio.ensure_future(_progress(observer, contender.name))
    began = time.monotonic()
    process = await asyncio.to_thread(contender.start, plane, folder, namespace)
    try:
        with _ended(process):
            used: list[float] = []
            observer.at_first = lambda: used.append(process.cpu_seconds())
            await observer.finished(process)
            result.cpu_binding = process.cpu_seconds() - used[0]
            result.first = observer.times[0] - began
            result.seconds = result.events_seconds = observer.times[-1] - observer.times[0]
            if contender.events:
                wanted = result.pods + (result.pods // contender.gang if contender.gang > 1 else 0)
                result.events, at = await _events(api, namespace, wanted)
                result.events_seconds = max(at, observer.times[-1]) - observer.times[0]
            result.cpu, result.memory = process.cpu_seconds(), process.peak_mib()
    finally:
        for task in (watch, progress):
            task.cancel()
        await asyncio.gather(watch, progress, return_exceptions=True)
    _tell(f"{contender.name}: {result.rate:.0f} pods/s, {result.events} events")


async def _progress(observer: Observer, name: str) -> None:
    while True:
        await asyncio.sleep(5)
        _tell(f"{name}: {len(observer.times)} of {observer.wanted} pods are bound")


# ------------------------------------------------------------------ all of it


def run_all(contenders: Sequence[Contender], nodes: int, pods: int, rounds: int) -> list[Result]:
    """Every contender in every round."""
    results = []
    folder = Path(tempfile.mkdtemp(prefix="bench-live-"))
    (folder / "plane").mkdir()
    with ControlPlane(folder / "plane") as plane:
        for number in range(1, rounds + 1):
            for contender in contenders if number % 2 else reversed(contenders):
                where = folder / f"{number}-{contender.name}"
                where.mkdir()
                results.append(asyncio.run(_run(plane, where, contender, number, nodes, pods)))
    return results


def summary(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for each contender: medians over its rounds; ratios are medians of those within a round."""
    rows = []
    for name in dict.fromkeys(result.contender for result in results):
        own = [result for result in results if result.contender == name]
        row: dict[str, Any] = {"contender": name, "rounds": len(own)}
        for key in ("rate", "events_rate", "first", "events", "cpu", "cpu_binding", "memory"):
            row[key] = median(getattr(result, key) for result in own)
        for other in ("kube-scheduler", "raw"):
            rates = {result.round: result.rate for result in results if result.contender == other}
            ratios = [result.rate / rates[result.round] for result in own if rates.get(result.round)]
            row[f"of_{other}"] = median(ratios) if ratios else None
        rows.append(row)
    return rows


_COLUMNS = (
    ("contender", "contender", "s"), ("pods/s", "rate", ".0f"), ("x kube-scheduler", "of_kube-scheduler", ".2f"),
    ("x raw", "of_raw", ".2f"), ("events pods/s", "events_rate", ".0f"), ("events", "events", ".0f"),
    ("first s", "first", ".1f"), ("cpu s", "cpu", ".1f"), ("cpu s binding", "cpu_binding", ".1f"),
    ("memory MiB", "memory", ".0f"),
)  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text."""
    lines = [[title for title, _, _ in _COLUMNS]]
    lines += [["-" if row[key] is None else format(row[key], form) for _, key, form in _COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) if number else cell.ljust(width)
                  for number, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; returns the exit status."""
    names = [contender.name for contender in CONTENDERS]
    parser = argparse.ArgumentParser(prog="bench_live", description="How fast pods are bound on a real API server.")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=5000, help=f"a multiple of {GANG}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default=",".join(names), help=f"some of {', '.join(names)}, with commas between")
    parser.add_argument("--json", type=Path, help="write every run and the summary into this file, too")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",")
    if options.pods % GANG or options.pods < GANG or set(chosen) - set(names):
        parser.error(f"--pods: a multiple of {GANG}; --only: some of {', '.join(names)}")
    contenders = [contender for contender in CONTENDERS if contender.name in chosen]
    results = run_all(contenders, options.nodes, options.pods, options.rounds)
    rows = summary(results)
    print(f"{options.nodes} nodes, {options.pods} pods, {options.rounds} rounds, {os.cpu_count()} processors")
    print(table(rows))
    if options.json:
        runs = [{**asdict(result), "rate": result.rate, "events_rate": result.events_rate} for result in results]
        options.json.write_text(json.dumps({"summary": rows, "runs": runs}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
