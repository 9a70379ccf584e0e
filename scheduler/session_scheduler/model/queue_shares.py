"""Fair shares of queues, and their order by shares. Pure: amounts in, amounts out, in integers.

Each queue first gets its deserved amounts, as far as it requests them. The rest of its parent's share goes to the
queues that request more: the highest priority first, and by weight within a priority, until each has what it requests
or reaches its limit (water-filling). The units that weights do not divide evenly go to the queues with the largest
remainders, then in the order of names. Queues are ordered by dominant share: the highest ratio of allocated amount to
fair share of any resource.

The plugin Proportion calls this module. Source: KAI-Scheduler's plugin `proportion` (division and strategies); Ghodsi
et al., NSDI 2011 (dominant resources).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from fractions import Fraction
from math import inf
from types import MappingProxyType
from typing import Final

import msgspec

from session_scheduler.model.queues import Amounts, QueueTree

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_Step = tuple[bool, bool, int, float, float, str]
"""The sort key of a queue among those with the same parent."""


class Counts(msgspec.Struct):
    """The amounts of a queue and its descendants."""

    allocated: Amounts = msgspec.field(default_factory=dict)
    kept: Amounts = msgspec.field(default_factory=dict)
    """The part of `allocated` in non-preemptible pods."""
    pending: Amounts = msgspec.field(default_factory=dict)
    decided: Amounts = msgspec.field(default_factory=dict)
    """`allocated` once all decisions are carried out: without the victims of preemption, with nominated pods."""
    decided_kept: Amounts = msgspec.field(default_factory=dict)
    """The part of `decided` in non-preemptible pods."""
    leaving: Amounts = msgspec.field(default_factory=dict)
    """The device resources in `allocated` of the victims of preemption."""
    freed: int = 0
    """Incremented whenever a pod frees allocated amounts."""
    moved: int = 0
    """Incremented whenever a pod is put on a node or removed from it."""
    changed: int = 0
    """Incremented whenever the decided amounts change."""
    _as_decided: tuple[int, Counts] | None = None

    def as_decided(self) -> Counts:
        """A copy of the decided amounts, as the allocated ones; the same one until an amount changes."""
        if self._as_decided is None or self._as_decided[0] != self.changed:
            self._as_decided = self.changed, Counts(dict(self.decided), dict(self.decided_kept))
        return self._as_decided[1]


class Change(msgspec.Struct, frozen=True):
    """One pod added to a queue (`sign` 1) or removed from it (-1); `kept` if the pod is not preemptible."""

    queue: str
    amounts: Mapping[str, int]
    sign: int
    kept: bool


class Claim(msgspec.Struct, frozen=True):
    """One of the queues that share an amount of a resource."""

    name: str
    wants: int
    """The amount that it requests, within its limit."""
    deserves: int = 0
    priority: int = 0
    weight: int = 1


def divided(total: int, claims: Sequence[Claim]) -> dict[str, int]:
    """The share of each claim. It includes the deserved amounts even if they exceed the total."""
    given = {claim.name: min(claim.deserves, claim.wants) for claim in claims}
    left = total - sum(given.values())
    for priority in sorted({claim.priority for claim in claims}, reverse=True):
        if left <= 0:
            break
        level = [(claim.name, claim.wants - given[claim.name], claim.weight) for claim in claims
                 if claim.priority == priority]  # fmt: skip
        for name, more in _filled(left, level).items():
            given[name] += more
            left -= more
    return given


def _filled(left: int, level: Sequence[tuple[str, int, int]]) -> dict[str, int]:
    """Water-filling over (name, amount still requested, weight): the part of `left` that each gets."""
    open_ = [entry for entry in level if entry[1] > 0 and entry[2] > 0]
    open_.sort(key=lambda entry: (Fraction(entry[1], entry[2]), entry[0]))
    weights = sum(weight for _, _, weight in open_)
    found: dict[str, int] = {}
    for index, (name, wants, weight) in enumerate(open_):
        if wants * weights > left * weight:
            return found | _by_weight(left, open_[index:], weights)
        found[name] = wants
        left, weights = left - wants, weights - weight
    return found


def _by_weight(left: int, level: Sequence[tuple[str, int, int]], weights: int) -> dict[str, int]:
    """All of `left` by weight, among queues that each request more than their part."""
    found = {name: left * weight // weights for name, _, weight in level}
    rest = sorted(level, key=lambda entry: (-(left * entry[2] % weights), entry[0]))
    for name, _, _ in rest[: left - sum(found.values())]:
        found[name] += 1
    return found


def fair_shares(
    tree: QueueTree, total: Mapping[str, int], requested: Mapping[str, Mapping[str, int]]
) -> dict[str, Amounts]:
    """By queue: its fair share of each resource. `requested` is what a queue and its descendants have and wait for."""
    wants: dict[str, Amounts] = {}
    for name in tree.children.get("", ()):
        _collect(tree, name, requested, wants)
    shares: dict[str, Amounts] = {}
    _divide(tree, "", total, wants, shares)
    return shares


def _collect(tree: QueueTree, name: str, requested: Mapping[str, Mapping[str, int]], wants: dict[str, Amounts]) -> None:
    """Collect what each queue requests within its limit; a child counts with what its own limit allows."""
    asked = dict(requested.get(name, {}))
    for child in tree.children.get(name, ()):
        _collect(tree, child, requested, wants)
        for resource, amount in requested.get(child, {}).items():
            asked[resource] = asked.get(resource, 0) - amount + wants[child].get(resource, 0)
    limit = tree.specs[name].limit
    wants[name] = {resource: min(amount, limit.get(resource, amount)) for resource, amount in asked.items()}


def _divide(
    tree: QueueTree, parent: str, total: Mapping[str, int], wants: Mapping[str, Amounts], shares: dict[str, Amounts]
) -> None:
    children = tree.children.get(parent, ())
    for name in children:
        shares[name] = {}
    deserved = {resource for name in children for resource in tree.specs[name].deserved}
    for resource in sorted({resource for name in children for resource in wants[name]}):
        claims = [_claim(tree, name, resource, wants, deserved) for name in children]
        for name, amount in divided(total.get(resource, 0), claims).items():
            if amount:
                shares[name][resource] = amount
    for name in children:
        _divide(tree, name, shares[name], wants, shares)


def _claim(tree: QueueTree, name: str, resource: str, wants: Mapping[str, Amounts], deserved: Container[str]) -> Claim:
    """The claim of a queue. `deserved`: the resources that it or a sibling deserves.

    A queue without weight also gets a share of other resources if it deserves any: its pods need them, too.
    """
    spec = tree.specs[name]
    weight = spec.weight or int(bool(spec.deserved) and resource not in deserved)
    return Claim(name, wants[name].get(resource, 0), spec.deserved.get(resource, 0), spec.priority, weight)


class QueueShares:
    """The fair shares at the time of creation, and the current counts of the queues."""

    def __init__(self, tree: QueueTree, total: Mapping[str, int], has: Mapping[str, Counts]) -> None:
        """`has`: the counts of every usable queue of the tree; they may change later."""
        self.tree = tree
        self.total = total
        self.has: Mapping[str, Counts] = has
        requested = {name: _sum(one.allocated, one.pending) for name, one in has.items()}
        self.fair = fair_shares(tree, total, requested)
        self._steps: dict[str, tuple[int, Mapping[str, int], _Step]] = {}
        self._orders: dict[str, tuple[_Step, ...]] = {}
        """By queue the last key: an unchanged one stays the same object."""

    def as_decided(self) -> QueueShares:
        """The same fair shares, with a fixed copy of the decided amounts in place of the current counts."""
        return self._with({name: one.as_decided() for name, one in self.has.items()})

    def with_more(self, changes: Iterable[Change]) -> QueueShares:
        """The same fair shares, with these changes applied to the counts."""
        had: dict[str, Counts] = {}
        for change in changes:
            for name in self.tree.path(change.queue):
                if name not in had:
                    had[name] = Counts(dict(self.has[name].allocated), dict(self.has[name].kept))
                for total in (had[name].allocated, had[name].kept) if change.kept else (had[name].allocated,):
                    for resource, amount in change.amounts.items():
                        total[resource] = total.get(resource, 0) + change.sign * amount
        return self._with({**self.has, **had}) if had else self

    def _with(self, has: Mapping[str, Counts]) -> QueueShares:
        """The same fair shares, with other counts."""
        found = object.__new__(QueueShares)
        found.tree, found.total, found.fair, found.has = self.tree, self.total, self.fair, has
        found._steps, found._orders = {}, {}
        return found

    def dominant(self, queue: str, needs: Mapping[str, int] = _NOTHING) -> float:
        """The highest ratio of allocated amount and `needs` to fair share of any resource; infinite if a share is 0."""
        allocated, fair = self.has[queue].allocated, self.fair[queue]
        used = _sum(allocated, needs) if needs else allocated
        return max((amount / fair[name] if fair.get(name) else inf for name, amount in used.items()), default=0.0)

    def over_fair_share(self, queue: str) -> bool:
        """Whether a queue exceeds its fair share of any resource."""
        return not _within(self.has[queue].allocated, self.fair[queue])

    def deserves(self, queue: str, needs: Mapping[str, int], has: Mapping[str, int] | None = None) -> bool:
        """Whether a queue deserves `needs` in addition to what it has.

        It must stay within its deserved amounts, and within its fair share of the other resources; with only others
        it deserves nothing. Without needs: whether it has deserved amounts, and is within all of them.
        """
        deserved, fair = self.tree.specs[queue].deserved, self.fair[queue]
        had = self.has[queue].allocated if has is None else has
        asked = needs or dict.fromkeys(deserved, 0)
        if deserved.keys().isdisjoint(asked):
            return False
        return all(had.get(one, 0) + need <= deserved.get(one, fair.get(one, 0)) for one, need in asked.items())

    def order(self, needs: Mapping[str, Mapping[str, int]]) -> dict[str, tuple[_Step, ...]]:
        """The sort keys of queues without children; `needs` has the needs of the next group of each.

        Keys compare the ancestors first, from the top. At each level, a queue within its fair share goes first. Among
        equal queues, one that deserves what its next group needs goes first. Then these decide, one after the other:
        the higher priority, the smaller dominant share with that group, the smaller one without it, and the name. The
        next group of a parent is that of the child that goes first.
        """
        steps: dict[str, _Step] = {}
        next_needs = dict(needs)
        levels: dict[int, set[str]] = {}
        for name in needs:
            for depth, above in enumerate(reversed(self.tree.path(name))):
                levels.setdefault(depth, set()).add(above)
        for depth in sorted(levels, reverse=True):
            firsts: dict[str, str] = {}
            for name in levels[depth]:
                steps[name] = self._step(name, next_needs[name])
                parent = self.tree.specs[name].parent
                if parent and (parent not in firsts or steps[name] < steps[firsts[parent]]):
                    firsts[parent] = name
            next_needs.update((parent, next_needs[child]) for parent, child in firsts.items())
        for name in needs:
            key = tuple(steps[above] for above in reversed(self.tree.path(name)))
            if self._orders.get(name) != key:
                self._orders[name] = key
        return {name: self._orders[name] for name in needs}

    def _step(self, name: str, needs: Mapping[str, int]) -> _Step:
        moved = self.has[name].moved
        known = self._steps.get(name)
        if known is not None and known[0] == moved and known[1] == needs:
            return known[2]
        step = (self.over_fair_share(name), not self.deserves(name, needs), -self.tree.specs[name].priority,
                self.dominant(name, needs), self.dominant(name), name)  # fmt: skip
        self._steps[name] = moved, needs, step
        return step


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _within(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return all(amount <= other.get(name, 0) for name, amount in one.items())
