"""Why devices cannot be allocated for a reason that no other node would change."""

from __future__ import annotations

from session_scheduler.errors import FluenceError

CLAIM = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands in a text for the claim that it is about: what was found for one claim holds for others that are equal."""


class AllocationError(FluenceError):
    """Something is wrong with a claim, a class or what a node offers: the pod cannot be placed for now."""

    def __init__(self, text: str, claim: int = -1) -> None:
        super().__init__(text)
        self.claim = claim
        """Which of the claims that are allocated together the text is about; -1 for none."""

    def text_for(self, claims: list[str]) -> str:
        """The text with the claim's name in it."""
        return str(self).replace(CLAIM, claims[self.claim]) if self.claim >= 0 else str(self)
