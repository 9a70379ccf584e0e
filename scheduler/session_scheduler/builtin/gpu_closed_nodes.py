"""The nodes that get no further pods that share GPUs for some time, because a GPU there could not be reserved."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from session_scheduler.builtin.gpu_reservation_pods import ReservationError, ReservationPods
from session_scheduler.framework.bindings import Binding
from session_scheduler.model.gpu_reservations import reported_device

CLOSED_SECONDS: Final = 60.0
"""How long a node stays closed. The time doubles with each further failure, until a GPU of the node is reserved."""
_MOST_DOUBLINGS: Final = 4


class NodeError(ReservationError):
    """A GPU of this node could not be reserved. Another node may help."""

    def __init__(self, problem: str, awaited: str = "") -> None:
        """`awaited` is the name of the reservation pod whose report would help."""
        super().__init__(problem)
        self.awaited = awaited


class ClosedNodes:
    """The closed nodes. A node opens after some time, or when the device plugin's report arrives."""

    def __init__(self, pods: ReservationPods) -> None:
        self._pods = pods
        self.now = 0.0
        """The time of the last session."""
        self._closed: dict[str, tuple[float, str]] = {}
        """Until when, in the time of sessions, and the reservation pod whose report opens the node."""
        self._opens: dict[tuple[str, float], float] = {}
        """When each closed node opens, in the time of `is_due`."""
        self._failures: dict[str, int] = {}
        """How many times each node was closed since one of its GPUs was reserved."""

    def __bool__(self) -> bool:
        """Whether any node is closed."""
        return bool(self._closed)

    def open_session(self, now: float) -> Collection[str]:
        """Return the nodes that are closed in a session."""
        self.now = now
        self.reopen()
        return self._closed.keys()

    def reopen(self) -> None:
        """Open the nodes whose time is up, or whose report has arrived."""
        self._closed = {node: (until, awaited) for node, (until, awaited) in self._closed.items()
                        if until > self.now and not self._is_reported(node, awaited)}  # fmt: skip

    def close(self, binding: Binding, error: NodeError, now: float) -> None:
        """Close a node after a failure, and report this on the pod. `now` is in the time of sessions."""
        node = binding.node
        if node not in self._closed or self._closed[node][0] <= now:
            failures = self._failures.get(node, 0)
            seconds = CLOSED_SECONDS * 2 ** min(failures, _MOST_DOUBLINGS)
            self._failures[node] = failures + 1
            note = f"for {seconds:g} s, the scheduler places no further GPU-sharing pods on node {node}: {error}"
            binding.tell("GpuNotReserved", note)  # codespell:ignore tell
            self._closed[node] = now + seconds, error.awaited

    def succeeded(self, node: str) -> None:
        """A GPU of the node was reserved, or the node was deleted: the next failure is the first one."""
        self._failures.pop(node, None)

    def has_report(self) -> bool:
        """Whether the report of a closed node has arrived."""
        return any(self._is_reported(node, awaited) for node, (_, awaited) in self._closed.items())

    def is_due(self, now: float) -> bool:
        """Whether the time of a closed node is up, by another clock than that of the sessions."""
        closed = [(node, until) for node, (until, _) in self._closed.items()]
        self._opens = {one: self._opens.get(one, now + one[1] - self.now) for one in closed}
        return any(time <= now for time in self._opens.values())

    def _is_reported(self, node: str, name: str) -> bool:
        pod = self._pods.known(node).get(name)
        return pod is not None and reported_device(pod) is not None
