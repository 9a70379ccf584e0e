"""For plugin authors: builders of objects, a cluster in memory with the real scheduler, and invariants.

cluster = FakeCluster().use(RackLabel, {"label": "rack"})
cluster.nodes(2).node("n3", labels={"rack": "yes"}).pod("p")
cluster.schedule().assert_bound("p", "n3")

The scheduler, its filters and its binding are real; the API server and the clock are fake. Where the scheduler is
installed pytest has the fixtures `cluster` and `new_cluster` (see `testing.pytest_plugin`). Names are imported on first
use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from session_scheduler.testing.builders import gang, node, pod, pod_group, pods, priority_class, queue, taint
    from session_scheduler.testing.clock import FakeClock
    from session_scheduler.testing.evaluations import check_evaluations
    from session_scheduler.testing.fake_cluster import FakeCluster
    from session_scheduler.testing.faults import Answer
    from session_scheduler.testing.invariants import InvariantError, check_invariants
    from session_scheduler.testing.results import NodeVerdict

_LAZY = {
    "Answer": "faults",
    "FakeClock": "clock",
    "FakeCluster": "fake_cluster",
    "InvariantError": "invariants",
    "NodeVerdict": "results",
    "check_evaluations": "evaluations",
    "check_invariants": "invariants",
    "gang": "builders",
    "node": "builders",
    "pod": "builders",
    "pod_group": "builders",
    "pods": "builders",
    "priority_class": "builders",
    "queue": "builders",
    "taint": "builders",
}
"""The module of each name. pytest imports this package wherever the scheduler is installed, so it imports lazily."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


__all__ = [
    "Answer", "FakeClock", "FakeCluster", "InvariantError", "NodeVerdict", "check_evaluations", "check_invariants",
    "gang", "node", "pod", "pod_group", "pods", "priority_class", "queue", "taint",
]  # fmt: skip
