"""Cost limit of a CEL evaluation, in Kubernetes' cost units: about one for each step."""

from __future__ import annotations

from typing import Final

from session_scheduler.model.cel.errors import CostError

LIMIT: Final = 1_000_000
"""The cost limit of one selector for one device, as in the API."""


class Work:
    """The remaining cost of an evaluation. It does not use a clock, so each run has the same cost."""

    __slots__ = ("left",)

    def __init__(self, limit: int = LIMIT) -> None:
        self.left = limit

    def spend(self, cost: int) -> None:
        """Raises CostError if the cost exceeds what is left."""
        self.left -= cost
        if self.left < 0:
            raise CostError("operation cancelled: actual cost limit exceeded")

    def over(self, *texts: str | bytes) -> None:
        """Spend the cost of reading the strings."""
        self.spend(1 + sum(map(len, texts)) // 10)
