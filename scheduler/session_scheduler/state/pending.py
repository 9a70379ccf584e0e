"""Which groups are due: never tried, backoff over, or woken. Pure: the time is passed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Waiting:
    attempts: int
    until: float
    wakes: int
    """How often all had been woken when it failed."""


class PendingGroups:
    """Backoff by group: one group's failures never hurry or delay another's."""

    def __init__(self, initial: float = 1.0, maximum: float = 10.0) -> None:
        self._initial = initial
        self._maximum = maximum
        self._waiting: dict[str, _Waiting] = {}
        self._wakes = 0

    def is_due(self, key: str, now: float) -> bool:
        """Whether the group may be tried at `now` (seconds)."""
        waiting = self._waiting.get(key)
        return waiting is None or waiting.until <= now or waiting.wakes < self._wakes

    def failed(self, key: str, now: float) -> float:
        """The group could not be placed: it waits twice as long each time. Returns when it is due again."""
        attempts = self._waiting[key].attempts + 1 if key in self._waiting else 1
        until = now + min(self._maximum, self._initial * 2.0 ** min(attempts - 1, 62))
        self._waiting[key] = _Waiting(attempts, until, self._wakes)
        return until

    def wake(self, key: str, now: float) -> None:
        """Something changed that can help the group: it is due at once, its attempts still count."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.until = min(waiting.until, now)

    def wake_all(self) -> None:
        """Something changed that can help anybody: as `wake` for every group, at the price of one."""
        self._wakes += 1

    def placed(self, key: str) -> None:
        """The group was placed or is gone: its failures are forgotten."""
        self._waiting.pop(key, None)

    def next_after(self, now: float) -> float | None:
        """When the next wait ends that has not ended yet; None where none is under way."""
        return min((one.until for one in self._waiting.values() if one.until > now), default=None)
