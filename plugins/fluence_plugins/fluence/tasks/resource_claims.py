"""The names of virtual resources that only this scheduler may have: those of its file, and those that pods hold."""

from __future__ import annotations

from collections.abc import Iterator

from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.resources import names
from fluence_plugins.resources.config import exclusive_names


class ResourceClaims:
    """The names for the scheduler's Lease. Pods keep what they hold of resources that the file no longer lists."""

    def __init__(self, live: LiveGraph) -> None:
        self._live = live
        self._kept: set[str] = set()
        self._known: set[str] = set()
        """All names that the file has had."""

    @property
    def names(self) -> set[str]:
        """The names of the resources, without those of nodes."""
        return exclusive_names(self._live.loaded.config).union(self._kept)

    def count(self) -> None:
        """Find what pods hold of resources that the file does not list. Call it between sessions."""
        listed = exclusive_names(self._live.loaded.config)
        self._known |= listed
        self._kept = set()
        for path in self._unlisted():
            tree, *inside = names.without_places(path).split("/")
            if listed.isdisjoint(_possible_names(tree)):
                self._kept |= _possible_names(tree)
            self._kept |= {name for one in inside for name in _possible_names(one) & self._known} - listed

    def freed(self) -> None:
        """A pod no longer holds anything."""
        if self._kept:
            self.count()

    def _unlisted(self) -> Iterator[str]:
        """The paths below the cluster of the devices that pods hold and the graph does not have, outside of nodes."""
        graph, holdings, root = self._live.graph, self._live.holdings, f"{self._live.graph.root.path}/"
        for uid, parts in holdings.missing.items():
            for path in {device.path for _, part in parts for device in part.devices}:
                below = path.removeprefix(root)
                tree = below.partition("/")[0]
                if tree in self._live.loaded.hosts or tree in holdings.hosts_of(uid):
                    continue
                if path not in graph.virtual and not graph.same_device(path):
                    yield below


def _possible_names(vertex: str) -> set[str]:
    """What the file may have called a vertex: several of one resource have its name, or its type, with a number."""
    return {vertex, vertex.rstrip("0123456789") or vertex}
