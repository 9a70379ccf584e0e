"""The work that an evaluation may do, in Kubernetes' units of cost: roughly one for each step."""

from __future__ import annotations

from typing import Final

from session_scheduler.model.cel.errors import CostError

LIMIT: Final = 1_000_000
"""What one selector may cost for one device, as in the API."""


class Work:
    """Counts down. What is left is the same in every run: no clock is read."""

    __slots__ = ("left",)

    def __init__(self, limit: int = LIMIT) -> None:
        self.left = limit

    def spend(self, cost: int) -> None:
        """Raises CostError when nothing is left."""
        self.left -= cost
        if self.left < 0:
            raise CostError("operation cancelled: actual cost limit exceeded")

    def over(self, *texts: str | bytes) -> None:
        """Spend what going through the texts costs."""
        self.spend(1 + sum(map(len, texts)) // 10)
