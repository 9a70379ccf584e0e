"""What pages show, computed once for all users who see the same content, and what has changed since an earlier time.

A feed has the parts of one page: summary, tables and figures, each with the number of its last change. A client that
reads slowly receives only the newest state of the parts that changed meanwhile, so no queue grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from fluence_lab.dashboard.failures import Failures
from fluence_lab.view import View

__all__ = ["Feed", "Feeds", "FullError", "Subject"]

MOST_FEEDS: Final = 256
MOST_FOLLOWERS: Final = 256
IDLE_SECONDS: Final = 60.0
"""How long a feed without followers is kept."""
REFRESH_SECONDS: Final = 10.0
"""How often a followed page is computed again if nothing has changed in the cluster: the ages on it grow."""
_PATH: Final = {"tables": 2, "figures": 2}


class FullError(Exception):
    """Too many clients follow pages."""


class Subject(NamedTuple):
    """What a user sees: a page, with a query, of some namespaces (None: all)."""

    page: str
    namespaces: frozenset[str] | None
    query: tuple[tuple[str, str], ...]

    def may_read(self, key: str) -> bool:
        """Whether the user may read a pod (NAMESPACE/NAME)."""
        return self.namespaces is None or key.partition("/")[0] in self.namespaces


class Feed:
    """One subject's view and its parts."""

    def __init__(self, subject: Subject, numbers: Iterator[int]) -> None:
        """All feeds share the `numbers` of changes, so a client's number from a forgotten feed is an old one."""
        self.subject = subject
        self._numbers = numbers
        self.number = 0
        """Of the last change; 0: not computed yet."""
        self.view: View | None = None
        self.version: Any = None
        """Of the state that the view shows."""
        self.computed_at = self.used_at = float("-inf")
        self.followers = 0
        self._parts: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._changed = asyncio.Event()
        self._last: tuple[int, int, bytes] | None = None
        self.computing = asyncio.Lock()

    def put(self, view: View | None, update: Mapping[str, Any]) -> None:
        """Store the newest state."""
        self.view = view
        new = {
            (kind, name): msgspec.json.encode(each)
            for kind, value in update.items()
            for name, each in (value.items() if _PATH.get(kind) == 2 else (("", value),))
        }
        changed = {key: value for key, value in new.items() if self._parts.get(key, (0, b""))[1] != value}
        if not changed and new.keys() == self._parts.keys():
            return
        self.number = next(self._numbers)
        self._parts = {key: (self.number, value) if key in changed else self._parts[key] for key, value in new.items()}
        self._changed.set()
        self._changed = asyncio.Event()

    def since(self, number: int) -> bytes:
        """The parts that changed after this number, as JSON; all of them where the number is of another feed."""
        if self._last is not None and self._last[:2] == (number, self.number):
            return self._last[2]
        after = number if number <= self.number else 0
        found: dict[str, Any] = {}
        for (kind, name), (changed, value) in self._parts.items():
            if changed > after:
                if _PATH.get(kind) == 2:
                    found.setdefault(kind, {})[name] = msgspec.Raw(value)
                else:
                    found[kind] = msgspec.Raw(value)
        text = msgspec.json.encode(found)
        self._last = (number, self.number, text)
        return text

    async def change(self, number: int, seconds: float) -> bool:
        """Wait until there is a change after this number, for this long at most. Returns whether there is one."""
        if self.number == number:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                return False
        return True


class Feeds:
    """All feeds. `tick` computes those that clients follow."""

    def __init__(
        self,
        compute: Callable[[Subject], Awaitable[tuple[View | None, Mapping[str, Any]]]],
        version: Callable[[], Any],
        now: Callable[[], float],
        *,
        most_followers: int = MOST_FOLLOWERS,
    ) -> None:
        """`compute`: a subject's view and its update; `version` changes with the state; `now`: monotonic seconds."""
        self._compute = compute
        self._version = version
        self._now = now
        self._most_followers = most_followers
        self._feeds: dict[Subject, Feed] = {}
        self._numbers = count(1)
        self._failures = Failures()

    async def current(self, subject: Subject) -> Feed:
        """The feed of a subject, up to date."""
        feed = self._feed(subject)
        await self._renew(feed)
        return feed

    def _feed(self, subject: Subject) -> Feed:
        feed = self._feeds.pop(subject, None) or Feed(subject, self._numbers)
        self._feeds[subject] = feed  # the last used is the last
        feed.used_at = self._now()
        unused = [each for each in self._feeds.values() if not each.followers and each is not feed]
        for each in unused[: max(0, len(self._feeds) - MOST_FEEDS)]:
            self._feeds.pop(each.subject, None)
        return feed

    @asynccontextmanager
    async def followed(self, subject: Subject) -> AsyncGenerator[Feed]:
        """The feed of a subject, which `tick` then keeps up to date. Raises FullError."""
        if sum(feed.followers for feed in self._feeds.values()) >= self._most_followers:
            raise FullError
        feed = self._feed(subject)
        feed.followers += 1  # before it is computed: `current` forgets feeds without followers
        try:
            await self._renew(feed)
            yield feed
        finally:
            feed.followers -= 1
            feed.used_at = self._now()

    async def tick(self) -> None:
        """Compute what clients follow if the state has changed, and forget feeds without clients.

        An error of one feed is logged once, and does not stop the others.
        """
        for feed in list(self._feeds.values()):
            if feed.followers:
                with self._failures.logged("a page cannot be computed", page=feed.subject.page):
                    await self._renew(feed)
                await asyncio.sleep(0)  # requests come between
            elif feed.used_at + IDLE_SECONDS <= self._now():
                self._feeds.pop(feed.subject, None)

    async def _renew(self, feed: Feed) -> None:
        """Compute the feed, unless it shows the present state already."""
        async with feed.computing:
            version = self._version()
            if feed.version == version and self._now() < feed.computed_at + REFRESH_SECONDS:
                return
            feed.put(*await self._compute(feed.subject))
            feed.version, feed.computed_at = version, self._now()
