"""The resource graph of a cluster: its hosts, and the virtual resources of the configuration.

Hosts and virtual resources are vertices of type `node`, because constraints only prune those. A host has the property
`virtual=false`, and contains cores, gpus and a divisible pool of memory. With millicores it contains a divisible pool
of these in place of cores, and a pool of the pods that it may run. A virtual resource, at every depth, has the
properties `virtual=true`, `class=` with its own and its descendants' types (so that a constraint on a nested class does
not prune the path to it; none while it is down, so that every constraint does), `backend=` with the name of its tree,
and its attributes. Every such vertex has its own rank, from one counter.

Between the cluster and the hosts there may be levels (zones, racks): vertices without a rank, which exist while they
contain a host. Names and records omit them: outside of the graph the path of a host is `/cluster/<name>`, and that of a
device in it `/cluster/<name>/…`, in any rack. `vertex_path` finds the vertex.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any

import msgspec
from msgspec.structs import replace

from fluence_plugins.fluence.errors import GraphError
from fluence_plugins.fluence.graph.jgf import JGFBuilder, Options, Vertex
from fluence_plugins.fluence.graph.topology import HostLevels, vertex_name
from fluence_plugins.resources import names
from fluence_plugins.resources.config import CLUSTER, ResourcesConfig, VirtualResource

_PLACES, _OFFERED = "places", "offered"
"""The keys of `memo` for places, and for the number of devices by type."""
NODE, CORE, GPU, MEMORY, POD = "node", "core", "gpu", "memory", "pod"
GPU_OF = "gpu:"
"""The prefix of the types of other kinds of gpu, before the name of their extended resource."""
MEMORY_UNIT, CORE_UNIT = "MiB", "m"


class HostResources(msgspec.Struct, frozen=True):
    """The resources of one physical node: cores, MiB of memory, gpus.

    `others` are other kinds of gpu, by type. With `core_pool`, `cores` are millicores of one pool, and `pods` are the
    units of a pool from which each pod takes one.
    """

    name: str
    cores: int
    memory_mib: int
    gpus: int = 0
    others: tuple[tuple[str, int], ...] = ()
    pods: int = 0
    core_pool: bool = False
    levels: HostLevels = ()
    """The levels between the cluster and the host."""

    def __post_init__(self) -> None:
        if min(self.cores, self.memory_mib, self.gpus, self.pods, *(amount for _, amount in self.others)) < 0:
            raise GraphError(f"node {self.name}: has a negative amount: {self}; check its allocatable resources")


class VirtualNode(msgspec.Struct, frozen=True):
    """One vertex of a virtual resource.

    `backend` is the name of its tree's root. `entry` is the number of its tree in the configuration; the `count` equal
    roots of one tree share it. `level` is the depth in the tree, 0 at its root. `above` are the paths of the `node`
    vertices that contain it, outermost first: other virtual resources and, for a tree below a host, that host.
    `down`: no request matches it. `places`: how many pods share it, 0 if it is not shared. Pods get one of the places
    below a shared device; each place (`is_place`) is a vertex like the device, with all that it contains.
    `closed`: more pods hold it, or a device that contains it, than may share it now. No request matches it until there
    are fewer.
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
    places: int = 0
    is_place: bool = False
    closed: bool = False


