"""Binds with unknown outcome: the cluster did not say whether they were done.

Their tasks stay assumed, with place and share, until an event or another check says what became of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from session_scheduler.engine.in_flight import InFlight, raise_first
from session_scheduler.framework.bindings import Failure
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.model.groups import Group


@dataclass(frozen=True, slots=True)
class UnknownBind:
    """A bind whose outcome is unknown, and the hooks of the profile that decided it."""

    failure: Failure
    calls: HookCalls


Resolve = Callable[[UnknownBind, Failure | None], Coroutine[Any, Any, None]]
"""Called with a bind and what became of it: None where the pod is bound as decided."""


@dataclass(eq=False, repr=False)
class UnknownBinds:
    """By pod uid. `check` asks the cluster what became of a bind."""

    groups: Mapping[str, Group]
    in_flight: InFlight[Any]
    check: Callable[[Failure], Awaitable[Failure | None]]
    """Asks the cluster what became of a bind."""
    _binds: dict[str, UnknownBind] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._binds)

    def __contains__(self, uid: str) -> bool:
        return uid in self._binds

    def put(self, failure: Failure, calls: HookCalls) -> None:
        """It is not known whether this bind was done."""
        self._binds[failure.task.uid] = UnknownBind(failure, calls)

    def take(self, uid: str) -> UnknownBind | None:
        """The pod's bind, if its outcome was unknown: now it is known."""
        return self._binds.pop(uid, None)

    def is_busy(self, key: str) -> bool:
        """Whether work of a group (its key) is in flight, or the outcome of one of its binds is unknown."""
        group = self.groups.get(key) if self._binds else None
        unknown = group is not None and not self._binds.keys().isdisjoint(group.tasks)
        return unknown or self.in_flight.concerns(key)

    async def check_all(self, resolve: Resolve) -> None:
        """Check every bind again; one whose outcome stays unknown stays here. Raises unexpected errors at the end."""
        binds = list(self._binds.values())
        await self._checked(binds, resolve, "", await self._answers(binds))

    def start_checks(self, resolve: Resolve) -> None:
        """As `check_all`, in flight when this returns."""
        of_group: dict[str, list[UnknownBind]] = {}
        for bind in self._binds.values():
            of_group.setdefault(bind.failure.task.group.key, []).append(bind)
        for key, binds in of_group.items():
            if not self.in_flight.concerns(key):
                self.in_flight.start(key, self._answers(binds), partial(self._checked, binds, resolve))

    async def _answers(self, binds: Sequence[UnknownBind]) -> list[Failure | BaseException | None]:
        return await asyncio.gather(*(self.check(bind.failure) for bind in binds), return_exceptions=True)

    async def _checked(
        self, binds: Sequence[UnknownBind], resolve: Resolve, _: str,
        answers: list[Failure | BaseException | None] | BaseException,
    ) -> None:  # fmt: skip
        if isinstance(answers, BaseException):
            raise answers
        for bind, answer in zip(binds, answers, strict=True):
            if isinstance(answer, BaseException) or (answer is not None and answer.unknown):
                continue
            uid = bind.failure.task.uid
            if self._binds.get(uid) is bind:  # else an event has decided meanwhile
                del self._binds[uid]
                await resolve(bind, answer)
        raise_first([answer for answer in answers if isinstance(answer, BaseException)])
