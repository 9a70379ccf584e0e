"""What is measured of the bridge."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric


class Measured:
    """Requests by what they were for and how they ended, their seconds, and jobs by state."""

    def __init__(self) -> None:
        self.jobs: dict[str, int] = {"pending": 0, "allocated": 0}
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
        """As Prometheus takes them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # only where it is asked for

        jobs = GaugeMetricFamily("fluence_slurm_jobs", "Slurm jobs that stand for pods, by state.", labels=["state"])
        for state, count in self.jobs.items():
            jobs.add_metric([state], count)
        text = "Requests to slurmrestd, by what for and how they ended."
        requests = CounterMetricFamily("fluence_slurm_requests", text, labels=["request", "result"])
        for (what, result), count in self._requests.items():
            requests.add_metric([what, result], count)
        seconds = CounterMetricFamily(
            "fluence_slurm_request_seconds", "Seconds that requests to slurmrestd took.", labels=["request"]
        )
        for what, total in self._seconds.items():
            seconds.add_metric([what], total)
        return [jobs, requests, seconds]
