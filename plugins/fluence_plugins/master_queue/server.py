"""The server of `fluence master-queue`: runs the plugin in a process of its own, from leader election to shutdown."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge, Metric, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from fluence_plugins.master_queue.arguments import API_VERSION, KIND, MasterQueueConfiguration
from fluence_plugins.master_queue.plugin import MasterQueuePlugin
from session_scheduler.config.parsing import read_text, read_values, validated
from session_scheduler.config.settings import without_secrets
from session_scheduler.errors import InputError
from session_scheduler.sdk.http_authorization import authorization_of
from session_scheduler.sdk.http_server import Endpoints
from session_scheduler.sdk.leader import Leadership, connect
from session_scheduler.sdk.signals import stop_on_signals

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


def load(path: Path | None) -> MasterQueueConfiguration:
    """Read a configuration file; without a path, the defaults. Raises InputError with a line for each wrong field."""
    if path is None:
        return MasterQueueConfiguration()
    values = read_values(read_text(path), str(path))
    if not isinstance(values, dict) or not {"apiVersion", "kind"} <= values.keys():
        raise InputError(f"{path}: is not a configuration; start with `apiVersion: {API_VERSION}` and `kind: {KIND}`")
    return validated(MasterQueueConfiguration, values, str(path))


async def serve(config: MasterQueueConfiguration, kubeconfig: str | None, context: str | None) -> int:
    """Run the controller until SIGTERM or SIGINT. Returns the exit status. Raises InputError."""
    plugin = MasterQueuePlugin(config)
    leadership = Leadership(config.leader_election)
    with stop_on_signals() as stop:
        async with connect(kubeconfig, context, config.leader_election) as cluster:
            if not config.serving.enabled:
                return await leadership.run(cluster, stop, plugin.serve)
            endpoints = Endpoints(
                config.serving,
                metrics=Exposition(plugin, leadership),
                health=lambda: None,
                ready=leadership.problems,
                config=lambda: without_secrets(config.model_dump(mode="json", by_alias=True)),
                authorize=authorization_of(config.serving, cluster.client),
                health_check="master-queue",
            )
            async with endpoints:
                return await leadership.run(cluster, stop, plugin.serve)


class Exposition:
    """The metrics of the plugin and of the process."""

    def __init__(self, plugin: MasterQueuePlugin, leadership: Leadership) -> None:
        disable_created_metrics()
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="fluence", registry=self._registry)
        build = Gauge(
            "fluence_build_info", "Always 1. The label gives the version in use.", ("version",), registry=self._registry
        )
        build.labels(metadata.version("fluence-scheduler")).set(1)
        leader = Gauge("fluence_leader", "1 if this replica leads.", registry=self._registry)
        leader.set_function(lambda: float(leadership.leading))
        self._registry.register(_Families(plugin.metrics))

    def exposition(self, accept: str = "") -> tuple[bytes, str]:  # noqa: ARG002 (there is one form)
        """See `endpoints.Exposition`."""
        return generate_latest(self._registry), _TEXT


class _Families(Collector):
    def __init__(self, collect: Callable[[], list[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> list[Metric]:
        return self._collect()

    def describe(self) -> list[Any]:
        """Return no descriptions, because the families are known only at a scrape."""
        return []
