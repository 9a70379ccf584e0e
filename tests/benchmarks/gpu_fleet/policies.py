"""The paper's policies on arrays: BestFit and FGD. They are the measure for this project's own placement.

A policy scores every node that fits a pod. The highest score wins, and the first node of the run among equal ones.
Scores are integers from 0 to 100, so equal ones are frequent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from .fleet import Array, Fleet
from .fragmentation import Fragmentation
from .progress import Point, Progress
from .trace import WHOLE, Run, Shape

_LARGEST_CPU: Final = 128_000
_LARGEST_GPU: Final = 8 * WHOLE
"""What the paper divides by: the cpu and the GPUs of the largest node."""


class Policy(Protocol):
    """Scores nodes, and chooses the GPU for a part of one."""

    def scores(self, pod: Shape, rows: Array) -> Array:
        """Return the scores of these nodes, which are all that fit the pod."""

    def gpu(self, pod: Shape, row: int) -> int:
        """Return the index of the GPU for a pod that requests a part of one, after `scores`."""

    def changed(self, row: int) -> None:
        """Take note that a pod was placed on a node."""


class BestFit:
    """The node that has least left afterwards, half by cpu and half by GPUs; the fullest GPU that fits."""

    def __init__(self, fleet: Fleet, _: Sequence[Shape]) -> None:
        self._fleet = fleet

    def scores(self, pod: Shape, rows: Array) -> Array:
        """See `Policy`."""
        cpu = (self._fleet.cpu[rows] - pod.cpu) / _LARGEST_CPU
        gpu = (self._fleet.gpu[rows].sum(axis=1) - pod.total) / _LARGEST_GPU
        points: Array = (1 - (cpu / 2 + gpu / 2)) * 100
        return points.astype(np.int64)

    def gpu(self, pod: Shape, row: int) -> int:
        """See `Policy`."""
        left = self._fleet.gpu[row]
        return int(np.where(left >= pod.thousandths, left, 2 * WHOLE).argmin())

    def changed(self, row: int) -> None:
        """See `Policy`."""


class Fgd:
    """The node, and the GPU, where fragmentation grows least.

    A score is 100 · sigmoid(decrease in GPUs), rounded down.
    """

    def __init__(self, fleet: Fleet, workload: Sequence[Shape]) -> None:
        self._fleet = fleet
        self._fragmentation = Fragmentation(fleet, workload)
        self._now = self._fragmentation.now(np.arange(len(fleet.nodes)))
        self._known: dict[tuple[int, int, int], tuple[Array, Array, Array]] = {}
        """For each shape without its memory and models: score and GPU of each node, and whether they are stale."""

    def scores(self, pod: Shape, rows: Array) -> Array:
        """See `Policy`. Only nodes that changed since the shape's last pod are evaluated."""
        scores, gpus, stale = self._of(pod)
        again = rows[stale[rows]]
        if len(again):
            scores[again], gpus[again] = self._evaluate(pod, again)
            stale[again] = False
        return scores[rows]

    def gpu(self, pod: Shape, row: int) -> int:
        """See `Policy`."""
        return int(self._of(pod)[1][row])

    def changed(self, row: int) -> None:
        """See `Policy`."""
        self._now[row] = self._fragmentation.now(np.array([row]))[0]
        for _, _, stale in self._known.values():
            stale[row] = True

    def _of(self, pod: Shape) -> tuple[Array, Array, Array]:
        key = (pod.cpu, pod.gpus, pod.thousandths)
        if key not in self._known:
            nodes = len(self._fleet.nodes)
            self._known[key] = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64), np.ones(nodes, np.bool_)
        return self._known[key]

    def _evaluate(self, pod: Shape, rows: Array) -> tuple[Array, Array]:
        cpu, gpu = self._fleet.cpu[rows] - pod.cpu, self._fleet.gpu[rows]
        if pod.shares:
            earlier = np.tri(gpu.shape[1], k=-1, dtype=np.bool_)
            repeated = ((gpu[:, :, None] == gpu[:, None, :]) & earlier).any(axis=2)
            of, on = np.nonzero((gpu >= pod.thousandths) & ~repeated)
            after = gpu[of]
            after[np.arange(len(of)), on] -= pod.thousandths
            points = np.full(gpu.shape, -1)
            points[of, on] = self._points(rows[of], self._fragmentation.of(rows[of], cpu[of], after))
            best = points.argmax(axis=1)
            return points[np.arange(len(rows)), best], best
        whole = gpu == WHOLE
        taken = whole & (whole.cumsum(axis=1) <= pod.gpus)
        then = self._fragmentation.of(rows, cpu, np.where(taken, 0, gpu))
        return self._points(rows, then), np.zeros(len(rows), np.int64)

    def _points(self, rows: Array, then: Array) -> Array:
        decrease = (self._now[rows] - then) / WHOLE
        return (100 / (1 + np.exp(-decrease))).astype(np.int64)


def place(run: Run, workload: Sequence[Shape], kind: type[BestFit] | type[Fgd]) -> list[Point]:
    """Place the pods of a run in order. The policy does not retry what fits nowhere."""
    fleet = Fleet(run.nodes)
    progress = Progress(fleet, workload)
    policy: Policy = kind(fleet, workload)
    for pod in run.pods:
        rows = np.flatnonzero(fleet.fits(pod))
        if not len(rows):
            progress.refused(pod)
            continue
        row = int(rows[policy.scores(pod, rows).argmax()])
        fleet.place(pod, row, policy.gpu(pod, row) if pod.shares else 0)
        policy.changed(row)
        progress.placed(pod, row)
    return progress.points()
