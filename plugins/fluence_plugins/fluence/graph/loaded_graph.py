"""The graph of the cluster and the matcher that has loaded it: every change applies to both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fluence_plugins.fluence.errors import GraphError
from fluence_plugins.fluence.graph.cluster_graph import ClusterGraph, HostResources, build_graph
from fluence_plugins.fluence.graph.engine import Engine
from fluence_plugins.fluence.graph.placement import HostHolding, Placement
from fluence_plugins.fluence.graph.resource_set import allocation_from_placement
from fluence_plugins.resources.config import ResourcesConfig
from fluxion_cy import Matcher
from session_scheduler.model.columns import BoolColumn

_MANY_TREES = 32
"""From this number of changed trees on, a new matcher is cheaper: it sorts its vertices after each change."""
_MOST_DEAD = 10_000
"""How many removed vertices a matcher may have beyond twice the present ones: it keeps memory for all of them."""


class LoadedGraph:
    """The graph without its holdings: callers free what pods hold of a vertex before they remove it."""

    graph: ClusterGraph
    matcher: Matcher
    hosts: dict[str, HostResources]

    def __init__(self, config: ResourcesConfig, policy: str, engine: Engine) -> None:
        self.config = config
        self.engine = engine
        self._policy = policy
        self.whole_nodes = policy.endswith("nodex") or "node_exclusive=true" in policy
        """Whether the policy allocates whole nodes."""
        self.many_trees = _MANY_TREES
        self.version = 0
        """A number that changes whenever ranks do."""
        self.build({})

    def build(self, hosts: Mapping[str, HostResources]) -> None:
        """Build a graph of these hosts, and a new matcher. Raises GraphError if two vertices have one path."""
        self.graph = build_graph(hosts.values(), self.config, wait_for_parents=True)
        self.hosts = dict(hosts)
        self.renew()

    def renew(self) -> None:
        """Load the current graph into a new matcher, without allocations."""
        self._dead = 0
        """The number of removed vertices in the matcher's memory."""
        self.matcher = self.engine.matcher(self.graph.jgf(), self._policy)

    @property
    def is_sparse(self) -> bool:
        """Whether most vertices in the matcher's memory are removed ones."""
        return self._dead > _MOST_DEAD + 2 * len(self.graph.builder)

    def add_host(self, host: HostResources) -> None:
        """Add a host with the trees below it. Raises GraphError if another vertex has its path."""
        self.matcher.add_subgraph(self.graph.add_host(host))
        self.hosts[host.name] = host

    def remove_host(self, name: str) -> None:
        """Remove a host with the trees below it."""
        before = len(self.graph.builder)
        self.matcher.remove_subgraph(self.graph.remove_host(name))
        self._dead += before - len(self.graph.builder)
        del self.hosts[name]

    def check(self, config: ResourcesConfig) -> None:
        """Raise GraphError if two vertices of a graph with this configuration and these hosts would have one path."""
        parents = {tree.parent for tree in config.resources}
        trial = build_graph((self.hosts[name] for name in sorted(parents & self.hosts.keys())), config, True)
        for name in self.hosts:
            if f"{trial.root.path}/{name}" in trial.virtual:
                raise GraphError(f"resource {name}: has the name of a node of the cluster; give it another name")

    def replace_trees(self, roots: Sequence[str], extra_places: Mapping[str, int]) -> bool:
        """Remove trees, and add those of the configuration that the graph lacks, with these additional places.

        Returns whether the matcher is a new one, without allocations.
        """
        before = len(self.graph.builder)
        gone = [self.graph.remove_tree(path) for path in roots]
        self._dead += before - len(self.graph.builder)
        self.graph.extra_places.update(extra_places)
        added = self.graph.set_config(self.config)
        if max(len(roots), len(added)) >= self.many_trees:
            self.renew()
            return True
        for path in gone:
            self.matcher.remove_subgraph(path)
        for path in added:
            self.matcher.add_subgraph(self.graph.subgraph(path))
        return False

    def allocate_exactly(self, jobid: int, part: Placement) -> None:
        """Hold a placement as a job. Raises AllocationError or FluxionError if a part is unknown or not free."""
        self.matcher.update_allocate(jobid, allocation_from_placement(self.graph, part))

    # ------------------------------------------------------------------ hosts

    def candidate(self, rank: int) -> BoolColumn:
        """Candidates with this rank only."""
        candidates = np.zeros(self.graph.ranks, np.bool_)
        candidates[rank] = True
        return candidates

    def whole_host(self, host: str) -> Placement | None:
        """A whole host as a placement; None if the graph does not have it."""
        known = self.hosts.get(host)
        if known is None:
            return None
        pooled = known.core_pool
        whole = HostHolding(
            host,
            self.graph.host_path(host),
            tuple(range(0 if pooled else known.cores)),
            tuple(range(known.gpus)),
            known.memory_mib,
            exclusive=True,
            millicores=known.cores if pooled else 0,
            pods=known.pods,
            others=tuple(sorted((kind, tuple(range(amount))) for kind, amount in known.others)),
        )
        return Placement((whole,))
