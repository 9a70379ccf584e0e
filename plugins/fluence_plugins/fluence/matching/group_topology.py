"""The placement of groups with a topology constraint: within one vertex of a level, or spread over several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.topology import HostLevels, TopologyLevel, in_words
from fluence_plugins.fluence.matching.level_placement import (
    Columns,
    LevelPlacer,
    LevelVertices,
    Matcher,
    Spread,
    Within,
    vertices_that_fit,
)
from fluence_plugins.fluence.matching.row_ranks import RowRanks
from fluence_plugins.fluence.matching.topology_constraint import TopologyConstraint, constraint_of
from session_scheduler import Refusal, Session
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, natural
from session_scheduler.model.groups import Group, Phase, Task


class GroupTopology:
    """Reads the constraints of groups, and selects the nodes for each."""

    def __init__(
        self,
        live: LiveGraph,
        levels: tuple[TopologyLevel, ...],
        ranks: RowRanks,
        removed: Collection[Task],
        budget: int,
    ) -> None:
        """`removed`: tasks whose removal is simulated. `budget`: the maximum number of vertices in which the core tries
        a group, if the room on each node does not show whether the group fits.
        """
        self.levels = levels
        self._ranks = ranks
        self._budget = budget
        self._vertices = _Vertices(live, removed)

    def constrains(self, group: Group) -> bool:
        """Whether the group has a constraint, valid or not."""
        return bool(self.levels) and constraint_of(group, self.levels) is not None

    def spreads(self, group: Group) -> bool:
        """Whether the group has a spread constraint: then the best node depends on its other pods."""
        constraint = constraint_of(group, self.levels) if self.levels else None
        return isinstance(constraint, TopologyConstraint) and constraint.spread is not None

    def refusal(self, group: Group) -> Refusal | None:
        """Why the group fits nowhere: its constraint is invalid, or its pods are already in several vertices."""
        constraint = constraint_of(group, self.levels)
        if constraint is None or isinstance(constraint, Refusal):
            return constraint
        pinned = self._vertices.pinned(group, constraint.within) if constraint.within else None
        return pinned if isinstance(pinned, Refusal) else None

    def placer(self, session: Session, group: Group, matcher: Matcher) -> LevelPlacer | Refusal | None:
        """The placer for the group's constraint; None if it has none."""
        constraint = constraint_of(group, self.levels) if self.levels else None
        if constraint is None or isinstance(constraint, Refusal):
            return constraint
        found = LevelPlacer(matcher, budget=self._budget, reasons_wanted=session.reasons_wanted)
        ranks = self._ranks.of(session)
        if constraint.within:
            level = self._vertices.level(constraint.within, ranks)
            pinned = self._vertices.pinned(group, constraint.within)
            if isinstance(pinned, Refusal):
                return pinned
            number = None if pinned is None else _number(level, pinned)
            found.within = Within(level, number, each=number is None and _needs_trials(session, group))
        if constraint.spread is not None:
            level = self._vertices.level((*constraint.within, constraint.spread), ranks)
            found.spread = Spread(level, constraint.over, self._vertices.counts(group, level))
        return found

    def subsets(self, session: Session, group: Group, mask: BoolColumn) -> list[BoolColumn] | None:
        """The sets of nodes for a group that must stay within one vertex; None for all nodes.

        If the room on each node does not decide whether the group fits, each vertex with room is one set, the best
        first. The core tries one set after the other, and applies the filters between pods of the group.
        """
        constraint = constraint_of(group, self.levels)
        if constraint is None or isinstance(constraint, Refusal) or not constraint.within:
            return None
        level = self._vertices.level(constraint.within, self._ranks.of(session))
        pinned = self._vertices.pinned(group, constraint.within)
        if isinstance(pinned, Refusal):
            return []
        if pinned is not None:
            return [mask & (level.of_row == _number(level, pinned))]
        inside = [mask & (level.of_row >= 0)]
        if not _needs_trials(session, group):
            return inside
        tasks = group.in_phase(Phase.PENDING)
        room, scores = _columns(session, tasks, mask)
        needed = min(group.needed, len(tasks))
        found = vertices_that_fit(tasks, room, scores, level, needed)[: self._budget]
        return [mask & (level.of_row == number) for number in found] or inside


