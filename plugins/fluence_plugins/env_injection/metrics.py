"""The webhook's metrics, in a registry of their own. `docs/reference/webhook.md` lists them for administrators."""

import math
import platform
from datetime import datetime
from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

PREFIX: Final = "fluence_webhook_"
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
RequestResult = Literal["patched", "unchanged", "refused", "malformed", "late", "busy", "failed"]
CheckResult = Literal["ok", "failed"]


class WebhookMetrics:
    """The metrics of one webhook. `exposition` is the response to a scrape."""

    def __init__(self, version: str = "") -> None:
        disable_created_metrics()
        registry = self.registry = CollectorRegistry()
        ProcessCollector(namespace=PREFIX.rstrip("_"), registry=registry)
        build = Gauge(
            PREFIX + "build_info",
            "Always 1. The labels give the versions in use.",
            ("version", "python"),
            registry=registry,
        )
        build.labels(version, platform.python_version()).set(1)
        self._requests = Counter(
            PREFIX + "requests", "Admission reviews, by handler and result.", ("handler", "result"), registry=registry
        )
        self._seconds = Histogram(
            PREFIX + "request_seconds", "Seconds from a request's headers to its response.", ("handler",),
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._expiry = Gauge(
            PREFIX + "certificate_expiry_timestamp_seconds", "When the served certificate expires.",
            registry=registry,
        )  # fmt: skip
        self._written = Counter(
            PREFIX + "certificate_writes",
            "How many times this replica created, renewed or restored the Secret.",
            registry=registry,
        )  # fmt: skip
        self._checks = Counter(
            PREFIX + "certificate_checks", "Checks of the Secret and the configuration.", ("result",), registry=registry
        )
        for result in get_args(CheckResult):
            self._checks.labels(result)
        self._trusted = Gauge(
            PREFIX + "trusted", "1 if the configuration exists and trusts the served certificate.",
            registry=registry,
        )  # fmt: skip

    def show_handler(self, name: str) -> None:
        """Expose a handler's series from the start, with 0."""
        for result in get_args(RequestResult):
            self._requests.labels(name, result)
        self._seconds.labels(name)

    def request(self, handler: str, result: RequestResult, seconds: float) -> None:
        """Count and time a request."""
        self._requests.labels(handler, result).inc()
        self._seconds.labels(handler).observe(seconds)

    def serves(self, until: datetime) -> None:
        """Set the expiry of the newly served certificate."""
        self._expiry.set(until.timestamp())

    def written(self) -> None:
        """Count a write of the Secret by this replica."""
        self._written.inc()

    def checked(self, result: CheckResult) -> None:
        """Count a check of the Secret and the configuration."""
        self._checks.labels(result).inc()

    def trusted(self, trusted: bool | None) -> None:
        """Set whether the configuration exists and trusts the served certificate; None if this is unknown."""
        self._trusted.set(math.nan if trusted is None else trusted)

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The response to a scrape and its content type, for the request's Accept header."""
        if "application/openmetrics-text" in accept:
            return generate_openmetrics(self.registry), OPENMETRICS
        return generate_latest(self.registry), TEXT
