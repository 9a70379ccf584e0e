"""The match of a group in the graph, all-or-nothing: a match of hosts per class, and of devices per class and type."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fluence_plugins.fluence.errors import AttributeConflictError, DeviceError
from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.graph.allocations import Job
from fluence_plugins.fluence.graph.cluster_graph import VirtualNode
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import DeviceHolding, Placement
from fluence_plugins.fluence.matching.group_placement import GroupPlacement, divide_devices, divide_hosts
from fluence_plugins.fluence.matching.jobspecs import (
    compute_jobspec_text,
    device_jobspecs,
    matching_devices,
    preferences_met,
)
from fluence_plugins.fluence.matching.pod_requests import PodRequests
from fluence_plugins.fluence.matching.shortages import DeviceShortage, PodWords
from fluxion_cy import Busy, Unsatisfiable
from fluxion_cy.policy import policy_of
from fluxion_cy.wording import Words
from session_scheduler import Refusal
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.groups import Task

NO_MATCH = "the resource graph has no match"
_MOST_ORDERS = 24
"""The number of orders in which the matcher tries the classes of a group."""
_DeviceShare = tuple[Task, int, tuple[DeviceHolding, ...]]
"""A task, the jobid of an allocation, and the task's devices of it."""


class NoMatchError(Exception):
    """A class of the group has no match; the text is the reason. `fitting`: how many of its pods have one, if known."""

    def __init__(self, reason: str, fitting: int | None = None) -> None:
        super().__init__(reason)
        self.fitting = fitting


