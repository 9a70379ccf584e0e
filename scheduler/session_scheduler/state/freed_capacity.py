"""Freed capacity: which unschedulable groups may fit the capacity that events have freed on nodes, best first.

The scheduling queue records an event here if a plugin's queueing hint declares what a pod must find free on the event's
node. Before the next session it compares the node's free amounts with the needs of all classes at once, as arrays. The
session then takes the groups that may fit one by one, in the order of attempts, and only while there is capacity for
them: the others stay unschedulable and cost nothing. The comparison is a necessary condition. Filters decide.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from session_scheduler.model.events import ClusterEvent, ClusterEventWithHint, RequiredFree
from session_scheduler.state.rejections import (
    LOWEST,
    Hints,
    Order,
    Place,
    Rejector,
    SameRejections,
    helps,
    matching,
    rejectors_of,
)

if TYPE_CHECKING:
    from session_scheduler.model.classes import TaskClass
    from session_scheduler.model.columns import NodeTable

Evictable = Callable[[str], Iterable[tuple[int, "TaskClass"]]]
"""The pods on a node that may be evicted: for each the highest priority that protects it, and its class."""
_NOT_REQUIRED: Final = int(np.iinfo(np.int64).min)
_UNUSED: Final = int(np.iinfo(np.int64).max)
"""More than any node has free."""
_AT_ONCE: Final = 256
"""Number of nodes that are compared at once, which bounds the memory."""
_Source = tuple[Rejector, RequiredFree]
"""Whose pods, and what these must find free."""


class Waiting(Protocol):
    """The state of an unschedulable group."""

    until: float
    """When its backoff ends."""
    seen: int
    """How many events were recorded before its last attempt."""
    unschedulable: SameRejections | None
    """The groups with the same rejections, this one included; None if it is not unschedulable."""
    place: Place


class Freed(msgspec.Struct, frozen=True, eq=False):
    """An event that freed capacity on a node."""

    number: int
    """Its position among all recorded events."""
    event: ClusterEvent
    node: str
    """The node to compare: the event's, or another one on which the event allows the eviction of pods."""
    rejector: Rejector
    registered: ClusterEventWithHint
    concerns: Callable[[str], bool] | None

    @property
    def label(self) -> str:
        """The event's name in metrics."""
        return self.event.label(int(self.registered.action))


