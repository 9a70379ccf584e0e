"""The histogram of the times of matches in the graph."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from prometheus_client import Metric

Outcome = Literal["matched", "busy", "unsatisfiable"]
"""unsatisfiable: it does not fit in the empty graph either."""
_OUTCOMES: Final[tuple[Outcome, ...]] = ("matched", "busy", "unsatisfiable")
_BOUNDS: Final = (1e-05, 2.5e-05, 5e-05, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)
"""Upper bounds of the histogram's buckets, in seconds: a match takes 0.04 ms to a few ms."""


class MatchTimes:
    """The times of matches, by outcome, as plain counts: a cycle may need thousands of matches."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = {outcome: [0] * (len(_BOUNDS) + 1) for outcome in _OUTCOMES}
        self._seconds = dict.fromkeys(_OUTCOMES, 0.0)

    def add(self, outcome: Outcome, seconds: float) -> None:
        """Count one match."""
        self._counts[outcome][bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[outcome] += seconds

    def family(self) -> Metric:
        """The histogram as a metric family."""
        from prometheus_client.core import HistogramMetricFamily  # slow to import, and only metrics need it

        family = HistogramMetricFamily(
            "fluence_match_seconds", "Seconds that a match in the graph takes, by outcome.", labels=["outcome"]
        )
        bounds = [*map(str, _BOUNDS), "+Inf"]
        for outcome, counts in self._counts.items():
            buckets = list(zip(bounds, map(float, accumulate(counts)), strict=True))
            family.add_metric([outcome], buckets, self._seconds[outcome])
        return family
