"""Bindings of which the cluster did not say whether they were done: their tasks keep place and share until it does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from session_scheduler.engine.in_flight import raise_first
from session_scheduler.framework.bindings import Failure
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.model.groups import Group, Phase

if TYPE_CHECKING:
    from session_scheduler.engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Doubt:
    """A bind whose outcome is unknown, and the hooks of the profile that decided it."""

    failure: Failure
    calls: HookCalls


class Doubts:
    """By pod uid; their tasks are assumed. Belongs to one scheduler, whose state it changes in its turn."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._doubts: dict[str, Doubt] = {}

    def __len__(self) -> int:
        return len(self._doubts)

    def __contains__(self, uid: str) -> bool:
        return uid in self._doubts

    def put(self, failure: Failure, calls: HookCalls) -> None:
        """It is not known whether this bind was done."""
        self._doubts[failure.task.uid] = Doubt(failure, calls)

    def take(self, uid: str) -> Doubt | None:
        """What was in doubt of a pod, which now is known."""
        return self._doubts.pop(uid, None)

    def concern(self, group: Group) -> bool:
        """Whether it is not known of a pod of the group what became of it."""
        return not self._doubts.keys().isdisjoint(group.tasks)

    async def settle(self) -> None:
        """Ask again what became of them.

        What the cluster still does not say stays as it is; an error that nobody expected is raised at the end.
        """
        doubts = list(self._doubts.values())
        await self._looked(doubts, "", await self._look(doubts))

    def ask(self) -> None:
        """As `settle`, but under way when this returns."""
        of_group: dict[str, list[Doubt]] = {}
        for doubt in self._doubts.values():
            of_group.setdefault(doubt.failure.task.group.key, []).append(doubt)
        for key, doubts in of_group.items():
            if not self._scheduler.under_way.concerns(key):
                self._scheduler.spawn(key, self._look(doubts), partial(self._looked, doubts))

    async def _look(self, doubts: Sequence[Doubt]) -> list[Failure | BaseException | None]:
        looks = (self._scheduler.binder.resolve(doubt.failure) for doubt in doubts)
        return await asyncio.gather(*looks, return_exceptions=True)

    async def _looked(
        self, doubts: Sequence[Doubt], _: str, answers: list[Failure | BaseException | None] | BaseException
    ) -> None:
        if isinstance(answers, BaseException):
            raise answers
        for doubt, answer in zip(doubts, answers, strict=True):
            await self._resolved(doubt, answer)
        raise_first([answer for answer in answers if isinstance(answer, BaseException)])

    async def _resolved(self, doubt: Doubt, answer: Failure | BaseException | None) -> None:
        task = doubt.failure.task
        if isinstance(answer, BaseException) or (answer is not None and answer.unknown):
            return
        if self._doubts.get(task.uid) is not doubt:  # an event has decided meanwhile
            return
        del self._doubts[task.uid]
        if answer is None:
            task.phase = Phase.BOUND
            self._scheduler.observer.bound(task, doubt.failure.node)
        elif await self._scheduler.undone(answer, doubt.calls, keeps=self._scheduler.gangs.may_have_begun(task.group)):
            self._scheduler.tell_failed(task.group, {task: answer.reason})
        self._scheduler.gangs.settled(task.group, None)