class GroupMatcher:
    """Matches one group. `ranks[row]`: the rank of the host in that row of the session, -1 if the graph lacks it."""

    def __init__(
        self,
        live: LiveGraph,
        ranks: IntColumn,
        requests: Mapping[TaskClass, PodRequests],
        budget: int,
        *,
        open_devices: BoolColumn | None = None,
        narrowed: bool = False,
    ) -> None:
        """Prepare a match.

        `open_devices`: by rank, whether no maintenance window closes the device there; None if none does. `narrowed`:
        whether this plugin excludes nodes, in addition to other filters.
        """
        self._narrowed = narrowed
        self._open_devices = open_devices
        self._live = live
        self._allocations = live.allocations
        self._reasons_wanted = False
        """Whether the next refusal needs a reason."""
        self._ranks = ranks
        self._requests = requests
        self._budget = budget
        self._values_each = self._values_left = budget
        """How many attribute values the matcher may try for one pod whose devices disagree, and how many are left."""
        self._prefers = True
        """Whether preferred devices come first."""
        self._is_first_order = True
        """Whether this is the first order, which does not count against the budget."""
        self._picked: dict[int, tuple[DeviceHolding, ...]] = {}
        """The devices of the group's allocations, by jobid."""

    def place(
        self, tasks: Sequence[Task], room: Mapping[TaskClass, IntColumn], scores: Mapping[TaskClass, IntColumn]
    ) -> GroupPlacement | Refusal:
        """Place all tasks, or return a refusal. The most constrained class comes first; then it tries other orders.

        Preferences never refuse a group: if it does not fit with them, it is matched again without. All calls share one
        budget.
        """
        self._prefers = True
        if any(self._prefers_of(cls) for cls in {task.cls for task in tasks}):
            budget, wanted = self._budget, self._reasons_wanted
            self._reasons_wanted = False
            found = self._place(tasks, room, scores)
            if isinstance(found, GroupPlacement):
                return found
            self._budget, self._reasons_wanted, self._prefers = budget, wanted, False
        return self._place(tasks, room, scores)

    def explain(
        self, tasks: Sequence[Task], room: Mapping[TaskClass, IntColumn], scores: Mapping[TaskClass, IntColumn]
    ) -> GroupPlacement | Refusal:
        """`place`, with a refusal that says what is short."""
        self._reasons_wanted = True
        return self.place(tasks, room, scores)

    def _place(
        self, tasks: Sequence[Task], room: Mapping[TaskClass, IntColumn], scores: Mapping[TaskClass, IntColumn]
    ) -> GroupPlacement | Refusal:
        alike = {} if self._prefers else self._same_but_for_preferences({task.cls for task in tasks}, room, scores)
        by_class: dict[TaskClass, list[Task]] = {}
        for task in tasks:
            by_class.setdefault(alike.get(task.cls, task.cls), []).append(task)
        first = list(by_class)
        if len(first) > 1:
            first.sort(key=lambda cls: self._order_key(cls, len(by_class[cls]), room[cls]))
        problem = ""
        for number, order in enumerate(islice(permutations(first), _MOST_ORDERS)):
            self._is_first_order = number == 0
            jobs: list[int] = []
            placement = GroupPlacement(self._live)
            try:
                with self._retracted_on_error(jobs):
                    self._place_classes({cls: by_class[cls] for cls in order}, room, scores, placement, jobs)
            except NoMatchError as error:
                problem = problem or str(error)
                self._reasons_wanted = False  # the refusal has the first reason
                if self._budget <= 0:
                    return Refusal(f"{problem}; the match budget ran out before every order was tried")
                continue
            placement.hold()
            return placement
        return Refusal(problem)

    def _same_but_for_preferences(
        self, classes: Iterable[TaskClass], room: Mapping[TaskClass, IntColumn], scores: Mapping[TaskClass, IntColumn]
    ) -> dict[TaskClass, TaskClass]:
        """By class: the first of the classes that differ from it by preferences only."""
        first: dict[Hashable, TaskClass] = {}
        found = {}
        for cls in sorted(classes, key=lambda cls: cls.index):
            requests = self._requests[cls]
            asked = (frozenset(one.items()) for one in (requests.devices, requests.require))
            key = (requests.shape, requests.backend, *asked, room[cls].tobytes(), scores[cls].tobytes())
            found[cls] = first.setdefault(key, cls)
        return found

    def devices_of(self, task: Task) -> tuple[DeviceHolding, ...]:
        """The devices that a pod would get, without an allocation; empty if there are none."""
        first, jobs = self._allocations.next_jobid, list[int]()
        found: list[_DeviceShare] = []
        for prefers in (True, False) if self._prefers_of(task.cls) else (False,):
            self._prefers = prefers
            with suppress(NoMatchError):
                found = self._agreeing_devices([task], self._requests[task.cls], {}, jobs)
                break
        self._picked.clear()
        self._allocations.retract(reversed(jobs), (), first)
        return tuple(device for _, _, held in found for device in held)

    def _prefers_of(self, cls: TaskClass) -> bool:
        return bool(self._requests[cls].prefer and self._requests[cls].devices)

    def _order_key(self, cls: TaskClass, number: int, room: IntColumn) -> tuple[int, int, float, int]:
        """The sort key: the class with the least choice of hosts comes first, then that with the least of devices."""
        shape = self._requests[cls].shape
        return (int(np.minimum(room, number).sum()) - number, -shape.cores, self._spare_devices(cls, number), cls.index)

    def _spare_devices(self, cls: TaskClass, number: int) -> float:
        """How many more devices exist, held or not, than the pods request: the minimum over their types."""
        requests = self._requests[cls]
        spare = math.inf
        for kind, each in requests.devices.items():
            with suppress(DeviceError):
                able = len(matching_devices(self._live.graph, kind, requests.require, requests.backend))
                spare = min(spare, able - each * number)
        return spare

    def _place_classes(
        self,
        by_class: Mapping[TaskClass, Sequence[Task]],
        room: Mapping[TaskClass, IntColumn],
        scores: Mapping[TaskClass, IntColumn],
        placement: GroupPlacement,
        jobs: list[int],
    ) -> None:
        """Every class in this order. If reasons are wanted, the error of a gang says how many of its pods fit."""
        total = sum(map(len, by_class.values()))
        fitting, at_most = 0, False
        first: NoMatchError | None = None
        for cls, tasks in by_class.items():
            while tasks:
                made: list[int] = []
                try:
                    with self._retracted_on_error(made):
                        self._place_class(tasks, cls, room[cls], scores[cls], placement, made)
                except NoMatchError as error:
                    if not self._reasons_wanted or total == 1 or (first is None and error.fitting is None):
                        raise
                    first = first or error
                    if error.fitting is None or error.fitting >= len(tasks):  # fewer fit, and how many is unknown
                        at_most = True
                        break
                    tasks = tasks[: error.fitting]  # counting gives an upper bound: whether they fit is tried
                else:
                    jobs.extend(made)
                    break
            fitting += len(tasks)
        if first is not None:
            raise NoMatchError(f"{'at most ' * at_most}{fitting} of {total} pods fit: {first}")

    # ------------------------------------------------------------------ one class

    def _place_class(
        self,
        tasks: Sequence[Task],
        cls: TaskClass,
        room: IntColumn,
        scores: IntColumn,
        placement: GroupPlacement,
        jobs: list[int],
    ) -> None:
        requests = self._requests[cls]
        job = self._match(
            [compute_jobspec_text(requests.shape, len(tasks))],
            jobs,
            self._by_rank(room, np.int64),
            self._by_rank(scores, np.float64),
            words=self._words(cls) if self._reasons_wanted else None,
            pods=len(tasks),
        )
        hosts = divide_hosts(job.placement, requests.shape, len(tasks))
        for task, host in zip(tasks, hosts, strict=True):
            placement.add(task, job.jobid, Placement((host,)))
        for task, jobid, held in self._agreeing_devices(tasks, requests, {}, jobs):
            placement.add(task, jobid, Placement((), held))

    def _words(self, cls: TaskClass) -> PodWords:
        shape = self._requests[cls].shape
        return PodWords(self._live.accounting, shape, cls.requests, names_excluded=not self._narrowed)

    def _agreeing_devices(
        self, tasks: Sequence[Task], requests: PodRequests, agreed: Mapping[str, str], jobs: list[int]
    ) -> list[_DeviceShare]:
        """Match devices of every type for every task.

        If the devices of a pod disagree on an attribute, each value in turn is required of all types that have it.
        """
        if not agreed:
            self._values_left = self._values_each
        made: list[int] = []
        with self._retracted_on_error(made):
            found = [share for kind in requests.devices for share in self._devices(tasks, requests, kind, agreed, made)]
        conflict = _conflict(found)
        if conflict is None:
            jobs.extend(made)
            return found
        self._retract(made)
        key, problem = conflict
        if len(tasks) > 1:  # each task may agree on other values
            made = []
            with self._retracted_on_error(made):
                found = [share for one in self._each_agreeing(tasks, requests, made) for share in one]
            jobs.extend(made)
            return found
        for value in self._values(requests, key) if key not in agreed else ():
            if self._values_left <= 0:
                raise NoMatchError(f"{problem}; the match budget ran out before every value was tried")
            self._values_left -= 1
            try:
                return self._agreeing_devices(tasks, requests, {**agreed, key: value}, jobs)
            except NoMatchError:
                continue
        raise NoMatchError(problem)

    def _each_agreeing(
        self, tasks: Sequence[Task], requests: PodRequests, jobs: list[int]
    ) -> Iterator[list[_DeviceShare]]:
        """Match devices for one task after the other."""
        for number, task in enumerate(tasks):
            try:
                yield self._agreeing_devices([task], requests, {}, jobs)
            except NoMatchError as error:
                raise NoMatchError(str(error), number) from error

    def _values(self, requests: PodRequests, key: str) -> list[str]:
        """The values of an attribute, first those of the devices that satisfy the most preferences."""
        liked: dict[str, int] = {}
        prefer = requests.prefer if self._prefers else {}
        for kind in requests.devices:
            for node in self._of_type(kind):
                if (value := node.attributes.get(key)) is not None:
                    liked[value] = max(liked.get(value, 0), preferences_met(node, prefer.items()))
        return sorted(liked, key=lambda value: (-liked[value], value))

    def _of_type(self, kind: str) -> list[VirtualNode]:
        return [node for node in self._live.graph.virtual.values() if node.type == kind]

    def _devices(
        self, tasks: Sequence[Task], requests: PodRequests, kind: str, agreed: Mapping[str, str], jobs: list[int]
    ) -> Iterator[_DeviceShare]:
        """One match for all pods of the class if a tree has enough, else one match per pod."""
        keys = {key for node in self._of_type(kind) for key in node.attributes} if agreed else set()
        require = {**requests.require, **{key: value for key, value in agreed.items() if key in keys}}
        others = {device.path for devices in self._picked.values() for device in devices}
        if len(tasks) > 1:
            try:
                job = self._match_devices(requests, kind, require, len(tasks), jobs)
            except NoMatchError:
                pass
            else:
                shares = divide_devices(job.placement, requests, kind)
                yield from ((task, job.jobid, share) for task, share in zip(tasks, shares, strict=True))
                return
        for number, task in enumerate(tasks):
            try:
                job = self._match_devices(requests, kind, require, 1, jobs)
            except NoMatchError as error:
                if not self._reasons_wanted:
                    raise
                taken = {device.path for devices in self._picked.values() for device in devices}
                short = DeviceShortage(self._live, requests, kind, require, self._is_open)
                raise NoMatchError(short.reason(len(tasks), others, taken) or str(error), number) from error
            yield task, job.jobid, job.placement.devices

    def _match_devices(
        self, requests: PodRequests, kind: str, require: Mapping[str, str], slots: int, jobs: list[int]
    ) -> Job:
        count = requests.devices[kind]
        try:
            jobspecs = device_jobspecs(
                self._live.graph,
                kind,
                count,
                require,
                requests.backend,
                slots=slots,
                prefer=requests.prefer if self._prefers else None,
            )
        except DeviceError as error:
            raise NoMatchError(str(error)) from error
        job = self._match([jobspec.to_json() for jobspec in jobspecs], jobs, self._open_devices)
        self._picked[job.jobid] = job.placement.devices
        return job

    def _is_open(self, device: VirtualNode) -> bool:
        return self._open_devices is None or bool(self._open_devices[device.rank])

    @contextmanager
    def _retracted_on_error(self, jobs: Sequence[int]) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._retract(jobs)
            raise

    def _retract(self, jobs: Sequence[int]) -> None:
        for jobid in jobs:
            self._picked.pop(jobid, None)
        self._allocations.retract(reversed(jobs), ())

    def _match(
        self,
        jobspecs: Iterable[str],
        jobs: list[int],
        candidates: IntColumn | BoolColumn | None = None,
        prefer: NDArray[np.float64] | None = None,
        *,
        words: Words | None = None,
        pods: int = 1,
    ) -> Job:
        """Allocate the first jobspec that matches.

        `words`: the error says with these what the first jobspec lacks, and how many of its pods fit.
        """
        refused = ""
        for jobspec in jobspecs:
            if not self._is_first_order:
                if self._budget <= 0:
                    break
                self._budget -= 1
            try:
                job = self._allocations.match(jobspec, candidates, prefer)
            except (Busy, Unsatisfiable):
                refused = refused or jobspec
                continue
            jobs.append(job.jobid)
            return job
        if not refused or words is None:
            raise NoMatchError(NO_MATCH)
        short = self._allocations.shortage(refused, candidates, words)
        if short is None:
            raise NoMatchError(self._allocations.why(refused, candidates))
        raise NoMatchError(short.reason, short.fitting if short.wanted == pods else None)

    def _by_rank(self, column: IntColumn, dtype: type[np.int64] | type[np.float64]) -> NDArray[Any]:
        """Convert a column over the session's rows to one over the graph's ranks, for the matcher."""
        by_rank = np.zeros(self._live.graph.ranks, dtype)
        known = self._ranks >= 0
        by_rank[self._ranks[known]] = column[known]
        return by_rank


