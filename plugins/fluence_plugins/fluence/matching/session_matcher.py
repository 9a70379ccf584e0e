"""Places the groups of a session: in the room that maintenance windows leave, within levels where a group asks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class SessionMatcher:
    """Asks the graph. `budget`: how many further orders, attribute values and jobspecs are tried for a group."""

    live: LiveGraph
    requests: RequestsByClass
    ranks: RowRanks
    maintenance: Maintenance
    topology: GroupTopology
    budget: int

    def place(
        self, session: Session, group: Group, tasks: Sequence[Task], room: Columns, scores: Columns
    ) -> GroupPlacement | Refusal:
        """One match for each class and type; all of them, or none. A refusal says which windows are in the way."""
        closed = self.maintenance.closed(tasks)
        if not closed:
            return self._place(session, group, None, tasks, room, scores)
        left, nodes = self.maintenance.without_closed(session, room, closed)
        answer = self._place(session, group, self.maintenance.open_devices(closed), tasks, left, scores)
        if isinstance(answer, GroupPlacement) or not session.reasons_wanted:
            return answer
        kinds = {kind for cls in room for kind in self.requests[cls].devices}
        text, until = self.maintenance.reason(closed, nodes, kinds)
        return Refusal(f"{text}. {answer.reason}", until=until) if text else answer

    def _place(  # the hook's arguments, and which devices are open
        self,
        session: Session,
        group: Group,
        open_devices: BoolColumn | None,
        tasks: Sequence[Task],
        room: Columns,
        scores: Columns,
    ) -> GroupPlacement | Refusal:
        wanted, ranks = session.reasons_wanted, self.ranks.of(session)
        matcher = GroupMatcher(
            self.live, ranks, self.requests, self.budget, reasons_wanted=wanted, open_devices=open_devices
        )
        placer = self.topology.placer(session, group, matcher.place)
        if isinstance(placer, Refusal):
            return placer
        return matcher.place(tasks, room, scores) if placer is None else placer.place(tasks, room, scores)

    def place_on(self, task: Task, rank: int) -> GroupPlacement | Refusal:
        """One match on the host of that rank, for a pod without devices."""
        try:
            return place_on(self.live, task, self.requests[task.cls].shape, rank)
        except NoMatchError as error:
            return Refusal(str(error))

    def devices_of(self, task: Task) -> tuple[DeviceHolding, ...]:
        """The devices that a pod would get now, which stay free; nothing where there are none for it."""
        closed = self.maintenance.closed((task,))
        devices = self.maintenance.open_devices(closed) if closed else None
        matcher = GroupMatcher(
            self.live, np.zeros(0, np.int64), self.requests, self.budget, reasons_wanted=False, open_devices=devices
        )
        return matcher.devices_of(task)
