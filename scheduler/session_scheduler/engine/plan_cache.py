"""The gang plans on PodGroups: read once each, with what this replica did with them.

Gang starts and plan recovery share it. Anybody who may create a PodGroup may write a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from session_scheduler.base.clock import Clock
from session_scheduler.binding.plan_store import PlanStore, PlanSwap
from session_scheduler.cluster.errors import ClusterError, TooManyRequests, Unavailable
from session_scheduler.engine.in_flight import InFlight
from session_scheduler.framework.observer import Observer
from session_scheduler.model.gang_plan import PLAN_ANNOTATION, GangPlan, NeedsConfigMap, PlanError, plan_here
from session_scheduler.model.group_api import SCHEDULED
from session_scheduler.model.groups import Group
from session_scheduler.model.objects import PodGroup
from session_scheduler.state.cache import Cache, pod_group_key

_log = structlog.get_logger(__name__)
_LONGEST_GATE = 30.0
"""Seconds after the start for which plans that were found keep everything else waiting until they are void."""
_MAY_YET_COME = (Unavailable, TooManyRequests)
"""Answers after which the same request may succeed."""
_GIVEN_UP = 16
"""Attempts of a group that are remembered: one is on its PodGroup, others may come back by a late write."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A plan as it was read, and the pods that were known then: what is kept of it depends on them."""

    text: str
    plan: GangPlan | None
    of: set[str]

    def says(self, text: str, pods: Collection[str]) -> bool:
        """Whether that is what the text says to a group of these pods."""
        whole = self.plan is None or not self.plan.gone
        return self.text == text and (whole or self.of == {*pods})


