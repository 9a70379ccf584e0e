"""The state of the fleet on arrays: what is left on each node and each GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .trace import WHOLE, Shape, TraceNode

Array = np.ndarray[Any, np.dtype[Any]]


class Fleet:
    """What is left on each node: [node] for cpu and memory, [node, gpu] for GPUs, in thousandths."""

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        self.nodes = nodes
        self.cpu: Array = np.array([node.cpu for node in nodes])
        self.memory: Array = np.array([node.memory for node in nodes])
        gpus = np.array([node.gpus for node in nodes])
        self.gpu: Array = np.where(np.arange(gpus.max()) < gpus[:, None], WHOLE, 0)
        self._models = np.array([node.model for node in nodes])
        self._accepts: dict[tuple[str, ...], Array] = {}

    def accepts(self, models: tuple[str, ...]) -> Array:
        """Return a bool for each node: whether its GPUs have one of the models."""
        if models not in self._accepts:
            self._accepts[models] = np.isin(self._models, models) if models else np.ones(len(self.nodes), np.bool_)
        return self._accepts[models]

    def fits(self, pod: Shape) -> Array:
        """Return a bool for each node."""
        fits: Array = (self.cpu >= pod.cpu) & (self.memory >= pod.memory)
        if pod.gpus:
            fits &= self.accepts(pod.models) & ((self.gpu >= pod.thousandths).sum(axis=1) >= pod.gpus)
        return fits

    def place(self, pod: Shape, row: int, gpu: int = 0) -> None:
        """Place a pod on a node: a part on the GPU of this index, whole ones on the first that are free."""
        self.cpu[row] -= pod.cpu
        self.memory[row] -= pod.memory
        if pod.shares:
            self.gpu[row, gpu] -= pod.thousandths
        elif pod.gpus:
            self.gpu[row, self.untouched(row)[: pod.gpus]] = 0

    def untouched(self, row: int) -> Array:
        """Return the indices of the GPUs of a node that no pod uses."""
        return np.flatnonzero(self.gpu[row] == WHOLE)
