"""Helpers of live tests with pods and groups: a running scheduler, and waiting.

To check that something does not happen, a test waits for a *marker*: a pod that fits on no node. The scheduler reports
it only after it has processed all earlier events.
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
    """Wait until `found` returns something; return that."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = found()
        if answer is not None and answer is not False:
            return answer
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)


@contextmanager
def running(plane: ControlPlane, folder: Path, settings: Settings) -> Iterator[SchedulerProcess]:
    """Run `fluence run` over the control plane."""
    with SchedulerProcess(folder, plane.kubeconfig(SCHEDULER), settings) as scheduler:
        scheduler.start()
        scheduler.wait_ready()
        yield scheduler


def pass_marker(plane: ControlPlane, namespace: str, scheduler: str, says: str = "", *, label: str = "") -> None:
    """Wait until a scheduler reports a new pod that fits on no node, with a message that contains `says`.

    With `label` the message for nodes without this label differs from "Insufficient cpu". Pods and nodes arrive by
    separate watches, so a message about one does not prove that the other has arrived.
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
        reported = condition(pod, "PodScheduled")
        return reported is not None and says in reported.get("message", "")

    until(f"what {scheduler} says of a pod that no node takes", said)
    plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