class FreedCapacity:
    """The events that freed capacity, and what the classes of unschedulable groups must find free."""

    def __init__(self, table: NodeTable, hints: Hints, evictable: Evictable = lambda _: ()) -> None:
        self._table = table
        self._hints = hints
        self._evictable = evictable
        self._needs: dict[_Source, _Needs] = {}
        self._freed: dict[_Source, dict[object, Freed]] = {}
        self.recorded = 0
        """The number of events so far."""

    def has(self, profile: str) -> bool:
        """Whether an event may help groups of this profile."""
        return bool(self._freed_for(profile))

    # ------------------------------------------------------------------ unschedulable groups

    def put(self, groups: SameRejections) -> None:
        """Add the needs of these groups' classes."""
        for source in self._sources(groups):
            if source not in self._needs:
                self._needs[source] = _Needs(self._table)
            rejector, required = source
            self._needs[source].put(groups, map(required, groups.classes_of(rejector)))

    def drop(self, groups: SameRejections) -> None:
        """Remove the needs of groups that are no longer unschedulable."""
        for source in self._sources(groups):
            needs = self._needs[source]
            needs.drop(groups)
            if not needs.rows:
                del self._needs[source]
                self._freed.pop(source, None)

    def _sources(self, groups: SameRejections) -> dict[_Source, None]:
        return {
            (rejector, one.required_free): None
            for rejector in rejectors_of(groups.wants)
            for one in self._hints(rejector, ())
            if one.required_free is not None
        }

    def rejectors(self) -> Iterable[Rejector]:
        """The plugins whose rejected groups wait for capacity."""
        return (rejector for rejector, _ in self._needs)

    # ------------------------------------------------------------------ events

    def record(
        self, event: ClusterEvent, concerns: Callable[[str], bool] | None = None, also: Iterable[str] = ()
    ) -> None:
        """Record an event that may free capacity on its node, and on the nodes `also`.

        It cannot help the groups (keys) that `concerns` excludes.
        """
        if not self._needs or not event.node:
            return
        nodes = dict.fromkeys((event.node, *also))
        for source in self._needs:
            rejector, required = source
            for registered in matching(self._hints(rejector, ()), event):
                if registered.required_free is required:
                    alike = registered.hint is None and concerns is None  # then the latest event stands for all
                    freed = self._freed.setdefault(source, {})
                    for node in nodes:
                        self.recorded += 1
                        one = Freed(self.recorded, event, node, rejector, registered, concerns)
                        freed[(node, registered) if alike else one] = one

    def fitting(self, profile: str, waiting: Mapping[str, Waiting], now: float | None) -> FittingGroups:
        """The groups of a profile that may fit what was freed. Those whose backoff ends after `now` are left out."""
        offers: list[_Offer] = []
        fit: dict[SameRejections, None] = {}
        for source in self._freed_for(profile):
            offer = _Offer(self._table, self._needs[source], self._freed[source].values(), self._evictable)
            groups, useful = offer.compare()
            self._keep(source, useful.__contains__)  # further capacity would be a further event
            offers.append(offer)
            fit.update(groups)
        return FittingGroups(self._table, offers, fit, waiting, now, self.recorded)

    def forget(self, profile: str, recorded: int) -> None:
        """Forget the first `recorded` events, as far as they concern a profile: no other group fits what they freed."""
        for source in self._freed_for(profile):
            self._keep(source, lambda one: one.number > recorded)

    def _freed_for(self, profile: str) -> list[_Source]:
        return [source for source in self._freed if source[0][0] == profile]

    def _keep(self, source: _Source, wanted: Callable[[Freed], bool]) -> None:
        """Forget the other events."""
        left = {key: one for key, one in self._freed[source].items() if wanted(one)}
        if left:
            self._freed[source] = left
        else:
            del self._freed[source]


class _Needs:
    """The amounts that must be free, an array [class, resource]."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._amounts = np.full((16, 8), _UNUSED, np.int64)
        self._owners: list[SameRejections | None] = []
        self._spare: list[int] = []
        self.rows: dict[SameRejections, list[int]] = {}
        """The rows of each set of groups: one for each of its classes."""

    def put(self, groups: SameRejections, needs: Iterable[Mapping[str, int]]) -> None:
        self.rows[groups] = []
        for amounts in needs:
            numbers = {self._table.resource(name): max(_NOT_REQUIRED, min(amount, _UNUSED))
                       for name, amount in amounts.items()}  # fmt: skip
            row = self._spare.pop() if self._spare else len(self._owners)
            self._grow(row + 1, max(numbers, default=0) + 1)
            self._amounts[row] = _NOT_REQUIRED
            self._amounts[row, list(numbers)] = list(numbers.values())
            if row == len(self._owners):
                self._owners.append(groups)
            self._owners[row] = groups
            self.rows[groups].append(row)

    def _grow(self, rows: int, resources: int) -> None:
        known = self._amounts.shape
        if rows <= known[0] and resources <= known[1]:
            return
        shape = [size if wanted <= size else max(wanted, 2 * size)
                 for wanted, size in zip((rows, resources), known, strict=True)]  # fmt: skip
        grown = np.full(shape, _NOT_REQUIRED, np.int64)
        grown[known[0] :] = _UNUSED
        grown[: known[0], : known[1]] = self._amounts
        self._amounts = grown

    def drop(self, groups: SameRejections) -> None:
        for row in self.rows.pop(groups):
            self._amounts[row] = _UNUSED
            self._owners[row] = None
            self._spare.append(row)

    def that_fit(self, free: NDArray[np.int64]) -> tuple[dict[SameRejections, None], NDArray[np.bool_]]:
        """The groups that fit any of these nodes, and which nodes fit any groups; `free` by resource and node."""
        rows = np.arange(len(self._owners))
        if free.shape[1] > 1:  # a class that exceeds the most that is free of a resource fits no node
            rows = rows[self._fits(rows, free.max(axis=1, keepdims=True))[:, 0]]
        fits, used = np.zeros(len(rows), np.bool_), np.zeros(free.shape[1], np.bool_)
        for first in range(0, free.shape[1], _AT_ONCE):
            found = self._fits(rows, free[:, first : first + _AT_ONCE])
            fits |= found.any(axis=1)
            used[first : first + _AT_ONCE] = found.any(axis=0)
        return {groups: None for row in rows[fits] if (groups := self._owners[row]) is not None}, used

    def fits(self, groups: SameRejections, free: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these nodes fit a class of the groups."""
        found: NDArray[np.bool_] = np.logical_or.reduce(self._fits(self.rows[groups], free), axis=0)
        return found

    def _fits(self, rows: Any, free: NDArray[np.int64]) -> NDArray[np.bool_]:
        amounts = self._amounts[rows]
        found = np.ones((len(amounts), free.shape[1]), np.bool_)
        for needed, left in zip(amounts.T, free, strict=False):
            if (needed != _NOT_REQUIRED).any():
                found &= needed[:, None] <= left
        return found


