"""Continues after errors: each is logged once, until the same work succeeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

__all__ = ["Failures", "why"]

_log = structlog.get_logger(__name__)
MOST: Final = 100
"""With so many different errors, further ones are not logged."""


def why(error: Exception) -> str:
    """An error's text in one line; its type, if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


class Failures:
    """Which work fails at present."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, ...]] = set()

    @contextmanager
    def logged(self, event: str, *, trace: bool = True, **subject: str) -> Iterator[None]:
        """Log an error of this block, and continue after it. `trace`: with where it was raised."""
        key = (event, *subject.values())
        try:
            yield
        except Exception as error:  # noqa: BLE001  # any error of one piece of work must not stop the others
            if self._first(key):
                log = _log.error if trace else _log.warning
                log(event, why=why(error), exc_info=error if trace else None, **subject)
        else:
            self._logged.discard(key)

    def report(self, event: str, error: Exception, **subject: str) -> None:
        """Log an error once, of work whose other errors are logged, too."""
        if self._first((event, *subject.values(), why(error))):
            _log.error(event, why=why(error), exc_info=error, **subject)

    def _first(self, key: tuple[str, ...]) -> bool:
        """Whether an error is to be logged: its text may be a user's, so their number is limited."""
        if key in self._logged or len(self._logged) >= MOST:
            return False
        self._logged.add(key)
        return True
