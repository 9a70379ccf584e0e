"""One node, as the callbacks that evaluate node by node see it."""

from __future__ import annotations

from typing import Any

from session_scheduler.model.columns import NodeView
from session_scheduler.model.gpu_shares import EVERY, MEMORY_SUFFIX, WHOLE, GpuUse


class NodeInfo:
    """One node for predicates and node orders: the object, and the resources that are left on it."""

    __slots__ = ("_index", "_view")

    def __init__(self, view: NodeView, index: int) -> None:
        self._view = view
        self._index = index

    @property
    def name(self) -> str:
        """The node's name."""
        return self._view.node(self._index).metadata.name

    @property
    def labels(self) -> dict[str, str]:
        """The node's labels."""
        return self._view.node(self._index).metadata.labels

    @property
    def node(self) -> Any:
        """The Node object."""
        return self._view.node(self._index)

    def allocatable(self, resource: str) -> int:
        """Return the node's allocatable amount: cpu in millicores, all others in base units."""
        return int(self._view.allocatable(resource)[self._index])

    def idle(self, resource: str) -> int:
        """Return the amount that pods on the node do not request; this session's placements count."""
        return self.allocatable(resource) - int(self._view.used(resource)[self._index])

    def gpu_used(self, gpu: str) -> float:
        """Return the part of one GPU (by index), 0 to 1, that pods use; this session's placements count."""
        memory = next((int(text) for label, text in self.labels.items() if self._is_gpu_memory(label, text)), 0)
        used = 0.0
        for index in (int(gpu), EVERY):
            used += int(self._view.counter(GpuUse(index, in_mib=False))[self._index]) / WHOLE
            used += int(self._view.counter(GpuUse(index, in_mib=True))[self._index]) / max(memory, 1)
        return min(used, 1.0)

    def _is_gpu_memory(self, label: str, text: str) -> bool:
        resource = label.removesuffix(MEMORY_SUFFIX)
        return resource != label and text.isdecimal() and self.allocatable(resource) > 0
