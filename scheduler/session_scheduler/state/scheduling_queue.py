"""The scheduling queue: which groups are due, as in kube-scheduler. Pure: the time is passed in.

A group that was never attempted is due. A rejected group is unschedulable until an event that can help one of the
plugins that rejected it requeues it, or until a timeout. Then it is due once its backoff is over, or at once where no
other group is due. A group that failed with an error does not become unschedulable, and its backoff is never cut short.
The queue checks unschedulable groups with the same rejections against an event once, however many there are.
Source: kube-scheduler's backend/queue, Kubernetes 1.36 (PopFromBackoffQ included).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from session_scheduler.base.backoff import backoff
from session_scheduler.model.events import EVERY_EVENT, ClusterEvent, ClusterEventWithHint

if TYPE_CHECKING:
    from session_scheduler.model.classes import TaskClass

Wants = frozenset[tuple["TaskClass", frozenset[str]]]
"""Classes, and the plugins that refused each."""
_Rejector = tuple[str, str]
"""schedulerName and plugin."""
Hints = Callable[[_Rejector, Sequence[ClusterEventWithHint]], Sequence[ClusterEventWithHint]]
"""The events that can help pods which a plugin refused, as `get` of a mapping has them; else the second argument."""
GANG_SCHEDULING: Final = "GangScheduling"
"""Stands for the core where a group lacks pods or its PodGroup: their coming requeues it, and no event of others."""
TOPOLOGY_PLACEMENT: Final = "TopologyPlacementGenerator"
"""Stands for the core where a group must lie in one domain."""
_LACKS: Final = frozenset((GANG_SCHEDULING,))
FLUSH_SECONDS: Final = 30.0
"""How often the queue retries groups that were unschedulable for too long, unless that timeout is shorter."""
FORCE_ACTIVATE: Final = "ForceActivate"
PLUGIN_CHANGED: Final = "PluginChanged"
UNSCHEDULABLE_TIMEOUT: Final = "UnschedulableTimeout"


def lacks_pods(wants: Wants) -> bool:
    """Whether nothing but pods, or the PodGroup, was missing: then no node was looked for, and that is no attempt."""
    return all(plugins == _LACKS for _, plugins in wants)


@dataclass(slots=True, eq=False)
class SameRejections:
    """The unschedulable groups with the same rejections."""

    wants: Wants
    keys: dict[str, None] = field(default_factory=dict)

    def classes_of(self, rejector: _Rejector) -> Iterator[TaskClass]:
        """The classes that the plugin refused."""
        profile, plugin = rejector
        return (cls for cls, plugins in self.wants if plugin in plugins and _profile(cls) == profile)


@dataclass(slots=True)
class _Waiting:
    """A group that was tried and is not placed."""

    refused: int = 0
    """How often it was refused."""
    errors: int = 0
    """How often it failed by an error since it was last refused."""
    until: float = 0.0
    """When its backoff is over."""
    since: float = 0.0
    """When it failed last."""
    unschedulable: SameRejections | None = None
    """All with the same rejections; None where it is not unschedulable."""


class SchedulingQueue:
    """The state of each group: one group's failures never hurry or delay another's."""

    def __init__(
        self, initial: float = 1.0, maximum: float = 10.0, timeout: float = 300.0, hints: Hints | None = None, *,
        on_requeued: Callable[[str], None] = lambda _: None,
        on_event: Callable[[str, str, int], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        """Seconds. `hints` tell what the plugins wait for; without them every event helps every plugin.

        `on_requeued` is called with each group that leaves the unschedulable ones; `on_event` with an event's name, the
        plugin that it can help (or nothing), and how many groups it requeued.
        """
        self._initial = initial
        self._maximum = maximum
        self._timeout = timeout
        self._flush_every = min(FLUSH_SECONDS, timeout)
        self._waiting: dict[str, _Waiting] = {}
        self._unschedulable: dict[str, _Waiting] = {}
        """By key, the longest first."""
        self._hurried: set[str] = set()
        """Those in backoff that an event has requeued."""
        self._noted: set[str] = set()
        """Those that were to be activated while they did not wait: they may be being tried."""
        self._ends: list[tuple[float, str]] = []
        """A heap of backoffs' ends, some of them stale."""
        self._flush_at: float | None = None
        self._rejections = _Rejections(hints)
        self._on_requeued = on_requeued
        self._on_event = on_event

    # ------------------------------------------------------------------ which groups are due

    def is_active(self, key: str, now: float) -> bool:
        """Whether the group is to be tried at `now` (seconds) whatever else there is."""
        waiting = self._waiting.get(key)
        return waiting is None or (waiting.unschedulable is None and waiting.until <= now)

    def is_hurried(self, key: str) -> bool:
        """Whether the group may be tried before its backoff is over, where no group is active."""
        return key in self._hurried

    def is_due(self, key: str, now: float) -> bool:
        """Whether the group may be tried at `now`, if nothing goes before it."""
        return key in self._hurried or self.is_active(key, now)

    def is_unschedulable(self, key: str) -> bool:
        """Whether the group waits for an event."""
        return key in self._unschedulable

    @property
    def any_hurried(self) -> bool:
        """Whether there is any group that may be tried before its backoff is over."""
        return bool(self._hurried)

    def next_after(self, now: float) -> float | None:
        """When the next wait ends that has not ended yet; None where there is none."""
        while self._ends:
            end, key = self._ends[0]
            waiting = self._waiting.get(key)
            if end > now and waiting is not None and waiting.unschedulable is None and waiting.until == end:
                break
            heapq.heappop(self._ends)
        times = [self._ends[0][0]] if self._ends else []
        if self._unschedulable and self._flush_at is not None:
            times.append(self._flush_at)
        return min(times, default=None)

    # ------------------------------------------------------------------ what became of a try

    def begin(self, keys: Iterable[str]) -> None:
        """These are tried now: what they were to be activated for before is done with."""
        if self._noted:
            self._noted.difference_update(keys)

    def failed(self, key: str, now: float, wants: frozenset[tuple[TaskClass, frozenset[str]]] | None = None) -> float:
        """The group could not be placed: it waits twice as long each time. Returns when its backoff is over.

        `wants`: which plugins refused which classes; None where it failed by an error; nothing where it is not known,
        so that the group is not unschedulable. A group that lacked pods was not attempted, and is so once they arrive.
        """
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Waiting()
        was_unschedulable = waiting.unschedulable is not None
        self._leave(key, waiting)
        if not wants or not lacks_pods(wants):
            self._count(waiting, now, error=wants is None)
        waiting.since = now
        if not wants or key in self._noted:
            self._noted.discard(key)
            heapq.heappush(self._ends, (waiting.until, key))
            if wants is not None:
                self._hurried.add(key)
            if was_unschedulable:
                self._on_requeued(key)
            return waiting.until
        waiting.unschedulable = self._rejections.put(key, wants)
        self._unschedulable[key] = waiting
        if self._flush_at is None:
            self._flush_at = now + self._flush_every
        return waiting.until

    def _count(self, waiting: _Waiting, now: float, *, error: bool) -> None:
        """An attempt came to nothing: begin the backoff that follows it."""
        if error:
            waiting.errors += 1
        else:
            waiting.refused, waiting.errors = waiting.refused + 1, 0
        waiting.until = now + backoff(self._initial, (waiting.errors or waiting.refused) - 1, self._maximum)

    def placed(self, key: str) -> None:
        """The group was placed or is gone: its failures are forgotten."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            was_unschedulable = waiting.unschedulable is not None
            self._leave(key, waiting)
            if was_unschedulable:
                self._on_requeued(key)
        self._noted.discard(key)

    def _leave(self, key: str, waiting: _Waiting) -> None:
        self._hurried.discard(key)
        if waiting.unschedulable is not None:
            del self._unschedulable[key]
            self._rejections.drop(key, waiting.unschedulable)
            waiting.unschedulable = None

    # ------------------------------------------------------------------ what requeues

    def wants(self, resource: type) -> int:
        """The actions on objects of a kind that can help some unschedulable group; 0 for none."""
        return self._rejections.wanted(resource)

    def happened(self, event: ClusterEvent, concerns: Callable[[str], bool] | None = None) -> None:
        """Requeue the groups (keys) that the event can help, of those it `concerns`; their backoff stands."""
        for label, plugin, groups in self._rejections.helped(event):
            keys = [key for key in groups.keys if concerns is None or concerns(key)]
            for key in keys:
                self._requeue(key)
            if keys:
                self._on_event(label, plugin, len(keys))

    def happened_to(self, key: str, event: ClusterEvent) -> None:
        """As `happened`, where the event concerns one group alone: one of its own pods has changed."""
        waiting = self._waiting.get(key)
        if waiting is None or waiting.unschedulable is None:
            return
        for label, plugin in self._rejections.helps(waiting.unschedulable, event):
            self._requeue(key)
            self._on_event(label, plugin, 1)
            return

    def plugin_changed(self, plugin: str) -> None:
        """Requeue the groups that a plugin refused: its own state has changed; their backoff stands."""
        for groups in self._rejections.refused_by(plugin):
            keys = list(groups.keys)
            for key in keys:
                self._requeue(key)
            self._on_event(PLUGIN_CHANGED, plugin, len(keys))

    def requeue(self, key: str, label: str) -> None:
        """Something about the group itself has changed: requeue it; its backoff stands."""
        if key in self._unschedulable:
            self._requeue(key)
            self._on_event(label, "", 1)

    def requeue_now(self, key: str, now: float, label: str = FORCE_ACTIVATE) -> None:
        """The group is to be tried now, its attempts still count."""
        self.requeue(key, label)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.until = min(waiting.until, now)
            self._hurried.discard(key)

    def activate(self, key: str, now: float) -> None:
        """As `requeue_now`, at any time: a group that is being tried just now is retried if that fails."""
        if key not in self._unschedulable:
            self._noted.add(key)
        self.requeue_now(key, now)

    def flush(self, now: float) -> None:
        """Requeue the groups that were unschedulable for too long: the queue may have missed the event."""
        if self._flush_at is None or now < self._flush_at:
            return
        late = list(takewhile(lambda entry: now - entry[1].since > self._timeout, self._unschedulable.items()))
        for key, _ in late:
            self._requeue(key)
        if late:
            self._on_event(UNSCHEDULABLE_TIMEOUT, "", len(late))
        self._flush_at = now + self._flush_every if self._unschedulable else None

    def changed_class(self, key: str, before: TaskClass, after: TaskClass, *, alone: bool) -> None:
        """A pod of the group is of another class now; plugins that refused it before count as refusing it still.

        `alone`: it is the group's only pod.
        """
        waiting = self._waiting.get(key)
        if waiting is None or waiting.unschedulable is None:
            return
        known = waiting.unschedulable.wants
        changed = frozenset((after, plugins) for cls, plugins in known if cls is before)
        wants = changed if alone else known | changed
        self._rejections.drop(key, waiting.unschedulable)
        waiting.unschedulable = self._rejections.put(key, wants)

    def _requeue(self, key: str) -> None:
        waiting = self._waiting[key]
        self._leave(key, waiting)
        self._hurried.add(key)
        heapq.heappush(self._ends, (waiting.until, key))
        self._on_requeued(key)


class _Rejections:
    """Unschedulable groups by what rejected them."""

    def __init__(self, hints: Hints | None = None) -> None:
        self._hints: Hints = hints or (lambda *_: EVERY_EVENT)
        self._groups: dict[Wants, SameRejections] = {}
        self._of: dict[_Rejector, dict[SameRejections, None]] = {}
        self._wanted: dict[Hashable, int] = {}
        """By kind, the actions that some group waits for: looked up for every change."""

    def put(self, key: str, wants: Wants) -> SameRejections:
        """A group is unschedulable, with these rejections."""
        groups = self._groups.get(wants)
        if groups is None:
            groups = self._groups[wants] = SameRejections(wants)
            for rejector in _rejectors(wants):
                if rejector not in self._of:
                    self._of[rejector] = {}
                    self._wanted.clear()
                self._of[rejector][groups] = None
        groups.keys[key] = None
        return groups

    def drop(self, key: str, groups: SameRejections) -> None:
        """A group is not unschedulable any more."""
        del groups.keys[key]
        if groups.keys:
            return
        del self._groups[groups.wants]
        for rejector in _rejectors(groups.wants):
            del self._of[rejector][groups]
            if not self._of[rejector]:
                del self._of[rejector]
                self._wanted.clear()

    def wanted(self, resource: type) -> int:
        """The actions on objects of a kind that any of the plugins waits for that refused an unschedulable group."""
        found = self._wanted.get(resource)
        if found is None:
            found = 0
            for rejector in self._of:
                for registered in self._hints(rejector, EVERY_EVENT):
                    if registered.resource in (None, resource):
                        found |= int(registered.action)
            self._wanted[resource] = found
        return found

    def helped(self, event: ClusterEvent) -> Iterator[tuple[str, str, SameRejections]]:
        """(the event's name, the plugin, groups) for each set of groups that the event can help, once."""
        if not self.wanted(event.resource) & event.action:
            return
        done: set[SameRejections] = set()
        for rejector, all_of_it in list(self._of.items()):
            for registered in _matching(self._hints(rejector, EVERY_EVENT), event):
                for groups in [one for one in all_of_it if one not in done]:
                    if _helps(registered, rejector, groups, event):
                        done.add(groups)
                        yield event.label(int(registered.action)), rejector[1], groups

    def refused_by(self, plugin: str) -> list[SameRejections]:
        """All groups that the plugin rejected, in any profile, once."""
        return list({one: None for (_, name), found in self._of.items() if name == plugin for one in found})

    def helps(self, groups: SameRejections, event: ClusterEvent) -> Iterator[tuple[str, str]]:
        """(the event's name, the plugin) for each plugin that rejected these and that the event can help."""
        for rejector in _rejectors(groups.wants):
            for registered in _matching(self._hints(rejector, EVERY_EVENT), event):
                if _helps(registered, rejector, groups, event):
                    yield event.label(int(registered.action)), rejector[1]


def _rejectors(wants: Wants) -> list[_Rejector]:
    """In the order of their names: what an event is told to have helped is no accident."""
    return sorted({(_profile(cls), plugin) for cls, plugins in wants for plugin in plugins})


def _matching(registered: Sequence[ClusterEventWithHint], event: ClusterEvent) -> Iterator[ClusterEventWithHint]:
    return (one for one in registered if one.resource in (None, event.resource) and int(one.action) & event.action)


def _helps(registered: ClusterEventWithHint, rejector: _Rejector, groups: SameRejections, event: ClusterEvent) -> bool:
    if registered.hint is None:
        return True
    return any(registered.hint(cls, event) for cls in groups.classes_of(rejector))


def _profile(cls: TaskClass) -> str:
    return cls.pod.spec.scheduler_name
