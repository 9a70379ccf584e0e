"""The main function of the device plugin: reads settings, serves the endpoints, offers the types, ends on SIGTERM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's C core writes logs in a format of its own

from fluence_plugins.device_advertisement.endpoints import Endpoints
from fluence_plugins.device_advertisement.metrics import Metrics
from fluence_plugins.device_advertisement.naming import MOST_DEVICES
from fluence_plugins.device_advertisement.plugin import DevicePlugin
from fluence_plugins.device_advertisement.sockets import check_folder
from fluence_plugins.resources.config import ResourcesConfig, resource_types
from fluence_plugins.resources.file import CAPACITY_ENV, ResourcesFile
from fluence_plugins.resources.file import capacity as capacity_of_environment
from session_scheduler.errors import InputError
from session_scheduler.sdk.signals import background, stop_on_signals

if TYPE_CHECKING:
    from fluence_plugins.device_advertisement.gpu_reports import GpuReports


@dataclass(frozen=True, slots=True)
class Settings:
    """The command's options as given."""

    resources: str | None
    capacity: int | None
    kubelet_dir: str
    host: str
    port: int
    report_gpus: bool = False
    pod_resources: str = ""
    account_dir: str = ""


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises InputError for wrong settings."""
    folder = _folder(settings.kubelet_dir)
    capacity = _capacity(settings.capacity)
    resources = ResourcesFile.configured(settings.resources)
    config = resources.load() if resources else ResourcesConfig()
    metrics = Metrics(version("fluence-scheduler"))
    plugin = DevicePlugin(folder, capacity, metrics)
    reports = _reports(settings) if settings.report_gpus else None

    def health() -> Mapping[str, str | None]:
        return {"loop": plugin.health()}

    def ready() -> Mapping[str, str | None]:
        states = {state.type: state.problem for state in plugin.states()}
        return states if reports is None else {**states, "gpu-reports": reports.problem}

    endpoints = Endpoints(metrics=metrics.exposition, health=health, ready=ready)
    with stop_on_signals() as stop:
        await endpoints.start(settings.host, settings.port)
        try:
            async with background(*([] if reports is None else [reports.run()])):
                await plugin.run(resource_types(config), resources, stop)
        finally:
            await endpoints.stop()


def _reports(settings: Settings) -> GpuReports:
    """Imported on demand: most nodes do without its libraries. Raises InputError."""
    from fluence_plugins.device_advertisement.gpu_reports import ApiServer, GpuReports

    return GpuReports(Path(settings.pod_resources), ApiServer(Path(settings.account_dir)))


def _folder(option: str) -> Path:
    folder = Path(option).absolute()
    check_folder(folder)
    return folder


def _capacity(option: int | None) -> int:
    name, units = ("--capacity", option) if option is not None else (CAPACITY_ENV, capacity_of_environment())
    if not 1 <= units <= MOST_DEVICES:
        raise InputError(f"{name}: expected a whole number from 1 to {MOST_DEVICES}, the kubelet's limit, got {units}")
    return units
