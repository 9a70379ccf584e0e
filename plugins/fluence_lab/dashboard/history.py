"""Records what the dashboard observes, in bounded memory: every second for ten minutes, then coarser for a day."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import numpy as np

from fluence_lab.history import History, Stay
from session_scheduler.observation.values import Observed, Pods

__all__ = ["HistoryRecorder", "Rates"]

TIERS: Final = ((1.0, 600), (10.0, 2160), (60.0, 1440))
"""Seconds between samples, and how many are kept: ten minutes, six hours, a day."""
MOST_STAYS: Final = 20_000
MOST_RESOURCES: Final = 12
RATE_SECONDS: Final = 10.0
Sample = Mapping[str, float]


class Rates(msgspec.Struct, frozen=True):
    """What the scheduler's own metrics say at one point in time."""

    time: float
    cycles: float
    """In all."""
    timings: Mapping[str, Mapping[str, float]]
    """For each plugin, `seconds` in all, and `calls`."""


class _Ring:
    """The newest samples, one for each step."""

    def __init__(self, step: float, size: int) -> None:
        self.step = step
        self.samples: deque[tuple[float, Sample]] = deque(maxlen=size)

    def add(self, time: float, sample: Sample) -> None:
        while self.samples and self.samples[-1][0] > time:  # the clock was set back
            self.samples.pop()
        if not self.samples or time - self.samples[-1][0] >= self.step * 0.95:
            self.samples.append((time, sample))


class HistoryRecorder:
    """Call `record` every second, and read `history`."""

    def __init__(self) -> None:
        self._rings = [_Ring(step, size) for step, size in TIERS]
        self._stays: deque[Stay] = deque(maxlen=MOST_STAYS)
        self._pods: Pods | None = None
        self._nodes: tuple[str, ...] = ()
        self._since = math.nan
        self._rates: deque[Rates] = deque(maxlen=2)
        self._before: list[tuple[float, Sample]] = []
        self._cached: tuple[int, dict[frozenset[str] | None, History]] = (-1, {})
        self._number = 0

    def record(self, observed: Observed) -> None:
        """Add what is observed now."""
        if math.isnan(self._since):
            self._since = observed.time
        if self._pods is not observed.pods:
            self._record_stays(observed)
        sample = _sample(observed)
        if (cycles := self._cycles(observed.time)) is not None:
            sample["cycles"] = cycles
        for ring in self._rings:
            ring.add(observed.time, sample)
        self._number += 1

    def scraped(self, rates: Rates) -> None:
        """Add what the scheduler's metrics say."""
        self._rates.append(rates)

    def before(self, samples: Iterable[tuple[float, Sample]]) -> None:
        """Set what Prometheus knows of the time before the first observation."""
        self._before = sorted(samples, key=lambda sample: sample[0])[-TIERS[-1][1] :]
        self._number += 1

    def history(self, namespaces: frozenset[str] | None) -> History:
        """Everything recorded; pods of these namespaces only (None: all). Numbers are of the whole cluster."""
        if self._cached[0] != self._number:
            self._cached = (self._number, {})
        known = self._cached[1]
        if namespaces not in known:
            shared = next(iter(known.values()), None) or self._series()
            stays = tuple(
                stay for stay in self._stays if namespaces is None or stay.key.partition("/")[0] in namespaces
            )
            known[namespaces] = msgspec.structs.replace(shared, stays=stays)
        return known[namespaces]

    def _series(self) -> History:
        samples: list[tuple[float, Sample]] = []
        for ring in self._rings:  # the finest first; each coarser one adds what is older
            oldest = samples[0][0] if samples else math.inf
            samples = [each for each in ring.samples if each[0] < oldest] + samples
        oldest = samples[0][0] if samples else math.inf
        samples = [each for each in self._before if each[0] < oldest] + samples
        names = {name: None for _, sample in samples for name in sample}
        return History(
            times=np.array([time for time, _ in samples], dtype=np.float64),
            series={name: np.array([sample.get(name, math.nan) for _, sample in samples]) for name in names},
            since=self._since,
            timings=self._rates[-1].timings if self._rates else {},
        )

    def _cycles(self, now: float) -> float | None:
        if len(self._rates) < 2:
            return None
        first, last = self._rates
        if last.time <= first.time or now - last.time > 6 * RATE_SECONDS:
            return None
        return max(0.0, last.cycles - first.cycles) / (last.time - first.time)

    def _record_stays(self, observed: Observed) -> None:
        before, nodes = self._pods, self._nodes
        self._pods, self._nodes = observed.pods, observed.nodes.names
        if before is None or before.keys is observed.pods.keys:
            return
        gone = set(before.keys).difference(observed.pods.keys)
        for row, key in enumerate(before.keys) if gone else ():
            if key in gone:
                node = int(before.nodes[row])
                self._stays.append(
                    Stay(
                        key=key,
                        group=before.groups[row],
                        queue=before.queues[row],
                        node=nodes[node] if 0 <= node < len(nodes) else None,
                        created=float(before.created[row]),
                        bound=float(before.bound[row]),
                        started=float(before.started[row]),
                        ended=observed.time,
                        evicted=key in before.evicted or observed.evictions.get(key) == before.created[row],
                    )
                )


def _sample(observed: Observed) -> dict[str, float]:
    pods, nodes = observed.pods, observed.nodes
    phases = Counter(pods.phases)
    sample = {
        "pending": float(phases["Pending"] + phases["Gated"]),
        "running": float(phases["Bound"] + phases["Running"]),
        "binds": float(np.count_nonzero(pods.bound > observed.time - RATE_SECONDS)) / RATE_SECONDS,
    }
    if len(nodes.names):
        allocatable, allocated = nodes.allocatable.sum(axis=0), nodes.allocated.sum(axis=0)
        for index, resource in enumerate(nodes.resources[:MOST_RESOURCES]):
            if allocatable[index] > 0:
                sample[f"allocated/{resource}"] = float(allocated[index] / allocatable[index])
    return sample
