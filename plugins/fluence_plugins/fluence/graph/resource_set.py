"""R, Flux's format of an allocation (RFC 20), read as a placement and written from one.

R lists the allocated vertices and those above them. Pods record what they hold by names, because ranks and ids change
with the nodes; a restarted scheduler writes R from the names.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fluence_plugins.fluence.errors import AllocationError
from fluence_plugins.fluence.graph.cluster_graph import CORE, GPU, GPU_OF, MEMORY, NODE, POD, ClusterGraph
from fluence_plugins.fluence.graph.jgf import SUBSYSTEM, JGFBuilder, Vertex, jgf_mapping
from fluence_plugins.fluence.graph.placement import DeviceHolding, HostHolding, Placement
from fluence_plugins.resources import names


class _TakenVertex(msgspec.Struct, frozen=True):
    type: str
    path: str
    id: int | None
    size: int
    exclusive: bool
    properties: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def virtual(self) -> bool:
        return names.VIRTUAL_TRUE in self.properties

    @property
    def core_pool(self) -> bool:
        """Whether the vertex is the pool of a host's millicores, whose name has no number, unlike that of a core."""
        return self.type == CORE == self.name and self.id is not None

    @property
    def index(self) -> int:
        if self.id is not None:
            return self.id
        digits = self.name[len(self.name.rstrip("0123456789")) :]
        if not digits:
            raise AllocationError(f"{self.path}: has neither an id nor a name that ends with a number; add an id")
        return int(digits)


def placement_from_allocation(allocation: Mapping[str, Any] | str) -> Placement:
    """Read an allocation in the jgf, rv1 or rfc40 form, as a mapping or JSON text.

    A `node` vertex with `virtual=true` is a device; any other `node` vertex is a host. Paths omit the levels above a
    host (see `cluster_graph`). The result has each host with an allocated vertex, and the outermost allocated devices,
    which include all that they contain. Raises AllocationError if R is invalid.
    """
    vertices = {vertex.path: vertex for vertex in _vertices(allocation)}
    hosts: dict[str, list[_TakenVertex]] = {}
    devices = []
    for vertex in vertices.values():
        above = _above(vertex.path, vertices)
        if vertex.type == NODE and vertex.virtual:
            if vertex.exclusive and not any(node.virtual and node.exclusive for node in above):
                devices.append(_device(vertex, above))
        elif vertex.type == NODE:
            if vertex.exclusive:
                hosts.setdefault(vertex.path, [])
        elif vertex.type in (CORE, GPU, MEMORY, POD) or vertex.type.startswith(GPU_OF):
            hosts.setdefault(_host_of(vertex, above).path, []).append(vertex)
    found = (_host(vertices[path], parts, _above(path, vertices)) for path, parts in hosts.items())
    held = sorted(found, key=lambda host: host.path)
    return Placement(tuple(held), tuple(sorted(devices, key=lambda device: device.path)))


def placement_on_host(allocation: Mapping[str, Any]) -> Placement:
    """`placement_from_allocation` for one host, in the matcher's jgf form: much faster."""
    path, exclusive = "", False
    cores: list[int] = []
    gpus: list[int] = []
    others: dict[str, list[int]] = {}
    memory = millicores = pods = 0
    for node in allocation["graph"]["nodes"]:
        metadata = node["metadata"]
        kind = metadata["type"]
        if kind == CORE:
            if metadata.get("name") == CORE:  # of a pool; the name of a core is its type and number, and is omitted
                millicores += metadata.get("size", 1)
            else:
                cores.append(metadata["id"])
        elif kind == MEMORY:
            memory += metadata.get("size", 1)
        elif kind == GPU:
            gpus.append(metadata["id"])
        elif kind == POD:
            pods += metadata.get("size", 1)
        elif kind.startswith(GPU_OF):
            others.setdefault(kind, []).append(metadata["id"])
        elif kind == NODE:
            if path:  # the host has devices, which are allocated with it
                return placement_from_allocation(allocation)
            path, exclusive = metadata["paths"][SUBSYSTEM], metadata.get("exclusive", False)
    name = path.rpartition("/")[2]
    path = f"/{path.split('/', 2)[1]}/{name}"  # without the levels above it
    more = _in_order(others) if others else ()
    return Placement(
        (HostHolding(name, path, tuple(sorted(cores)), tuple(sorted(gpus)), memory, exclusive, millicores, pods, more),)
    )


