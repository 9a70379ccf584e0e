"""Fair shares of queues, and which queue may take from which. Pure: amounts in, amounts out, in whole units.

A queue's fair share of a resource is what it deserves, as far as it asks for it; then what is left of its parent's
share goes to the queues that ask for more, those of the highest priority first, and among these by weight: water is
filled in until each has what it asks for or what its limit allows. What cannot be divided evenly goes to the largest
remainders, then by name. The dominant share, by which queues are ordered, is the largest part that a queue has of what
it should have of any resource.

Source: KAI-Scheduler's plugin `proportion` (division and strategies); Ghodsi et al., NSDI 2011 (dominant resources).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf

from session_scheduler.model.queues import Amounts, QueueTree


@dataclass(slots=True)
class Counts:
    """What a queue and those below it have."""

    allocated: Amounts = field(default_factory=dict)
    kept: Amounts = field(default_factory=dict)
    """Of what is allocated, that of pods which are not preemptible."""
    pending: Amounts = field(default_factory=dict)
    gpus: Amounts = field(default_factory=dict)
    """The allocated amounts of shared GPUs. Limits apply to them; fair shares leave them out."""
    kept_gpus: Amounts = field(default_factory=dict)
    decided: Amounts = field(default_factory=dict)
    """What is allocated once all is done that was decided: without pods that are evicted for others, with pods that
    are to come to a node.
    """
    decided_kept: Amounts = field(default_factory=dict)
    """Of that, what pods have which are not preemptible."""
    freed: int = 0
    """Moves whenever something is allocated no more."""
    changed: int = 0
    """Moves whenever any of it changes."""

    @property
    def held(self) -> Mapping[str, int]:
        """All that is allocated, parts of GPUs too."""
        return {**self.allocated, **self.gpus} if self.gpus else self.allocated

    @property
    def held_kept(self) -> Mapping[str, int]:
        """Of that, what pods have which are not preemptible."""
        return {**self.kept, **self.kept_gpus} if self.kept_gpus else self.kept


@dataclass(frozen=True, slots=True)
class Change:
    """What a pod of a queue has more (sign 1) or less (-1); `kept` where it is not preemptible."""

    queue: str
    amounts: Mapping[str, int]
    sign: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """One of several queues that something is divided among."""

    name: str
    wants: int
    """What it asks for, within its limit."""
    deserves: int = 0
    priority: int = 0
    weight: int = 1


def divided(total: int, claims: Sequence[Claim]) -> dict[str, int]:
    """The share of each claim. What is deserved is given even where it is more than there is in total."""
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
    """Water filled in: (name, what it asks for yet, weight) → its part of `left`."""
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
    """All of `left`, of which everybody would take more than its part."""
    found = {name: left * weight // weights for name, _, weight in level}
    rest = sorted(level, key=lambda entry: (-(left * entry[2] % weights), entry[0]))
    for name, _, _ in rest[: left - sum(found.values())]:
        found[name] += 1
    return found


def fair_shares(
    tree: QueueTree, total: Mapping[str, int], requested: Mapping[str, Mapping[str, int]]
) -> dict[str, Amounts]:
    """By queue its fair share of each resource; `requested` is what each, with those below it, has and waits for."""
    wants: dict[str, Amounts] = {}
    for name in tree.children.get("", ()):
        _collect(tree, name, requested, wants)
    shares: dict[str, Amounts] = {}
    _divide(tree, "", total, wants, shares)
    return shares


def _collect(tree: QueueTree, name: str, requested: Mapping[str, Mapping[str, int]], wants: dict[str, Amounts]) -> None:
    """What a queue asks for within limits: its own, and of those below it what theirs allow."""
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
    for resource in sorted({resource for name in children for resource in wants[name]}):
        claims = [_claim(tree, name, resource, wants) for name in children]
        for name, amount in divided(total.get(resource, 0), claims).items():
            if amount:
                shares[name][resource] = amount
    for name in children:
        _divide(tree, name, shares[name], wants, shares)


def _claim(tree: QueueTree, name: str, resource: str, wants: Mapping[str, Amounts]) -> Claim:
    spec = tree.specs[name]
    return Claim(name, wants[name].get(resource, 0), spec.deserved.get(resource, 0), spec.priority, spec.weight)


class QueueShares:
    """Fair shares as of the moment when this was made, and what queues have as it is at any moment."""

    def __init__(self, tree: QueueTree, total: Mapping[str, int], has: Mapping[str, Counts]) -> None:
        """`has` of every queue of the tree that can be used."""
        self.tree = tree
        self.total = total
        self.has: Mapping[str, Counts] = has
        self.fair = fair_shares(tree, total, {name: _sum(one.allocated, one.pending) for name, one in has.items()})
        self._steps: dict[str, tuple[int, tuple[object, ...]]] = {}

    def as_decided(self) -> QueueShares:
        """The same, where queues have what they will once all is done that was decided by now; and that stays so."""
        found = copy(self)
        found.has = {name: Counts(dict(one.decided), dict(one.decided_kept)) for name, one in self.has.items()}
        found._steps = {}
        return found

    def with_more(self, changes: Iterable[Change]) -> QueueShares:
        """The same fair shares, where pods of some queues have more or less than they have now."""
        had: dict[str, Counts] = {}
        for change in changes:
            for name in self.tree.path(change.queue):
                if name not in had:
                    had[name] = Counts(dict(self.has[name].allocated), dict(self.has[name].kept))
                for total in (had[name].allocated, had[name].kept) if change.kept else (had[name].allocated,):
                    for resource, amount in change.amounts.items():
                        total[resource] = total.get(resource, 0) + change.sign * amount
        found = copy(self)
        found.has = {**self.has, **had}
        found._steps = {}
        return found

    def dominant(self, queue: str) -> float:
        """The largest part that a queue has of its fair share of any resource; infinite where it should have none."""
        allocated, fair = self.has[queue].allocated, self.fair[queue]
        return max((amount / fair[name] if fair.get(name) else inf for name, amount in allocated.items()), default=0.0)

    def over_fair_share(self, queue: str) -> bool:
        """Whether a queue has more than its fair share of anything."""
        return not _within(self.has[queue].allocated, self.fair[queue])

    def over_deserved(self, queue: str) -> bool:
        """Whether a queue has more than it deserves of anything that it names, or names nothing that it deserves."""
        deserved, allocated = self.tree.specs[queue].deserved, self.has[queue].allocated
        return not deserved or any(allocated.get(name, 0) > amount for name, amount in deserved.items())

    def order(self, queue: str) -> tuple[object, ...]:
        """What orders queues, from the top down: who is within its fair share, within what it deserves, the higher
        priority, the smaller dominant share, the name.
        """
        path = self.tree.path(queue)
        return tuple(self._step(name) for name in reversed(path)) if self.tree.usable(queue) else ()

    def _step(self, name: str) -> tuple[object, ...]:
        changed = self.has[name].changed
        known = self._steps.get(name)
        if known is not None and known[0] == changed:
            return known[1]
        step = (self.over_fair_share(name), self.over_deserved(name), -self.tree.specs[name].priority,
                self.dominant(name), name)  # fmt: skip
        self._steps[name] = changed, step
        return step


# ------------------------------------------------------------------ who may take from whom


def may_reclaim(shares: QueueShares, queue: str, needs: Mapping[str, int], *, preemptible: bool) -> str | None:
    """Why a queue may not have others' pods ended for one that needs this; None where it may.

    It stays within its fair share, and what is not preemptible within what it deserves.
    """
    return _not_within(shares, queue, needs, shares.has[queue].allocated, preemptible=preemptible)


def reclaimable(
    shares: QueueShares,
    queue: str,
    needs: Mapping[str, int],
    victims: Mapping[str, Sequence[Mapping[str, int]]],
    *,
    preemptible: bool,
) -> str | None:
    """Why these pods (by queue, what each has) may not end for one of `queue` that needs this; None where they may.

    Two queues are compared where their paths part. The victims' must have more than its fair share of something that is
    needed, and still have that share afterwards; as long as the taker stays within what it deserves, its deserved
    counts in place of its fair share. The taker's queue, and all above it, stay within their fair shares.
    """
    left: dict[str, Amounts] = {}
    for name in sorted(victims):
        if _parting(shares.tree, queue, name) is None:
            return f"queue {name!r} and queue {queue!r} are one: nothing is taken within a queue"
        why = Giving(shares, queue, name, needs, left).reclaim(victims[name])
        if why is not None:
            return why
    for above in shares.tree.path(queue):
        why = beyond(shares, above, needs, left.get(above), preemptible=preemptible)
        if why is not None:
            return why
    return None


class Giving:
    """What another queue gives to the taker's, pod after pod. They are compared where their paths part."""

    def __init__(
        self,
        shares: QueueShares,
        taker: str,
        name: str,
        needs: Mapping[str, int],
        left: dict[str, Amounts] | None = None,
    ) -> None:
        """`left`, by queue: what is left of what was taken from before, as far as that is so. Raises LookupError where
        the two are one queue.
        """
        pair = _parting(shares.tree, taker, name)
        if pair is None:
            raise LookupError(f"nothing is taken within queue {name!r}")
        self._shares = shares
        self._path = shares.tree.path(name)
        self._giver = pair[1]
        self._left = {} if left is None else left
        self._floor = _floor(shares, *pair, needs)
        before = self._has(self._giver)
        self._over = [resource for resource in needs if before.get(resource, 0) > self._floor.get(resource, 0)]

    def _has(self, queue: str) -> Amounts:
        return self._left.get(queue, self._shares.has[queue].allocated)

    def why_not(self, pods: Sequence[Mapping[str, int]]) -> str | None:
        """Why these may not end, too."""
        has = {resource: self._has(self._giver).get(resource, 0) for resource in self._over}
        for amounts in pods:
            if not any(amounts.get(resource) for resource in has):
                return f"queue {self._giver!r} has no more than its share of what is needed"
            for resource in has:
                has[resource] -= amounts.get(resource, 0)
                if has[resource] < self._floor.get(resource, 0):
                    return f"queue {self._giver!r} would have less than its share"
        return None

    def reclaim(self, pods: Sequence[Mapping[str, int]]) -> str | None:
        """Let these end; or why they may not."""
        why = self.why_not(pods)
        for above in self._path if why is None else ():
            total = self._left[above] = dict(self._has(above))
            for amounts in pods:
                for resource in total:
                    total[resource] -= amounts.get(resource, 0)
        return why


