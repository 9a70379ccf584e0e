"""Which pods hold the GPUs of a node: shared ones by the facts of the plugin GpuSharing, whole ones by their requests.

Only the kubelet knows the index of a GPU that a pod uses whole: the pods get the indices that no pod shares, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from session_scheduler.model.columns import natural
from session_scheduler.model.gpu_reservations import RESERVATION
from session_scheduler.model.gpu_shares import (
    EVERY,
    GIVEN,
    MEMORY_SUFFIX,
    WHOLE,
    Share,
    ShareError,
    given_to,
    gpus_of,
    share_of,
)
from session_scheduler.model.groups import Task
from session_scheduler.model.objects import Node
from session_scheduler.observation.values import Gpu

_MODEL_SUFFIX = ".product"


def gpus_on(row: int, node: Node, counts: Mapping[str, int], tasks: Sequence[Task]) -> Iterator[Gpu]:
    """The GPUs of one node, by resource and index.

    `counts`: how many of each resource the node offers. Pods share those of the first resource.
    """
    tasks = sorted((task for task in tasks if RESERVATION not in task.pod.metadata.labels),
                   key=lambda task: natural(task.key))  # fmt: skip
    for number, (resource, count) in enumerate(counts.items()):
        holders: list[dict[str, float]] = [{} for _ in range(count)]
        for task in tasks if number == 0 else ():
            _add_shares(task, holders, _memory(node, resource))
        free = iter([holder for holder in holders if not holder])
        for task in tasks:
            for _ in range(task.cls.requests.get(resource, 0)):
                holder = next(free, None)
                if holder is not None:
                    holder[task.key] = 1.0
        model = node.metadata.labels.get(resource + _MODEL_SUFFIX)
        for index, holder in enumerate(holders):
            yield Gpu(row, resource, index, model, holder)


def _add_shares(task: Task, holders: Sequence[dict[str, float]], memory: int) -> None:
    """Add a pod to the GPUs that it shares. A pod whose GPUs are unknown counts on each, as in the scheduler."""
    try:
        share = share_of(task.cls.pod.metadata)
    except ShareError:
        return
    if share is None:
        return
    gpus = gpus_of(task.counts) if GIVEN in task.counts else given_to(task.pod.metadata, share)
    for index in range(len(holders)) if gpus is None or EVERY in gpus else gpus:
        if index < len(holders):
            holders[index][task.key] = _part(share, memory)


def _part(share: Share, memory: int) -> float:
    if share.thousandths:
        return share.thousandths / WHOLE
    return min(1.0, share.mib / memory) if memory else 0.0


def _memory(node: Node, resource: str) -> int:
    """The MiB of one GPU, from the node's label; 0 if it is unknown."""
    text = node.metadata.labels.get(resource + MEMORY_SUFFIX, "")
    return int(text) if text.isascii() and text.isdigit() else 0
