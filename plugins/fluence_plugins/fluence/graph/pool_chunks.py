"""The graph for Fluxion's library: one indivisible vertex for each chunk of a pool, and higher ids for outer nodes.

The library has no divisible vertices. Only this module knows which chunks a job has; all others know pools and amounts.
An amount is rounded up to chunks, a pool's size is rounded down.

For a node in a node, the policies that order by node add the outer one's id to a sum, but subtract the inner one's
(flux-sched 0.54). A negative sum matches nothing, so a node that contains nodes gets a higher id than these. Nodes of
one depth keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fluence_plugins.fluence.graph.cluster_graph import NODE
from fluence_plugins.fluence.graph.jgf import SUBSYSTEM

_Node = Mapping[str, Any]
"""A vertex of a JGF: `id` and `metadata`."""


class _Pool(msgspec.Struct, frozen=True):
    node: _Node
    chunk: int
    """The units of one chunk."""
    chunks: tuple[_Node, ...]


class PoolChunks:
    """The chunks of the pools of one graph, and those that each job holds.

    `sizes`: by type of vertex, the number of units in one chunk; 1 for other types. `document` is the graph for the
    library.
    """

    def __init__(self, graph: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        self._pools: dict[str, _Pool] = {}
        self._at: dict[str, tuple[str, int]] = {}
        """By path of a chunk: the pool's path, and the chunk's number."""
        self._free: dict[str, list[int]] = {}
        """Numbers of free chunks by the pool's path, the lowest last."""
        self._taken: dict[int, dict[str, list[int]]] = {}
        """By job and the pool's path."""
        self.document = self._cut(graph["graph"], sizes)

    def _cut(self, graph: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
        ids = _raised(graph)
        nodes: list[_Node] = []
        cut: dict[str, tuple[_Node, ...]] = {}
        number = 1 + max((node["metadata"].get("uniq_id", -1) for node in graph["nodes"]), default=0)
        for node in graph["nodes"]:
            if not node["metadata"].get("divisible"):
                nodes.append(_with(node, id=ids[node["id"]]) if node["id"] in ids else node)
                continue
            pool = _pool(node, sizes.get(node["metadata"]["type"], 1), number)
            number += len(pool.chunks)
            nodes += pool.chunks
            path = _path(node)
            cut[node["id"]], self._pools[path] = pool.chunks, pool
            self._free[path] = list(reversed(range(len(pool.chunks))))
            self._at |= {_path(chunk): (path, index) for index, chunk in enumerate(pool.chunks)}
        edges = []
        for edge in graph["edges"]:
            chunks = cut.get(edge["target"])
            edges += [edge] if chunks is None else [{**edge, "target": chunk["id"]} for chunk in chunks]
        return {"graph": {"nodes": nodes, "edges": edges}}

    def take(self, jobid: int, nodes: Iterable[_Node]) -> list[_Node]:
        """Record the chunks that a job got. Returns the vertices with pools in place of chunks."""
        found: list[_Node] = []
        taken: dict[str, list[int]] = {}
        for node in nodes:
            chunk = self._at.get(_path(node))
            if chunk is None:
                found.append(node)
            elif node["metadata"].get("exclusive"):
                taken.setdefault(chunk[0], []).append(chunk[1])
        for path, numbers in taken.items():
            pool = self._pools[path]
            whole = len(numbers) == len(pool.chunks)
            size = pool.node["metadata"]["size"] if whole else len(numbers) * pool.chunk
            found.append(_with(pool.node, size=size, exclusive=True))
            gone = set(numbers)
            self._free[path] = [number for number in self._free[path] if number not in gone]
        self._taken[jobid] = taken
        return found

    def assign(self, jobid: int, nodes: Iterable[_Node]) -> list[_Node]:
        """Assign free chunks to a job for its amounts of pools. Returns the vertices for the library.

        The free chunks may not suffice for amounts that were not rounded up; the library then counts less.
        """
        found: list[_Node] = []
        self.free(jobid)
        taken = self._taken[jobid] = {}
        for node in nodes:
            path = _path(node)
            pool = self._pools.get(path)
            if pool is None:
                found.append(node)
            elif node["metadata"].get("exclusive"):
                free = self._free[path]
                wanted = min(len(free), -(-node["metadata"].get("size", 1) // pool.chunk))
                taken[path] = [free.pop() for _ in range(wanted)]
                found += [_with(pool.chunks[number], exclusive=True) for number in taken[path]]
        return found

    def free(self, jobid: int) -> None:
        """Free the chunks of a job."""
        for path, numbers in self._taken.pop(jobid, {}).items():
            self._free[path] = sorted([*self._free[path], *numbers], reverse=True)


def _pool(node: _Node, chunk: int, first: int) -> _Pool:
    """`first`: the `uniq_id` of the first chunk."""
    metadata = node["metadata"]
    chunks = tuple(
        {
            "id": f"{node['id']}.{index}",
            "metadata": {
                "type": metadata["type"],
                "basename": metadata["type"],
                "name": f"{metadata['name']}.{index}",
                "id": index,
                "uniq_id": first + index,
                "rank": metadata.get("rank", -1),
                "paths": {SUBSYSTEM: f"{_path(node)}.{index}"},
            },
        }
        for index in range(metadata.get("size", 1) // chunk)
    )
    return _Pool(node, chunk, chunks)


def _raised(graph: Mapping[str, Any]) -> dict[str, int]:
    """The id of each node, by vertex: raised by one step for each depth that the node is above the deepest one."""
    parents = {edge["target"]: edge["source"] for edge in graph["edges"]}
    ids = {node["id"]: node["metadata"]["id"] for node in graph["nodes"] if node["metadata"]["type"] == NODE}
    depths: dict[str, int] = {}
    for vertex in ids:
        above, depth = parents.get(vertex), 0
        while above is not None:
            depth += above in ids
            above = parents.get(above)
        depths[vertex] = depth
    deepest, step = max(depths.values(), default=0), 1 + max(ids.values(), default=0)
    return {vertex: number + (deepest - depths[vertex]) * step for vertex, number in ids.items()} if deepest else {}


def _with(node: _Node, **metadata: Any) -> _Node:
    return {**node, "metadata": {**node["metadata"], **metadata}}


def _path(node: _Node) -> str:
    path: str = node["metadata"]["paths"][SUBSYSTEM]
    return path