@dataclass(eq=False, repr=False)
class PlanCache:
    """The plans of one scheduler's groups. One that lies in a ConfigMap is fetched; its group is busy until then."""

    cache: Cache
    plans: PlanStore
    observer: Observer
    clock: Clock
    in_flight: InFlight[Any]
    back_off: Callable[[str], None]
    """Lets a group (its key) wait."""
    _read: dict[str, _Read] = field(default_factory=dict, init=False)
    """By group: the plan that its PodGroup's annotation says."""
    _given_up: dict[str, dict[str, None]] = field(default_factory=dict, init=False)
    """By group: attempts that are not to be recovered, our own and those with which that failed."""
    _gates: set[str] = field(default_factory=set, init=False)
    """Groups whose plans were found at the start and are being voided."""
    _recovering: dict[str, str] = field(default_factory=dict, init=False)
    """By group: the attempt that was found and is being carried out."""
    _started: float = field(default=0.0, init=False)
    """When the scheduler started."""

    def start(self) -> None:
        """From now on requests of a plan that is found may still be in flight."""
        self._started = self.clock.now()

    def forget(self, key: str) -> None:
        """A group is gone."""
        self._read.pop(key, None)
        self._given_up.pop(key, None)
        self._recovering.pop(key, None)
        self._gates.discard(key)

    # ------------------------------------------------------------------ what plans say

    async def fetch(self, key: str, pod_group: PodGroup, text: str) -> None:
        """Read a group's plan now, wherever it lies. Raises ClusterError."""
        self._read[key] = _Read(text, await self._fetched(pod_group), {*self.cache.groups[key].tasks})

    def plan_of(self, group: Group) -> GangPlan | None:
        """The plan on the group's PodGroup; None where there is none that can be read."""
        pod_group = group.pod_group
        text = pod_group.metadata.annotations.get(PLAN_ANNOTATION) if pod_group is not None else None
        if pod_group is None or text is None:
            return None
        read = self._read.get(group.key)
        if read is None or not read.says(text, group.tasks):
            plan = self._parsed(group.key, pod_group)
            read = self._read[group.key] = _Read(text, plan, {*group.tasks})
        return read.plan

    def _parsed(self, key: str, pod_group: PodGroup) -> GangPlan | None:
        try:
            return self._of_interest(key, plan_here(pod_group))
        except NeedsConfigMap:
            self.in_flight.start(key, self._fetched(pod_group), partial(self._loaded, pod_group))
        except PlanError as error:
            self.observer.problem(pod_group, str(error))
        return None

    async def _fetched(self, pod_group: PodGroup) -> GangPlan | None:
        """The plan, wherever it lies; one that cannot be read is reported. Raises ClusterError."""
        try:
            plan = await self.plans.read(pod_group)
        except PlanError as error:
            self.observer.problem(pod_group, str(error))
            return None
        return self._of_interest(pod_group_key(pod_group), plan)

    def _of_interest(self, key: str, plan: GangPlan | None) -> GangPlan | None:
        """What is kept of a plan: anybody who may create a PodGroup may have written it."""
        group = self.cache.groups.get(key)
        tasks = group.tasks if group is not None else {}
        return plan.of_interest(tasks, {task.name for task in tasks.values()}, len(tasks)) if plan is not None else None

    async def _loaded(self, pod_group: PodGroup, key: str, answer: GangPlan | BaseException | None) -> None:
        text = pod_group.metadata.annotations[PLAN_ANNOTATION]
        if isinstance(answer, ClusterError):
            _log.warning("a plan cannot be read yet", group=key, error=str(answer))
            self._read.pop(key, None)
            self.back_off(key)
        elif isinstance(answer, BaseException):
            raise answer
        elif key in self.cache.groups:
            self._read[key] = _Read(text, answer, {*self.cache.groups[key].tasks})

    # ------------------------------------------------------------------ what this replica did with them

    def give_up(self, key: str, attempt: str) -> None:
        """An attempt of a group (its key) is not to be recovered: it is our own, or that failed."""
        attempts = self._given_up.setdefault(key, {})
        attempts[attempt] = None
        if len(attempts) > _GIVEN_UP:
            del attempts[next(iter(attempts))]

    def reconsider(self, key: str, attempt: str | None = None) -> None:
        """An attempt of a group, or each of its attempts, may be recovered after all."""
        if attempt is None:
            self._given_up.pop(key, None)
        else:
            self._given_up.get(key, {}).pop(attempt, None)

    def is_given_up(self, key: str, attempt: str) -> bool:
        """Whether an attempt of a group is not to be recovered."""
        return attempt in self._given_up.get(key, ())

    def recover(self, key: str, attempt: str) -> None:
        """An attempt that was found is carried out from now on."""
        self._recovering[key] = attempt

    def carried_out(self, key: str, swap: PlanSwap) -> None:
        """A plan was carried out, as far as possible. One that was found is void only once its successor stands."""
        found = self._recovering.pop(key, None)
        if found is None or swap.in_force:
            self._gates.discard(key)
            self.give_up(key, swap.attempt)
        elif isinstance(swap.error, _MAY_YET_COME):
            self.gate(key)
            self.reconsider(key, found)
        else:  # what can be taken back is; what cannot must not keep others waiting
            self._gates.discard(key)

    def gated(self) -> bool:
        """Whether nothing is to be placed yet: requests of plans that were found may still take what looks free."""
        return bool(self._gates) and self.clock.now() < self._started + _LONGEST_GATE

    def gate(self, key: str) -> None:
        """Keep everything waiting, shortly after the start, until the found plan of a group is void.

        Later no other replica's requests can be in flight; and anybody may write a plan.
        """
        if self.clock.now() < self._started + _LONGEST_GATE:
            self._gates.add(key)

    def ungate(self, key: str, answer: object) -> None:
        """A found plan was voided, or cannot be: only an answer that may yet come keeps the others waiting."""
        if not isinstance(answer, _MAY_YET_COME):
            self._gates.discard(key)


def ever_scheduled(pod_group: PodGroup) -> bool:
    """Whether a PodGroup says that it has started, by whatever plan."""
    return any(one.type == SCHEDULED and one.status == "True" for one in pod_group.status.conditions)


def acknowledged(pod_group: PodGroup, plan: GangPlan) -> bool:
    """Whether the PodGroup says that the gang has started by this plan."""
    conditions = pod_group.status.conditions
    return any(one.type == SCHEDULED and one.status == "True" and plan.attempt in one.message for one in conditions)
