"""`fluence master-queue` as a process of its own, that tests start, watch and kill, as they do `fluence run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..controlplane.scheduler_process import SchedulerProcess, Settings, kubeconfig_for
from .plane import CONTROLLER, QueuesPlane


@dataclass(frozen=True)
class ControllerSettings(Settings):
    """What differs between controllers. Of the scheduler's settings the leader election's are used."""

    controller: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration, as `connectors` and `statusSeconds`."""

    def configuration(self, port: int, resources: Path | None) -> dict[str, Any]:
        """The configuration file's content."""
        shared = super().configuration(port, resources)
        return {
            "apiVersion": shared["apiVersion"],
            "kind": "MasterQueueConfiguration",
            "leaderElection": shared["leaderElection"],
            "serving": shared["serving"],
            **self.controller,
        }


class ControllerProcess(SchedulerProcess):
    """One replica, as the controller's own user."""

    COMMAND: ClassVar[str] = "master-queue"

    def __init__(
        self,
        folder: Path,
        plane: QueuesPlane,
        settings: ControllerSettings | None = None,
        name: str = "master-queue",
        url: str | None = None,
    ) -> None:
        """`url`: of a proxy before the API server."""
        kubeconfig = kubeconfig_for(plane, folder, url, user=CONTROLLER)
        super().__init__(folder, kubeconfig, settings or ControllerSettings(), name)
