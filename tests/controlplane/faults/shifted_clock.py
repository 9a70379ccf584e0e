"""The command `fluence` with a wall clock that a test moves: `python shifted_clock.py FILE run …`.

FILE contains an offset in seconds, and is read for every query of the time. The monotonic clock does not change, as
when an administrator or NTP sets a machine's clock.
"""

from __future__ import annotations

import datetime as module
import sys
import time
from pathlib import Path

_real_time = time.time
_real_datetime = module.datetime


def install(file: Path) -> None:
    """Shift `time.time`, `time.time_ns` and `datetime.now` of this process; call it before other imports."""

    def shift() -> float:
        try:
            return float(file.read_text())
        except (OSError, ValueError):  # the file is being written
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
