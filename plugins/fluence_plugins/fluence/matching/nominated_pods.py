"""The reservations of nominated pods in the graph, so that pods that must yield to them match other resources.

On its host a nominated pod counts as foreign load, as far as the host has free amounts: the load grows as the pod's
victims end. If the policy allocates whole nodes, the host is reserved once it is empty. The pod's devices are chosen
when the first pod with devices must yield to it, as if all ending pods had ended; each device is reserved as soon as it
is free. All reservations are kept from one match to the next, and released for pods that need not yield.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from fluence_plugins.fluence.graph.holdings import Share
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import DeviceHolding, Placement, overlap
from fluence_plugins.fluence.matching.node_loads import NodeLoads
from fluence_plugins.fluence.matching.pod_requests import RequestsByClass
from session_scheduler import Session
from session_scheduler.model.groups import Task

Devices = tuple[DeviceHolding, ...]


class _DeviceReservation(msgspec.Struct):
    """The devices for a nominated pod; empty if there are none now."""

    devices: Devices
    holders: frozenset[str]
    """The pods (uids) that must end before."""
    held: dict[str, int] = msgspec.field(default_factory=dict)
    """By path of a reserved device: its jobid."""


class NominatedPods:
    """Updates the reservations before each match.

    `devices_of` returns the devices that a pod would get now, or none.
    """

    def __init__(
        self, live: LiveGraph, loads: NodeLoads, requests: RequestsByClass, devices_of: Callable[[Task], Devices]
    ) -> None:
        self._live = live
        self._loads = loads
        self._requests = requests
        self._devices_of = devices_of
        self._hosts: dict[str, tuple[int, Placement]] = {}
        """The reserved whole hosts."""
        self._reservations: dict[str, _DeviceReservation] = {}
        """By pod uid."""

    def __bool__(self) -> bool:
        """Whether there may be a reservation."""
        return bool(self._loads.nominated or self._reservations)

    def keep_only(self, nominated: Mapping[str, str]) -> None:
        """Drop the reservations of pods (uids) that are not nominated, and those without devices, to match again."""
        found = self._reservations.items()
        for uid in [uid for uid, reserved in found if uid not in nominated or not reserved.devices]:
            self._release(self._reservations.pop(uid))

    def release_all(self) -> None:
        """Release all reservations before a change of the graph. The caller recounts the loads."""
        for held in self._hosts.values():
            self._live.foreign.release(*held)
        if self._hosts:
            self._hosts.clear()
            self._loads.nominated.clear()
        for reserved in self._reservations.values():
            self._release(reserved)

    def make_way(self, share: Share) -> None:
        """Release the reservations that overlap a share, so that its pod can hold it again."""
        for part in share.values():
            for host in part.hosts:
                if host.name in self._hosts:
                    self._live.foreign.release(*self._hosts.pop(host.name))
                    del self._loads.nominated[host.name]
            for device in part.devices:
                for reserved in self._reservations.values():
                    self._release(reserved, [path for path in reserved.held if overlap(path, device.path)])

    def hold_for_nominated(self, session: Session, tasks: Sequence[Task]) -> None:
        """Reserve the resources of the nominated pods that these tasks must yield to."""
        wanted = session.yields_to(tasks)
        if not wanted and not self:
            return
        for host in [host for host in self._loads.nominated if host not in wanted]:
            self.count_on(host, ())
        for host, there in wanted.items():
            self.count_on(host, there)
        if self._live.loaded.whole_nodes or self._with_devices(tasks):
            self._hold_devices(
                self._with_devices(task for there in wanted.values() for task in there),
                self._with_devices(task for task in tasks if session.nominations.node_of(task)),
                None if self._loads.removed else partial(self._ending_with_devices, session),
            )

    def reserve_before_removals(self, session: Session) -> None:
        """Choose the devices of nominated pods before the first simulated removal of a trial.

        After the removal, more devices seem free than will be, and a nominated pod could get those that the trial
        frees.
        """
        waiting = self._with_devices(task for _, there in session.nominations.waiting() for task in there)
        if waiting:
            self._hold_devices(waiting, (), partial(self._ending_with_devices, session))

    def _with_devices(self, tasks: Iterable[Task]) -> list[Task]:
        return [task for task in tasks if self._requests[task.cls].devices]

    def _ending_with_devices(self, session: Session, nominated: Task) -> frozenset[str]:
        """The pods with devices that are ending, or will end before a nominated one starts.

        They include the first removed pod of a trial, which the core has already removed from its node.
        """
        holding = self._live.holdings.with_devices()
        holders = [task for tasks in self._loads.tasks_on.values() for task in tasks if task.uid in holding]
        start = session.nominations.starts.get(nominated)
        if start is None:
            return frozenset(task.uid for task in holders if session.is_ending(task))
        ends = ((task.uid, session.ends_at(task)) for task in holders)
        return frozenset(uid for uid, end in ends if end is not None and end <= start)

    # ------------------------------------------------------------------ on hosts

    def count_on(self, host: str, tasks: Sequence[Task]) -> None:
        """Set the nominated pods of one host."""
        if not self._loads.count_nominated(host, tasks) or not self._live.loaded.whole_nodes:
            return
        if host in self._hosts:
            self._live.foreign.release(*self._hosts.pop(host))
        whole = self._live.loaded.whole_host(host) if tasks else None
        jobid = self._live.foreign.reserve(whole) if whole is not None else None
        if whole is not None and jobid is not None:
            self._hosts[host] = jobid, whole

    # ------------------------------------------------------------------ devices

    def reserve(self, task: Task, devices: Devices, holders: frozenset[str]) -> None:
        """Reserve devices for a pod, for when their holders (uids) have ended."""
        before = self._reservations.pop(task.uid, None)
        if before is not None:
            self._release(before)
        self._reservations[task.uid] = _DeviceReservation(devices, holders)

    def _hold_devices(
        self, wanted: Iterable[Task], asking: Iterable[Task], ending: Callable[[Task], frozenset[str]] | None
    ) -> None:
        """Reserve the devices of these tasks, and release those of all others.

        Every task whose reservation is missing or has become impossible gets another one. So do the nominated tasks
        among those to place (`asking`), so that no other pod gets their devices. `ending` returns the pods (uids) with
        devices that will have ended when a task starts; with None there are no new reservations.
        """
        there = {task.uid: task for task in wanted}
        for uid, reserved in self._reservations.items():
            if uid not in there:
                self._release(reserved)
        for uid in there.keys() & self._reservations.keys():
            self._hold(self._reservations[uid])
        if ending is None:
            return
        concerned = there | {task.uid: task for task in asking}
        lacking: dict[frozenset[str], list[Task]] = {}
        for task in concerned.values():
            if not self._is_possible(task, ending):
                lacking.setdefault(ending(task), []).append(task)
        for away, tasks in lacking.items():
            self._reserve_as_if_ended(tasks, concerned, away)
        if lacking:
            for uid in concerned.keys() - there.keys():
                self._release(self._reservations[uid])

    def _is_possible(self, task: Task, ending: Callable[[Task], frozenset[str]]) -> bool:
        """Whether each reserved device is held for the pod, free, or held by a pod that ends before the pod starts.

        That may be a different pod than at first: a pod that backfills holds devices until the gang starts.
        """
        reserved = self._reservations.get(task.uid)
        if reserved is None:
            return False
        taken = [d for d in reserved.devices if d.path not in reserved.held and not self._is_free(d)]
        if all(self._is_held_by(reserved.holders, device) for device in taken):
            return True
        holders = ending(task)
        if not all(self._is_held_by(holders, device) for device in taken):
            return False
        reserved.holders = holders
        return True

    def _is_held_by(self, holders: Iterable[str], device: DeviceHolding) -> bool:
        return any(self._live.holdings.touches(holder, device.path) for holder in holders)

    def _is_free(self, device: DeviceHolding) -> bool:
        known = self._live.graph.virtual.get(device.path)
        return known is not None and self._live.is_free(known)

    def _reserve_as_if_ended(self, lacking: Iterable[Task], concerned: Iterable[str], ending: frozenset[str]) -> None:
        """Reserve devices for one task after the other, as if all ending pods had ended."""
        away = {uid: self._live.allocations.set_aside(uid) for uid in sorted(ending)}
        try:
            for uid in concerned:
                if uid in self._reservations:
                    self._hold(self._reservations[uid])
            for task in lacking:
                before = self._reservations.pop(task.uid, None)
                if before is not None:
                    self._release(before)
                reserved = self._reservations[task.uid] = _DeviceReservation(self._devices_of(task), frozenset(away))
                self._hold(reserved)
        finally:
            for share in away.values():
                self.make_way(share)
            self._live.allocations.take_back(away)

    def _hold(self, reserved: _DeviceReservation) -> None:
        """Hold the free devices of a reservation."""
        for device in reserved.devices:
            if device.path not in reserved.held and self._is_free(device):
                jobid = self._live.foreign.reserve(Placement((), (device,)))
                if jobid is not None:
                    reserved.held[device.path] = jobid

    def _release(self, reserved: _DeviceReservation, paths: Iterable[str] | None = None) -> None:
        for device in reserved.devices if reserved.held else ():
            if device.path in reserved.held and (paths is None or device.path in paths):
                self._live.foreign.release(reserved.held.pop(device.path), Placement((), (device,)))
