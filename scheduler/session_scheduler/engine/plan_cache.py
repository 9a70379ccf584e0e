"""Caches the gang plans on PodGroups, and what this replica did with them.

Gang starts and plan recovery share it. Plans are untrusted: every user who may create a PodGroup may write one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
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
"""Seconds after startup for which all groups wait until the plans found at startup are void."""
_RETRYABLE = (Unavailable, TooManyRequests)
"""Errors after which the same request may succeed."""
_GIVEN_UP = 16
"""The number of a group's attempts to remember: a late write may restore an earlier one."""


class _Read(msgspec.Struct, frozen=True):
    """A plan as read for the pods that were known: it keeps only relevant entries."""

    text: str
    plan: GangPlan | None
    of: set[str]

    def is_current(self, text: str, pods: Collection[str]) -> bool:
        """Whether this is the plan of this text for a group with these pods."""
        whole = self.plan is None or not self.plan.gone
        return self.text == text and (whole or self.of == {*pods})


@dataclass(eq=False, repr=False)
class PlanCache:
    """The plans of a scheduler's groups. A plan in a ConfigMap is fetched; its group is busy until then."""

    cache: Cache
    plans: PlanStore
    observer: Observer
    clock: Clock
    in_flight: InFlight[Any]
    back_off: Callable[[str], None]
    """Puts a group (its key) into backoff."""
    _read: dict[str, _Read] = field(default_factory=dict, init=False)
    """By group: the plan in its PodGroup's annotation."""
    _given_up: dict[str, dict[str, None]] = field(default_factory=dict, init=False)
    """By group: attempts not to recover, our own and failed ones."""
    _gates: set[str] = field(default_factory=set, init=False)
    """Groups whose plans were found at startup and are being voided."""
    _recovering: dict[str, str] = field(default_factory=dict, init=False)
    """By group: the attempt of a plan found at startup that is being carried out."""
    _started: float = field(default=0.0, init=False)
    """When the scheduler started."""

    def start(self) -> None:
        """From now on, and for some time, requests of another replica's plans may be in flight."""
        self._started = self.clock.now()

    def forget(self, key: str) -> None:
        """Forget a group that is gone."""
        self._read.pop(key, None)
        self._given_up.pop(key, None)
        self._recovering.pop(key, None)
        self._gates.discard(key)

    # ------------------------------------------------------------------ read

    async def fetch(self, key: str, pod_group: PodGroup, text: str) -> None:
        """Read a group's plan from the annotation or the ConfigMap. Raises ClusterError."""
        self._read[key] = _Read(text, await self._fetched(pod_group), {*self.cache.groups[key].tasks})

    def plan_of(self, group: Group) -> GangPlan | None:
        """The plan on the group's PodGroup; None if there is no readable plan."""
        pod_group = group.pod_group
        text = pod_group.metadata.annotations.get(PLAN_ANNOTATION) if pod_group is not None else None
        if pod_group is None or text is None:
            return None
        read = self._read.get(group.key)
        if read is None or not read.is_current(text, group.tasks):
            plan = self._parsed(group.key, pod_group)
            read = self._read[group.key] = _Read(text, plan, {*group.tasks})
        return read.plan

    def _parsed(self, key: str, pod_group: PodGroup) -> GangPlan | None:
        try:
            return self._pruned(key, plan_here(pod_group))
        except NeedsConfigMap:
            self.in_flight.start(key, self._fetched(pod_group), partial(self._loaded, pod_group))
        except PlanError as error:
            self.observer.problem(pod_group, str(error))
        return None

    async def _fetched(self, pod_group: PodGroup) -> GangPlan | None:
        """The plan from the annotation or the ConfigMap; reports an unreadable one. Raises ClusterError."""
        try:
            plan = await self.plans.read(pod_group)
        except PlanError as error:
            self.observer.problem(pod_group, str(error))
            return None
        return self._pruned(pod_group_key(pod_group), plan)

    def _pruned(self, key: str, plan: GangPlan | None) -> GangPlan | None:
        """The relevant entries of an untrusted plan."""
        group = self.cache.groups.get(key)
        tasks = group.tasks if group is not None else {}
        return plan.of_interest(tasks, {task.name for task in tasks.values()}, len(tasks)) if plan is not None else None

    async def _loaded(self, pod_group: PodGroup, key: str, answer: GangPlan | BaseException | None) -> None:
        text = pod_group.metadata.annotations[PLAN_ANNOTATION]
        if isinstance(answer, ClusterError):
            _log.warning("reading a plan failed", group=key, error=str(answer))
            self._read.pop(key, None)
            self.back_off(key)
        elif isinstance(answer, BaseException):
            raise answer
        elif key in self.cache.groups:
            self._read[key] = _Read(text, answer, {*self.cache.groups[key].tasks})

    # ------------------------------------------------------------------ recovery state

    def give_up(self, key: str, attempt: str) -> None:
        """Never recover an attempt of a group (its key): it is our own, or its recovery failed."""
        attempts = self._given_up.setdefault(key, {})
        attempts[attempt] = None
        if len(attempts) > _GIVEN_UP:
            del attempts[next(iter(attempts))]

    def reconsider(self, key: str, attempt: str | None = None) -> None:
        """Allow the recovery of an attempt of a group, or of all its attempts."""
        if attempt is None:
            self._given_up.pop(key, None)
        else:
            self._given_up.get(key, {}).pop(attempt, None)

    def is_given_up(self, key: str, attempt: str) -> bool:
        """Whether an attempt of a group must not be recovered."""
        return attempt in self._given_up.get(key, ())

    def recover(self, key: str, attempt: str) -> None:
        """This replica carries out an attempt of another replica."""
        self._recovering[key] = attempt

    def carried_out(self, key: str, swap: PlanSwap) -> None:
        """A plan was carried out as far as possible. A recovered plan is invalid once its successor is in force."""
        found = self._recovering.pop(key, None)
        if found is None or swap.in_force:
            self._gates.discard(key)
            self.give_up(key, swap.attempt)
        elif isinstance(swap.error, _RETRYABLE):
            self.gate(key)
            self.reconsider(key, found)
        else:  # it cannot be voided: let other groups continue
            self._gates.discard(key)

    def gated(self) -> bool:
        """Whether all groups must wait: requests of another replica's plans may still bind pods."""
        return bool(self._gates) and self.clock.now() < self._started + _LONGEST_GATE

    def gate(self, key: str) -> None:
        """Let all groups wait, shortly after the start, until the plan that another replica left for a group is void.

        Later no other replica's requests can be in flight; and plans are untrusted.
        """
        if self.clock.now() < self._started + _LONGEST_GATE:
            self._gates.add(key)

    def ungate(self, key: str, answer: object) -> None:
        """A plan of another replica was voided, or cannot be; only a retryable error keeps other groups waiting."""
        if not isinstance(answer, _RETRYABLE):
            self._gates.discard(key)


def ever_scheduled(pod_group: PodGroup) -> bool:
    """Whether a PodGroup's condition shows that it has started, by any plan."""
    return any(one.type == SCHEDULED and one.status == "True" for one in pod_group.status.conditions)


def acknowledged(pod_group: PodGroup, plan: GangPlan) -> bool:
    """Whether the PodGroup's condition shows that the gang has started by this plan."""
    conditions = pod_group.status.conditions
    return any(one.type == SCHEDULED and one.status == "True" and plan.attempt in one.message for one in conditions)
