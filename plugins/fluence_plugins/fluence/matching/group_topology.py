"""What the plugin does for groups that ask something of the levels; for all others it has nothing to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fluence_plugins.fluence.graph.cluster_graph import HostResources
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.topology import HostLevels, TopologyLevel, levels_of
from fluence_plugins.fluence.matching.level_placement import ByLevel, Columns, Place, Spread, Within, most_promising
from fluence_plugins.fluence.matching.topology_constraint import Ask, ask_of
from fluence_plugins.fluence.matching.topology_vertices import Level, Levels, kinds_of
from session_scheduler import Refusal, Session
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.groups import Group, Phase, Task


class GroupAsks:
    """Reads what groups ask, and says among which nodes they go. `gone` are tasks that are thought away."""

    def __init__(self, live: LiveGraph, topology: tuple[TopologyLevel, ...], budget: int) -> None:
        """`budget`: in how many vertices a group is tried at most that takes more than a look at room."""
        self.topology = topology
        self._most = budget
        self._levels = Levels(live, topology)

    def placed_in_levels(self, host: HostResources, labels: Mapping[str, str]) -> HostResources:
        """The host, in the levels that its node's labels name."""
        return replace(host, levels=levels_of(labels, self.topology))

    def any_of(self, group: Group) -> bool:
        """Whether the group asks for anything, or for what cannot be told."""
        return bool(self.topology) and ask_of(group, self.topology) is not None

    def spreads(self, group: Group) -> bool:
        """Whether the group is to be spread, so that no node is good or bad by itself."""
        ask = ask_of(group, self.topology) if self.topology else None
        return isinstance(ask, Ask) and ask.spread is not None

    def refusal(self, group: Group, gone: Collection[Task]) -> Refusal | None:
        """Why the group cannot be placed wherever there is room: it asks what cannot be, or is in several vertices."""
        ask = ask_of(group, self.topology)
        if ask is None or isinstance(ask, Refusal):
            return ask
        pinned = self._levels.pinned(group, ask.within, gone) if ask.within else None
        return pinned if isinstance(pinned, Refusal) else None

    def by_level(
        self, session: Session, group: Group, place: Place, ranks: IntColumn, gone: Collection[Task]
    ) -> ByLevel | Refusal | None:
        """What places the group as it asks, by `place`; None where it asks nothing."""
        ask = ask_of(group, self.topology)
        if ask is None or isinstance(ask, Refusal):
            return ask
        found = ByLevel(place)
        if ask.within:
            level = self._levels.level(ask.within, ranks)
            pinned = self._levels.pinned(group, ask.within, gone)
            if isinstance(pinned, Refusal):
                return pinned
            number = None if pinned is None else _number(level, pinned)
            found.within = Within(level, number, each=number is None and _is_involved(session, group))
        if ask.spread is not None:
            level = self._levels.level(kinds_of(ask), ranks)
            found.spread = Spread(level, ask.over, self._levels.counts(group, level, gone))
        return found

    def subsets(
        self, session: Session, group: Group, mask: BoolColumn, ranks: IntColumn, gone: Collection[Task]
    ) -> list[BoolColumn] | None:
        """The nodes that a group that stays within one vertex may go to; None for all of them.

        Where it is not enough to look at room, each vertex with room is a set of its own, the most promising first: the
        core tries one after the other, with all that it can do for pods that stand in each other's way.
        """
        ask = ask_of(group, self.topology)
        if ask is None or isinstance(ask, Refusal) or not ask.within:
            return None
        level = self._levels.level(ask.within, ranks)
        pinned = self._levels.pinned(group, ask.within, gone)
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
        found = most_promising(tasks, room, scores, level, needed)[: self._most]
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


def _number(level: Level, vertex: HostLevels) -> int:
    return level.vertices.index(vertex)
