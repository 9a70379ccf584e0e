"""The contenders of `make bench-live`: schedulers, and a program that only writes and decides nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from . import binaries
from .busy_dashboard import SERVING
from .harness import GATES, ControlPlane
from .measured import Measured
from .processes import Program, free_ports
from .scheduler_process import Settings, fluence_of, kubeconfig_for
from .workloads import Turn, Workload

Start = Callable[[ControlPlane, Path, Workload, Turn], Measured]
"""Starts it on the existing objects; the folder is its own."""
KUBE_SCHEDULER: Final = "kube-scheduler"
FLUENCE: Final = "fluence"
OTHER: Final = "other"
"""The name of another checkout's scheduler, which runs beside FLUENCE."""
DASHBOARD: Final = "beside-dashboard"
"""The name of FLUENCE beside a dashboard of the same cluster with busy users."""
_PATIENCE: Final = 60.0
FILTERS: Final = "default-filters"
RAW: Final = "raw"
_OWN: Final = Path(sys.executable).with_name("fluence")


@dataclass(frozen=True, slots=True)
class Contender:
    """A contender, and the pods that it binds."""

    name: str
    scheduler: str
    """The `schedulerName` of its pods."""
    start: Start
    events: bool = True
    """Whether it records an event for each pod that it has bound or reported."""
    takes: Callable[[Workload], bool] = lambda workload: not workload.bare
    """Whether it takes part in a workload."""


def _raw(plane: ControlPlane, folder: Path, workload: Workload, turn: Turn) -> Measured:
    user = kubeconfig_for(plane, folder)  # requests of an administrator skip authorisation and queueing
    what = "reports" if workload.full else "bindings"
    command: list[str | Path] = [sys.executable, "-m", "tests.controlplane.raw_writer", user, turn.namespace, what]
    return Measured(RAW, command, folder / "raw.log")


def _kube_scheduler(plane: ControlPlane, folder: Path, workload: Workload, _: Turn) -> Measured:
    """kube-scheduler with its defaults, but without its limit of requests per second, which would dominate the result.

    For groups it has the same feature gates as the API server.
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
        return Measured(FLUENCE, _run_command(plane, folder, ours, program), folder / "fluence.log")

    return start


def _run_command(plane: ControlPlane, folder: Path, ours: dict[str, Any], program: Path) -> list[str | Path]:
    (port,) = free_ports(1)
    settings = Settings(gang_bind_timeout_seconds=60, reconcile_seconds=60, more={"backoff": {}} | ours)
    config = folder / "fluence.yaml"
    config.write_text(yaml.safe_dump(settings.configuration(port, None)))
    return [program, "run", "--config", config, "--kubeconfig", kubeconfig_for(plane, folder)]


def other(checkout: Path) -> Contender:
    """Another checkout's scheduler, started like FLUENCE. Raises StartError if there is none."""
    return Contender(OTHER, "fluence", _fluence({}, fluence_of(checkout)))


class _BesideDashboard(Measured):
    """The scheduler; the dashboard beside it ends first."""

    def __init__(self, dashboard: Program, command: Sequence[str | Path], log: Path) -> None:
        super().__init__(FLUENCE, command, log)
        self._dashboard = dashboard

    def stop(self, grace: float = 10.0) -> None:
        """Stop both."""
        self._dashboard.stop(grace)
        super().stop(grace)


def beside_dashboard() -> Contender:
    """FLUENCE beside a dashboard that clients ask more often than it allows; it starts when the dashboard serves."""

    def start(plane: ControlPlane, folder: Path, _: Workload, __: Turn) -> Measured:
        log = folder / "users.log"
        module = "tests.controlplane.busy_dashboard"
        dashboard = Program(DASHBOARD, [sys.executable, "-m", module, kubeconfig_for(plane, folder),
                                        folder / "dashboard.log"], log)  # fmt: skip
        try:
            dashboard.wait_until(lambda: SERVING in log.read_text(), _PATIENCE)
            return _BesideDashboard(dashboard, _run_command(plane, folder, {}, _OWN), folder / "fluence.log")
        except BaseException:
            dashboard.stop()
            raise

    return Contender(DASHBOARD, "fluence", start)


_NO_GRAPH = {"profiles": [{"schedulerName": "fluence", "plugins": [{"name": "fluence", "enabled": False}]}]}
"""Plugins that place by filters and scores alone: without the graph, and without records of allocations."""
CONTENDERS: Final = (
    Contender(RAW, "none", _raw, events=False, takes=lambda workload: workload.bare or workload.full),
    Contender(KUBE_SCHEDULER, "default-scheduler", _kube_scheduler),
    Contender(FLUENCE, "fluence", _fluence({})),
    Contender(
        FILTERS, "fluence", _fluence(_NO_GRAPH | {"events": False}), events=False, takes=lambda workload: workload.bare
    ),
)
