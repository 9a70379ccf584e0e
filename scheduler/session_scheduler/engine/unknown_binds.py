"""Ambiguous binds, whose requests got no response.

Their tasks stay assumed, with node and allocation, until an event or another check shows the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from session_scheduler.engine.in_flight import InFlight, raise_first
from session_scheduler.framework.bindings import Failure
from session_scheduler.framework.hooks import HookCalls
from session_scheduler.model.groups import Group


class UnknownBind(msgspec.Struct, frozen=True):
    """An ambiguous bind, and the hooks of its profile."""

    failure: Failure
    calls: HookCalls


Resolve = Callable[[UnknownBind, Failure | None], Coroutine[Any, Any, None]]
"""Called with a bind and its outcome: None if the pod is bound as decided."""


@dataclass(eq=False, repr=False)
class UnknownBinds:
    """The ambiguous binds by pod uid."""

    groups: Mapping[str, Group]
    in_flight: InFlight[Any]
    check: Callable[[Failure], Awaitable[Failure | None]]
    """Asks the cluster for the outcome of a bind."""
    _binds: dict[str, UnknownBind] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._binds)

    def __contains__(self, uid: str) -> bool:
        return uid in self._binds

    def put(self, failure: Failure, calls: HookCalls) -> None:
        """Add an ambiguous bind."""
        self._binds[failure.task.uid] = UnknownBind(failure, calls)

    def take(self, uid: str) -> UnknownBind | None:
        """Remove and return the pod's ambiguous bind, if there is one."""
        return self._binds.pop(uid, None)

    def is_busy(self, key: str) -> bool:
        """Whether a group (its key) has work in flight, or an ambiguous bind."""
        group = self.groups.get(key) if self._binds else None
        unknown = group is not None and not self._binds.keys().isdisjoint(group.tasks)
        return unknown or self.in_flight.concerns(key)

    async def check_all(self, resolve: Resolve) -> None:
        """Check every bind again, and keep those that stay ambiguous. Raises unexpected errors at the end."""
        binds = list(self._binds.values())
        await self._checked(binds, resolve, "", await self._answers(binds))

    def start_checks(self, resolve: Resolve) -> None:
        """Start `check_all` as work in flight."""
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
            if self._binds.get(uid) is bind:  # else an event has shown the outcome
                del self._binds[uid]
                await resolve(bind, answer)
        raise_first([answer for answer in answers if isinstance(answer, BaseException)])
