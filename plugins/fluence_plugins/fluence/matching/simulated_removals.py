"""What the graph would hold if some running pods were gone: for as long as the core's trial lasts.

What others run on a host is counted anew only when the graph is asked, and when nobody is gone any more: several pods
of a host go and come between two questions.
"""

from __future__ import annotations

from collections.abc import Callable

from fluence_plugins.fluence.graph.holdings import Share
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.matching.nominated_pods import Nominated
from session_scheduler import Event
from session_scheduler.model.groups import Task


class Trials:
    """Gives back what a task holds, and takes the same again. `recount` counts anew what others run on a host."""

    def __init__(self, live: LiveGraph, nominated: Nominated, recount: Callable[[str], None]) -> None:
        self._live = live
        self._nominated = nominated
        self._recount = recount
        self._shares: dict[str, Share] = {}
        """What those thought away hold, by pod uid."""
        self._unsettled: dict[str, None] = {}
        """The hosts on which others' load is to be counted anew, in the order in which they came."""
        self.gone: set[Task] = set()
        """Those thought away."""

    def remove(self, event: Event) -> None:
        """Think a running task away."""
        uid = event.task.uid
        self.gone.add(event.task)
        self._unsettled[event.node] = None
        if uid in self._live.holdings.shares:
            self._shares[uid] = self._live.allocations.set_aside(uid)

    def put_back(self, event: Event) -> None:
        """Let it be there again. Raises RuntimeError where the graph does not have all of it any more."""
        uid = event.task.uid
        self.gone.discard(event.task)
        self._unsettled[event.node] = None
        share = self._shares.pop(uid, None)
        try:
            if share is not None:
                self._live.foreign.drop(event.node)  # it may have grown into what was given back
                self._nominated.make_way(share)
                self._live.allocations.take_back({uid: share})
        finally:
            if not self.gone:
                self.settle()

    def settle(self) -> None:
        """Let the graph hold what others run now: before it is asked."""
        while self._unsettled:
            host = next(iter(self._unsettled))
            del self._unsettled[host]
            self._recount(host)
