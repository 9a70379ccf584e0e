"""What the graph would hold if some running pods were gone: for as long as the core's trial lasts.

What others run on a host is counted anew only when the graph is asked, and when no removal is simulated any more:
several pods of a host go and come between two requests.
"""

from __future__ import annotations

from fluence_plugins.fluence.graph.holdings import Share
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.matching.node_loads import NodeLoads
from fluence_plugins.fluence.matching.nominated_pods import NominatedPods
from session_scheduler import Event


class SimulatedRemovals:
    """Gives back what a task holds, and takes the same again."""

    def __init__(self, live: LiveGraph, loads: NodeLoads, nominated: NominatedPods) -> None:
        self._live = live
        self._loads = loads
        self._nominated = nominated
        self._shares: dict[str, Share] = {}
        """What those that are removed hold, by pod uid."""
        self._uncounted: dict[str, None] = {}
        """The hosts on which others' load is to be counted anew, in the order in which they came."""

    def remove(self, event: Event) -> None:
        """Simulate removing a running task."""
        uid = event.task.uid
        self._loads.removed.add(event.task)
        self._uncounted[event.node] = None
        if uid in self._live.holdings.shares:
            self._shares[uid] = self._live.allocations.set_aside(uid)

    def put_back(self, event: Event) -> None:
        """Undo `remove`. Raises RuntimeError where the graph does not have all of it any more."""
        uid = event.task.uid
        self._loads.removed.discard(event.task)
        self._uncounted[event.node] = None
        share = self._shares.pop(uid, None)
        try:
            if share is not None:
                self._live.foreign.drop(event.node)  # it may have grown into what was given back
                self._nominated.make_way(share)
                self._live.allocations.take_back({uid: share})
        finally:
            if not self._loads.removed:
                self.count_loads()

    def count_loads(self) -> None:
        """Let the graph hold what others run now: before it is asked."""
        while self._uncounted:
            host = next(iter(self._uncounted))
            del self._uncounted[host]
            self._loads.count(host)
