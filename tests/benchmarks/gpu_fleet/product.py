"""This project's own placement of a run, by the in-memory simulation of `fluence simulate`."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

from session_scheduler.cluster.memory import MemoryCluster
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.model.gpu_shares import GPU, GPU_FRACTION
from session_scheduler.model.objects import Pod
from session_scheduler.offline.state import open_state, read_state

from .fleet import Fleet
from .progress import Point, Progress
from .trace import WHOLE, Run, Shape, TraceNode

_GPU: Final = "nvidia.com/gpu"
_MODEL: Final = "nvidia.com/gpu.product"
_BATCH: Final = 32
"""The number of pods that arrive between two cycles."""
_FIRST: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Placement:
    """The index of a pod's node, and the slot that the scheduler counts its part of a GPU on."""

    row: int
    slot: int | None


@dataclass(frozen=True, slots=True)
class Placed:
    """The placement of each pod, None for refused ones, and the CPU seconds of the scheduling."""

    placements: tuple[Placement | None, ...]
    seconds: float


def place(run: Run, config: SchedulerConfig) -> Placed:
    """Let the scheduler place the pods of a run in order of arrival.

    They arrive in batches, and a cycle decides each batch before the next arrives: no decision knows later pods.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests(run))}))
        return asyncio.run(_place(file, config))


async def _place(file: Path, config: SchedulerConfig) -> Placed:
    state = await read_state([str(file)])
    pods = [one for one in state.brought if isinstance(one, Pod)]
    nodes = tuple(one for one in state.brought if not isinstance(one, Pod))
    scheduler = await open_state(replace(state, brought=nodes), config, warns=False)
    cluster = cast("MemoryCluster", scheduler.cluster)
    started = time.process_time()
    for first in range(0, len(pods), _BATCH):
        for pod in pods[first : first + _BATCH]:
            await scheduler.event_handlers.apply("ADDED", cluster.put(pod))
        await scheduler.cycle()
    seconds = time.process_time() - started
    placements: list[Placement | None] = [None] * len(pods)
    for pod in (await cluster.list(Pod)).items:
        if pod.spec.node_name:
            slot = pod.metadata.annotations.get(GPU)
            placements[_index(pod.metadata.name)] = Placement(_index(pod.spec.node_name), int(slot) if slot else None)
    return Placed(tuple(placements), seconds)


def replay(run: Run, workload: Sequence[Shape], placements: Iterable[Placement | None]) -> list[Point]:
    """Return the points of placements. Raises ValueError if one does not fit what the trace's node has left.

    Slots are numbers that the scheduler gives to shared GPUs. Each stands for one GPU, but which one is not part of the
    placement: it is one that no pod uses when the first pod gets the slot.
    """
    fleet = Fleet(run.nodes)
    progress = Progress(fleet, workload)
    gpus: dict[tuple[int, int], int] = {}
    for pod, placement in zip(run.pods, placements, strict=True):
        if placement is None:
            progress.refused(pod)
            continue
        row, gpu = placement.row, 0
        fits = bool(fleet.fits(pod)[row])
        if pod.shares:
            if placement.slot is None:
                raise ValueError(f"{pod} has no slot on node {row}")
            slot = row, placement.slot
            if slot not in gpus and len(untouched := fleet.untouched(row)):
                gpus[slot] = int(untouched[0])
            gpu = gpus.get(slot, 0)
            fits = fits and slot in gpus and fleet.gpu[row, gpu] >= pod.thousandths
        if not fits:
            raise ValueError(f"{pod} does not fit node {row}: {fleet.cpu[row]}m cpu, GPUs {fleet.gpu[row].tolist()}")
        fleet.place(pod, row, gpu)
        progress.placed(pod, row)
    return progress.points()


def manifests(run: Run) -> Iterator[dict[str, Any]]:
    """The run's nodes and pending pods. Names and creation times have the run's order."""
    for index, node in enumerate(run.nodes):
        yield _node(index, node)
    for index, pod in enumerate(run.pods):
        yield _pod(index, pod)


def _node(index: int, node: TraceNode) -> dict[str, Any]:
    offers = {"cpu": f"{node.cpu}m", "memory": f"{node.memory}Mi", "pods": "1001", _GPU: str(node.gpus)}
    labels = {"kubernetes.io/hostname": f"n{index:05}", _MODEL: node.model}
    metadata = {"name": f"n{index:05}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"allocatable": offers}}


def _pod(index: int, pod: Shape) -> dict[str, Any]:
    resources: dict[str, Any] = {"requests": {"cpu": f"{pod.cpu}m", "memory": f"{pod.memory}Mi"}}
    metadata: dict[str, Any] = {"name": f"p{index:05}"}
    metadata["creationTimestamp"] = f"{_FIRST + timedelta(seconds=index):%Y-%m-%dT%H:%M:%SZ}"
    spec: dict[str, Any] = {"schedulerName": "fluence", "containers": [{"name": "main", "resources": resources}]}
    if pod.shares:
        metadata["annotations"] = {GPU_FRACTION: f"{pod.thousandths / WHOLE:.3f}"}
    elif pod.gpus:
        resources["limits"] = {_GPU: str(pod.gpus)}
    if pod.models:
        of_model = {"key": _MODEL, "operator": "In", "values": list(pod.models)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [of_model]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _index(name: str) -> int:
    return int(name[1:])
