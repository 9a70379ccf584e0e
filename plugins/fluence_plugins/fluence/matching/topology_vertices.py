"""The vertices of the levels as columns: which rack, say, each row of a session lies in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fluence_plugins.fluence.graph.topology import HostLevels, told
from session_scheduler import Refusal
from session_scheduler.model.columns import IntColumn, natural
from session_scheduler.model.groups import Group, Phase, Task

if TYPE_CHECKING:
    from fluence_plugins.fluence.graph.live_graph import LiveGraph


@dataclass(frozen=True, slots=True, eq=False)
class LevelVertices:
    """The vertices of one type, or of several types at once: vertices that all have in common."""

    kinds: tuple[str, ...]
    vertices: tuple[HostLevels, ...]
    """In natural order."""
    of_row: IntColumn
    """Over the session's rows: the number of the vertex, -1 where the host is in none."""

    def __str__(self) -> str:
        return self.kinds[-1]

    def name(self, number: int) -> str:
        """A vertex in words."""
        return told(self.vertices[number])


class TopologyVertices:
    """The configured levels, read off the hosts of a live graph."""

    def __init__(self, live: LiveGraph, removed: Collection[Task]) -> None:
        """`removed`: tasks whose removal is being simulated."""
        self._live = live
        self._removed = removed
        self._known: tuple[IntColumn | None, dict[tuple[str, ...], LevelVertices]] = (None, {})

    def level(self, kinds: tuple[str, ...], ranks: IntColumn) -> LevelVertices:
        """The vertices of these types; `ranks[row]` is the rank of the host in that row, the same array until it moves.

        Two racks of one name in two zones are two.
        """
        if self._known[0] is not ranks:
            self._known = (ranks, {})
        found = self._known[1].get(kinds)
        if found is None:
            found = self._known[1][kinds] = self._read(kinds, ranks)
        return found

    def _read(self, kinds: tuple[str, ...], ranks: IntColumn) -> LevelVertices:
        inner = {name: self.vertex(name, kinds) for name in self._live.graph.host_ranks}
        vertices = sorted({vertex for vertex in inner.values() if vertex is not None}, key=_natural)
        numbers = {vertex: number for number, vertex in enumerate(vertices)}
        by_rank = np.full(self._live.graph.ranks + 1, -1, np.int64)  # the last one is for rows without a rank
        for name, vertex in inner.items():
            if vertex is not None:
                by_rank[self._live.graph.host_ranks[name]] = numbers[vertex]
        return LevelVertices(kinds, tuple(vertices), by_rank[ranks])

    def vertex(self, host: str, kinds: Sequence[str]) -> HostLevels | None:
        """The vertex of the innermost of these types in which a host lies; None where it is not in all of them."""
        levels = self._live.loaded.levels_of(host)
        types = [kind for kind, _ in levels]
        if not set(kinds) <= set(types):
            return None
        return levels[: max(types.index(kind) for kind in kinds) + 1]

    def pinned(self, group: Group, kinds: Sequence[str]) -> HostLevels | Refusal | None:
        """The vertex in which the group's members are that have a node, those too that are ending; None without any.

        A refusal where they are in none, or in several.
        """
        found: dict[HostLevels, Task] = {}
        for task in sorted(self._placed(group), key=lambda task: task.key):
            vertex = self.vertex(task.node or "", kinds)
            if vertex is None:
                return Refusal(
                    f"it is to stay within one {kinds[-1]}, and its pod {task.key} is on node {task.node}, "
                    f"which is in no {kinds[-1]}"
                )
            found.setdefault(vertex, task)
        if len(found) > 1:
            listed = " and ".join(f"{task.key} in {told(vertex)}" for vertex, task in [*found.items()][:2])
            return Refusal(f"it is to stay within one {kinds[-1]}, and of its pods are {listed}")
        return next(iter(found), None)

    def counts(self, group: Group, level: LevelVertices) -> IntColumn:
        """By number of the vertex: how many of the group's pods are there, and not ending."""
        numbers = {vertex: number for number, vertex in enumerate(level.vertices)}
        counts = np.zeros(len(level.vertices), np.int64)
        for task in self._placed(group):
            vertex = self.vertex(task.node or "", level.kinds) if task.phase is not Phase.RELEASING else None
            if vertex is not None:
                counts[numbers[vertex]] += 1
        return counts

    def _placed(self, group: Group) -> Iterable[Task]:
        """The group's tasks that have a node, but for those whose removal is being simulated."""
        return (task for task in group.tasks.values() if task.node is not None and task not in self._removed)


def _natural(levels: HostLevels) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    return tuple((kind, natural(value)) for kind, value in levels)