class _Offer:
    """What was freed for the groups that one plugin rejected.

    It is an array of columns: for each event what is free on its node, and for each priority of pods there what is free
    without the pods of that priority or lower, which groups of higher priority may evict.
    """

    def __init__(self, table: NodeTable, needs: _Needs, freed: Iterable[Freed], evictable: Evictable) -> None:
        highest = max((groups.highest for groups in needs.rows), default=LOWEST)
        self._table = table
        self._needs = needs
        self._freed: list[Freed] = []
        self._above: list[int] = []
        """By column: the priority that a group must exceed."""
        rows: list[int] = []
        evicted: list[dict[int, int]] = []
        for one in freed:
            row = table.row_of.get(one.node, -1)
            for above, amounts in _levels(evictable(one.node), highest) if row >= 0 else ():
                self._freed.append(one)
                self._above.append(above)
                rows.append(row)
                evicted.append(amounts)
        self._rows = np.array(rows, np.int64)
        self._evicted = np.zeros((len(table.resources), len(rows)), np.int64)
        for column, amounts in enumerate(evicted):
            for number, amount in amounts.items():
                self._evicted[number, column] = amount
        self._no_help: set[tuple[Freed, SameRejections]] = set()

    def _free(self) -> NDArray[np.int64]:
        free: NDArray[np.int64] = self._table.free(self._rows)[: len(self._evicted)] + self._evicted
        return free

    def compare(self) -> tuple[dict[SameRejections, None], set[Freed]]:
        """The groups that may fit now, in an order that does not depend on hashes, and the events that they may use."""
        groups, used = self._needs.that_fit(self._free())
        return groups, {self._freed[column] for column in np.flatnonzero(used)}

    def helpful(self, groups: SameRejections) -> Iterator[tuple[Freed, int]]:
        """The events whose node these groups may fit now, and the priority that a group must exceed for that."""
        if groups not in self._needs.rows:
            return
        for column in np.flatnonzero(self._needs.fits(groups, self._free())):
            one = self._freed[column]
            if (one, groups) in self._no_help:
                continue
            if helps(one.registered, one.rejector, groups, one.event):
                yield one, self._above[column]
            else:  # capacity only shrinks in a session
                self._no_help.add((one, groups))


def _levels(pods: Iterable[tuple[int, TaskClass]], highest: int) -> Iterator[tuple[int, dict[int, int]]]:
    """(priority, amounts of the pods of that priority or lower), for no pods and for each priority below `highest`."""
    amounts: dict[int, int] = {}
    yield LOWEST - 1, amounts
    by_priority: dict[int, Counter[int]] = {}
    for priority, cls in pods:
        if priority < highest:
            by_priority.setdefault(priority, Counter()).update(dict(cls.usage))
    for priority in sorted(by_priority):
        amounts = dict(Counter(amounts) + by_priority[priority])
        yield priority, amounts


