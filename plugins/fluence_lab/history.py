"""What was observed over time: series of numbers, and the times of pods that have come and gone. Public."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_HISTORY", "History", "Stay"]

Floats = NDArray[np.float64]


class Stay(msgspec.Struct, frozen=True):
    """One pod's time in the cluster, as far as it was observed. Times are seconds since 1970; NaN where unknown."""

    key: str
    """NAMESPACE/NAME."""
    group: str | None
    queue: str
    node: str | None
    created: float
    bound: float
    started: float
    ended: float
    evicted: bool = False
    """Whether something evicted it: it had the condition DisruptionTarget."""


class History(msgspec.Struct, frozen=True):
    """What was observed since the observation began, or what Prometheus has."""

    times: Floats = msgspec.field(default_factory=lambda: np.empty(0))
    """Seconds since 1970, ascending."""
    series: Mapping[str, Floats] = {}
    """Numbers at these times, NaN where unknown. Known names: `pending` and `running` (pods), `cycles` and `binds` (per
    second), and `allocated/RESOURCE` (the share of the allocatable amount, 0 to 1)."""
    stays: tuple[Stay, ...] = ()
    """Pods that are gone; the live ones are in `Observed.pods`."""
    since: float = float("nan")
    """When the observation began."""
    timings: Mapping[str, Mapping[str, float]] = {}
    """The scheduler's metrics of its plugins: for each plugin, `seconds` in all, and `calls`."""


NO_HISTORY: Final = History()
