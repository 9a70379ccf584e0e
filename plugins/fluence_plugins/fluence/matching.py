"""A group matched against the graph: one compute match a class, one device match a class and type, all or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fluence_plugins.fluence.errors import AttributeConflictError, DeviceError
from fluence_plugins.fluence.group_placement import GroupPlacement, divide_devices, divide_hosts
from fluence_plugins.fluence.live_graph import Job, LiveGraph
from fluence_plugins.fluence.needs import Needs
from fluence_plugins.fluence.placement import DeviceHolding, Placement
from fluence_plugins.fluence.requests import compute_jobspec, device_jobspecs
from fluxion_cy import Busy, Unsatisfiable
from session_scheduler import Refusal
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import IntColumn
from session_scheduler.model.groups import Task


class NoMatchError(Exception):
    """Some class of the group found no match; the text says which and why."""


class GroupMatcher:
    """Matches one group. `ranks[row]`: the rank of the host in that row of the session, -1 where it is in no graph."""

    def __init__(
        self,
        live: LiveGraph,
        ranks: IntColumn,
        needs: Mapping[TaskClass, Needs],
        budget: int,
    ) -> None:
        self._live = live
        self._ranks = ranks
        self._needs = needs
        self._budget = budget

    def place(
        self, tasks: Sequence[Task], room: Mapping[TaskClass, IntColumn], scores: Mapping[TaskClass, IntColumn]
    ) -> GroupPlacement | Refusal:
        """All of the tasks, or a refusal. Classes are tried most constrained first, then in other orders."""
        by_class: dict[TaskClass, list[Task]] = {}
        for task in tasks:
            by_class.setdefault(task.cls, []).append(task)
        first = sorted(by_class, key=lambda cls: self._constrained(cls, len(by_class[cls]), room[cls]))
        problem = ""
        for order in _orders(first):
            jobs: list[int] = []
            try:
                placement = GroupPlacement(self._live)
                for cls in order:
                    self._place_class(by_class[cls], cls, room[cls], scores[cls], placement, jobs)
            except NoMatchError as error:
                self._live.retract(reversed(jobs), ())
                problem = problem or str(error)
                if self._budget <= 0:
                    return Refusal(f"{problem}; the match budget ended before every order was tried")
                continue
            placement.hold()
            return placement
        return Refusal(problem)

    def _constrained(self, cls: TaskClass, number: int, room: IntColumn) -> tuple[int, int, int]:
        shape = self._needs[cls].shape
        return (int(np.minimum(room, number).sum()) - number, -shape.cores, cls.index)

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
        needs = self._needs[cls]
        job = self._match(
            [compute_jobspec(needs.shape, len(tasks)).to_json()],
            jobs,
            self._by_rank(room, np.int64),
            self._by_rank(scores, np.float64),
        )
        hosts = divide_hosts(job.placement, needs.shape, len(tasks))
        for task, host in zip(tasks, hosts, strict=True):
            placement.add(task, job.jobid, Placement((host,)))
        devices: dict[Task, list[DeviceHolding]] = {}
        for kind in needs.devices:
            for task, jobid, held in self._devices(tasks, needs, kind, jobs):
                devices.setdefault(task, []).extend(held)
                placement.add(task, jobid, Placement((), held))
        for task, found in devices.items():
            _agree(task, found)

    def _devices(
        self, tasks: Sequence[Task], needs: Needs, kind: str, jobs: list[int]
    ) -> Iterator[tuple[Task, int, tuple[DeviceHolding, ...]]]:
        """One match for all pods of the class where one tree has enough, else one match a pod."""
        if len(tasks) > 1:
            try:
                job = self._match_devices(needs, kind, len(tasks), jobs)
            except NoMatchError:
                pass
            else:
                shares = divide_devices(job.placement, needs, kind)
                yield from ((task, job.jobid, share) for task, share in zip(tasks, shares, strict=True))
                return
        for task in tasks:
            job = self._match_devices(needs, kind, 1, jobs)
            yield task, job.jobid, job.placement.devices

    def _match_devices(self, needs: Needs, kind: str, slots: int, jobs: list[int]) -> Job:
        try:
            jobspecs = device_jobspecs(
                self._live.graph, kind, needs.devices[kind], needs.require, needs.backend, slots=slots
            )
        except DeviceError as error:
            raise NoMatchError(str(error)) from error
        return self._match([jobspec.to_json() for jobspec in jobspecs], jobs)

    def _match(
        self,
        jobspecs: Iterable[str],
        jobs: list[int],
        candidates: IntColumn | None = None,
        prefer: NDArray[np.float64] | None = None,
    ) -> Job:
        """The first of the jobspecs that matches."""
        problem = ""
        for jobspec in jobspecs:
            self._budget -= 1
            try:
                job = self._live.match(jobspec, candidates, prefer)
            except (Busy, Unsatisfiable) as error:
                problem = problem or str(error)
                continue
            jobs.append(job.jobid)
            return job
        raise NoMatchError(f"the resource graph has no match: {problem}")

    def _by_rank(self, column: IntColumn, dtype: type[np.int64] | type[np.float64]) -> NDArray[Any]:
        """A column over the session's rows as one over the graph's ranks, as the matcher reads it in place."""
        by_rank = np.zeros(self._live.graph.ranks, dtype)
        known = self._ranks >= 0
        by_rank[self._ranks[known]] = column[known]
        return by_rank


def _orders(classes: Sequence[TaskClass]) -> Iterator[Sequence[TaskClass]]:
    return islice(permutations(classes), 24)


def _agree(task: Task, devices: Sequence[DeviceHolding]) -> None:
    try:
        _ = Placement((), tuple(devices)).attributes
    except AttributeConflictError as error:
        raise NoMatchError(f"pod {task.key}: {error}") from error
