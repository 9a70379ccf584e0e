"""Opens and closes sessions over the cache, for cycles, plan recovery and explanations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from session_scheduler.base.clock import Clock
from session_scheduler.framework.hooks import HookCalls, PluginError
from session_scheduler.framework.session import Session, SessionOptions
from session_scheduler.model.groups import Group
from session_scheduler.state.cache import Cache
from session_scheduler.state.snapshot import RetriedGroups, Snapshot


@dataclass(eq=False, repr=False)
class Sessions:
    """Opens one session at a time."""

    cache: Cache
    clock: Clock
    options: SessionOptions

    def open(
        self,
        calls: HookCalls,
        due: tuple[Group, ...],
        stale: tuple[Group, ...] = (),
        expired: Callable[[], bool] = lambda: False,
        retried: RetriedGroups | None = None,
    ) -> Session:
        """A session over these groups, with each plugin's facts. Raises PluginError.

        An action starts no further group once `expired` returns True.
        """
        facts = {call.plugin: call() for call in calls.functions("facts")}
        self.refresh_offered(calls)
        self.cache.table.pods.trim()
        snapshot = Snapshot(self.cache, due, self.clock.now(), facts, self.clock.wall(), stale, retried)
        session = Session(snapshot, calls, self.options, expired)
        session.open()
        return session

    def refresh_offered(self, calls: HookCalls) -> None:
        """Update the resources that plugins offer to queues. Raises PluginError."""
        queues = self.cache.queues
        functions = calls.functions("offered") if queues.active else ()
        if not functions:
            return
        queues.reconcile()
        requested = queues.requested()
        for call in functions:
            answer = call(requested, self.cache.table.all_rows(), self.cache.objects.of) or {}
            if not all(type(amount) is int and amount >= 0 for amount in answer.values()):
                raise call.wrong("expected amounts to be non-negative integers")
            queues.offered[call.plugin] = answer

    def close(self, session: Session) -> None:
        """Close a session, and ignore failures of plugins in it."""
        with suppress(PluginError):
            session.close()