def beyond(
    shares: QueueShares,
    queue: str,
    needs: Mapping[str, int],
    has: Mapping[str, int] | None = None,
    *,
    preemptible: bool,
) -> str | None:
    """Why a queue may not have this more than it has; None where it may.

    It stays within its fair share, and what is not preemptible within what it deserves. One that has no other beside it
    may have all that there is.
    """
    tree = shares.tree
    if not tree.specs[queue].parent and len(tree.children.get("", ())) <= 1:
        return None
    had = shares.has[queue].allocated if has is None else has
    return _not_within(shares, queue, needs, had, preemptible=preemptible)


def _not_within(
    shares: QueueShares, queue: str, needs: Mapping[str, int], has: Mapping[str, int], *, preemptible: bool
) -> str | None:
    fair, deserved, kept = shares.fair[queue], shares.tree.specs[queue].deserved, shares.has[queue].kept
    for resource, need in needs.items():
        if has.get(resource, 0) + need > fair.get(resource, 0):
            return f"queue {queue!r} would have more than its fair share of {resource}"
        if not preemptible and resource in deserved and kept.get(resource, 0) + need > deserved[resource]:
            return f"queue {queue!r} would have more {resource} that is not preemptible than it deserves"
    return None


def _parting(tree: QueueTree, one: str, other: str) -> tuple[str, str] | None:
    """The first queues from the top in which two paths differ; None for one queue."""
    for left, right in zip(reversed(tree.path(one)), reversed(tree.path(other)), strict=False):
        if left != right:
            return left, right
    return None


def _floor(shares: QueueShares, taker: str, giver: str, needs: Mapping[str, int]) -> Mapping[str, int]:
    """What the giver keeps in any case: its fair share, and of what the taker deserves and has not, only what the giver
    deserves itself.
    """
    deserved, has = shares.tree.specs[taker].deserved, shares.has[taker].allocated
    named = [resource for resource in needs if resource in deserved]
    if named and all(has.get(resource, 0) + needs[resource] <= deserved[resource] for resource in named):
        return {**shares.fair[giver], **dict.fromkeys(named, 0), **shares.tree.specs[giver].deserved}
    return shares.fair[giver]


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _less(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    return {name: amount - other.get(name, 0) for name, amount in one.items()}


def _within(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return all(amount <= other.get(name, 0) for name, amount in one.items())