class ClusterGraph:
    """The graph, with tables that map names to ranks and back. It grows and shrinks host by host.

    Names and paths survive a restart. Ranks and ids do not: they are assigned in the order of arrival, and those of
    removed hosts are reused.
    """

    def __init__(self, config: ResourcesConfig) -> None:
        self.config = config
        self.builder = JGFBuilder()
        self.root = self.builder.add_root(CLUSTER, options=Options(name=CLUSTER))
        self.host_ranks: dict[str, int] = {}
        self.host_names: dict[int, str] = {}
        self.virtual: dict[str, VirtualNode] = {}
        self.memo: dict[Hashable, Any] = {}
        """Results that other modules derived from `virtual`; a change drops them."""
        self.extra_places: dict[str, int] = {}
        """By path of a shared device: its places beyond those of the configuration, for present holders. Set before its
        tree is added; removed with the tree."""
        self._virtual_ranks: dict[int, str] = {}
        self._next_rank = 0
        self._free_ranks: list[int] = []
        self._root_names = _root_names(config)
        self._below: dict[str, str] = {}
        """By host below a level: the path of its vertex."""
        self._levels: set[str] = set()
        """The paths of the levels' vertices."""

    def jgf(self) -> dict[str, Any]:
        """Return the whole graph as the JGF mapping that the matcher loads."""
        return self.builder.to_mapping()

    @property
    def ranks(self) -> int:
        """The number of ranks so far: the length of a column over ranks."""
        return self._next_rank

    def host_path(self, name: str) -> str:
        """Return a host's path without levels. Raises GraphError for an unknown host."""
        if name not in self.host_ranks:
            raise GraphError(f"node {name}: is not in the graph; add it first")
        return f"{self.root.path}/{name}"

    def vertex_path(self, path: str) -> str:
        """Return the path in the graph, with the levels above its host, of a path without them."""
        if not self._below:
            return path
        name, *rest = path.removeprefix(f"{self.root.path}/").split("/", 1)
        found = self._below.get(name)
        return path if found is None else "/".join((found, *rest))

    def path_of(self, vertex: Vertex) -> str:
        """Undo `vertex_path`."""
        path, levels = vertex.path, self.root.path
        if not self._below:
            return path
        while (end := path.find("/", len(levels) + 1)) > 0 and path[:end] in self._levels:
            levels = path[:end]
        return self.root.path + path.removeprefix(levels)

    def vertex(self, path: str) -> Vertex:
        """Return the vertex of a path without levels. Raises GraphError if it is unknown."""
        return self.builder[self.vertex_path(path)]

    def subgraph(self, path: str) -> dict[str, Any]:
        """Return a JGF with the vertex at a path without levels and everything below it, to add to a loaded graph."""
        return self.builder.subgraph(self.vertex_path(path))

    def at_rank(self, rank: int) -> str | VirtualNode:
        """Return the host's name or the virtual vertex of a rank. Raises GraphError for a free rank."""
        if rank in self.host_names:
            return self.host_names[rank]
        if rank in self._virtual_ranks:
            return self.virtual[self._virtual_ranks[rank]]
        raise GraphError(f"rank {rank}: no vertex of the graph has this rank")

    def add_host(self, host: HostResources) -> dict[str, Any]:
        """Add a host, and the trees below it. Return the JGF that adds them to a loaded graph.

        The JGF has the path from the root. Raises GraphError if the name is taken.
        """
        return self.builder.subgraph(self.insert_host(host).path)

    def insert_host(self, host: HostResources) -> Vertex:
        """Add a host as `add_host` does, for a graph that is not loaded yet. Raises GraphError if the name is taken."""
        if f"{self.root.path}/{host.name}" in self.virtual:
            raise GraphError(f"{self.root.path}/{host.name}: two vertices have this path; rename one of them")
        rank = self._take_rank()
        properties = {names.VIRTUAL_FALSE: ""}
        options = Options(name=host.name, id=rank if host.levels else -1, rank=rank, node_properties=properties)
        vertex = self.builder.add_child(self._above(host), NODE, options=options)
        if host.levels:
            self._below[host.name] = vertex.path
        self.host_ranks[host.name] = rank
        self.host_names[rank] = host.name
        plain = Options(rank=rank)
        for _ in range(0 if host.core_pool else host.cores):
            self.builder.add_child(vertex, CORE, options=plain)
        for _ in range(host.gpus):
            self.builder.add_child(vertex, GPU, options=plain)
        for kind, amount in host.others:
            for _ in range(amount):
                self.builder.add_child(vertex, kind, _basename_of(kind), plain)
        cpu = host.cores if host.core_pool else 0
        for kind, size, unit in ((CORE, cpu, CORE_UNIT), (MEMORY, host.memory_mib, MEMORY_UNIT), (POD, host.pods, "")):
            if size:
                pool = Options(name=kind, rank=rank, size=size, unit=unit, divisible=True)
                self.builder.add_child(vertex, kind, options=pool)
        try:
            self.add_trees(host.name, vertex)
        except GraphError:
            self.remove_host(host.name)
            raise
        return vertex

    def _above(self, host: HostResources) -> Vertex:
        """The parent of a host: the vertex of its innermost level, which it adds if necessary."""
        vertex = self.root
        for kind, value in host.levels:
            name = vertex_name(kind, value)
            path = f"{vertex.path}/{name}"
            if path not in self._levels:
                self.builder.add_child(vertex, kind, options=Options(name=name))
                self._levels.add(path)
            vertex = self.builder[path]
        return vertex

    def remove_host(self, name: str) -> str:
        """Remove a host, everything below it, and the levels that become empty.

        Return the path of the vertex to remove from a loaded graph.
        """
        path, above = self.host_path(name), self.builder.ancestors(self.vertex_path(self.host_path(name)))
        gone = self.remove_tree(path)
        self._below.pop(name, None)
        self._drop_rank(self.host_names, self.host_ranks.pop(name))
        for vertex in reversed(above[1:]):
            if self.builder.children(vertex.path):
                break
            self.builder.remove(vertex.path)
            self._levels.remove(vertex.path)
            gone = vertex.path
        return gone

    def remove_tree(self, path: str) -> str:
        """Remove the vertex at a path without levels, and everything below it.

        Return the path of the vertex to remove from a loaded graph.
        """
        found = self.vertex_path(path)
        for vertex in self.builder.remove(found):
            removed = self.virtual.pop(path + vertex.path.removeprefix(found), None)
            if removed is not None:
                self.memo.clear()
                self._drop_rank(self._virtual_ranks, removed.rank)
                self.extra_places.pop(removed.path, None)
        return found

    def same_device(self, path: str) -> Sequence[str]:
        """Return the paths of a device: all its places in order if it is shared now; empty for an unknown device.

        The given path may be that of a place, or of a device in one.
        """
        known: dict[str, list[str]] | None = self.memo.get(_PLACES)
        if known is None:
            known = self.memo[_PLACES] = {}
            for one in self.virtual:
                if (device := names.without_places(one)) != one:
                    known.setdefault(device, []).append(one)
        device = names.without_places(path)
        return known.get(device) or ((device,) if device in self.virtual else ())

    def offered(self, types: Iterable[str]) -> Mapping[str, int]:
        """Return how many pods can hold a resource of each of these types, by its resource name.

        Devices that are down do not count.
        """
        known: dict[str, int] | None = self.memo.get(_OFFERED)
        if known is None:
            usable = (node.type for node in self.virtual.values() if not node.down and not node.places)
            known = self.memo[_OFFERED] = {names.resource_name(kind): n for kind, n in Counter(usable).items()}
        return {name: known.get(name, 0) for name in map(names.resource_name, types)}

    def tree_of(self, path: str) -> str:
        """Return the path of the root of a virtual resource's tree."""
        return next(one for one in (*self.virtual[path].above, path) if one in self.virtual)

    # ------------------------------------------------------------------ another configuration

    def outdated(self, config: ResourcesConfig) -> list[str]:
        """Return the paths of the roots of trees that a configuration lacks, or describes differently, sorted."""
        now, then = self._trees(self.config), self._trees(config)
        return sorted(path for path, tree in now.items() if then.get(path) != tree)

    def set_config(self, config: ResourcesConfig) -> list[str]:
        """Apply a configuration after the `outdated` trees were removed. Return the paths of the new roots.

        Raises GraphError for two vertices with one path, and leaves the graph half changed: build a trial graph first.
        """
        self.config = config
        self._root_names = _root_names(config)
        self.memo.clear()
        entry_of = {name: entry for entry, found in enumerate(self._root_names) for name in found}
        for path, node in self.virtual.items():
            self.virtual[path] = replace(node, entry=entry_of[node.backend])
        before = set(self.virtual)
        for parent, vertex in self._parents(config).items():
            self.add_trees(parent, vertex)
        return [
            path for path, node in self.virtual.items() if not node.level and not node.is_place and path not in before
        ]

    def _trees(self, config: ResourcesConfig) -> dict[str, VirtualResource]:
        """The trees of a configuration in this cluster, by the path of each root; equal roots are separate entries."""
        parents = self._parents(config)
        return {
            f"{self._path_of(tree.parent)}/{name}": replace(tree, count=min(tree.count, 2))  # 2: its names are numbered
            for tree, found in zip(config.resources, _root_names(config), strict=True)
            for name in found
            if tree.parent in parents
        }

    def _parents(self, config: ResourcesConfig) -> dict[str, Vertex]:
        """The existing parents of trees: the cluster, and hosts."""
        wanted = dict.fromkeys(tree.parent for tree in config.resources)
        paths = {name: self.host_path(name) for name in wanted if name in self.host_ranks and name != CLUSTER}
        return {CLUSTER: self.root} | {name: self.vertex(path) for name, path in paths.items()}

    def _drop_rank(self, table: dict[int, str], rank: int) -> None:
        del table[rank]
        heappush(self._free_ranks, rank)

    def waiting_trees(self) -> list[VirtualResource]:
        """Return the trees whose parent is a node that the cluster does not have."""
        return [tree for tree in self.config.resources if tree.parent != CLUSTER and tree.parent not in self.host_ranks]

    def _take_rank(self) -> int:
        if self._free_ranks:
            return heappop(self._free_ranks)
        self._next_rank += 1
        return self._next_rank - 1

    def _path_of(self, parent: str) -> str:
        """The path of a parent of trees, without levels."""
        return self.root.path if parent == CLUSTER else f"{self.root.path}/{parent}"

    def add_trees(self, parent: str, vertex: Vertex) -> None:
        """Add the trees below the cluster or a host, which has this vertex."""
        path = self._path_of(parent)
        above = (path,) if parent != CLUSTER else ()
        for entry, tree in enumerate(self.config.resources):
            if tree.parent == parent:
                shared = frozenset(resource.type for resource in tree.walk() if resource.sharing > 1)
                for name in self._root_names[entry]:
                    if f"{path}/{name}" in self.virtual:
                        continue  # the tree already exists
                    if parent == CLUSTER and name in self._below:
                        raise GraphError(f"{path}/{name}: two vertices have this path; rename one of them")
                    self._add_resource(tree, vertex, _Position(entry, name, above, 0, shared), name)

    def _add_resource(self, resource: VirtualResource, parent: Vertex, place: "_Position", name: str) -> None:
        self.memo.clear()
        basename = resource.name if resource.name and resource.count > 1 else resource.type
        extra = 0
        if self.extra_places:
            path = f"{self.path_of(parent)}/{name or self.builder.next_name(parent, basename)}"
            extra = self.extra_places.get(path, 0)
        more = resource.sharing + extra if extra or resource.type in place.shared else 0
        if extra:
            place = replace(place, closed=True)
        vertex = self._add_virtual(resource, parent, place, Options(name=name), basename, places=more)
        if not more:
            self._add_children(resource, vertex, place)
            return
        inside = replace(place, above=(*place.above, self.path_of(vertex)))
        for number in range(more):
            options = Options(name=names.place_name(number), id=number)
            one = self._add_virtual(resource, vertex, inside, options, basename, is_place=True)
            self._add_children(resource, one, inside)

    def _add_children(self, resource: VirtualResource, vertex: Vertex, place: "_Position") -> None:
        if not resource.children:
            return
        above = (*place.above, self.path_of(vertex))
        below = _Position(place.entry, place.backend, above, place.level + 1, place.shared, place.closed)
        for child in resource.children:
            for _ in range(child.count):
                self._add_resource(child, vertex, below, (child.name or "") if child.count == 1 else "")

    def _add_virtual(
        self,
        resource: VirtualResource,
        parent: Vertex,
        place: "_Position",
        options: Options,
        basename: str,
        *,
        places: int = 0,
        is_place: bool = False,
    ) -> Vertex:
        rank = self._take_rank()
        properties = _properties(resource, place.backend, closed=place.closed)
        options = msgspec.structs.replace(options, rank=rank, node_properties=dict.fromkeys(properties, ""))
        vertex = self.builder.add_child(parent, NODE, basename, options)
        path = self.path_of(vertex)
        self._virtual_ranks[rank] = path
        self.virtual[path] = VirtualNode(
            path=path,
            name=parent.name if is_place else vertex.name,
            type=resource.type,
            rank=rank,
            backend=place.backend,
            entry=place.entry,
            level=place.level,
            above=place.above,
            attributes=resource.attributes,
            properties=frozenset(properties),
            down=resource.down,
            places=places,
            is_place=is_place,
            closed=place.closed,
        )
        return vertex


