"""The page about a result of `fluence simulate`, and the empty cluster that a dashboard of a saved one observes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from fluence_lab.panels import Panel
from fluence_lab.views.simulated import simulated
from session_scheduler.model.objects import Pod
from session_scheduler.observation.values import Nodes, Observed, Pods

__all__ = ["ResultObserver", "result_panel"]

_NONE = np.empty(0)


class ResultObserver:
    """In place of an `Observer`: an empty cluster that does not change."""

    def __init__(self, source: str) -> None:
        rows = np.empty(0, dtype=np.int64)
        amounts = np.empty((0, 0))
        nodes = Nodes((), {}, (), amounts, amounts, rows, ())
        pods = Pods((), (), (), rows, rows, (), (), {}, _NONE, _NONE, _NONE, _NONE)
        self._observed = Observed(time.time(), source, nodes, pods, (), (), {})

    def observe(self) -> Observed:
        """The empty cluster."""
        return self._observed

    def pods(self) -> Mapping[str, Pod]:
        """Nothing."""
        return {}

    async def verdicts(self, _key: str) -> dict[str, Any]:
        """Nothing."""
        return {}

    def plugin(self, _name: str) -> object | None:
        """Nothing."""
        return None


def result_panel(result: Mapping[str, Any]) -> Panel:
    """The page of a result."""
    return Panel("simulated", "Simulation", lambda _: simulated(result), order=0)
