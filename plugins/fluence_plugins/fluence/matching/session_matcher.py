"""The match of a session's groups, with maintenance windows and topology constraints."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import DeviceHolding
from fluence_plugins.fluence.matching.group_matcher import GroupMatcher, NoMatchError, place_on
from fluence_plugins.fluence.matching.group_placement import GroupPlacement
from fluence_plugins.fluence.matching.group_topology import GroupTopology
from fluence_plugins.fluence.matching.level_placement import Columns
from fluence_plugins.fluence.matching.maintenance import Maintenance
from fluence_plugins.fluence.matching.pod_requests import RequestsByClass
from fluence_plugins.fluence.matching.row_ranks import RowRanks
from session_scheduler import Refusal, Session
from session_scheduler.model.columns import BoolColumn
from session_scheduler.model.groups import Group, Task


class SessionMatcher(msgspec.Struct, frozen=True):
    """Matches groups. `budget`: how many further orders, attribute values and jobspecs it tries for a group."""

    live: LiveGraph
    requests: RequestsByClass
    ranks: RowRanks
    maintenance: Maintenance
    topology: GroupTopology
    budget: int

    def place(
        self, session: Session, group: Group, tasks: Sequence[Task], room: Columns, scores: Columns
    ) -> GroupPlacement | Refusal:
        """Match all classes and device types, or return a refusal, which names the windows that exclude resources."""
        closed = self.maintenance.closed(tasks)
        if not closed:
            return self._place(self._matcher(session, group), session, group, tasks, room, scores)
        left, nodes = self.maintenance.without_closed(session, room, closed)
        matcher = self._matcher(session, group, self.maintenance.open_devices(closed), narrowed=bool(nodes))
        answer = self._place(matcher, session, group, tasks, left, scores)
        if isinstance(answer, GroupPlacement) or not session.reasons_wanted:
            return answer
        kinds = {kind for cls in room for kind in self.requests[cls].devices}
        text, until = self.maintenance.reason(closed, nodes, kinds)
        if not text:
            return answer
        has_nodes = all(column.any() for column in left.values())
        return Refusal(f"{text}. {answer.reason}" if has_nodes else text, until=until)

    def _matcher(
        self, session: Session, group: Group, open_devices: BoolColumn | None = None, *, narrowed: bool = False
    ) -> GroupMatcher:
        narrowed = narrowed or self.topology.constrains(group)
        ranks = self.ranks.of(session)
        return GroupMatcher(self.live, ranks, self.requests, self.budget, open_devices=open_devices, narrowed=narrowed)

    def _place(
        self,
        matcher: GroupMatcher,
        session: Session,
        group: Group,
        tasks: Sequence[Task],
        room: Columns,
        scores: Columns,
    ) -> GroupPlacement | Refusal:
        placer = self.topology.placer(session, group, matcher)
        if isinstance(placer, Refusal):
            return placer
        if placer is not None:
            return placer.place(tasks, room, scores)
        return (matcher.explain if session.reasons_wanted else matcher.place)(tasks, room, scores)

    def place_on(self, task: Task, rank: int) -> GroupPlacement | Refusal:
        """Match a pod without devices on the host of a rank."""
        try:
            return place_on(self.live, task, self.requests[task.cls].shape, rank)
        except NoMatchError as error:
            return Refusal(str(error))

    def devices_of(self, task: Task) -> tuple[DeviceHolding, ...]:
        """The devices that a pod would get now, without an allocation; empty if there are none."""
        closed = self.maintenance.closed((task,))
        devices = self.maintenance.open_devices(closed) if closed else None
        matcher = GroupMatcher(self.live, np.zeros(0, np.int64), self.requests, self.budget, open_devices=devices)
        return matcher.devices_of(task)
