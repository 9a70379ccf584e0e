"""The paper's measure of fragmentation: the GPU thousandths that a random pod of the workload cannot use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from .fleet import Array, Fleet
from .trace import Shape

_TYPICAL: Final = 0.95
"""The most frequent shapes that are at least this part of all pods are the workload that fragmentation refers to."""


class Fragmentation:
    """The fragmentation of nodes.

    A shape that a node does not fit cannot use any of its GPUs; one that it fits cannot use the GPUs with too little
    left for it. The average is over the typical shapes by their frequency.
    """

    def __init__(self, fleet: Fleet, workload: Sequence[Shape]) -> None:
        self._fleet = fleet
        shapes, self._frequency = typical(workload)
        self._cpu = np.array([shape.cpu for shape in shapes])
        self._count = np.array([shape.gpus for shape in shapes])
        self._parts, self._part_of = np.unique([shape.thousandths for shape in shapes], return_inverse=True)
        self._uses_gpus = self._count > 0
        self._accepted = np.array([fleet.accepts(shape.models) for shape in shapes]).T

    def now(self, rows: Array) -> Array:
        """Return the fragmented thousandths of nodes as they are."""
        return self.of(rows, self._fleet.cpu[rows], self._fleet.gpu[rows])

    def of(self, rows: Array, cpu: Array, gpu: Array) -> Array:
        """Return the fragmented thousandths of nodes in given states: cpu [state], GPUs [state, gpu].

        The paper's simulator adds up the shapes by the reason why they cannot use the GPUs, then the reasons, and so
        does this: where a placement changes only a reason, the last bit of the sum decides between 49 and 50 points.
        """
        too_small = gpu[:, None, :] < self._parts[None, :, None]
        lost = np.where(too_small, gpu[:, None, :], 0).sum(axis=2)[:, self._part_of]
        enough_gpus = (~too_small).sum(axis=2)[:, self._part_of] >= self._count
        enough_cpu = cpu[:, None] >= self._cpu
        accepted = self._accepted[rows]
        fits_gpus = accepted & enough_gpus & self._uses_gpus
        fragments = np.where(fits_gpus & enough_cpu, lost, gpu.sum(axis=1)[:, None]) * self._frequency
        lacks_gpus = accepted & ~enough_gpus & self._uses_gpus
        reasons = (
            lacks_gpus & ~enough_cpu,
            (lacks_gpus | fits_gpus) & enough_cpu,
            fits_gpus & ~enough_cpu,
            enough_cpu & ~self._uses_gpus,
            ~enough_cpu & ~self._uses_gpus,
            ~accepted & self._uses_gpus,
        )
        found = np.zeros(len(rows))
        for reason in reasons:  # cumsum adds one after the other, unlike sum
            found += np.where(reason, fragments, 0.0).cumsum(axis=1)[:, -1]
        return found


def typical(workload: Sequence[Shape]) -> tuple[list[Shape], Array]:
    """Return the most frequent shapes, memory left out, and their frequencies, which add up to 1."""
    counts = Counter(Shape(pod.cpu, 0, pod.gpus, pod.thousandths, pod.models) for pod in workload)
    shapes: list[Shape] = []
    numbers: list[int] = []
    for shape, number in sorted(counts.items(), key=lambda entry: (entry[1], _order(entry[0])), reverse=True):
        if sum(numbers) >= _TYPICAL * len(workload):
            break
        shapes.append(shape)
        numbers.append(number)
    return shapes, np.array(numbers) / len(workload) / (sum(numbers) / len(workload))


def _order(shape: Shape) -> tuple[int, int, int, str]:
    return shape.cpu, shape.thousandths, shape.gpus, "|".join(shape.models)
