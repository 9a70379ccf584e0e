"""Who binds pods in `make bench-live`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from . import binaries
from .harness import GATES, ControlPlane
from .measured import Measured
from .processes import free_ports
from .scheduler_process import Settings, fluence_of, kubeconfig_for
from .workloads import Turn, Workload

Start = Callable[[ControlPlane, Path, Workload, Turn], Measured]
"""Starts it over what there is; the folder is its own."""
KUBE_SCHEDULER: Final = "kube-scheduler"
FLUENCE: Final = "fluence"
OTHER: Final = "other"
"""The scheduler of another checkout, beside FLUENCE."""
FILTERS: Final = "default-filters"
RAW: Final = "raw"
_OWN: Final = Path(sys.executable).with_name("fluence")


@dataclass(frozen=True, slots=True)
class Contender:
    """Who binds, and what."""

    name: str
    scheduler: str
    """What pods name in `schedulerName`."""
    start: Start
    events: bool = True
    """Whether it writes one for each pod that it has bound."""
    bare: bool = False
    """Whether it takes part in the workloads that are so, and in no others."""

    def takes(self, workload: Workload) -> bool:
        """Whether it takes part in this workload."""
        return self.bare is workload.bare


def _raw(plane: ControlPlane, folder: Path, _: Workload, turn: Turn) -> Measured:
    user = kubeconfig_for(plane, folder)  # an administrator is neither authorised nor queued
    command: list[str | Path] = [sys.executable, "-m", "tests.controlplane.raw_binder", user, turn.namespace]
    return Measured(RAW, command, folder / "raw.log")


def _kube_scheduler(plane: ControlPlane, folder: Path, workload: Workload, _: Turn) -> Measured:
    """With its defaults, but without the limit of requests per second, which is far below what is measured here.

    For groups it has the feature gates that the API server has.
    """
    config = folder / "kube-scheduler.yaml"
    kubeconfig = plane.kubeconfig("system:kube-scheduler")
    config.write_text(yaml.safe_dump({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 100_000, "burst": 100_000},
        "leaderElection": {"leaderElect": False},
    }))  # fmt: skip
    gates = [f"--feature-gates={','.join(f'{gate}=true' for gate in GATES)}"] if workload.gang > 1 else []
    program = binaries.find(KUBE_SCHEDULER)[KUBE_SCHEDULER]
    command: list[str | Path] = [program, f"--config={config}", "--secure-port=0", *gates]
    return Measured(KUBE_SCHEDULER, command, folder / "kube-scheduler.log")


def _fluence(ours: dict[str, Any], program: Path = _OWN) -> Start:
    def start(plane: ControlPlane, folder: Path, _: Workload, __: Turn) -> Measured:
        (port,) = free_ports(1)
        settings = Settings(gang_bind_timeout_seconds=60, reconcile_seconds=60, more={"backoff": {}} | ours)
        config = folder / "fluence.yaml"
        config.write_text(yaml.safe_dump(settings.configuration(port, None)))
        command: list[str | Path] = [program, "run", "--config", config, "--kubeconfig", kubeconfig_for(plane, folder)]
        return Measured(FLUENCE, command, folder / "fluence.log")

    return start


def other(checkout: Path) -> Contender:
    """The scheduler of another checkout, started as FLUENCE is. Raises StartError where there is none."""
    return Contender(OTHER, "fluence", _fluence({}, fluence_of(checkout)))


_NO_GRAPH = {"profiles": [{"schedulerName": "fluence", "plugins": [{"name": "fluence", "enabled": False}]}]}
"""What places by filters and scores alone: nothing is put into a graph, and nothing is written of what pods hold."""
CONTENDERS: Final = (
    Contender(RAW, "nobody", _raw, events=False, bare=True),
    Contender(KUBE_SCHEDULER, "default-scheduler", _kube_scheduler),
    Contender(FLUENCE, "fluence", _fluence({})),
    Contender(FILTERS, "fluence", _fluence(_NO_GRAPH | {"events": False}), events=False, bare=True),
)
