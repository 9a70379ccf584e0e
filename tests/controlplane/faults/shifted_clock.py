"""The command `fluence` with a wall clock that a test moves: `python shifted_clock.py FILE run …`.

FILE holds seconds, read anew each time somebody asks what time it is. The monotonic clock is left alone, as it is
where an administrator or NTP sets a machine's clock.
"""

from __future__ import annotations

import datetime as module
import sys
import time
from pathlib import Path

_real_time = time.time
_real_datetime = module.datetime


def install(file: Path) -> None:
    """Shift `time.time`, `time.time_ns` and `datetime.now` of this process; to be called before others import them."""

    def shift() -> float:
        try:
            return float(file.read_text())
        except (OSError, ValueError):  # in the moment in which it is written
            return 0.0

    class Shifted(_real_datetime):
        @classmethod
        def now(cls, tz: module.tzinfo | None = None) -> Shifted:
            return cls.fromtimestamp(_real_time() + shift(), tz)

    time.time = lambda: _real_time() + shift()
    time.time_ns = lambda: int((_real_time() + shift()) * 1e9)
    module.datetime = Shifted  # type: ignore[misc]


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    from session_scheduler.cli import main

    sys.exit(main(sys.argv[2:]))