class _Position(msgspec.Struct, frozen=True):
    """The position of a virtual vertex.

    It has its tree's number and name, the `node` vertices above it, the types with a shared resource in the tree, and
    whether it is closed. All devices of a shared type have at least one place in the tree, so that one jobspec can
    request several of them.
    """

    entry: int
    backend: str
    above: tuple[str, ...]
    level: int
    shared: frozenset[str]
    closed: bool = False


def _properties(resource: VirtualResource, backend: str, *, closed: bool = False) -> list[str]:
    """Every request requires a class. A device that is down or closed has none: the matcher does not search there."""
    classes = () if resource.down or closed else sorted(resource.classes())
    return [
        names.VIRTUAL_TRUE,
        *([names.STATUS_DOWN] if resource.down else []),
        *(names.class_property(found) for found in classes),
        *(names.property_of(key, value) for key, value in sorted(resource.attributes.items())),
        names.property_of(names.BACKEND_KEY, backend),
    ]


def _basename_of(kind: str) -> str:
    """The base of names of a type's vertices: without a slash, and not another type's base with a number."""
    return f"{kind.replace('/', ':')}-"


def _root_names(config: ResourcesConfig) -> list[tuple[str, ...]]:
    """The names of the roots of each tree: as given, or numbered over the whole file to be unique.

    They depend on the configuration only, not on the cluster's nodes.
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
    """Build the graph: the hosts in the given order, then the trees below the cluster.

    Raises GraphError for two hosts with one name, two vertices with one path and, unless `wait_for_parents`, a tree
    whose parent is neither the cluster nor one of `nodes`. With it, such a tree is added with its node.
    """
    graph = ClusterGraph(config)
    for host in nodes:
        graph.insert_host(host)
    graph.add_trees(CLUSTER, graph.root)
    waiting = graph.waiting_trees()
    if waiting and not wait_for_parents:
        raise GraphError(
            f"resource {waiting[0].name or waiting[0].type}: parent {waiting[0].parent!r} must be the cluster, one of "
            "its nodes or a named resource; correct `parent`"
        )
    return graph
