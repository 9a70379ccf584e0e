"""The main function of the device plugin: reads settings, serves the endpoints, offers the types, ends on SIGTERM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

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
from session_scheduler.sdk.signals import stop_on_signals


@dataclass(frozen=True, slots=True)
class Settings:
    """The command's options as given."""

    resources: str | None
    capacity: int | None
    kubelet_dir: str
    host: str
    port: int


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises InputError for wrong settings."""
    folder = _folder(settings.kubelet_dir)
    capacity = _capacity(settings.capacity)
    resources = ResourcesFile.configured(settings.resources)
    config = resources.load() if resources else ResourcesConfig()
    metrics = Metrics(version("fluence-scheduler"))
    plugin = DevicePlugin(folder, capacity, metrics)

    def health() -> Mapping[str, str | None]:
        return {"loop": plugin.health()}

    def ready() -> Mapping[str, str | None]:
        return {state.type: state.problem for state in plugin.states()}

    endpoints = Endpoints(metrics=metrics.exposition, health=health, ready=ready)
    with stop_on_signals() as stop:
        await endpoints.start(settings.host, settings.port)
        try:
            await plugin.run(resource_types(config), resources, stop)
        finally:
            await endpoints.stop()


def _folder(option: str) -> Path:
    folder = Path(option).absolute()
    check_folder(folder)
    return folder


def _capacity(option: int | None) -> int:
    name, units = ("--capacity", option) if option is not None else (CAPACITY_ENV, capacity_of_environment())
    if not 1 <= units <= MOST_DEVICES:
        raise InputError(f"{name}: {units}: use a whole number from 1 to {MOST_DEVICES}, the kubelet's limit")
    return units
