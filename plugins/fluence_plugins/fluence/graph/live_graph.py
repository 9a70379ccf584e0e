"""The resource graph of the live cluster: hosts are added and removed by name, and its configuration changes.

Its parts are the graph and its matcher (`LoadedGraph`), what each pod holds (`Holdings`), the allocations of our pods
(`Allocations`), and what the pods of other schedulers use (`ForeignLoad`).
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
    """The graph, built from the first hosts, and then changed host by host."""

    def __init__(
        self, config: ResourcesConfig, policy: str, accounting: Accounting | None = None, engine: Engine = EMBEDDED
    ) -> None:
        """`accounting`: how the amounts of hosts and pods are counted."""
        self.accounting = accounting or Accounting(chunk_mib=engine.chunk_mib)
        self.loaded = LoadedGraph(config, policy, engine)
        self.holdings = Holdings(self.accounting)
        self.foreign = ForeignLoad(self.loaded, self.holdings, self.accounting)
        self.allocations = Allocations(self.loaded, self.holdings, self.foreign)
        self._left_out: dict[str, HostResources] = {}
        """Hosts that the graph cannot have, because another vertex has their path."""

    @property
    def graph(self) -> ClusterGraph:
        """The current graph."""
        return self.loaded.graph

    @property
    def matcher(self) -> Matcher:
        """The matcher that has loaded the current graph."""
        return self.loaded.matcher

    def set_hosts(self, hosts: Mapping[str, HostResources | None]) -> None:
        """Add, change or remove (None) hosts.

        A host whose path another vertex has, because a backend has its name, is left out of the graph with a warning.
        Among the first hosts it raises GraphError, so that the scheduler does not start.
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
        """Replace the virtual resources by those of another configuration.

        Returns the hosts that were left out of the graph until now. Equal trees are not touched. Pods keep what they
        hold of resources that remain, under the same jobids; what they hold of others is missing until it exists again.
        Raises GraphError, and changes nothing, if two vertices would have one path. There must be no reservations.
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
        self.allocations.recover_missing()  # first what pods held until now: other pods may hold the rest
        for uid, parts in missing.items():
            self.holdings.add_missing(uid, parts)
        self.allocations.recover_missing()
        self.allocations.compact()
        return left_out - self._left_out.keys()

    # ------------------------------------------------------------------ what is free

    @property
    def shares_hosts(self) -> bool:
        """Whether a pod without devices fits on every host with enough of each amount free.

        That is false while a pod holds a whole host, or the policy allocates whole hosts.
        """
        return not self.loaded.whole_nodes and not self.holdings.whole_hosts

    def free_on(self, host: str, given_back: Iterable[Amounts], load: Amounts | None) -> Amounts | None:
        """What would be free on a host if its pods freed these amounts and others used this load.

        Free amounts are at least 0. None if the graph does not have the host.
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
        """Whether a device is up and open, and no pod holds it, a part of it, or a device that contains it."""
        return not device.down and not device.closed and self.holdings.is_unheld(device.path, device.above)
