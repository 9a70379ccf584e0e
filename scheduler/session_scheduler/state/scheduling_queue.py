"""Scheduling queue: the states active, backoff and unschedulable of each group, as in kube-scheduler.

The scheduler asks it which groups are due; event handlers pass it events, which requeue groups. Callers pass the time.

A new group is active. A rejected group is unschedulable until an event can help one of the plugins that rejected it, or
until a timeout. It is then due after its backoff, or at once if no group is active. A group whose attempt failed with
an error does not become unschedulable, and always waits for the end of its backoff. The queue evaluates an event only
once for all unschedulable groups with the same rejections. Source: kube-scheduler's backend/queue, Kubernetes 1.36
(including PopFromBackoffQ).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final

import msgspec

from session_scheduler.base.backoff import backoff
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import NodeTable
from session_scheduler.model.events import EVERY_EVENT, ClusterEvent
from session_scheduler.state.freed_capacity import Evictable, FittingGroups, Freed, FreedCapacity
from session_scheduler.state.rejections import (
    Hints,
    Place,
    Rejector,
    SameRejections,
    Wants,
    helps,
    matching,
    rejectors_of,
)

__all__ = ["GANG_SCHEDULING", "TOPOLOGY_PLACEMENT", "Hints", "SchedulingQueue", "Wants"]

GANG_SCHEDULING: Final = "GangScheduling"
"""The rejector, in the core, of groups that lack pods or their PodGroup. Only their arrival requeues the group."""
TOPOLOGY_PLACEMENT: Final = "TopologyPlacementGenerator"
"""The rejector, in the core, of groups that must be in one topology domain."""
_LACKS: Final = frozenset((GANG_SCHEDULING,))
MOST_ASKED: Final = 1000
"""How many different rejections of one namespace an event is compared with. The others wait for the timeout."""
FLUSH_SECONDS: Final = 30.0
"""How often the queue checks for groups that exceed the unschedulable timeout, unless the timeout is shorter."""
_NOWHERE: Final = Place("", ())
FORCE_ACTIVATE: Final = "ForceActivate"
PLUGIN_CHANGED: Final = "PluginChanged"
UNSCHEDULABLE_TIMEOUT: Final = "UnschedulableTimeout"


def lacks_pods(wants: Wants) -> bool:
    """Whether the group only lacked pods or its PodGroup: no node was evaluated, so this was not an attempt."""
    return all(plugins == _LACKS for _, plugins in wants)


class _Waiting(msgspec.Struct):
    """A group after a failed attempt."""

    refused: int = 0
    """How many attempts ended with a rejection."""
    errors: int = 0
    """How many attempts failed with an error since the last rejection."""
    until: float = 0.0
    """When its backoff ends."""
    since: float = 0.0
    """When its last attempt failed."""
    seen: int = 0
    """How many events of freed capacity preceded its last attempt."""
    unschedulable: SameRejections | None = None
    """The groups with the same rejections, this one included; None if it is not unschedulable."""
    place: Place = _NOWHERE
    """Its place, if it is unschedulable."""


class SchedulingQueue:
    """The state of each group. The failures of a group do not affect the backoff of another one."""

    def __init__(
        self, initial: float = 1.0, maximum: float = 10.0, timeout: float = 300.0, hints: Hints | None = None, *,
        table: NodeTable | None = None, place_of: Callable[[str], Place] = lambda key: Place("", (key,)),
        evictable: Evictable = lambda _: (),
        on_requeued: Callable[[str], None] = lambda _: None,
        on_event: Callable[[str, str, Sequence[str]], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        """Times are in seconds. `hints` returns the events that can help the pods rejected by a plugin; by default, all
        can.

        `table` has the nodes. `evictable` returns the pods on a node that may be evicted, and `place_of` the place of a
        group (its key). The queue calls `on_requeued` with each group that it takes from the unschedulable ones. After
        an event it calls `on_event` with the event's name, the plugin whose pods the event can help (or ""), and the
        groups that it has requeued.
        """
        self._initial = initial
        self._maximum = maximum
        self._timeout = timeout
        self._flush_every = min(FLUSH_SECONDS, timeout)
        self._waiting: dict[str, _Waiting] = {}
        self._unschedulable: dict[str, _Waiting] = {}
        """By key, the oldest first."""
        self._moved: dict[str, None] = {}
        """The unschedulable groups whose place may have changed."""
        self._hurried: set[str] = set()
        """The requeued groups in backoff."""
        self._activated: set[str] = set()
        """The groups activated while they were not unschedulable: their attempt may be in flight."""
        self._ends: list[tuple[float, str]] = []
        """A heap of (end of the backoff, key); some entries are stale."""
        self._flush_at: float | None = None
        self._place_of = place_of
        hints = hints or (lambda *_: EVERY_EVENT)
        self._freed = FreedCapacity(table or NodeTable(), hints, evictable)
        self._rejections = _Rejections(hints, self._freed)
        self._on_requeued = on_requeued
        self._on_event = on_event

    # ------------------------------------------------------------------ which groups are due

    def is_active(self, key: str, now: float) -> bool:
        """Whether the group is active at `now` (seconds): new, or with its backoff over."""
        waiting = self._waiting.get(key)
        return waiting is None or (waiting.unschedulable is None and waiting.until <= now)

    def is_hurried(self, key: str) -> bool:
        """Whether the scheduler may attempt the group before the end of its backoff, if no group is active."""
        return key in self._hurried

    def is_due(self, key: str, now: float) -> bool:
        """Whether the scheduler may attempt the group at `now`, if no other group goes first."""
        return key in self._hurried or self.is_active(key, now)

    def is_unschedulable(self, key: str) -> bool:
        """Whether the group waits for an event."""
        return key in self._unschedulable

    @property
    def any_hurried(self) -> bool:
        """Whether any group may be attempted before the end of its backoff (`is_hurried`)."""
        return bool(self._hurried)

    def has_freed(self, profile: str) -> bool:
        """Whether groups of a profile may fit what events have freed."""
        return self._freed.has(profile)

    def next_after(self, now: float) -> float | None:
        """When the next backoff ends, or the timeout is checked, after `now`; None if neither is to come."""
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

    # ------------------------------------------------------------------ attempts

    def begin(self, keys: Iterable[str]) -> None:
        """An attempt of these groups begins: earlier calls of `activate` are satisfied."""
        if self._activated:
            self._activated.difference_update(keys)

    def failed(self, key: str, now: float, wants: Wants | None = None) -> float:
        """Record a failed attempt of the group. Each one doubles its backoff. Returns when the backoff ends.

        `wants`: which plugins rejected which classes. None after an error; empty if unknown: in both cases the group
        does not become unschedulable. If the group only lacked pods, its backoff does not grow.
        """
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Waiting()
        was_unschedulable = waiting.unschedulable is not None
        self._leave(key, waiting)
        if not wants or not lacks_pods(wants):
            self._count(waiting, now, error=wants is None)
        waiting.since, waiting.seen = now, self._freed.recorded
        if not wants or key in self._activated:
            self._activated.discard(key)
            heapq.heappush(self._ends, (waiting.until, key))
            if wants is not None:
                self._hurried.add(key)
            if was_unschedulable:
                self._on_requeued(key)
            return waiting.until
        self._enter(key, waiting, wants)
        self._unschedulable[key] = waiting
        if self._flush_at is None:
            self._flush_at = now + self._flush_every
        return waiting.until

    def _count(self, waiting: _Waiting, now: float, *, error: bool) -> None:
        """Count a failed attempt, and begin its backoff."""
        if error:
            waiting.errors += 1
        else:
            waiting.refused, waiting.errors = waiting.refused + 1, 0
        waiting.until = now + backoff(self._initial, (waiting.errors or waiting.refused) - 1, self._maximum)

    def placed(self, key: str) -> None:
        """The group was placed or is gone: forget its failures."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            was_unschedulable = waiting.unschedulable is not None
            self._leave(key, waiting)
            if was_unschedulable:
                self._on_requeued(key)
        self._activated.discard(key)

    def _enter(self, key: str, waiting: _Waiting, wants: Wants) -> None:
        waiting.place = self._place_of(key)
        waiting.unschedulable = self._rejections.put(key, waiting.place, wants)

    def _leave(self, key: str, waiting: _Waiting) -> None:
        self._hurried.discard(key)
        if waiting.unschedulable is not None:
            del self._unschedulable[key]
            self._moved.pop(key, None)
            self._rejections.drop(key, waiting.place, waiting.unschedulable)
            waiting.unschedulable = None

    # ------------------------------------------------------------------ requeueing

    def wants(self, resource: type) -> int:
        """The actions on objects of a kind that can help some unschedulable group; 0 for none."""
        return self._rejections.wanted(resource)

    def happened(
        self, event: ClusterEvent, concerns: Callable[[str], bool] | None = None, also: Iterable[str] = ()
    ) -> None:
        """Requeue the groups (keys) that the event can help and for which `concerns` holds. Their backoff continues.

        If hints compare what is free on the event's node, the event only adds to what `fitting` returns. `also` are the
        other nodes whose pods preemption may evict because of the event.
        """
        self._freed.record(event, concerns, also)
        for label, plugin, groups in self._rejections.helped(event):
            keys = [key for key in groups.keys if concerns is None or concerns(key)]
            for key in keys:
                self._requeue(key)
            if keys:
                self._on_event(label, plugin, keys)

    def happened_to(self, key: str, event: ClusterEvent) -> None:
        """Like `happened`, for an event of one of the group's own pods, whatever is free on its node."""
        waiting = self._waiting.get(key)
        if waiting is None or waiting.unschedulable is None:
            return
        for label, plugin in self._rejections.helps(waiting.unschedulable, event):
            self._requeue(key)
            self._on_event(label, plugin, [key])
            return

    def plugin_changed(self, plugin: str) -> None:
        """Requeue the groups that a plugin rejected, as its own state has changed. Their backoff continues."""
        for groups in self._rejections.refused_by(plugin):
            keys = list(groups.keys)
            for key in keys:
                self._requeue(key)
            self._on_event(PLUGIN_CHANGED, plugin, keys)

    def fitting(self, profile: str, now: float | None) -> FittingGroups | None:
        """The groups of a profile that may fit what events have freed since their last attempt; None if there are none.

        Groups whose backoff ends after `now` are left out; None leaves out none. Pass the result to `fitted` when the
        session has closed.
        """
        if not self._freed.has(profile):
            return None
        self._update_places()
        found = self._freed.fitting(profile, self._waiting, now)
        if found:
            return found
        self.fitted(profile, found)
        return None

    def fitted(self, profile: str, groups: FittingGroups) -> None:
        """Forget the events if no group that may fit is left, also in backoff."""
        self._update_places()
        if not groups and not groups.left_out:
            self._freed.forget(profile, groups.recorded)

    def requeue_next(self, groups: FittingGroups, queue: str) -> str:
        """Requeue the group that `groups.first(queue)` has found. Returns its key. Its backoff continues."""
        key, freed = groups.pop(queue)
        self._requeue_fitting(key, freed)
        return key

    def requeue_fitting(self, groups: FittingGroups, key: str) -> None:
        """Requeue this group if it is one of those that may fit. Its backoff continues."""
        waiting = self._unschedulable.get(key)
        if waiting is not None and waiting.unschedulable is not None:
            freed = groups.helped(key, waiting.unschedulable)
            if freed is not None:
                self._requeue_fitting(key, freed)

    def _requeue_fitting(self, key: str, freed: Freed) -> None:
        self._requeue(key)
        self._on_event(freed.label, freed.rejector[1], [key])

    def requeue(self, key: str, label: str) -> None:
        """Requeue the group, as it has changed itself. Its backoff continues."""
        if key in self._unschedulable:
            self._requeue(key)
            self._on_event(label, "", [key])

    def requeue_now(self, key: str, now: float, label: str = FORCE_ACTIVATE) -> None:
        """Requeue the group and end its backoff. Its former attempts still count."""
        self.requeue(key, label)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.until = min(waiting.until, now)
            self._hurried.discard(key)

    def activate(self, key: str, now: float) -> None:
        """Like `requeue_now`; if an attempt of the group is in flight and fails, it is retried."""
        if key not in self._unschedulable:
            self._activated.add(key)
        self.requeue_now(key, now)

    def flush(self, now: float) -> None:
        """Requeue the groups that exceed the unschedulable timeout: the queue may have missed an event."""
        if self._flush_at is None or now < self._flush_at:
            return
        late = list(takewhile(lambda entry: now - entry[1].since > self._timeout, self._unschedulable.items()))
        for key, _ in late:
            self._requeue(key)
        if late:
            self._on_event(UNSCHEDULABLE_TIMEOUT, "", [key for key, _ in late])
        self._flush_at = now + self._flush_every if self._unschedulable else None

    def changed_class(self, key: str, before: TaskClass, after: TaskClass, *, alone: bool) -> None:
        """A pod of the group has another class: the rejections of its former class apply to the new one.

        `alone`: it is the group's only pod.
        """
        waiting = self._waiting.get(key)
        if waiting is None or waiting.unschedulable is None:
            return
        known = waiting.unschedulable.wants
        changed = frozenset((after, plugins) for cls, plugins in known if cls is before)
        self._reenter(key, waiting, waiting.unschedulable, changed if alone else known | changed)

    def changed_order(self, changed: str | None = None) -> None:
        """The place of a group (its key) may have changed; None for all groups.

        The queue reads it once before it next compares places. The computation of a gang's place reads each of its
        pods, and all of these may change at once.
        """
        if changed is None:
            self._moved.update(dict.fromkeys(self._unschedulable))
        elif changed in self._unschedulable:
            self._moved[changed] = None

    def _update_places(self) -> None:
        moved, self._moved = self._moved, {}
        for key in moved:
            waiting = self._unschedulable[key]
            if waiting.unschedulable is not None and waiting.place != self._place_of(key):
                self._reenter(key, waiting, waiting.unschedulable, waiting.unschedulable.wants)

    def _reenter(self, key: str, waiting: _Waiting, known: SameRejections, wants: Wants) -> None:
        known.drop(key, waiting.place)
        self._enter(key, waiting, wants)
        self._rejections.tidy(known)  # last: events stay noted while a group waits for them

    def _requeue(self, key: str) -> None:
        waiting = self._waiting[key]
        self._leave(key, waiting)
        self._hurried.add(key)
        heapq.heappush(self._ends, (waiting.until, key))
        self._on_requeued(key)


