"""Maintenance windows: they exclude closed hosts and devices from matches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from fluence_plugins.fluence.graph.cluster_graph import VirtualNode
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.resources.maintenance_windows import NOTHING_CLOSED, Closed, Window, closed_for
from session_scheduler import Session
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, natural
from session_scheduler.model.durations import known_seconds
from session_scheduler.model.groups import Task


class Maintenance:
    """The configured windows, and the hosts and backends that they close."""

    def __init__(self, live: LiveGraph, windows: Sequence[Window]) -> None:
        self._live = live
        self.windows = tuple(windows)
        self._at: float | None = None
        self._wall = 0.0
        self._closed: dict[tuple[float, float], Closed] = {}

    def set_windows(self, windows: Sequence[Window]) -> None:
        """Replace the windows by those of another configuration."""
        self.windows = tuple(windows)
        self._closed.clear()

    def open_session(self, wall: float) -> None:
        """Set the present time, in seconds since 1970."""
        self._wall = wall
        self._closed.clear()

    def ends(self, since: float) -> Iterator[float]:
        """The ends of windows after a time."""
        return (window.end for window in self.windows if window.end > since)

    @property
    def is_due(self) -> bool:
        """Whether a window has not ended: then the closed resources depend on the duration of each task."""
        return any(window.end > self._wall for window in self.windows)

    @contextmanager
    def at(self, start: float) -> Iterator[None]:
        """Evaluate windows for tasks that start at that time."""
        self._at = start
        try:
            yield
        finally:
            self._at = None

    def closed(self, tasks: Iterable[Task]) -> Closed:
        """The closed resources for tasks that are placed together, during the longest of their durations."""
        if not self.windows:
            return NOTHING_CLOSED
        start = self._wall if self._at is None else self._at
        known = [known_seconds(task) for task in tasks]
        end = start + max((math.inf if seconds is None else seconds for seconds in known), default=math.inf)
        found = self._closed.get((start, end))
        if found is None:
            found = self._closed[start, end] = closed_for(self.windows, start, end)
        return found

    # ------------------------------------------------------------------ where

    def without_closed(
        self, session: Session, room: Mapping[TaskClass, IntColumn], closed: Closed
    ) -> tuple[dict[TaskClass, IntColumn], list[str]]:
        """The room without closed nodes, and the closed nodes that had room, in natural order."""
        row_of = session.table.row_of
        rows = np.array(sorted(row_of[name] for name in closed.nodes if name in row_of), np.int64)
        if not len(rows):
            return dict(room), []
        left, lost = {}, np.zeros(len(rows), np.bool_)
        for cls, column in room.items():
            lost |= column[rows] > 0
            left[cls] = column.copy()
            left[cls][rows] = 0
        return left, sorted((session.node_at(row) for row in rows[lost].tolist()), key=natural)

    def open_devices(self, closed: Closed) -> BoolColumn | None:
        """By rank: whether the device there is open; None if all are."""
        ranks = [node.rank for node in self._live.graph.virtual.values() if _closes(closed, node)]
        if not ranks:
            return None
        candidates = np.ones(self._live.graph.ranks, np.bool_)
        candidates[ranks] = False
        return candidates

    # ------------------------------------------------------------------ reasons

    def reason(self, closed: Closed, nodes: Sequence[str], kinds: Iterable[str]) -> tuple[str, float]:
        """The text about windows that exclude resources from tasks, and the end of the first one; ("", inf) for none.

        `nodes` are the closed nodes that had room, `kinds` the types of the tasks' devices.
        """
        wanted = set(kinds)
        virtual = self._live.graph.virtual.values()
        backends = sorted({node.backend for node in virtual if node.type in wanted and node.backend in closed.backends})
        windows = {f"node {name}": closed.nodes[name] for name in nodes}
        windows |= {f"backend {name}": closed.backends[name] for name in backends}
        if not windows:
            return "", math.inf
        first = [*[f"node {name}" for name in nodes[:1]], *[f"backend {name}" for name in backends[:1]]]
        texts = [_text(what, windows[what], self._wall) for what in first]
        more = len(windows) - len(first)
        if more:
            texts.append(f"{more} more {'is' if more == 1 else 'are'} closed")
        return "; ".join(texts), min(window.end for window in windows.values())

    def refusal(self, closed: Closed, node: str) -> str:
        """The reason for a closed node."""
        return _text(f"node {node}", closed.nodes[node], self._wall)


def _text(what: str, window: Window, wall: float) -> str:
    return f"{what} {'is in' if window.start <= wall else 'must be free for'} {window}"


def _closes(closed: Closed, node: VirtualNode) -> bool:
    """Whether a device is closed: its backend is, or a node above it."""
    return node.backend in closed.backends or any(path.rpartition("/")[2] in closed.nodes for path in node.above)
