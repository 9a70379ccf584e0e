"""What the plans on PodGroups say to their groups, read once each; anybody who may create a PodGroup may write one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from session_scheduler.cluster.errors import ClusterError
from session_scheduler.model.gang_plan import PLAN_ANNOTATION, GangPlan, NeedsConfigMap, PlanError, plan_here
from session_scheduler.model.group_api import SCHEDULED
from session_scheduler.model.groups import Group
from session_scheduler.model.objects import PodGroup
from session_scheduler.state.cache import pod_group_key

if TYPE_CHECKING:
    from session_scheduler.engine.scheduler import Scheduler

_log = structlog.get_logger(__name__)


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


class PlanReader:
    """The plans of one scheduler's groups. One that lies in a ConfigMap is fetched; its group is busy until then."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._cache = scheduler.cache
        self._read: dict[str, _Read] = {}
        """By group: the plan that its PodGroup's annotation says."""

    def forget(self, key: str) -> None:
        """A group is gone."""
        self._read.pop(key, None)

    async def fetch(self, key: str, pod_group: PodGroup, text: str) -> None:
        """Read a group's plan now, wherever it lies. Raises ClusterError."""
        self._read[key] = _Read(text, await self._told(pod_group), {*self._cache.groups[key].tasks})

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
            self._scheduler.spawn(key, self._told(pod_group), partial(self._loaded, pod_group))
        except PlanError as error:
            self._scheduler.observer.problem(pod_group, str(error))
        return None

    async def _told(self, pod_group: PodGroup) -> GangPlan | None:
        """The plan, wherever it lies; people are told of one that cannot be read. Raises ClusterError."""
        try:
            plan = await self._scheduler.binder.plans.read(pod_group)
        except PlanError as error:
            self._scheduler.observer.problem(pod_group, str(error))
            return None
        return self._of_interest(pod_group_key(pod_group), plan)

    def _of_interest(self, key: str, plan: GangPlan | None) -> GangPlan | None:
        """What is kept of a plan: anybody who may create a PodGroup may have written it."""
        group = self._cache.groups.get(key)
        tasks = group.tasks if group is not None else {}
        return plan.of_interest(tasks, {task.name for task in tasks.values()}, len(tasks)) if plan is not None else None

    async def _loaded(self, pod_group: PodGroup, key: str, answer: GangPlan | BaseException | None) -> None:
        text = pod_group.metadata.annotations[PLAN_ANNOTATION]
        if isinstance(answer, ClusterError):
            _log.warning("a plan cannot be read yet", group=key, error=str(answer))
            self._read.pop(key, None)
            self._scheduler.back_off(key)
        elif isinstance(answer, BaseException):
            raise answer
        elif key in self._cache.groups:
            self._read[key] = _Read(text, answer, {*self._cache.groups[key].tasks})


def ever_scheduled(pod_group: PodGroup) -> bool:
    """Whether a PodGroup says that it has started, by whatever plan."""
    return any(one.type == SCHEDULED and one.status == "True" for one in pod_group.status.conditions)


def acknowledged(pod_group: PodGroup, plan: GangPlan) -> bool:
    """Whether the PodGroup says that the gang has started by this plan."""
    conditions = pod_group.status.conditions
    return any(one.type == SCHEDULED and one.status == "True" and plan.attempt in one.message for one in conditions)
