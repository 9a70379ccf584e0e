"""Rate limits of requests, by client and in total: token buckets."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

from session_scheduler.base.clock import Clock

__all__ = ["RateLimit"]

MOST_CLIENTS: Final = 1024
"""How many clients are remembered; the total limits the others."""
IDLE_SECONDS: Final = 1.0


class _Bucket:
    """A bucket of at most `burst` tokens that gains `rate` tokens a second."""

    __slots__ = ("burst", "rate", "taken_at", "tokens")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        self.tokens = burst
        self.taken_at = -math.inf

    def wait(self, now: float) -> float:
        """Seconds until there is a token; 0 if there is one."""
        return max(0.0, 1.0 - self._tokens(now)) / self.rate

    def take(self, now: float) -> None:
        """Take a token; the last part of one if there is less."""
        self.tokens = max(0.0, self._tokens(now) - 1.0)
        self.taken_at = now

    def _tokens(self, now: float) -> float:
        return min(self.burst, self.tokens + (now - self.taken_at) * self.rate)


class RateLimit:
    """Limits the request rate of each client, and that of all clients together to three times as much.

    With `spare_idle`, a client that has been idle for a second is admitted although other clients exhaust the total:
    a flood from many addresses does not stop a kubelet's probes.
    """

    def __init__(self, clock: Clock, rate: float, *, spare_idle: bool = False) -> None:
        """`rate` is a client's requests a second. It may send those of four seconds at once."""
        self._clock = clock
        self._rate = rate
        self._spare_idle = spare_idle
        self._total = _Bucket(3 * rate, 12 * rate)
        self._clients: OrderedDict[str, _Bucket] = OrderedDict()
        """Starts with the client that has been idle the longest."""

    def admit(self, client: str) -> float:
        """Count a request. Returns 0 if it is admitted, else the seconds until a retry can succeed."""
        now = self._clock.now()
        bucket = self._clients.pop(client, None) or _Bucket(self._rate, 4 * self._rate)
        self._clients[client] = bucket
        if len(self._clients) > MOST_CLIENTS:
            self._clients.popitem(last=False)
        spared = self._spare_idle and bucket.taken_at + IDLE_SECONDS <= now
        wait = bucket.wait(now) or (0.0 if spared else self._total.wait(now))
        if not wait:
            bucket.take(now)
            self._total.take(now)
        return wait
