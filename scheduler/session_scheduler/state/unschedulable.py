"""Groups that sleep, by why: identical ones are asked about once, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from session_scheduler.model.events import EVERY_EVENT, ClusterEvent, ClusterEventWithHint

if TYPE_CHECKING:
    from session_scheduler.model.classes import TaskClass

Wants = frozenset[tuple["TaskClass", frozenset[str]]]
"""Classes, and the plugins that refused each."""
Hints = Callable[[str, str], Sequence[ClusterEventWithHint]]
"""(schedulerName, plugin) → the events that can help pods which the plugin refused."""
GANG_SCHEDULING: Final = "GangScheduling"
"""Stands for the core where a group lacks pods or its PodGroup: their coming wakes it, and no event of others."""
TOPOLOGY_PLACEMENT: Final = "TopologyPlacementGenerator"
"""Stands for the core where a group must lie in one domain."""
_Rejector = tuple[str, str]
_LACKS: Final = frozenset((GANG_SCHEDULING,))


def lacks_pods(wants: Wants) -> bool:
    """Whether nothing but pods, or the PodGroup, was missing: then no node was looked for, and that is no attempt."""
    return all(plugins == _LACKS for _, plugins in wants)


@dataclass(slots=True, eq=False)
class Sleepers:
    """The groups that sleep for the same reasons."""

    wants: Wants
    keys: dict[str, None] = field(default_factory=dict)

    def classes_of(self, rejector: _Rejector) -> Iterator[TaskClass]:
        """The classes that the plugin refused."""
        profile, plugin = rejector
        return (cls for cls, plugins in self.wants if plugin in plugins and _profile(cls) == profile)


def _profile(cls: TaskClass) -> str:
    return cls.pod.spec.scheduler_name


class Rejections:
    """Sleepers by what refused them."""

    def __init__(self, hints: Hints | None = None) -> None:
        self._hints: Hints = hints or (lambda *_: EVERY_EVENT)
        self._sleepers: dict[Wants, Sleepers] = {}
        self._of: dict[_Rejector, dict[Sleepers, None]] = {}
        self._wanted: dict[Hashable, int] = {}
        """By kind, the actions that somebody waits for: looked up for every change."""

    def put(self, key: str, wants: Wants) -> Sleepers:
        """A group sleeps, for these reasons."""
        sleepers = self._sleepers.get(wants)
        if sleepers is None:
            sleepers = self._sleepers[wants] = Sleepers(wants)
            for rejector in _rejectors(wants):
                if rejector not in self._of:
                    self._of[rejector] = {}
                    self._wanted.clear()
                self._of[rejector][sleepers] = None
        sleepers.keys[key] = None
        return sleepers

    def drop(self, key: str, sleepers: Sleepers) -> None:
        """A group sleeps no more."""
        del sleepers.keys[key]
        if sleepers.keys:
            return
        del self._sleepers[sleepers.wants]
        for rejector in _rejectors(sleepers.wants):
            del self._of[rejector][sleepers]
            if not self._of[rejector]:
                del self._of[rejector]
                self._wanted.clear()

    def wanted(self, resource: type) -> int:
        """The actions on objects of a kind that any of the plugins waits for which refused somebody who sleeps."""
        found = self._wanted.get(resource)
        if found is None:
            found = 0
            for profile, plugin in self._of:
                for registered in self._hints(profile, plugin):
                    if registered.resource in (None, resource):
                        found |= int(registered.action)
            self._wanted[resource] = found
        return found

    def helped(self, event: ClusterEvent) -> Iterator[tuple[str, str, Sleepers]]:
        """(the event's name, the plugin, sleepers) for each of them that the event can help, once."""
        if not self.wanted(event.resource) & event.action:
            return
        done: set[Sleepers] = set()
        for rejector, all_of_it in list(self._of.items()):
            for registered in _matching(self._hints(*rejector), event):
                for sleepers in [one for one in all_of_it if one not in done]:
                    if _helps(registered, rejector, sleepers, event):
                        done.add(sleepers)
                        yield event.label(int(registered.action)), rejector[1], sleepers

    def refused_by(self, plugin: str) -> list[Sleepers]:
        """All sleepers that the plugin refused, in any profile, once."""
        return list({one: None for (_, name), found in self._of.items() if name == plugin for one in found})

    def helps(self, sleepers: Sleepers, event: ClusterEvent) -> Iterator[tuple[str, str]]:
        """(the event's name, the plugin) for each plugin that refused these and that the event can help."""
        for rejector in _rejectors(sleepers.wants):
            for registered in _matching(self._hints(*rejector), event):
                if _helps(registered, rejector, sleepers, event):
                    yield event.label(int(registered.action)), rejector[1]


def _rejectors(wants: Wants) -> list[_Rejector]:
    """In the order of their names: what an event is told to have helped is no accident."""
    return sorted({(_profile(cls), plugin) for cls, plugins in wants for plugin in plugins})


def _matching(registered: Sequence[ClusterEventWithHint], event: ClusterEvent) -> Iterator[ClusterEventWithHint]:
    return (one for one in registered if one.resource in (None, event.resource) and int(one.action) & event.action)


def _helps(registered: ClusterEventWithHint, rejector: _Rejector, sleepers: Sleepers, event: ClusterEvent) -> bool:
    if registered.hint is None:
        return True
    return any(registered.hint(cls, event) for cls in sleepers.classes_of(rejector))
