"""Check the scopes of a plugin: a scope that is too narrow makes decisions depend on earlier evaluations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from session_scheduler.testing.fake_cluster import FakeCluster
from session_scheduler.testing.invariants import InvariantError

_MODES: Final = ("naive", "board", "heap")


def check_evaluations(scenario: Callable[[FakeCluster], object], **options: Any) -> None:
    """Run a scenario in each of the three evaluation modes; every pod must get the same node. Raises InvariantError.

    "naive" runs filters and scores for each pod and node; "board" and "heap" reuse results within their scopes
    (`filter_scope`, `score_scope`). `scenario` receives a new cluster, creates new plugins, and schedules; `options`
    are FakeCluster's.
    """
    first: dict[str, str | None] = {}
    for mode in _MODES:
        cluster = FakeCluster(evaluation=mode, **options)
        scenario(cluster)
        cluster.assert_invariants()
        placements = cluster.placements()
        if mode == _MODES[0]:
            first = placements
        if differing := [key for key in {**first, **placements} if first.get(key) != placements.get(key)]:
            lines = (f"pod {key}: naive {first.get(key)}, {mode} {placements.get(key)}" for key in differing)
            raise InvariantError("a declared scope is too narrow:\n" + "\n".join(lines))
