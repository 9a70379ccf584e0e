"""The graph as Fluxion's library can hold it: one indivisible vertex for each chunk of a pool, and higher ids above.

The library knows no divisible vertices. Which chunks somebody has says nothing to anybody: outside of this module there
are pools and amounts only. An amount is rounded up to chunks, a pool's size down.

Of nodes in nodes, the policies that go by node take the inner one's id off the sum of ids where they have added the
outer one's (flux-sched 0.54). Where that comes out below 0 nothing is found; so whatever holds a node gets a higher id
than it. Nodes of one depth keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fluence_plugins.fluence.graph.cluster_graph import NODE
from fluence_plugins.fluence.graph.jgf import SUBSYSTEM

_Node = Mapping[str, Any]
"""A vertex of a JGF: `id` and `metadata`."""


@dataclass(frozen=True, slots=True)
class _Pool:
    node: _Node
    chunk: int
    """Units of one chunk."""
    chunks: tuple[_Node, ...]


class Chunks:
    """The pools of one graph, cut up, and which chunks of them each job has.

    `sizes`: units of one chunk, by type of vertex; of other types a chunk is one unit. `document` is the graph as the
    library loads it.
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

    def note(self, jobid: int, nodes: Iterable[_Node]) -> list[_Node]:
        """Note which chunks a job got of the library; the same vertices with pools in place of their chunks."""
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

    def hold(self, jobid: int, nodes: Iterable[_Node]) -> list[_Node]:
        """Give a job chunks for the pools among what it holds, as far as there are any; the vertices for the library.

        There are too few where amounts were not rounded up when they were given: the library then counts less.
        """
        found: list[_Node] = []
        self.forget(jobid)
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

    def forget(self, jobid: int) -> None:
        """A job's chunks are free again."""
        for path, numbers in self._taken.pop(jobid, {}).items():
            self._free[path] = sorted([*self._free[path], *numbers], reverse=True)


def _pool(node: _Node, chunk: int, first: int) -> _Pool:
    """`first`: the number from which its chunks are numbered in the graph."""
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
    """The id of each node, by the vertex: higher by as much the more nodes lie below it on some way down."""
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
