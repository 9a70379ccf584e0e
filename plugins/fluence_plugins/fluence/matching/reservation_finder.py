"""The search for the earliest start of a waiting gang, with hosts and devices, for the hook `reservation`.

The timeline returns a lower bound: the second before which the graph cannot have what the gang requests. From there on
the search simulates placements, with all filters, without the pods that end by then. It reserves the devices of the
placement for the gang's tasks; each is held as soon as it is free (see `nominated_pods`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fluence_plugins.fluence.errors import DeviceError
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.matching.jobspecs import compute_jobspec_text, device_jobspecs
from fluence_plugins.fluence.matching.maintenance import Maintenance
from fluence_plugins.fluence.matching.nominated_pods import Devices, NominatedPods
from fluence_plugins.fluence.matching.pod_requests import PodRequests, RequestsByClass
from fluence_plugins.fluence.matching.row_ranks import RowRanks
from fluence_plugins.fluence.matching.timeline import Timeline, with_duration
from session_scheduler import Session
from session_scheduler.hookspecs import Reservation
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import IntColumn
from session_scheduler.model.durations import known_seconds
from session_scheduler.model.groups import Group, Task

if TYPE_CHECKING:
    from session_scheduler.hookspecs import Trial

Capacity = Mapping[TaskClass, IntColumn]


class ReservationFinder:
    """Finds the start of one gang after the other."""

    def __init__(
        self,
        live: LiveGraph,
        nominated: NominatedPods,
        maintenance: Maintenance,
        requests: RequestsByClass,
        ranks: RowRanks,
    ) -> None:
        self._live = live
        self._nominated = nominated
        self._maintenance = maintenance
        self._requests = requests
        self._ranks = ranks
        self.is_probing = False
        """Whether the present placements belong to a search."""
        self._asked: tuple[tuple[Task, ...], Capacity] | None = None
        self._devices: dict[Task, Devices] = {}
        self._holders: frozenset[str] = frozenset()
        """The pods (uids) that hold devices."""

    def note_capacity(self, tasks: Sequence[Task], room: Capacity) -> None:
        """Record the room in which the core places the gang; for several sets of nodes, that of all."""
        if not self.is_probing:
            return
        if self._asked is None:
            self._asked = tuple(tasks), room
        elif self._asked[0] == tuple(tasks):
            before = self._asked[1]
            self._asked = self._asked[0], {cls: np.maximum(before[cls], column) for cls, column in room.items()}

    def note_devices(self, devices: Mapping[Task, Devices]) -> None:
        """Record the devices that the gang would get."""
        self._devices.update(devices)

    def find(self, session: Session, trial: Trial) -> Reservation | None:
        """The earliest start of the gang, and its nodes. None if the start is unknown; then nothing changes."""
        search = _Search(session, trial, self._maintenance)
        if not search.ends and len(search.times) == 1:
            return None
        self.is_probing, self._asked = True, None
        self._holders = self._live.holdings.with_devices()
        try:
            found = self._search(session, trial, search)
        finally:
            self.is_probing = False
        if found is None:
            search.put_back()
        return found

    def _search(self, session: Session, trial: Trial, search: _Search) -> Reservation | None:
        last = len(search.times) - 1
        timeline = self._timeline(session, search)
        if self._place_at(search, last) is None or self._asked is None:
            return None
        low, enough = self._first_possible(session, trial, search, timeline), last
        probe = low
        while low < enough:
            if self._place_at(search, probe) is not None:
                enough = probe
            else:
                low = probe + 1
            probe = (low + enough) // 2
        placed = self._place_at(search, enough)
        if placed is None:
            return None
        holders = self._holders & {task.uid for task in search.removed()}
        for task in placed:
            devices = self._devices.get(task, ())
            if devices:
                self._nominated.reserve(task, devices, holders)
        return Reservation(placed, search.times[enough])

    def _place_at(self, search: _Search, index: int) -> Mapping[Task, str] | None:
        self._devices = {}
        search.move(index)
        with self._maintenance.at(search.times[index]):
            return search.trial.place()

    # ------------------------------------------------------------------ by the graph

    def _timeline(self, session: Session, search: _Search) -> Timeline:
        """Create the timeline before the first simulated removal: the graph does not have removed pods' holdings."""
        ends = {task.uid: end for task, end in search.ends.items()}
        foreign = {task.node or "" for task in search.ends if task.uid not in self._live.holdings.shares}
        return Timeline(self._live, session.wall, ends, self._maintenance.windows, foreign)

    def _first_possible(self, session: Session, trial: Trial, search: _Search, timeline: Timeline) -> int:
        """The index of the first time at which the graph may have what the gang requests."""
        tasks, room = self._asked or ((), {})
        seconds, ranks = known_seconds(trial.group), self._ranks.of(session)
        at = 0
        for cls, number in _at_least(trial.group, tasks).items():
            candidates = np.zeros(self._live.graph.ranks, np.int64)
            candidates[ranks[ranks >= 0]] = room[cls][ranks >= 0]
            at = max(at, *self._seconds(timeline, self._requests[cls], number, seconds, candidates))
        return min(bisect_left(search.times, at, key=timeline.second), len(search.times) - 1)

    def _seconds(
        self, timeline: Timeline, requests: PodRequests, number: int, seconds: float | None, candidates: IntColumn
    ) -> list[int]:
        """The second from which the graph has each request of a class."""
        compute = with_duration(compute_jobspec_text(requests.shape, number), seconds)
        found = [timeline.earliest([compute], candidates)]
        for kind, each in requests.devices.items():
            try:
                jobspecs = device_jobspecs(self._live.graph, kind, each, requests.require, requests.backend)
            except DeviceError:
                continue
            texts = [with_duration(jobspec.to_json(), seconds) for jobspec in jobspecs]
            found.append(timeline.earliest(texts, times=number if each == 1 else 1))
        return [0, *(second for second in found if second is not None)]


class _Search:
    """Simulates the removal of the pods that end by a time."""

    def __init__(self, session: Session, trial: Trial, maintenance: Maintenance) -> None:
        self.trial = trial
        self.ends = {
            task: end
            for task in sorted(session.running(), key=lambda task: task.uid)
            if (end := session.ends_at(task)) is not None
        }
        self.times = sorted({session.wall, *self.ends.values(), *maintenance.ends(session.wall)})
        self._by_time: dict[float, list[Task]] = {}
        for task, end in self.ends.items():
            self._by_time.setdefault(end, []).append(task)
        self._index = -1

    def move(self, index: int) -> None:
        """Simulate removing the pods that end by times[index], and no others."""
        for time in self.times[index + 1 : self._index + 1]:
            self.trial.put_back(self._by_time.get(time, ()))
        for time in self.times[self._index + 1 : index + 1]:
            self.trial.remove(self._by_time.get(time, ()))
        self._index = index

    def removed(self) -> list[Task]:
        """The tasks whose removal is simulated."""
        return [task for time in self.times[: self._index + 1] for task in self._by_time.get(time, ())]

    def put_back(self) -> None:
        """Undo all simulated removals."""
        self.move(-1)


def _at_least(group: Group, tasks: Sequence[Task]) -> dict[TaskClass, int]:
    """The minimum number of pods of each class with which the gang can start."""
    spare = max(0, len(tasks) - group.needed)
    return {cls: max(1, number - spare) for cls, number in Counter(task.cls for task in tasks).items()}
