"""The error of an allocation that fails on every node, and the placeholder for the claim in its message."""

from __future__ import annotations

from session_scheduler.errors import FluenceError

CLAIM = "\N{OBJECT REPLACEMENT CHARACTER}"
"""The placeholder for the claim's name in a message, so that equal claims can share a cached error."""


class AllocationError(FluenceError):
    """A claim, a class or a resource slice is invalid: the attempt to place the pod fails."""

    def __init__(self, text: str, claim: int = -1) -> None:
        super().__init__(text)
        self.claim = claim
        """The index of the claim in the message among those allocated together; -1 for none."""

    def text_for(self, claims: list[str]) -> str:
        """The message with the claim's name."""
        return str(self).replace(CLAIM, claims[self.claim]) if self.claim >= 0 else str(self)
