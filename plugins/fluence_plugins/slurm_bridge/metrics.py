"""The metrics of the plugin `slurm-bridge`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric


class BridgeMetrics:
    """Counts requests by purpose and result, their duration, and jobs by state."""

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        """By state: pending, allocated."""
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def request(self, purpose: str) -> Iterator[None]:
        """Count and time one request."""
        begun = time.monotonic()
        result = "error"
        try:
            yield
            result = "success"
        finally:
            self._requests[purpose, result] += 1
            self._seconds[purpose] = self._seconds.get(purpose, 0.0) + time.monotonic() - begun

    def families(self) -> list[Metric]:
        """The metric families for Prometheus."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # imported only at a scrape

        jobs = GaugeMetricFamily("fluence_slurm_jobs", "Slurm placeholder jobs for pods, by state.", labels=["state"])
        for state in ("pending", "allocated"):
            jobs.add_metric([state], self.jobs[state])
        text = "Requests to slurmrestd, by purpose and result."
        requests = CounterMetricFamily("fluence_slurm_requests", text, labels=["request", "result"])
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        text = "Seconds spent in requests to slurmrestd, by purpose."
        seconds = CounterMetricFamily("fluence_slurm_request_seconds", text, labels=["request"])
        for purpose, total in self._seconds.items():
            seconds.add_metric([purpose], total)
        return [jobs, requests, seconds]
