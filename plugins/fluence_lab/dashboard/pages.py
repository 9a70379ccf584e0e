"""What each page shows to each user: the state, computed once for all users who may read the same namespaces.

`run` observes the cluster every second; the server asks for the feed of a page.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from fluence_lab import render
from fluence_lab.dashboard.failures import Failures
from fluence_lab.dashboard.feeds import Feed, Feeds, Subject
from fluence_lab.dashboard.fetches import Fetches
from fluence_lab.dashboard.history import HistoryRecorder
from fluence_lab.dashboard.verdicts import Verdicts
from fluence_lab.panels import Panel, PanelContext
from fluence_lab.view import View
from session_scheduler.model.objects import Pod
from session_scheduler.observation.values import Observed
from session_scheduler.sdk.signals import background

__all__ = ["Observes", "Pages"]

TICK_SECONDS: Final = 1.0
PANELS_SECONDS: Final = 10.0
"""How often the server looks whether panels that had nothing to show have something now."""
MOST_SEEN: Final = 32
"""For how many sets of namespaces the pods are kept."""


class Observes(Protocol):
    """An `Observer`, or an object in place of one."""

    def observe(self) -> Observed:
        """The cluster now. Raises the error that ended the observer."""

    def pods(self) -> Mapping[str, Pod]:
        """The objects of all pods, by NAMESPACE/NAME."""

    async def verdicts(self, key: str, /) -> Mapping[str, Any]:
        """One pod's entry in the JSON of `fluence explain`. Raises InputError."""

    def plugin(self, name: str, /) -> object | None:
        """The loaded plugin of a name, or None."""


class Pages:
    """All pages, and what they show."""

    def __init__(
        self,
        observer: Observes,
        panels: list[Panel],
        *,
        live: bool,
        note: str,
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """See `Dashboard`."""
        self.panels = {panel.name: panel for panel in panels}
        self.live = live
        self.recorder = HistoryRecorder()
        self.feeds = Feeds(self._computed, self._version, now)
        self.fetches = Fetches(panels, observer.plugin)
        self._observer = observer
        self._note = f" {note}" if note else ""
        self._now = now
        self._wall = wall
        self._failures = Failures()
        self._seen: tuple[Observed | None, dict[frozenset[str], Observed]] = (None, {})
        self._verdicts = Verdicts(observer.verdicts, now)
        self._of_pods: tuple[object, frozenset[str]] = (None, frozenset())
        """The keys of the pods, and their namespaces."""
        self._of_all: tuple[object, object, frozenset[str]] = (None, None, frozenset())
        """The keys of the pods, the gangs, and the namespaces of both."""
        self._shown: set[str] = set()
        self._looked_at = -math.inf
        if live:
            self.recorder.record(self._at_present(observer.observe()))

    async def run(self) -> None:
        """Record and compute every second, until it is cancelled."""
        async with background(self._verdicts.run()):
            await self._follow()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.update()

    async def update(self) -> None:
        """Record the cluster now, and compute what clients follow. Raises the error that ended the observer."""
        observed = self._observer.observe()
        with self._failures.logged("an update failed"):
            if self.live:
                self.recorder.record(self._at_present(observed))
            await self.feeds.tick()

    # ------------------------------------------------------------------ pages

    @property
    def first(self) -> str:
        """The page to begin with."""
        return next(iter(self.panels), "login")

    async def listed(self) -> list[Panel]:
        """The panels that have, or had, something to show."""
        if self._looked_at + PANELS_SECONDS <= self._now():
            self._looked_at = self._now()  # requests meanwhile do not look, too
            for name in self.panels:
                if name not in self._shown and (await self.feeds.current(Subject(name, None, ()))).view is not None:
                    self._shown.add(name)
        return [panel for name, panel in self.panels.items() if name in self._shown]

    async def shown(self, subject: Subject) -> Feed:
        """The feed of a page, up to date; its view is None if there is nothing to show."""
        feed = await self.feeds.current(subject)
        if feed.view is not None:
            self._shown.add(subject.page)
        return feed

    def notes(self, subject: Subject) -> str:
        """Where the numbers come from, their time, and what the reader has no permission to see."""
        observed = self._observed(subject.namespaces)
        hidden = [f"{what} {count:,}" for what, count in observed.hidden.items() if count]
        when = time.strftime(", %Y-%m-%d %H:%M:%S UTC", time.gmtime(observed.time)) if self.live else ""
        text = f"{observed.source}{when}.{self._note}"
        return f"{text} In namespaces that you have no permission to read: {', '.join(hidden)}." if hidden else text

    # ------------------------------------------------------------------ what is observed

    def observed(self) -> Observed:
        """The cluster now."""
        return self._observer.observe()

    def namespaces(self) -> frozenset[str]:
        """The namespaces with pods or gangs."""
        observed = self._observer.observe()
        keys, gangs = observed.pods.keys, observed.gangs
        if self._of_pods[0] is not keys:
            self._of_pods = keys, frozenset(key.partition("/")[0] for key in keys)
        if self._of_all[0] is not keys or self._of_all[1] is not gangs:
            self._of_all = keys, gangs, self._of_pods[1].union(gang.namespace for gang in gangs)
        return self._of_all[2]

    def _version(self) -> Any:
        return self._observer.observe().version, self._verdicts.number, self.fetches.number

    def _context(self, subject: Subject) -> PanelContext:
        namespaces = subject.namespaces

        def verdicts(key: str) -> Mapping[str, Any] | None:
            return self._verdicts.get(key) if subject.may_read(key) else None

        return PanelContext(
            observed=self._at_present(self._observed(namespaces)),
            history=self.recorder.history(namespaces),
            query=dict(subject.query),
            namespaces=namespaces,
            plugin=self._observer.plugin,
            verdicts=verdicts,
            fetched=self.fetches.get(subject.page),
            pods=lambda: {key: pod for key, pod in self._observer.pods().items() if subject.may_read(key)},
        )

    def _at_present(self, observed: Observed) -> Observed:
        """With the present time, as ages grow while nothing changes."""
        return msgspec.structs.replace(observed, time=self._wall()) if self.live else observed

    def _observed(self, namespaces: frozenset[str] | None) -> Observed:
        """What is observed, as a reader of these namespaces sees it: computed once for all pages and readers."""
        observed = self._observer.observe()
        if namespaces is None:
            return observed
        if self._seen[0] is not observed:
            self._seen = observed, {}
        known = self._seen[1]
        if namespaces not in known:
            if len(known) >= MOST_SEEN:
                del known[next(iter(known))]
            known[namespaces] = observed.seen_by(namespaces)
        return known[namespaces]

    async def _computed(self, subject: Subject) -> tuple[View | None, Mapping[str, Any]]:
        panel = self.panels[subject.page]
        try:
            pod = dict(subject.query).get("pod", "")
            if pod and subject.may_read(pod):
                await self._verdicts.fetch(pod)
            view = panel.view(self._context(subject))
            update = render.update(view) if view is not None else {}
        except Exception as error:  # noqa: BLE001  # the page shows it, and the other pages continue
            view = self._failed(panel, error, subject.namespaces)
            update = render.update(view)
        if view is None:
            return None, {}
        return view, {**update, "notes": self.notes(subject)}

    def _failed(self, panel: Panel, error: Exception, namespaces: frozenset[str] | None) -> View:
        """The view of an error. Its text may name pods, so only readers of all namespaces see it."""
        text = f"{type(error).__name__}: {error}"
        self._failures.report("a panel failed", error, panel=panel.name)
        shown = f": {text}" if namespaces is None else ""
        return View(panel.name, panel.title, f"This page failed{shown}; see the dashboard's log.")
