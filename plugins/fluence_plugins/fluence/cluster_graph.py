"""The resource graph of a cluster: hosts as they are, and the virtual resources of the configuration.

Everything that is allocated or filtered on is a vertex of type `node`, because constraints only prune those. A host
carries `virtual=false` and holds cores, gpus and one divisible pool of memory. A virtual resource, at every depth,
carries `virtual=true`, `class=` its own and its descendants' types (so that a constraint that asks for a nested class
does not prune the way to it; none where it is down, so that each does), `backend=` the name of its tree, and its
attributes. Every such vertex has a rank of its own, from one counter.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any

from fluence_plugins.fluence import names
from fluence_plugins.fluence.errors import GraphError
from fluence_plugins.fluence.jgf import JGFBuilder, Options, Vertex
from fluence_plugins.fluence.resources import CLUSTER, ResourcesConfig, VirtualResource

NODE, CORE, GPU, MEMORY = "node", "core", "gpu", "memory"
MEMORY_UNIT = "MiB"


@dataclass(frozen=True, slots=True)
class HostResources:
    """What one physical node offers: whole cores, MiB of memory, gpus."""

    name: str
    cores: int
    memory_mib: int
    gpus: int = 0

    def __post_init__(self) -> None:
        if min(self.cores, self.memory_mib, self.gpus) < 0:
            raise GraphError(f"node {self.name}: offers less than nothing: {self}; check its allocatable resources")


@dataclass(frozen=True, slots=True)
class VirtualNode:
    """One vertex of a virtual resource.

    `backend` is the name of its tree's root. `entry` numbers the configuration's trees; the `count` equal roots of
    one tree share it. `level` is the depth in the tree, 0 at its root. `above` are the paths of the `node` vertices
    that hold it, outermost first: other virtual resources and, where the tree hangs below one, the physical host.
    `down`: it is found by no request.
    """

    path: str
    name: str
    type: str
    rank: int
    backend: str
    entry: int
    level: int
    above: tuple[str, ...]
    attributes: Mapping[str, str]
    properties: frozenset[str]
    down: bool = False


class ClusterGraph:
    """The graph with the tables that translate between names and ranks. It grows and shrinks host by host.

    Names and paths survive a restart; ranks and ids do not: they are handed out in order of arrival, those of
    hosts that are gone again.
    """

    def __init__(self, config: ResourcesConfig) -> None:
        self.config = config
        self.builder = JGFBuilder()
        self.root = self.builder.add_root(CLUSTER, options=Options(name=CLUSTER))
        self.host_ranks: dict[str, int] = {}
        self.host_names: dict[int, str] = {}
        self.virtual: dict[str, VirtualNode] = {}
        self.memo: dict[Hashable, Any] = {}
        """What others derived from `virtual`; emptied when that changes."""
        self._virtual_ranks: dict[int, str] = {}
        self._next_rank = 0
        self._free_ranks: list[int] = []
        self._root_names = _root_names(config)

    def jgf(self) -> dict[str, Any]:
        """Return the whole graph as the JGF mapping that the matcher loads."""
        return self.builder.to_mapping()

    @property
    def ranks(self) -> int:
        """How many ranks were handed out so far: a column over ranks has this length."""
        return self._next_rank

    def host_path(self, name: str) -> str:
        """Return a host's path. Raises GraphError if there is no such host."""
        if name not in self.host_ranks:
            raise GraphError(f"node {name}: is not in the graph; add it first")
        return f"{self.root.path}/{name}"

    def rank_of(self, name: str) -> int:
        """Return a host's rank. Raises GraphError if there is no such host."""
        return self.builder[self.host_path(name)].options.rank

    def at_rank(self, rank: int) -> str | VirtualNode:
        """Return what has a rank: a host's name or a virtual vertex. Raises GraphError for a free rank."""
        if rank in self.host_names:
            return self.host_names[rank]
        if rank in self._virtual_ranks:
            return self.virtual[self._virtual_ranks[rank]]
        raise GraphError(f"rank {rank}: belongs to nothing in the graph")

    def add_host(self, host: HostResources) -> dict[str, Any]:
        """Add a host, and the trees whose parent it is; return the JGF that grows a loaded graph by them.

        That subgraph holds the path from the root. Raises GraphError if the name is taken.
        """
        return self.builder.subgraph(self.insert_host(host).path)

    def insert_host(self, host: HostResources) -> Vertex:
        """Add a host as `add_host` does, for a graph that is not loaded yet. Raises GraphError if the name is taken."""
        rank = self._take_rank()
        properties = {names.VIRTUAL_FALSE: ""}
        options = Options(name=host.name, rank=rank, node_properties=properties)
        vertex = self.builder.add_child(self.root, NODE, options=options)
        self.host_ranks[host.name] = rank
        self.host_names[rank] = host.name
        plain = Options(rank=rank)
        for _ in range(host.cores):
            self.builder.add_child(vertex, CORE, options=plain)
        for _ in range(host.gpus):
            self.builder.add_child(vertex, GPU, options=plain)
        if host.memory_mib:
            pool = Options(name=MEMORY, rank=rank, size=host.memory_mib, unit=MEMORY_UNIT, divisible=True)
            self.builder.add_child(vertex, MEMORY, options=pool)
        try:
            self._add_trees(host.name, vertex)
        except GraphError:
            self.remove_host(host.name)
            raise
        return vertex

    def remove_host(self, name: str) -> str:
        """Remove a host and what lies below it; return the path that shrinks a loaded graph by it."""
        path = self.remove_tree(self.host_path(name))
        self._drop_rank(self.host_names, self.host_ranks.pop(name))
        return path

    def remove_tree(self, path: str) -> str:
        """Remove what is at a path and below it; return the path, which shrinks a loaded graph."""
        for vertex in self.builder.remove(path):
            if vertex.path in self.virtual:
                self.memo.clear()
                self._drop_rank(self._virtual_ranks, self.virtual.pop(vertex.path).rank)
        return path

    # ------------------------------------------------------------------ another configuration

    def outdated(self, config: ResourcesConfig) -> list[str]:
        """Return the paths of the trees' roots that a configuration does not have, or has otherwise, sorted."""
        now, then = self._trees(self.config), self._trees(config)
        return sorted(path for path, tree in now.items() if then.get(path) != tree)

    def adopt(self, config: ResourcesConfig) -> list[str]:
        """Make a configuration the graph's own once what is `outdated` was removed; return the paths of the new roots.

        Raises GraphError for two vertices of one path, when it is too late: build a graph of it before.
        """
        self.config = config
        self._root_names = _root_names(config)
        self.memo.clear()
        entry_of = {name: entry for entry, found in enumerate(self._root_names) for name in found}
        for path, node in self.virtual.items():
            self.virtual[path] = replace(node, entry=entry_of[node.backend])
        before = set(self.virtual)
        for parent, vertex in self._parents(config).items():
            self._add_trees(parent, vertex)
        return [path for path, node in self.virtual.items() if not node.level and path not in before]

    def _trees(self, config: ResourcesConfig) -> dict[str, VirtualResource]:
        """The trees that a configuration makes here, by the path of each root: of equal roots each is its own."""
        parents = self._parents(config)
        return {
            f"{parents[tree.parent].path}/{name}": replace(tree, count=min(tree.count, 2))  # as its name says: if many
            for tree, found in zip(config.resources, _root_names(config), strict=True)
            for name in found
            if tree.parent in parents
        }

    def _parents(self, config: ResourcesConfig) -> dict[str, Vertex]:
        """What is here of that below which trees hang: the cluster itself, and hosts."""
        wanted = dict.fromkeys(tree.parent for tree in config.resources)
        paths = {name: self.host_path(name) for name in wanted if name in self.host_ranks and name != CLUSTER}
        return {CLUSTER: self.root} | {name: self.builder[path] for name, path in paths.items()}

    def _drop_rank(self, table: dict[int, str], rank: int) -> None:
        del table[rank]
        heappush(self._free_ranks, rank)

    def waiting_trees(self) -> list[VirtualResource]:
        """Return the trees whose parent is a node that the cluster does not have (any more)."""
        return [tree for tree in self.config.resources if tree.parent != CLUSTER and tree.parent not in self.host_ranks]

    def _take_rank(self) -> int:
        if self._free_ranks:
            return heappop(self._free_ranks)
        self._next_rank += 1
        return self._next_rank - 1

    def add_cluster_trees(self) -> None:
        """Add the trees that hang below the cluster itself; `build_graph` does so once."""
        self._add_trees(CLUSTER, self.root)

    def _add_trees(self, parent: str, vertex: Vertex) -> None:
        above = (vertex.path,) if parent != CLUSTER else ()
        for entry, tree in enumerate(self.config.resources):
            if tree.parent == parent:
                for name in self._root_names[entry]:
                    if f"{vertex.path}/{name}" in self.virtual:
                        continue  # it is there, and as it is to be
                    self._add_resource(tree, vertex, _Place(entry, name, above, level=0), name)

    def _add_resource(self, resource: VirtualResource, parent: Vertex, place: "_Place", name: str) -> None:
        self.memo.clear()
        rank = self._take_rank()
        properties = _properties(resource, place.backend)
        basename = resource.name if resource.name and resource.count > 1 else resource.type
        options = Options(name=name, rank=rank, node_properties=dict.fromkeys(properties, ""))
        vertex = self.builder.add_child(parent, NODE, basename, options)
        self._virtual_ranks[rank] = vertex.path
        self.virtual[vertex.path] = VirtualNode(
            path=vertex.path,
            name=vertex.name,
            type=resource.type,
            rank=rank,
            backend=place.backend,
            entry=place.entry,
            level=place.level,
            above=place.above,
            attributes=resource.attributes,
            properties=frozenset(properties),
            down=resource.down,
        )
        below = _Place(place.entry, place.backend, (*place.above, vertex.path), place.level + 1)
        for child in resource.children:
            for _ in range(child.count):
                self._add_resource(child, vertex, below, (child.name or "") if child.count == 1 else "")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a virtual vertex goes: its tree's number and name, and the `node` vertices above it."""

    entry: int
    backend: str
    above: tuple[str, ...]
    level: int


