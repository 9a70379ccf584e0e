"""The resource graph of the live cluster: hosts come and go by name, and the configuration of its resources changes.

Its parts, each with one task: the graph and its matcher (`LoadedGraph`), who holds what (`Holdings`), the allocations
of our pods (`Allocations`), and what is held for others (`ForeignLoad`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from fluence_plugins.fluence.errors import GraphError
from fluence_plugins.fluence.graph.accounting import Accounting, Amounts, minus
from fluence_plugins.fluence.graph.allocations import Allocations
from fluence_plugins.fluence.graph.cluster_graph import ClusterGraph, HostResources, VirtualNode
from fluence_plugins.fluence.graph.engine import EMBEDDED, Engine
from fluence_plugins.fluence.graph.foreign_load import ForeignLoad
from fluence_plugins.fluence.graph.holdings import Holdings
from fluence_plugins.fluence.graph.loaded_graph import LoadedGraph
from fluence_plugins.resources.config import ResourcesConfig
from fluxion_cy import Matcher

log = logging.getLogger("fluence")


class LiveGraph:
    """Built on the first hosts, then grown and shrunk."""

    def __init__(
        self, config: ResourcesConfig, policy: str, accounting: Accounting | None = None, engine: Engine = EMBEDDED
    ) -> None:
        """`accounting`: how hosts given to `set_hosts` are counted."""
        self.accounting = accounting or Accounting(chunk_mib=engine.chunk_mib)
        self.loaded = LoadedGraph(config, policy, engine)
        self.holdings = Holdings(self.accounting)
        self.foreign = ForeignLoad(self.loaded, self.holdings, self.accounting)
        self.allocations = Allocations(self.loaded, self.holdings, self.foreign)
        self._left_out: dict[str, HostResources] = {}
        """Hosts that cannot be in the graph: something else has their path."""

    @property
    def graph(self) -> ClusterGraph:
        """The graph as it is now."""
        return self.loaded.graph

    @property
    def matcher(self) -> Matcher:
        """The matcher that has the graph now."""
        return self.loaded.matcher

    def set_hosts(self, hosts: Mapping[str, HostResources | None]) -> None:
        """Make these hosts what is given (None: gone).

        A host that cannot be in the graph (its name is a backend's) is left out with a warning; the first hosts of all
        raise GraphError instead: then a start can be stopped.
        """
        known = self.loaded.hosts
        changed = {name: host for name, host in hosts.items() if known.get(name) != host}
        if not changed:
            return
        self.loaded.version += 1
        if not known:
            self.loaded.build({name: host for name, host in changed.items() if host is not None})
            self.holdings.lose_all()
            self.foreign.drop_all()
            if log.isEnabledFor(logging.DEBUG):
                log.debug("[fluence] graph %s", self.graph.jgf())
        else:
            for name, host in changed.items():
                self._change_host(name, host)
        self.allocations.recover_missing()
        self.allocations.compact()

    def _change_host(self, name: str, host: HostResources | None) -> None:
        if name in self.loaded.hosts:
            self.foreign.drop(name)
            self.allocations.lose(self.graph.host_path(name))
            self.loaded.remove_host(name)
        self._left_out.pop(name, None)
        if host is None:
            return
        try:
            self.loaded.add_host(host)
        except GraphError as error:
            log.warning("[fluence] node %s is left out of the graph: %s", name, error)
            self._left_out[name] = host

    def set_config(self, config: ResourcesConfig) -> set[str]:
        """Make the virtual resources those of another configuration; return the hosts that can be in the graph now, and
        could not before.

        What pods hold of those that stay, stays theirs, under the same jobids; what they hold of others is missing
        until it is there again. Trees that stay as they were are not touched. Raises GraphError, and changes nothing,
        where two vertices would have one path. Nothing may be reserved.
        """
        self.loaded.check(config)
        self.loaded.version += 1
        missing, self.holdings.missing = self.holdings.missing, {}
        outdated = self.graph.outdated(config)
        self.loaded.config = config
        self.allocations.replace_trees(outdated)
        left_out = set(self._left_out)
        for name, host in list(self._left_out.items()):
            self._change_host(name, host)
        self.allocations.recover_missing()  # first what was held until now: other pods may have got the rest
        for uid, parts in missing.items():
            self.holdings.add_missing(uid, parts)
        self.allocations.recover_missing()
        self.allocations.compact()
        return left_out - self._left_out.keys()

    # ------------------------------------------------------------------ what is free

    @property
    def shares_hosts(self) -> bool:
        """Whether a host has room for a pod without devices wherever enough of each amount is free: no host is, or is
        to be, held as a whole.
        """
        return not self.loaded.whole_nodes and not self.holdings.whole_hosts

    def free_on(self, host: str, given_back: Iterable[Amounts], load: Amounts | None) -> Amounts | None:
        """What would be free of a host if its pods gave so much back and others took this load, as far as there is
        room for it; None where it is not in the graph.
        """
        known = self.loaded.hosts.get(host)
        if known is None:
            return None
        used = self.holdings.used_on(host)
        for back in given_back:
            used = minus(used, back)
        free = minus(self.accounting.offered(known), used)
        if load is not None:
            free = minus(free, load)
        return tuple([max(0, amount) for amount in free])

    def is_free(self, device: VirtualNode) -> bool:
        """Whether it is up and open, and nothing holds the device, anything in it, or anything that it is in."""
        return not device.down and not device.closed and self.holdings.is_unheld(device.path, device.above)
