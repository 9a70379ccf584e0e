"""Simulated removals: during a trial of the core, the graph does not hold what the removed pods hold.

The foreign load of their hosts is recounted before the next match, and when the last removal is undone, because a trial
may remove several pods of a host between two matches.
"""

from __future__ import annotations

from fluence_plugins.fluence.graph.holdings import Share
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.matching.node_loads import NodeLoads
from fluence_plugins.fluence.matching.nominated_pods import NominatedPods
from session_scheduler import Event


class SimulatedRemovals:
    """Frees what tasks hold, and holds the same again."""

    def __init__(self, live: LiveGraph, loads: NodeLoads, nominated: NominatedPods) -> None:
        self._live = live
        self._loads = loads
        self._nominated = nominated
        self._shares: dict[str, Share] = {}
        """What removed pods held, by pod uid."""
        self._uncounted: dict[str, None] = {}
        """The hosts whose load must be recounted, in order."""

    def remove(self, event: Event) -> None:
        """Simulate removing a running task."""
        uid = event.task.uid
        self._loads.removed.add(event.task)
        self._uncounted[event.node] = None
        if uid in self._live.holdings.shares:
            self._shares[uid] = self._live.allocations.set_aside(uid)

    def put_back(self, event: Event) -> None:
        """Undo `remove`. Raises RuntimeError if the graph no longer has a part of it."""
        uid = event.task.uid
        self._loads.removed.discard(event.task)
        self._uncounted[event.node] = None
        share = self._shares.pop(uid, None)
        try:
            if share is not None:
                self._live.foreign.drop(event.node)  # it may use what the pod freed
                self._nominated.make_way(share)
                self._live.allocations.take_back({uid: share})
        finally:
            if not self._loads.removed:
                self.count_loads()

    def count_loads(self) -> None:
        """Recount the loads of these hosts, before a match."""
        while self._uncounted:
            host = next(iter(self._uncounted))
            del self._uncounted[host]
            self._loads.count(host)
