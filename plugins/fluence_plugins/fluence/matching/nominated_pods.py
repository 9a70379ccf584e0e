"""What the graph holds for nominated pods: who must yield to them finds in it what is left beside them.

On its host a nominated pod is load like that of others, as much of it as is free: it grows as its victims end. Where
the policy takes whole nodes, the host itself is held once nothing is on it. Which devices the pod is to have is worked
out when the first pod asks for devices that yields to it, as if all that is ending had ended; each is held from when
it is free. All of it is kept from one question to the next, and let go of for who need not yield.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fluence_plugins.fluence.graph.accounting import Accounting, Amounts
from fluence_plugins.fluence.graph.holdings import Share
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import DeviceHolding, Placement, overlap
from session_scheduler.model.groups import Task

ByNode = Mapping[str, Sequence[Task]]
Devices = tuple[DeviceHolding, ...]


@dataclass(slots=True)
class _Plan:
    """The devices that a pod is to have; none where there are none for it now."""

    devices: Devices
    holders: frozenset[str]
    """The pods (uids) whose end it counts on."""
    held: dict[str, int] = field(default_factory=dict)
    """By path of a device: the jobid that holds it for the pod."""


class Nominated:
    """Brought in line with the nominations whenever the graph is about to be asked.

    `recount` counts anew what is load on a host, `loads_on` included. `devices_of` says what devices the graph would
    give a pod now, nothing where it has none for it.
    """

    def __init__(self, live: LiveGraph, recount: Callable[[str], None], devices_of: Callable[[Task], Devices]) -> None:
        self._live = live
        self._recount = recount
        self._devices_of = devices_of
        self._on: dict[str, tuple[tuple[Task, ...], Amounts]] = {}
        """By host: who is counted there, and what pods of ours held there when it was last counted."""
        self._hosts: dict[str, tuple[int, Placement]] = {}
        """The hosts that are held whole."""
        self._plans: dict[str, _Plan] = {}
        """By pod uid."""

    def __bool__(self) -> bool:
        """Whether anything may be held."""
        return bool(self._on or self._plans)

    def forget_all_but(self, nominated: Mapping[str, str]) -> None:
        """Who is not among these pods (uids) any more has no plan, and who had no devices may have some now."""
        for uid in [uid for uid, plan in self._plans.items() if uid not in nominated or not plan.devices]:
            self._let_go(self._plans.pop(uid))

    def let_go(self) -> None:
        """Hold nothing until it is settled anew: the graph is about to change. Load is for who changes it to count."""
        for held in self._hosts.values():
            self._live.foreign.release(*held)
        if self._hosts:
            self._hosts.clear()
            self._on.clear()
        for plan in self._plans.values():
            self._let_go(plan)

    def make_way(self, share: Share) -> None:
        """Hold nothing of what a pod held that is to hold it again: it was free for a while."""
        for part in share.values():
            for host in part.hosts:
                if host.name in self._hosts:
                    self._live.foreign.release(*self._hosts.pop(host.name))
                    del self._on[host.name]
            for device in part.devices:
                for plan in self._plans.values():
                    self._let_go(plan, [path for path in plan.held if overlap(path, device.path)])

    # ------------------------------------------------------------------ on hosts

    def settle(self, wanted: ByNode) -> None:
        """Count these, and nobody else, on their hosts."""
        for host in [host for host in self._on if host not in wanted]:
            self.settle_on(host, ())
        for host, tasks in wanted.items():
            self.settle_on(host, tasks)

    def settle_on(self, host: str, tasks: Sequence[Task]) -> None:
        """Count these, and nobody else, on one host; anew where pods of ours came or went since."""
        now = tuple(tasks), self._live.holdings.used_on(host)
        if self._on.get(host, ((), now[1])) == now:
            return
        self._on[host] = now
        if self._live.loaded.whole_nodes:
            self._hold_host(host, wanted=bool(tasks))
        else:
            self._recount(host)
        if not tasks:
            del self._on[host]

    def _hold_host(self, host: str, *, wanted: bool) -> None:
        if host in self._hosts:
            self._live.foreign.release(*self._hosts.pop(host))
        whole = self._live.loaded.whole_host(host) if wanted else None
        jobid = self._live.foreign.reserve(whole) if whole is not None else None
        if whole is not None and jobid is not None:
            self._hosts[host] = jobid, whole

    def loads_on(self, host: str) -> Iterator[Amounts]:
        """What each of those counted on a host is to take of it."""
        counted = self._on.get(host)
        return amounts_of(counted[0] if counted is not None else (), self._live.accounting)

    # ------------------------------------------------------------------ devices

    def promise(self, task: Task, devices: Devices, holders: frozenset[str]) -> None:
        """A pod is to have these devices once their holders (uids) have ended: that is its plan from now on."""
        before = self._plans.pop(task.uid, None)
        if before is not None:
            self._let_go(before)
        self._plans[task.uid] = _Plan(devices, holders)

    def settle_devices(
        self, wanted: Iterable[Task], asking: Iterable[Task], ending: Callable[[Task], frozenset[str]] | None
    ) -> None:
        """Hold the devices of these, and of nobody else.

        Who has no plan that can still come true gets one, the nominated among those that ask (`asking`), too: what
        others are to have is not planned for anybody else. `ending` says which pods (uids) with devices will have ended
        when a task is to come; None: this is no time for plans.
        """
        there = {task.uid: task for task in wanted}
        for uid, plan in self._plans.items():
            if uid not in there:
                self._let_go(plan)
        for uid in there.keys() & self._plans.keys():
            self._hold(self._plans[uid])
        if ending is None:
            return
        concerned = there | {task.uid: task for task in asking}
        lacking: dict[frozenset[str], list[Task]] = {}
        for task in concerned.values():
            if not self._may_come_true(task, ending):
                lacking.setdefault(ending(task), []).append(task)
        for away, tasks in lacking.items():
            self._make_plans(tasks, concerned, away)
        if lacking:
            for uid in concerned.keys() - there.keys():
                self._let_go(self._plans[uid])

    def _may_come_true(self, task: Task, ending: Callable[[Task], frozenset[str]]) -> bool:
        """Whether each planned device is held for the pod, or free, or held by somebody whose end was counted on, or
        can be by now: what is filled in beside a gang that starts later has its devices until then.
        """
        plan = self._plans.get(task.uid)
        if plan is None:
            return False
        taken = [device for device in plan.devices if device.path not in plan.held and not self._is_free(device)]
        if all(self._is_held_by(plan.holders, device) for device in taken):
            return True
        holders = ending(task)
        if not all(self._is_held_by(holders, device) for device in taken):
            return False
        plan.holders = holders
        return True

    def _is_held_by(self, holders: Iterable[str], device: DeviceHolding) -> bool:
        return any(self._live.holdings.touches(holder, device.path) for holder in holders)

    def _is_free(self, device: DeviceHolding) -> bool:
        known = self._live.graph.virtual.get(device.path)
        return known is not None and self._live.is_free(known)

    def _make_plans(self, lacking: Iterable[Task], concerned: Iterable[str], ending: frozenset[str]) -> None:
        """One after the other, none with what is another one's, as if what is ending had ended."""
        away = {uid: self._live.allocations.set_aside(uid) for uid in sorted(ending)}
        try:
            for uid in concerned:
                if uid in self._plans:
                    self._hold(self._plans[uid])
            for task in lacking:
                self._plan(task, frozenset(away))
        finally:
            for share in away.values():
                self.make_way(share)
            self._live.allocations.take_back(away)

    def _plan(self, task: Task, ending: frozenset[str]) -> None:
        before = self._plans.pop(task.uid, None)
        if before is not None:
            self._let_go(before)
        plan = self._plans[task.uid] = _Plan(self._devices_of(task), ending)
        self._hold(plan)

    def _hold(self, plan: _Plan) -> None:
        """Hold what is free of it."""
        for device in plan.devices:
            if device.path not in plan.held and self._is_free(device):
                jobid = self._live.foreign.reserve(Placement((), (device,)))
                if jobid is not None:
                    plan.held[device.path] = jobid

    def _let_go(self, plan: _Plan, paths: Iterable[str] | None = None) -> None:
        for device in plan.devices if plan.held else ():
            if device.path in plan.held and (paths is None or device.path in paths):
                self._live.foreign.release(plan.held.pop(device.path), Placement((), (device,)))


def amounts_of(tasks: Iterable[Task], accounting: Accounting) -> Iterator[Amounts]:
    """What each of these is to take of its host, but for those that have a place by now."""
    for task in tasks:
        if task.node is None:
            yield accounting.asked(accounting.shape_of(task.cls.requests))