class _Vertices:
    """The vertices of the configured levels, from the hosts of a live graph."""

    def __init__(self, live: LiveGraph, removed: Collection[Task]) -> None:
        """`removed`: tasks whose removal is simulated."""
        self._live = live
        self._removed = removed
        self._known: tuple[IntColumn | None, dict[tuple[str, ...], LevelVertices]] = (None, {})

    def level(self, kinds: tuple[str, ...], ranks: IntColumn) -> LevelVertices:
        """The vertices of these types. `ranks[row]`: the rank of the host in that row; a new array after each change.

        Racks with one name in different zones are different vertices.
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
        by_rank = np.full(self._live.graph.ranks + 1, -1, np.int64)  # the last entry is for rows without a rank
        for name, vertex in inner.items():
            if vertex is not None:
                by_rank[self._live.graph.host_ranks[name]] = numbers[vertex]
        return LevelVertices(kinds, tuple(vertices), by_rank[ranks])

    def vertex(self, host: str, kinds: Sequence[str]) -> HostLevels | None:
        """The vertex of the innermost of these types that contains a host; None if the host lacks one of them."""
        known = self._live.loaded.hosts.get(host)
        levels = known.levels if known is not None else ()
        types = [kind for kind, _ in levels]
        if not set(kinds) <= set(types):
            return None
        return levels[: max(types.index(kind) for kind in kinds) + 1]

    def pinned(self, group: Group, kinds: Sequence[str]) -> HostLevels | Refusal | None:
        """The vertex with the group's placed pods, those that are ending included; None if no pod is placed.

        A refusal if they are in no vertex, or in several.
        """
        found: dict[HostLevels, Task] = {}
        for task in sorted(self._placed(group), key=lambda task: task.key):
            vertex = self.vertex(task.node or "", kinds)
            if vertex is None:
                return Refusal(
                    f"the group must stay within one {kinds[-1]}, but its pod {task.key} is on node {task.node}, "
                    f"which is in no {kinds[-1]}"
                )
            found.setdefault(vertex, task)
        if len(found) > 1:
            listed = " and ".join(f"{task.key} in {in_words(vertex)}" for vertex, task in [*found.items()][:2])
            return Refusal(f"the group must stay within one {kinds[-1]}, but its pods are in several: {listed}")
        return next(iter(found), None)

    def counts(self, group: Group, level: LevelVertices) -> IntColumn:
        """By number of the vertex: how many of the group's pods it has, except those that are ending."""
        numbers = {vertex: number for number, vertex in enumerate(level.vertices)}
        counts = np.zeros(len(level.vertices), np.int64)
        for task in self._placed(group):
            vertex = self.vertex(task.node or "", level.kinds) if task.phase is not Phase.RELEASING else None
            if vertex is not None:
                counts[numbers[vertex]] += 1
        return counts

    def _placed(self, group: Group) -> Iterable[Task]:
        """The group's tasks with a node, except those whose removal is simulated."""
        return (task for task in group.tasks.values() if task.node is not None and task not in self._removed)


def _needs_trials(session: Session, group: Group) -> bool:
    """Whether the room on each node does not decide: the pods have several classes, or filters between them."""
    classes = {task.cls for task in group.in_phase(Phase.PENDING)}
    return len(classes) > 1 or any(session.evaluation(cls).any_filters for cls in classes)


def _columns(session: Session, tasks: Sequence[Task], mask: BoolColumn) -> tuple[Columns, Columns]:
    """The room and the scores of each class of these tasks on the nodes of the mask."""
    room: dict[TaskClass, IntColumn] = {}
    scores: dict[TaskClass, IntColumn] = {}
    for cls, count in Counter(task.cls for task in tasks).items():
        task = next(task for task in tasks if task.cls is cls)
        board = session.board(task)
        board.sync(task)
        room[cls] = np.where(mask, board.capacity(count), 0)
        scores[cls] = board.total.astype(np.int64, copy=True)
    return room, scores


def _number(level: LevelVertices, vertex: HostLevels) -> int:
    return level.vertices.index(vertex)


def _natural(levels: HostLevels) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    return tuple((kind, natural(value)) for kind, value in levels)