def place_on(live: LiveGraph, task: Task, shape: PodShape, rank: int) -> GroupPlacement:
    """Place one pod without devices on the host of a rank. Raises NoMatchError."""
    placement = GroupPlacement(live)
    try:
        job = live.allocations.match_on(rank, compute_jobspec_text(shape, 1))
    except (Busy, Unsatisfiable) as error:
        raise NoMatchError(NO_MATCH) from error
    placement.add(task, job.jobid, job.placement)
    placement.hold()
    return placement


def direction_of(policy: str) -> int | None:
    """How a policy orders equal hosts: by ascending (1) or descending (-1) ranks; None if by their free amounts.

    It is descending for a policy that stops at the first match, because the matcher visits equal hosts in that order.
    """
    found = policy_of(policy)
    if found.ordering or not found.node_centric:
        return None
    return -1 if found.high or found.stop_on_1_matches else 1


def _conflict(shares: Iterable[_DeviceShare]) -> tuple[str, str] | None:
    """The first attribute on which the devices of a pod disagree, and the error's text."""
    by_task: dict[Task, list[DeviceHolding]] = {}
    for task, _, held in shares:
        by_task.setdefault(task, []).extend(held)
    for task, devices in by_task.items():
        try:
            _ = Placement((), tuple(devices)).attributes
        except AttributeConflictError as error:
            return error.key, f"pod {task.key}: {error}"
    return None
