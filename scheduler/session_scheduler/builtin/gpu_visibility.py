"""The check that the containers of a pod that shares GPUs see these GPUs only, where a node may also have whole ones.

NVIDIA's container runtime shows a container the GPUs in `NVIDIA_VISIBLE_DEVICES`. Images may set it to all GPUs, and
pods from the time of `wholeGpus: separate` set it to indices, which are then other GPUs. The environment of an
existing pod cannot change. GpuSharing rejects such pods.
"""

from __future__ import annotations

from typing import Final

from session_scheduler.model.gpu_shares import GPU_DEVICE, VISIBLE_DEVICES
from session_scheduler.model.objects import Pod

_PATH: Final = f"metadata.annotations['{GPU_DEVICE}']"


def visibility(pod: Pod) -> tuple[str | None, str | None]:
    """The first container that sets the variable to anything but the pod's devices, and the first without it."""
    wrong = without = None
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        sources = [variable.value_from for variable in container.env if variable.name == VISIBLE_DEVICES]
        if not sources:
            without = container.name if without is None else without
        elif any(one is None or one.field_ref is None or one.field_ref.field_path != _PATH for one in sources):
            wrong = container.name if wrong is None else wrong
    return wrong, without


def refusal_text(pod: Pod, *, live: bool) -> str | None:
    """Why the scheduler rejects a pod, and the remedy; None if it does not.

    `live`: pods come from an API server, which calls the webhook. Pods from manifests may lack the variable.
    """
    wrong, without = visibility(pod)
    if wrong is not None:
        return (f"container {wrong!r} does not set {VISIBLE_DEVICES} from the annotation {GPU_DEVICE} "
                "(wholeGpus: reserved); remove the variable from the manifest, and create the pod again")  # fmt: skip
    if without is not None and live:
        return (f"container {without!r} lacks the environment variable {VISIBLE_DEVICES} (wholeGpus: reserved); create "
                "the pod again; the webhook fluence-webhook did not process it, or excludes its namespace")  # fmt: skip
    return None
