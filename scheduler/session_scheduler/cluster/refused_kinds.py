"""Kinds that the API server refuses to list: which errors say so, for how long to retry, and the remedies."""

from __future__ import annotations

from typing import Final

from session_scheduler.cluster.errors import ClusterError, Forbidden, Invalid, NotFound

REFUSALS: Final = (Forbidden, Invalid, NotFound)
"""Errors for a kind that the API server does not serve, or that the account has no permission to list."""
RETRY_SECONDS: Final = 30.0
"""Seconds for which such errors are retried: a starting API server does not know all roles and APIs yet."""
_RARE: Final = ("DeviceTaintRule", "NodeResourceTopology")
"""Kinds behind feature gates that are off by default, or of an agent: few API servers serve them."""


class RetryLimit:
    """Allows retries of some errors for a limited time, and of all others without limit."""

    def __init__(self, kind: str, *refusals: type[ClusterError], seconds: float = RETRY_SECONDS) -> None:
        self._kind = kind
        self._refusals = refusals
        self._seconds = seconds
        self._since: float | None = None

    def check(self, error: ClusterError, now: float) -> None:
        """Raise the error, with a remedy, if only such errors occurred for too long."""
        if not isinstance(error, self._refusals):
            self._since = None
            return
        if self._since is None:
            self._since = now
        if now - self._since >= self._seconds:
            raise type(error)(f"failed to list {self._kind} objects for {now - self._since:.0f} s: {error}; "
                              f"{remedy(self._kind, error)}") from error  # fmt: skip


def is_rare(kind: str, error: ClusterError) -> bool:
    """Whether the API server does not serve a kind that few do."""
    return kind in _RARE and isinstance(error, NotFound)


def remedy(kind: str, error: ClusterError) -> str:
    """Return a remedy for a kind that the API server refuses. The mirror retries, so no restart is necessary."""
    if isinstance(error, Forbidden):
        return f"grant this account the verbs get, list and watch on {kind} objects (in its ClusterRole)"
    return f"check that the API server serves {kind} objects"
