"""Rejections: which plugins rejected the classes of unschedulable groups, and the events that may change that.

The scheduling queue keeps groups with the same rejections together, and compares each event with them once.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from session_scheduler.model.events import ClusterEvent, ClusterEventWithHint

if TYPE_CHECKING:
    from session_scheduler.model.classes import TaskClass

Wants = frozenset[tuple["TaskClass", frozenset[str]]]
"""Classes, and the plugins that rejected each."""
Rejector = tuple[str, str]
"""schedulerName and plugin."""
Hints = Callable[[Rejector, Sequence[ClusterEventWithHint]], Sequence[ClusterEventWithHint]]
"""Returns the events that can help the pods rejected by a plugin; the second argument if it registered none."""
Order = tuple[Any, ...]
"""A group's sort key within its queue: `Group.order`."""
LOWEST: Final = -(2**31) - 1
"""Less than any priority of a pod."""


class Place(NamedTuple):
    """A group's place in the scheduling queue."""

    queue: str
    order: Order
    priority: int = LOWEST
    """The priority with which it may preempt; LOWEST if it may not, or waits for its victims."""


class SameRejections(msgspec.Struct, eq=False):
    """Unschedulable groups with the same rejections."""

    wants: Wants
    keys: dict[str, None] = msgspec.field(default_factory=dict)
    asked: bool = True
    """Whether events are compared with them."""
    places: dict[str, list[tuple[Order, str]]] = msgspec.field(default_factory=dict)
    """By queue: the groups (order, key), sorted."""
    _priorities: Counter[int] = msgspec.field(default_factory=Counter)
    """The number of groups by `Place.priority`."""

    @property
    def highest(self) -> int:
        """The highest priority with which one of the groups may preempt."""
        return max(self._priorities, default=LOWEST)

    @property
    def namespace(self) -> str:
        """The namespace of the groups."""
        return next((cls.namespace for cls, _ in self.wants), "")

    def classes_of(self, rejector: Rejector) -> Iterator[TaskClass]:
        """The classes that the plugin rejected."""
        profile, plugin = rejector
        return (cls for cls, plugins in self.wants if plugin in plugins and profile_of(cls) == profile)

    def put(self, key: str, place: Place) -> None:
        """Add a group."""
        self.keys[key] = None
        insort(self.places.setdefault(place.queue, []), (place.order, key))
        self._priorities[place.priority] += 1

    def drop(self, key: str, place: Place) -> None:
        """Remove a group. `place` must be the one with which `put` added it."""
        del self.keys[key]
        groups = self.places[place.queue]
        del groups[bisect_left(groups, (place.order, key))]
        if not groups:
            del self.places[place.queue]
        self._priorities[place.priority] -= 1
        if not self._priorities[place.priority]:
            del self._priorities[place.priority]


def profile_of(cls: TaskClass) -> str:
    """The schedulerName of a class."""
    return cls.pod.spec.scheduler_name


def rejectors_of(wants: Wants) -> list[Rejector]:
    """The rejecting plugins, sorted, so that the plugin reported for an event does not depend on hashes."""
    return sorted({(profile_of(cls), plugin) for cls, plugins in wants for plugin in plugins})


def matching(registered: Sequence[ClusterEventWithHint], event: ClusterEvent) -> Iterator[ClusterEventWithHint]:
    """The registered events to which an event belongs."""
    return (one for one in registered if one.resource in (None, event.resource) and int(one.action) & event.action)


def helps(registered: ClusterEventWithHint, rejector: Rejector, groups: SameRejections, event: ClusterEvent) -> bool:
    """Whether the hint of a plugin that rejected these groups says that an event can help them."""
    if registered.hint is None:
        return True
    return any(registered.hint(cls, event) for cls in groups.classes_of(rejector))
