"""The future graph: a copy of the matcher in which allocations have an end, and maintenance windows are reservations.

In the live graph an allocation lasts until its pod is gone, so that no other pod gets what a live pod holds. Here it
lasts until the pod's expected end, in whole seconds from the present time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fluence_plugins.fluence.errors import AllocationError
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import DeviceHolding, Placement
from fluence_plugins.fluence.graph.resource_set import allocation_from_placement
from fluence_plugins.resources.maintenance_windows import Window
from fluxion_cy import FluxionError

_JOBS: Final = 1 << 61
"""The first jobid of allocations that only the copy has."""
FOREVER: Final = 100 * 365 * 24 * 3600
"""Seconds: about the longest duration of the matcher."""

Span = tuple[int, int]
"""The first second, and the one after the last."""


class Timeline:
    """The graph from `wall` (seconds since 1970) on, which is second 0."""

    def __init__(
        self,
        live: LiveGraph,
        wall: float,
        ends: Mapping[str, float],
        windows: Iterable[Window] = (),
        foreign: Iterable[str] = (),
    ) -> None:
        """Copy the graph, and set the ends of its allocations.

        `ends`: when pods (by uid) end; the others never do. `foreign`: hosts on which foreign pods end. There the copy
        holds no foreign load; the core counts it for each time.
        """
        self._live = live
        self._wall = wall
        self._matcher = live.matcher.clone()
        self._next = _JOBS
        self._nodes: dict[str, list[Span]] = {}
        self._backends: dict[str, list[Span]] = {}
        for window in windows:
            if window.end > wall:
                span = max(0, math.floor(window.start - wall)), self.second(window.end)
                for table, names in ((self._nodes, window.nodes), (self._backends, window.backends)):
                    for name in names:
                        table.setdefault(name, []).append(span)
        for name in {*foreign, *self._nodes} & live.foreign.jobs.keys():
            self._matcher.retract(live.foreign.jobs[name])
        parts = self._retract_ending(ends)
        self._hold_windows()
        for part, end in parts:
            self._hold_part(part, end)

    def second(self, time: float) -> int:
        """The first whole second that is not before a time."""
        return min(FOREVER, max(0, math.ceil(time - self._wall)))

    def earliest(
        self, jobspecs: Sequence[str], candidates: NDArray[np.int64] | None = None, *, times: int = 1
    ) -> int | None:
        """The first second from which one of the jobspecs fits for its duration; None if none ever does.

        With `times`, that many allocations must fit at once.
        """
        at, made = 0, list[int]()
        try:
            for _ in range(times):
                found = [answer for text in jobspecs if (answer := self._soonest(text, candidates)) is not None]
                if not found:
                    return None
                second, best = min(found)
                at = max(at, second)
                self._matcher.allocate_orelse_reserve(best, jobid=self._next, candidates=candidates)
                made.append(self._next)
                self._next += 1
        finally:
            for jobid in reversed(made):
                self._matcher.retract(jobid)
        return at

    def _soonest(self, jobspec: str, candidates: NDArray[np.int64] | None) -> tuple[int, str] | None:
        try:
            return self._matcher.without_allocating_future(jobspec, candidates=candidates).at, jobspec
        except FluxionError:
            return None

    # ------------------------------------------------------------------ allocations in time

    def _retract_ending(self, ends: Mapping[str, float]) -> list[tuple[Placement, int]]:
        """Retract allocations that end, or whose resources a window closes. Returns their parts and ends."""
        by_job: dict[int, list[tuple[Placement, int]]] = {}
        concerned = set[int]()
        for uid, share in self._live.holdings.shares.items():
            end = self.second(ends[uid]) if uid in ends else FOREVER
            for jobid, part in share.items():
                by_job.setdefault(jobid, []).append((part, end))
                if end < FOREVER or self._is_closed(part):
                    concerned.add(jobid)
        for jobid in sorted(concerned):
            self._matcher.retract(jobid)
        return [entry for jobid in sorted(concerned) for entry in by_job[jobid]]

    def _is_closed(self, part: Placement) -> bool:
        return any(host.name in self._nodes for host in part.hosts) or any(map(self._closings, part.devices))

    def _closings(self, device: DeviceHolding) -> list[Span]:
        known = self._live.graph.virtual.get(device.path)
        if known is None or not (self._nodes or self._backends):
            return []
        above = (path.rpartition("/")[2] for path in known.above)
        return [*self._backends.get(known.backend, ()), *(span for name in above for span in self._nodes.get(name, ()))]

    def _hold_windows(self) -> None:
        for name, spans in sorted(self._nodes.items()):
            whole = self._live.loaded.whole_host(name) if name in self._live.graph.host_ranks else None
            for span in union(spans) if whole is not None else ():
                self._hold(whole, span)
        for root in [node for node in self._live.graph.virtual.values() if not node.level]:
            device = DeviceHolding(root.path, root.backend)
            for span in union(self._closings(device)):
                self._hold(Placement((), (device,)), span)

    def _hold_part(self, part: Placement, end: int) -> None:
        """Hold a part until its pod ends, without the windows that close it."""
        pieces = [(Placement((host,)), self._nodes.get(host.name, [])) for host in part.hosts]
        pieces += [(Placement((), (device,)), self._closings(device)) for device in part.devices]
        if not any(closed for _, closed in pieces):
            self._hold(part, (0, end))
            return
        for piece, closed in pieces:
            for span in without_holes((0, end), union(closed)):
                self._hold(piece, span)

    def _hold(self, part: Placement | None, span: Span) -> None:
        """Hold a part if the graph has it and it is free. If not, another allocation holds it."""
        if part is None or span[0] >= span[1]:
            return
        try:
            self._matcher.update_allocate(
                self._next, _envelope(allocation_from_placement(self._live.graph, part), span)
            )
        except (FluxionError, AllocationError):
            return
        self._next += 1


def _envelope(graph: Mapping[str, Any], span: Span) -> dict[str, Any]:
    """R of version 1 (RFC 20) around a graph."""
    execution = {"R_lite": [], "nodelist": [], "starttime": span[0], "expiration": span[1]}
    return {"version": 1, "execution": execution, "scheduling": graph}


def with_duration(jobspec: str, seconds: float | None) -> str:
    """A jobspec (JSON) with a duration; None: without end."""
    if seconds is None:
        return jobspec
    plain = msgspec.json.decode(jobspec)
    plain["attributes"]["system"]["duration"] = min(FOREVER, math.ceil(seconds))
    return msgspec.json.encode(plain).decode()


def union(spans: Iterable[Span]) -> list[Span]:
    """The union of spans, as spans that do not touch, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def without_holes(span: Span, holes: Iterable[Span]) -> list[Span]:
    """The parts of a span without holes; the holes are in order and do not touch."""
    found, (at, end) = [], span
    for first, last in holes:
        if at < min(first, end):
            found.append((at, min(first, end)))
        at = max(at, last)
    if at < end:
        found.append((at, end))
    return found
