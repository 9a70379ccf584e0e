"""The trace: nodes with GPUs, the pods of a variant, and one seed's order of both."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

WHOLE: Final = 1000
"""A GPU, in thousandths."""
ARRIVALS: Final = 1.3
"""The paper's arrivals request this multiple of all GPUs."""
NODES_FILE: Final = "openb_node_list_gpu_node.csv"
_PODS_FILE: Final = "openb_pod_list_{}.csv"


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node: cpu in millicores, memory in MiB."""

    cpu: int
    memory: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """What a pod requests: cpu in millicores, memory in MiB, and `thousandths` of each of `gpus` GPUs."""

    cpu: int
    memory: int
    gpus: int
    thousandths: int
    models: tuple[str, ...] = ()
    """The accepted models of the GPUs; empty if any is."""

    @property
    def total(self) -> int:
        """The thousandths of all GPUs together."""
        return self.gpus * self.thousandths

    @property
    def shares(self) -> bool:
        """Whether it requests a part of a GPU. The trace has no parts of several GPUs."""
        return 0 < self.thousandths < WHOLE


@dataclass(frozen=True, slots=True)
class Run:
    """One seed: the pods in the order of arrival, and the nodes in the order that decides between equal scores."""

    nodes: tuple[TraceNode, ...]
    pods: tuple[Shape, ...]

    @property
    def capacity(self) -> int:
        """The thousandths of all GPUs."""
        return WHOLE * sum(node.gpus for node in self.nodes)


def read_nodes(folder: Path) -> list[TraceNode]:
    """Return the nodes with GPUs. Raises OSError, ValueError."""
    with (folder / NODES_FILE).open(newline="") as file:
        return [
            TraceNode(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
            for row in csv.DictReader(file)
        ]


def read_pods(folder: Path, variant: str) -> list[Shape]:
    """Return the pods of a variant, such as "default" or "gpushare40". Raises OSError, ValueError."""
    with (folder / _PODS_FILE.format(variant)).open(newline="") as file:
        return [_shape(row) for row in csv.DictReader(file)]


def variants_in(folder: Path) -> list[str]:
    """Return the names of the variants in a folder."""
    start, end = _PODS_FILE.split("{}")
    return sorted(path.name.removeprefix(start).removesuffix(end) for path in folder.glob(f"{start}*{end}"))


def _shape(row: dict[str, str]) -> Shape:
    gpus = int(row["num_gpu"])
    thousandths = min(int(row["gpu_milli"]), WHOLE) if gpus else 0
    models = tuple(sorted(filter(None, (row.get("gpu_spec") or "").split("|")))) if gpus else ()
    return Shape(int(row["cpu_milli"]), int(row["memory_mib"]), gpus, thousandths, models)


def run_of(nodes: Sequence[TraceNode], pods: Sequence[Shape], seed: int, ratio: float = ARRIVALS) -> Run:
    """Return a seed's run: its arrivals request `ratio` of all GPUs.

    The variant's pods arrive first, in random order; pods sampled from them with replacement follow. If the variant's
    pods alone request more, random ones are left out instead. The order of the nodes is random, too: scores are often
    equal, and with the file's order, which lists nodes by model, ties would fill one model after the other.
    """
    random = Random(seed)
    limit = ratio * WHOLE * sum(node.gpus for node in nodes)
    arriving = list(pods)
    requested = sum(pod.total for pod in arriving)
    random.shuffle(arriving)
    while requested > limit:
        requested -= arriving.pop(random.randrange(len(arriving))).total
    while requested + (pod := random.choice(pods)).thousandths <= limit:
        arriving.append(pod)
        requested += pod.total
    ordered = list(nodes)
    random.shuffle(ordered)
    return Run(tuple(ordered), tuple(arriving))


def generated(seed: int, nodes: int = 24, pods: int = 200) -> tuple[list[TraceNode], list[Shape]]:
    """Return a small fleet and a workload with parts, whole GPUs, models, and pods without GPUs."""
    random = Random(seed)
    fleet = [
        TraceNode(32_000 * (1 + gpus // 4), 131_072, gpus, random.choice(("A", "B", "C")))
        for gpus in random.choices((1, 2, 4, 8), k=nodes)
    ]
    workload = []
    for _ in range(pods):
        kind = random.random()
        gpus = 0 if kind < 0.15 else 1 if kind < 0.8 else random.choice((1, 2, 4))
        thousandths = 0 if not gpus else random.choice((100, 250, 300, 500, 550, 700)) if kind < 0.6 else WHOLE
        models = random.choice(((), (), ("A",), ("B", "C"))) if gpus else ()
        workload.append(Shape(random.choice((500, 2000, 7500)) * max(gpus, 1), 1024, gpus, thousandths, models))
    return fleet, workload
