"""Looks at schedulers' decisions: notebooks, a dashboard in the browser, and reports in one file.

Notebooks begin with `load`, `connect` or `of`; see `fluence_lab.lab`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluence_lab.lab import Lab, Run, compare, connect, load, of

__all__ = ["Lab", "Run", "compare", "connect", "load", "of"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fluence_lab import lab  # the views, and the scheduler

    return getattr(lab, name)
