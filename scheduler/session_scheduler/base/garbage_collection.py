"""Settings of Python's garbage collector for processes whose objects live long."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_COLLECT_AFTER: Final = (200_000, 20, 20)


def collect_rarely() -> None:
    """Raise the thresholds of collections.

    The state of a cluster lives long and has no reference cycles: with Python's defaults, a fifth of a simulation's
    processor time would be spent on scanning it.
    """
    gc.set_threshold(*_COLLECT_AFTER)


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect nothing in this context, and never scan what it creates: saves a seventh of the time of imports.

    For imports, which create almost no garbage. Modules live as long as the process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