class _Rejections:
    """Index of the unschedulable groups by their rejections."""

    def __init__(self, hints: Hints, freed: FreedCapacity) -> None:
        self._hints = hints
        self._freed = freed
        self._groups: dict[Wants, SameRejections] = {}
        self._of: dict[Rejector, dict[SameRejections, None]] = {}
        self._asked: Counter[str] = Counter()
        """By namespace: the number of its rejections in `_of`."""
        self._others: dict[str, dict[SameRejections, None]] = {}
        """By namespace: its rejections that are not in `_of`, the oldest first."""
        self._wanted: dict[Hashable, int] = {}
        """By kind: the actions for which some group waits; cached, as each event needs it."""

    def put(self, key: str, place: Place, wants: Wants) -> SameRejections:
        """Add an unschedulable group with these rejections."""
        groups = self._groups.get(wants)
        if groups is None:
            groups = self._groups[wants] = SameRejections(wants)
            self._freed.put(groups)
            self._wanted.clear()
            if self._asked[groups.namespace] < MOST_ASKED:
                self._ask(groups)
            else:
                groups.asked = False
                self._others.setdefault(groups.namespace, {})[groups] = None
        groups.put(key, place)
        return groups

    def _ask(self, groups: SameRejections) -> None:
        self._asked[groups.namespace] += 1
        groups.asked = True
        for rejector in rejectors_of(groups.wants):
            self._of.setdefault(rejector, {})[groups] = None

    def drop(self, key: str, place: Place, groups: SameRejections) -> None:
        """Remove a group from the unschedulable ones. `place` is the one that `put` got."""
        groups.drop(key, place)
        self.tidy(groups)

    def tidy(self, groups: SameRejections) -> None:
        """Forget this set if it has no groups left."""
        if groups.keys:
            return
        del self._groups[groups.wants]
        self._freed.drop(groups)
        self._wanted.clear()
        namespace = groups.namespace
        others = self._others.get(namespace, {})
        if not groups.asked:
            del others[groups]
        else:
            self._asked[namespace] -= 1
            for rejector in rejectors_of(groups.wants):
                del self._of[rejector][groups]
                if not self._of[rejector]:
                    del self._of[rejector]
            if others:
                oldest = next(iter(others))
                del others[oldest]
                self._ask(oldest)
        if not others:
            self._others.pop(namespace, None)
        if not self._asked[namespace]:
            del self._asked[namespace]

    def wanted(self, resource: type) -> int:
        """The actions on objects of a kind that can help some group."""
        found = self._wanted.get(resource)
        if found is None:
            found = 0
            for rejector in {**self._of, **dict.fromkeys(self._freed.rejectors())}:
                for registered in self._hints(rejector, EVERY_EVENT):
                    if registered.resource in (None, resource):
                        found |= int(registered.action)
            self._wanted[resource] = found
        return found

    def helped(self, event: ClusterEvent) -> Iterator[tuple[str, str, SameRejections]]:
        """(name of the event, plugin, groups) for each set of groups that the event can help; each set once."""
        if not self.wanted(event.resource) & event.action:
            return
        done: set[SameRejections] = set()
        for rejector, all_of_it in list(self._of.items()):
            for registered in matching(self._hints(rejector, EVERY_EVENT), event):
                if registered.required_free is not None and event.node:
                    continue  # `FreedCapacity` compares the node
                for groups in [one for one in all_of_it if one not in done]:
                    if helps(registered, rejector, groups, event):
                        done.add(groups)
                        yield event.label(int(registered.action)), rejector[1], groups

    def refused_by(self, plugin: str) -> list[SameRejections]:
        """All sets of groups that the plugin rejected, in any profile."""
        return list({one: None for (_, name), found in self._of.items() if name == plugin for one in found})

    def helps(self, groups: SameRejections, event: ClusterEvent) -> Iterator[tuple[str, str]]:
        """(name of the event, plugin) for each plugin that rejected these groups and that the event can help."""
        for rejector in rejectors_of(groups.wants):
            for registered in matching(self._hints(rejector, EVERY_EVENT), event):
                if helps(registered, rejector, groups, event):
                    yield event.label(int(registered.action)), rejector[1]