def _properties(resource: VirtualResource, backend: str) -> list[str]:
    """Every request asks for a class, so what is down has none: the matcher does not go there, nor below it."""
    classes = () if resource.down else sorted(resource.classes())
    return [
        names.VIRTUAL_TRUE,
        *([names.STATUS_DOWN] if resource.down else []),
        *(names.class_property(found) for found in classes),
        *(names.property_of(key, value) for key, value in sorted(resource.attributes.items())),
        names.property_of(names.BACKEND_KEY, backend),
    ]


def _root_names(config: ResourcesConfig) -> list[tuple[str, ...]]:
    """Name the roots of each tree: as written, or numbered over the whole file, so that no two backends share one.

    They depend on the configuration alone, never on which nodes the cluster has.
    """
    taken = {resource.name for resource in config.walk()}
    numbers: dict[str, Iterator[int]] = {}
    found: list[tuple[str, ...]] = []
    for root in config.resources:
        if root.name is not None and root.count == 1:
            found.append((root.name,))
            continue
        basename = root.name or root.type
        free = numbers.setdefault(basename, count())
        fresh = (name for name in (f"{basename}{number}" for number in free) if name not in taken)
        found.append(tuple(islice(fresh, root.count)))
    return found


def build_graph(
    nodes: Iterable[HostResources], config: ResourcesConfig, wait_for_parents: bool = False
) -> ClusterGraph:
    """Build the graph: hosts first, in the order given, then the trees below the cluster.

    Raises GraphError for two hosts of one name, two vertices of one path and, unless `wait_for_parents`, a tree whose
    parent is neither the cluster nor one of `nodes`. With it, such a tree appears when its node is added.
    """
    graph = ClusterGraph(config)
    for host in nodes:
        graph.insert_host(host)
    graph.add_cluster_trees()
    waiting = graph.waiting_trees()
    if waiting and not wait_for_parents:
        raise GraphError(
            f"resource {waiting[0].name or waiting[0].type}: parent {waiting[0].parent!r} is neither the cluster, a "
            "node of it nor a named resource; correct `parent`"
        )
    return graph
