"""The graph of the cluster and the matcher that has loaded it: both grow, shrink and change together."""

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
"""From how many changed trees on the matcher is built anew: it works out its orders anew after each of them."""
_MOST_DEAD = 10_000
"""How many vertices that are gone a matcher may have beside twice those that are there: it keeps room for them all."""


class LoadedGraph:
    """What is in the graph, not who holds it: what goes must have been given back before."""

    graph: ClusterGraph
    matcher: Matcher
    hosts: dict[str, HostResources]

    def __init__(self, config: ResourcesConfig, policy: str, engine: Engine) -> None:
        self.config = config
        self.engine = engine
        self._policy = policy
        self.whole_nodes = policy.endswith("nodex") or "node_exclusive=true" in policy
        """Whether the policy gives whole nodes."""
        self.many_trees = _MANY_TREES
        self.version = 0
        """Moves whenever ranks do."""
        self.build({})

    def build(self, hosts: Mapping[str, HostResources]) -> None:
        """Begin with these hosts, and a new matcher. Raises GraphError where they cannot be in one graph."""
        self.graph = build_graph(hosts.values(), self.config, wait_for_parents=True)
        self.hosts = dict(hosts)
        self.renew()

    def renew(self) -> None:
        """Load the graph as it is now into a new matcher, in which nothing is held."""
        self._dead = 0
        """Vertices that are gone and of which the matcher still has something."""
        self.matcher = self.engine.matcher(self.graph.jgf(), self._policy)

    @property
    def is_sparse(self) -> bool:
        """Whether most of what the matcher has is gone: nodes and trees came and went for long."""
        return self._dead > _MOST_DEAD + 2 * len(self.graph.builder)

    def add_host(self, host: HostResources) -> None:
        """Add a host with the trees below it. Raises GraphError where its path is taken."""
        self.matcher.add_subgraph(self.graph.add_host(host))
        self.hosts[host.name] = host

    def remove_host(self, name: str) -> None:
        """Remove a host with the trees below it."""
        before = len(self.graph.builder)
        self.matcher.remove_subgraph(self.graph.remove_host(name))
        self._dead += before - len(self.graph.builder)
        del self.hosts[name]

    def check(self, config: ResourcesConfig) -> None:
        """Raise GraphError where a configuration cannot be in a graph of these hosts."""
        parents = {tree.parent for tree in config.resources}
        trial = build_graph((self.hosts[name] for name in sorted(parents & self.hosts.keys())), config, True)
        for name in self.hosts:
            if f"{trial.root.path}/{name}" in trial.virtual:
                raise GraphError(f"resource {name}: has the name of a node of the cluster; give it another name")

    def replace_trees(self, roots: Sequence[str], extra_places: Mapping[str, int]) -> bool:
        """Remove trees, and add those that the configuration has and the graph does not, with so many places more.

        Whether the matcher is a new one, in which nothing is held.
        """
        before = len(self.graph.builder)
        gone = [self.graph.remove_tree(path) for path in roots]
        self._dead += before - len(self.graph.builder)
        self.graph.extra_places.update(extra_places)
        added = self.graph.adopt(self.config)
        if max(len(roots), len(added)) >= self.many_trees:
            self.renew()
            return True
        for path in gone:
            self.matcher.remove_subgraph(path)
        for path in added:
            self.matcher.add_subgraph(self.graph.subgraph(path))
        return False

    def allocate_exactly(self, jobid: int, part: Placement) -> None:
        """Hold a placement as a job. Raises AllocationError or FluxionError where it is not there, or not free."""
        self.matcher.update_allocate(jobid, allocation_from_placement(self.graph, part))

    # ------------------------------------------------------------------ hosts

    def candidate(self, rank: int) -> BoolColumn:
        """That rank alone as candidates."""
        candidates = np.zeros(self.graph.ranks, np.bool_)
        candidates[rank] = True
        return candidates

    def whole_host(self, host: str) -> Placement | None:
        """All of a host; None where it is not in the graph."""
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
