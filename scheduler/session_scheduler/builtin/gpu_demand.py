"""How much pods that share GPUs leave nodes to pods with whole GPUs, if a node's GPUs are all whole or all shared.

It depends on the nodes' GPUs and on all pods that exist, pending ones included, so a restarted scheduler has the same
scores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from session_scheduler.builtin.gpu_amounts import GpuAmounts
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.gpu_shares import GPU_FRACTION, GPU_MEMORY, WHOLE


def kept_whole(pods: Mapping[TaskClass, int], resources: Collection[str], amounts: GpuAmounts) -> int | None:
    """How much sharers avoid nodes without shared GPUs, in percent; None if no pod requests a share.

    It is the part of the GPUs that would stay unshared if twice as many shares were requested, but at least the part of
    whole GPUs in all that is requested. `pods` are their numbers, `amounts` those of all nodes.
    """
    thousandths = memory = whole = 0
    for cls, number in pods.items():
        requested = cls.queue_amounts
        thousandths += number * requested.get(GPU_FRACTION, 0)
        memory += number * requested.get(GPU_MEMORY, 0)
        for resource in resources:
            whole += number * requested.get(resource, 0)
    if not thousandths and not memory:
        return None
    gpus = int(amounts.gpus.sum())
    known = int(amounts.gpus[amounts.memory > 0].sum())
    if known:  # of a GPU with average memory
        thousandths += memory * known * WHOLE // (2**20 * int((amounts.gpus * amounts.memory).sum()))
    unshared = 100 * max(WHOLE * gpus - 2 * thousandths, 0) // max(WHOLE * gpus, 1)
    return max(unshared, 100 * WHOLE * whole // max(WHOLE * whole + thousandths, 1))
