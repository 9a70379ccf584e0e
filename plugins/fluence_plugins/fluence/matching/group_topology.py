"""What the plugin does for groups with a topology constraint; for all others it has nothing to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.topology import HostLevels, TopologyLevel
from fluence_plugins.fluence.matching.level_placement import (
    Columns,
    LevelPlacer,
    Place,
    Spread,
    Within,
    vertices_with_room,
)
from fluence_plugins.fluence.matching.row_ranks import RowRanks
from fluence_plugins.fluence.matching.topology_constraint import TopologyConstraint, constraint_of
from fluence_plugins.fluence.matching.topology_vertices import LevelVertices, TopologyVertices
from session_scheduler import Refusal, Session
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.groups import Group, Phase, Task


class GroupTopology:
    """Reads the constraints of groups, and says among which nodes they go."""

    def __init__(
        self,
        live: LiveGraph,
        levels: tuple[TopologyLevel, ...],
        ranks: RowRanks,
        removed: Collection[Task],
        budget: int,
    ) -> None:
        """`removed`: tasks whose removal is being simulated. `budget`: in how many vertices a group is tried at most
        that takes more than a check of room.
        """
        self.levels = levels
        self._ranks = ranks
        self._budget = budget
        self._vertices = TopologyVertices(live, removed)

    def constrains(self, group: Group) -> bool:
        """Whether the group has a constraint, or one that cannot be read."""
        return bool(self.levels) and constraint_of(group, self.levels) is not None

    def spreads(self, group: Group) -> bool:
        """Whether the group is to be spread, so that no node is good or bad by itself."""
        constraint = constraint_of(group, self.levels) if self.levels else None
        return isinstance(constraint, TopologyConstraint) and constraint.spread is not None

    def refusal(self, group: Group) -> Refusal | None:
        """Why the group cannot be placed wherever there is room: its constraint cannot be met, or it is in several
        vertices.
        """
        constraint = constraint_of(group, self.levels)
        if constraint is None or isinstance(constraint, Refusal):
            return constraint
        pinned = self._vertices.pinned(group, constraint.within) if constraint.within else None
        return pinned if isinstance(pinned, Refusal) else None

    def placer(self, session: Session, group: Group, match: Place) -> LevelPlacer | Refusal | None:
        """What places the group as its constraint says, by `match`; None where it has none."""
        constraint = constraint_of(group, self.levels) if self.levels else None
        if constraint is None or isinstance(constraint, Refusal):
            return constraint
        found = LevelPlacer(match, budget=self._budget, reasons_wanted=session.reasons_wanted)
        ranks = self._ranks.of(session)
        if constraint.within:
            level = self._vertices.level(constraint.within, ranks)
            pinned = self._vertices.pinned(group, constraint.within)
            if isinstance(pinned, Refusal):
                return pinned
            number = None if pinned is None else _number(level, pinned)
            found.within = Within(level, number, each=number is None and _is_involved(session, group))
        if constraint.spread is not None:
            level = self._vertices.level((*constraint.within, constraint.spread), ranks)
            found.spread = Spread(level, constraint.over, self._vertices.counts(group, level))
        return found

    def subsets(self, session: Session, group: Group, mask: BoolColumn) -> list[BoolColumn] | None:
        """The nodes that a group that stays within one vertex may go to; None for all of them.

        Where it is not enough to check room, each vertex with room is a set of its own, the best first: the core tries
        one after the other, with all that it can do for pods that stand in each other's way.
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
        if not _is_involved(session, group):
            return inside
        tasks = group.in_phase(Phase.PENDING)
        room, scores = _columns(session, tasks, mask)
        needed = min(group.needed, len(tasks))
        found = vertices_with_room(tasks, room, scores, level, needed)[: self._budget]
        return [mask & (level.of_row == number) for number in found] or inside


def _is_involved(session: Session, group: Group) -> bool:
    """Whether room on each node does not say what a vertex takes: pods of several classes, or that keep apart."""
    classes = {task.cls for task in group.in_phase(Phase.PENDING)}
    return len(classes) > 1 or any(session.plan(cls).any_filters for cls in classes)


def _columns(session: Session, tasks: Sequence[Task], mask: BoolColumn) -> tuple[Columns, Columns]:
    """Room and scores of each class of some tasks on the nodes of the mask."""
    room: dict[TaskClass, IntColumn] = {}
    scores: dict[TaskClass, IntColumn] = {}
    for cls, count in Counter(task.cls for task in tasks).items():
        task = next(task for task in tasks if task.cls is cls)
        board = session.board(task)
        board.sync(task)
        room[cls] = np.where(mask, board.room(count), 0)
        scores[cls] = board.total.astype(np.int64, copy=True)
    return room, scores


def _number(level: LevelVertices, vertex: HostLevels) -> int:
    return level.vertices.index(vertex)