class FittingGroups:
    """The unschedulable groups of one profile that may fit freed capacity, the best of each queue first.

    It serves one session: the capacity may only shrink. A group that it returns must become active at once.
    """

    def __init__(
        self,
        table: NodeTable,
        offers: Sequence[_Offer],
        fit: dict[SameRejections, None],
        waiting: Mapping[str, Waiting],
        now: float | None,
        recorded: int,
    ) -> None:
        """`fit`: the groups that may fit now."""
        self._table = table
        self._offers = offers
        self._waiting = waiting
        self._now = now
        self.recorded = recorded
        """The number of events when it was created."""
        self.left_out = False
        """Whether it has left out a group in backoff."""
        self._next: dict[str, list[tuple[Order, str, SameRejections]]] = {}
        """By queue: a heap with the next group of each set (order, key, set)."""
        self._found: dict[str, tuple[int, Freed]] = {}
        """By queue: for the group that `first` has found, the table's `usage_version`, and the event that may help."""
        self._version = table.usage_version
        self._fit = fit
        """The groups that may fit with this `usage_version` of the table."""
        for groups in self._fit:
            for queue in groups.places:
                self._push(queue, groups, 0)

    def __bool__(self) -> bool:
        """Whether any group is left."""
        return any(self.first(queue) is not None for queue in self.queues())

    def queues(self) -> list[str]:
        """The queues that may have groups left."""
        return list(self._next)

    def first(self, queue: str) -> Order | None:
        """The sort key of a queue's next group, which may fit now; None if none is left."""
        heap, version = self._next.get(queue, []), self._table.usage_version
        if version != self._version:  # one comparison for all, as most do not fit any more
            self._version = version
            self._fit = {groups: None for offer in self._offers for groups in offer.compare()[0]}
        while heap:
            order, key, groups = heap[0]
            any_helpful = groups in self._fit
            if self._is_among(key, groups):
                if queue in self._found and self._found[queue][0] == version:
                    return order
                found, any_helpful = self._helped(key, groups) if any_helpful else (None, False)
                if found is not None:
                    self._found[queue] = version, found
                    return order
            self._found.pop(queue, None)
            heapq.heappop(heap)
            if any_helpful:
                self._push_after(queue, groups, (order, key))
        self._next.pop(queue, None)
        return None

    def pop(self, queue: str) -> tuple[str, Freed]:
        """Remove the group that `first` has found. Returns its key, and the event that may help it."""
        order, key, groups = heapq.heappop(self._next[queue])
        self._push_after(queue, groups, (order, key))
        return key, self._found.pop(queue)[1]

    def helped(self, key: str, groups: SameRejections) -> Freed | None:
        """The event that may help the group `key`, a member of `groups`; None if there is none."""
        return None if self._is_left_out(self._waiting[key]) else self._helped(key, groups)[0]

    def _helped(self, key: str, groups: SameRejections) -> tuple[Freed | None, bool]:
        """The first event since the group's last attempt that may help it, and whether any may help `groups`."""
        waiting, any_helpful = self._waiting[key], False
        for freed, above in (one for offer in self._offers for one in offer.helpful(groups)):
            any_helpful, concerns = True, freed.concerns
            if freed.number > waiting.seen and waiting.place.priority > above and (concerns is None or concerns(key)):
                return freed, True
        return None, any_helpful

    def _is_among(self, key: str, groups: SameRejections) -> bool:
        """Whether a group is still unschedulable: the session may have requeued it as a partly bound gang."""
        waiting = self._waiting.get(key)
        return waiting is not None and waiting.unschedulable is groups

    def _is_left_out(self, waiting: Waiting) -> bool:
        if waiting.seen >= self.recorded:
            return True
        in_backoff = self._now is not None and waiting.until > self._now
        self.left_out |= in_backoff
        return in_backoff

    def _push_after(self, queue: str, groups: SameRejections, last: tuple[Order, str]) -> None:
        self._push(queue, groups, bisect_right(groups.places.get(queue, ()), last))

    def _push(self, queue: str, groups: SameRejections, position: int) -> None:
        """Push the first group of a set from this position on."""
        places = groups.places.get(queue, ())
        for index in range(position, len(places)):
            order, key = places[index]
            if not self._is_left_out(self._waiting[key]):
                heapq.heappush(self._next.setdefault(queue, []), (order, key, groups))
                return