def _in_order(others: Mapping[str, list[int]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((kind, tuple(sorted(indices))) for kind, indices in sorted(others.items()))


def _vertices(allocation: Mapping[str, Any] | str) -> Iterable[_TakenVertex]:
    try:
        data = json.loads(allocation) if isinstance(allocation, str) else allocation
        graph = data.get("graph") or data["scheduling"]["graph"]
        for node in graph["nodes"]:
            metadata = node["metadata"]
            yield _TakenVertex(
                type=metadata["type"],
                path=metadata["paths"][SUBSYSTEM],
                id=metadata.get("id"),
                size=metadata.get("size", 1),
                exclusive=metadata.get("exclusive", False),
                properties=metadata.get("properties") or {},
            )
    except json.JSONDecodeError as error:
        raise AllocationError(f"the allocation is not JSON: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise AllocationError(f"the allocation must be a graph of vertices with type and paths: {error!r}") from None


def _above(path: str, vertices: Mapping[str, _TakenVertex]) -> list[_TakenVertex]:
    """Return the listed vertices that contain a path, innermost first."""
    found = []
    while path := path.rpartition("/")[0]:
        if path in vertices:
            found.append(vertices[path])
    return found


def _host_of(vertex: _TakenVertex, above: list[_TakenVertex]) -> _TakenVertex:
    for candidate in above:
        if candidate.type == NODE:
            return candidate
    raise AllocationError(f"{vertex.path}: the allocation lacks the vertex's node; R needs the whole path")


def _device(vertex: _TakenVertex, above: list[_TakenVertex]) -> DeviceHolding:
    pairs = [names.split_property(name) for name in vertex.properties]
    root = next((node for node in reversed(above) if node.virtual), vertex)
    named = [value for key, value in pairs if key == names.BACKEND_KEY]
    attributes = {key: value for key, value in pairs if key not in names.RESERVED_KEYS}
    return DeviceHolding(_path(vertex, above), named[0] if named else root.name, attributes)


def _path(vertex: _TakenVertex, above: list[_TakenVertex]) -> str:
    """The path without the levels between the cluster and the outermost host or device."""
    levels = [found for found in above[:-1] if found.type != NODE]
    if not levels:
        return vertex.path
    return above[-1].path + vertex.path.removeprefix(levels[0].path)


def _host(host: _TakenVertex, taken: list[_TakenVertex], above: list[_TakenVertex]) -> HostHolding:
    others: dict[str, list[int]] = {}
    for vertex in taken:
        if vertex.type.startswith(GPU_OF):
            others.setdefault(vertex.type, []).append(vertex.index)
    return HostHolding(
        name=host.name,
        path=_path(host, above),
        cores=tuple(sorted(vertex.index for vertex in taken if vertex.type == CORE and not vertex.core_pool)),
        gpus=tuple(sorted(vertex.index for vertex in taken if vertex.type == GPU)),
        memory_mib=sum(vertex.size for vertex in taken if vertex.type == MEMORY),
        exclusive=host.exclusive,
        millicores=sum(vertex.size for vertex in taken if vertex.core_pool),
        pods=sum(vertex.size for vertex in taken if vertex.type == POD),
        others=_in_order(others),
    )


def allocation_from_placement(graph: ClusterGraph, placement: Placement) -> dict[str, Any]:
    """Return R, in the jgf form, for a placement: the inverse of `placement_from_allocation`.

    Raises AllocationError, which names the vertex, if the graph no longer has a part of the placement.
    """
    taken: dict[str, int] = {}
    for host in placement.hosts:
        for path, amount in _vertices_of_host(graph, host).items():
            taken[path] = _sum_of(path, taken.get(path), amount, graph.builder)
    for device in placement.devices:
        if graph.vertex_path(device.path) in taken:
            raise AllocationError(f"{device.path}: allocated to two pods; delete one of them")
        if device.path not in graph.virtual:
            raise AllocationError(
                f"{device.path}: no longer in the graph, but pods hold it; restore it or delete the pods"
            )
        taken[graph.vertex_path(device.path)] = 1
    listed = {above.path: above for path in taken for above in graph.builder.ancestors(path)}
    listed |= {path: graph.builder[path] for path in taken}
    mapping = jgf_mapping(sorted(listed.values(), key=lambda vertex: (vertex.path.count("/"), vertex.uniq_id)))
    for node in mapping["graph"]["nodes"]:
        metadata = node["metadata"]
        del metadata["exclusive"]
        size = taken.get(metadata["paths"]["containment"])
        if size is not None:
            metadata |= {"exclusive": True, "size": size}
    return mapping


def _sum_of(path: str, held: int | None, more: int, builder: JGFBuilder) -> int:
    """Add another pod's amount of a vertex: pods can only share a pool, up to its size."""
    if held is None:
        return more
    options = builder[path].options
    if not options.divisible or held + more > options.size:
        raise AllocationError(f"{path}: allocated to two pods; delete one of them")
    return held + more


def _vertices_of_host(graph: ClusterGraph, host: HostHolding) -> dict[str, int]:
    builder, path = graph.builder, graph.vertex_path(host.path)
    if path not in builder or builder[path].type != NODE:
        raise AllocationError(f"{host.path}: no longer in the graph, but pods hold it; restore it or delete the pods")
    here: dict[tuple[str, int], Vertex] = {}
    pools: dict[str, Vertex] = {}
    for child in builder.children(path):
        if child.options.divisible:
            pools[child.type] = child
        else:
            here[child.type, child.id] = child
    found = {here[key].path: 1 for key in _keys(host) if key in here}
    missing = [f"{kind}{index}" for kind, index in _keys(host) if (kind, index) not in here]
    if missing:
        raise AllocationError(f"{host.path}: no longer has {', '.join(missing)}, which a pod holds; delete the pod")
    for kind, units, unit in ((MEMORY, host.memory_mib, "MiB"), (CORE, host.millicores, "millicores"),
                              (POD, host.pods, "pods")):  # fmt: skip
        if units:
            pool = pools.get(kind)
            if pool is None or pool.options.size < units:
                size = pool.options.size if pool else 0
                raise AllocationError(f"{host.path}: has {size} {unit}, but a pod holds {units}; delete the pod")
            found[pool.path] = units
    if host.exclusive:
        found[path] = 1
    return found


def _keys(host: HostHolding) -> Iterator[tuple[str, int]]:
    yield from ((CORE, index) for index in host.cores)
    yield from ((GPU, index) for index in host.gpus)
    for kind, indices in host.others:
        yield from ((kind, index) for index in indices)
