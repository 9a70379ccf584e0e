"""From recorded holdings back to an allocation (R) of today's graph.

What pods hold is recorded by names, because ranks and ids change when nodes do; a restarted scheduler forms R anew.
"""

from collections.abc import Iterator
from typing import Any

from fluence_plugins.fluence.errors import AllocationError
from fluence_plugins.fluence.graph.cluster_graph import CORE, GPU, MEMORY, NODE, POD, ClusterGraph
from fluence_plugins.fluence.graph.jgf import JGFBuilder, Vertex, jgf_mapping
from fluence_plugins.fluence.graph.placement import HostHolding, Placement


def allocation_from_placement(graph: ClusterGraph, placement: Placement) -> dict[str, Any]:
    """Return R, in the jgf form, that holds exactly what the placement says.

    `placement_from_allocation` undoes it. Raises AllocationError, naming the vertex, where the graph no longer has it,
    or has less of it than is held.
    """
    taken: dict[str, int] = {}
    for host in placement.hosts:
        for path, amount in _of_host(graph, host).items():
            taken[path] = _together(path, taken.get(path), amount, graph.builder)
    for device in placement.devices:
        if graph.vertex_path(device.path) in taken:
            raise AllocationError(f"{device.path}: is held twice; end one of the pods that hold it")
        if device.path not in graph.virtual:
            raise AllocationError(f"{device.path}: is held but no longer in the graph; restore it or end its pod")
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


def _together(path: str, held: int | None, more: int, builder: JGFBuilder) -> int:
    """Add what another pod holds of a vertex: only a pool's units can be shared, up to its size."""
    if held is None:
        return more
    options = builder[path].options
    if not options.divisible or held + more > options.size:
        raise AllocationError(f"{path}: is held twice; end one of the pods that hold it")
    return held + more


def _of_host(graph: ClusterGraph, host: HostHolding) -> dict[str, int]:
    builder, path = graph.builder, graph.vertex_path(host.path)
    if path not in builder or builder[path].type != NODE:
        raise AllocationError(f"{host.path}: is held but no longer in the graph; restore the node or end its pods")
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
        raise AllocationError(f"{host.path}: no longer has {', '.join(missing)}, which a pod holds; end that pod")
    for kind, units, unit in ((MEMORY, host.memory_mib, "MiB"), (CORE, host.millicores, "millicores"),
                              (POD, host.pods, "pods")):  # fmt: skip
        if units:
            pool = pools.get(kind)
            if pool is None or pool.options.size < units:
                size = pool.options.size if pool else 0
                raise AllocationError(f"{host.path}: has {size} {unit}, fewer than the {units} that a pod holds")
            found[pool.path] = units
    if host.exclusive:
        found[path] = 1
    return found


def _keys(host: HostHolding) -> Iterator[tuple[str, int]]:
    yield from ((CORE, index) for index in host.cores)
    yield from ((GPU, index) for index in host.gpus)
    for kind, indices in host.others:
        yield from ((kind, index) for index in indices)
