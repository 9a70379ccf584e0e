"""The metrics of the device plugin."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

PREFIX: Final = "fluence_device_plugin_"
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_RESULTS: Final = {"registrations": ("ok", "refused", "unavailable"), "allocations": ("ok", "refused")}


@dataclass(frozen=True, slots=True)
class TypeState:
    """The state of one type. `problem`: None if the kubelet watches its devices."""

    type: str
    devices: int
    streams: int
    problem: str | None


class Metrics:
    """The registry of a process."""

    def __init__(self, version: str) -> None:
        """`version` is the product's."""
        disable_created_metrics()
        registry = self._registry = CollectorRegistry()
        ProcessCollector(namespace=PREFIX.rstrip("_"), registry=registry)
        build = Gauge(
            PREFIX + "build_info",
            "Always 1. The labels give the versions in use.",
            ("version", "python"),
            registry=registry,
        )
        build.labels(version, platform.python_version()).set(1)
        self._counters = {
            "registrations": Counter(
                PREFIX + "registrations", "Attempts to register a type.", ("type", "result"), registry=registry
            ),
            "allocations": Counter(
                PREFIX + "allocations", "Requests for a container's devices.", ("type", "result"), registry=registry
            ),
        }
        self._loaded = Gauge(
            PREFIX + "config_last_load_successful",
            "1 if the last load of the resources file succeeded.",
            registry=registry,
        )
        self._loaded.set(1)

    def follow(self, states: Callable[[], Iterable[TypeState]]) -> None:
        """Expose these states, which are read at each scrape."""
        self._registry.register(_Types(states))

    def add_type(self, resource_type: str) -> None:
        """Expose a type's counters, from 0."""
        for name, counter in self._counters.items():
            for result in _RESULTS[name]:
                counter.labels(resource_type, result)

    def remove_type(self, resource_type: str) -> None:
        """Stop exposing a type's counters: types come and go."""
        for name, counter in self._counters.items():
            for result in _RESULTS[name]:
                counter.remove(resource_type, result)

    def registered(self, resource_type: str, result: Literal["ok", "refused", "unavailable"]) -> None:
        """Count an attempt to register."""
        self._counters["registrations"].labels(resource_type, result).inc()

    def allocated(self, resource_type: str, result: Literal["ok", "refused"]) -> None:
        """Count a request of the kubelet for a container's devices."""
        self._counters["allocations"].labels(resource_type, result).inc()

    def config_loaded(self, successful: bool) -> None:
        """Set whether the last load of the resources file succeeded."""
        self._loaded.set(successful)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The response to a scrape and its content type, for the request's Accept header."""
        if "application/openmetrics-text" in accept:
            return generate_openmetrics(self._registry), OPENMETRICS
        return generate_latest(self._registry), TEXT


class _Types:
    """The gauges of the offered types, read at each scrape."""

    def __init__(self, states: Callable[[], Iterable[TypeState]]) -> None:
        self._states = states

    def describe(self) -> list[Metric]:
        return list(self._families([]))

    def collect(self) -> Iterator[Metric]:
        return self._families(list(self._states()))

    def _families(self, states: list[TypeState]) -> Iterator[Metric]:
        yield _gauge("devices", "Advertised devices.", {each.type: each.devices for each in states})
        yield _gauge("streams", "Open ListAndWatch streams.", {each.type: each.streams for each in states})
        yield _gauge(
            "advertised", "1 if the kubelet watches the devices.", {each.type: each.problem is None for each in states}
        )


def _gauge(name: str, text: str, values: dict[str, int] | dict[str, bool]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=["type"])
    for resource_type, value in values.items():
        family.add_metric([resource_type], value)
    return family
