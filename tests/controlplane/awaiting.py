"""What live tests of pods and groups share: a scheduler that runs, and waiting for what is to come.

What must not happen is waited for, too: by a *marker*, a pod that no node takes. Its scheduler has said so of it only
after it has heard of all that came before, and done what there was to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

from .harness import SCHEDULER, ControlPlane
from .invariants import Manifest, condition
from .scheduler_process import SchedulerProcess, Settings

_T = TypeVar("_T")
PATIENCE: Final = 60.0


def until(what: str, found: Callable[[], _T | None]) -> _T:
    """What `found` returns, once that is something."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = found()
        if answer is not None and answer is not False:
            return answer
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)


@contextmanager
def running(plane: ControlPlane, folder: Path, settings: Settings) -> Iterator[SchedulerProcess]:
    """`fluence run` over the control plane."""
    with SchedulerProcess(folder, plane.kubeconfig(SCHEDULER), settings) as scheduler:
        scheduler.start()
        scheduler.wait_ready()
        yield scheduler


def pass_marker(plane: ControlPlane, namespace: str, scheduler: str, says: str = "", *, label: str = "") -> None:
    """Return when a scheduler has tried a new pod that no node takes, and `says` is a part of what it says of it.

    Of nodes without the `label` it says something else than that they lack cpu: pods and nodes come by watches of their
    own, and what is said of the one proves nothing of the other.
    """
    requests = {"requests": {"cpu": "1000"}}
    labelled = {"nodeSelectorTerms": [{"matchExpressions": [{"key": label, "operator": "Exists"}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": labelled}} if label else {}
    made = plane.create({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"marker-{uuid4().hex}", "namespace": namespace},
        "spec": {"schedulerName": scheduler, "affinity": affinity,
                 "containers": [{"name": "c", "image": "none", "resources": requests}]},
    })  # fmt: skip
    path = f"/api/v1/namespaces/{namespace}/pods/{made['metadata']['name']}"

    def said() -> bool:
        pod: Manifest = plane.request("GET", path)[1]
        told = condition(pod, "PodScheduled")
        return told is not None and says in told.get("message", "")

    until(f"what {scheduler} says of a pod that no node takes", said)
    plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
