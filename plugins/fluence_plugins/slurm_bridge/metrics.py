"""The metrics of the bridge."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric


class BridgeMetrics:
    """Requests by purpose and result, their seconds, and jobs by state."""

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        """By state: pending, allocated."""
        self._requests: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def request(self, what: str) -> Iterator[None]:
        """Measure one."""
        begun = time.monotonic()
        result = "error"
        try:
            yield
            result = "success"
        finally:
            self._requests[what, result] += 1
            self._seconds[what] = self._seconds.get(what, 0.0) + time.monotonic() - begun

    def families(self) -> list[Metric]:
        """For Prometheus."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # only where it is asked for

        jobs = GaugeMetricFamily("fluence_slurm_jobs", "Slurm jobs that stand for pods, by state.", labels=["state"])
        for state in ("pending", "allocated"):
            jobs.add_metric([state], self.jobs[state])
        text = "Requests to slurmrestd, by what for and how they ended."
        requests = CounterMetricFamily("fluence_slurm_requests", text, labels=["request", "result"])
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        text = "Seconds that requests to slurmrestd took."
        seconds = CounterMetricFamily("fluence_slurm_request_seconds", text, labels=["request"])
        for what, total in self._seconds.items():
            seconds.add_metric([what], total)
        return [jobs, requests, seconds]
