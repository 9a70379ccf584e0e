"""The rules of reclaim between queues: which pods of other queues may be evicted for a queue. Pure functions.

A queue may reclaim what it needs if it deserves that (`QueueShares.deserves`), or if it stays within its fair share.
Two queues are compared at the first level where their ancestors differ. Victims come in units: pods that are evicted
together.

Source: KAI-Scheduler's plugin `proportion` (strategies).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from session_scheduler.model.queue_shares import QueueShares
from session_scheduler.model.queues import Amounts, QueueTree

UnitAmounts = tuple[str, Mapping[str, int]]
"""A unit's queue and amounts."""

NO_DAMAGE: Final = 0
BELOW_FAIR_SHARE: Final = 1
"""The victims' queue or an ancestor, below the compared queue, would have less than its fair share."""
ELSEWHERE: Final = 2
"""An ancestor of the reclaiming queue exceeds its share without victims below itself, and the unit is not below it."""
BELOW_SHARE: Final = 3
"""The unit is larger than what the compared queue has beyond its share."""
DAMAGES: Final = NO_DAMAGE, BELOW_FAIR_SHARE, ELSEWHERE, BELOW_SHARE
"""In the order in which victims are searched."""


class Right(msgspec.Struct, frozen=True):
    """What entitles a queue to its needs: what it deserves, its fair share, or both."""

    deserved: frozenset[str]
    """The needed resources with a deserved amount, if the queue deserves the needs; else empty."""
    fair: bool


class Reclaim:
    """What one queue may reclaim for some needs."""

    def __init__(
        self,
        shares: QueueShares,
        queue: str,
        needs: Mapping[str, int],
        *,
        preemptible: bool,
        damage: int = ELSEWHERE,
    ) -> None:
        """`damage`: the most damage that a victim may do; BELOW_SHARE is only for needs that the queue deserves.

        `preemptible`: whether the needs are those of preemptible pods.
        """
        self._shares = shares
        self._tree = shares.tree
        self._queue = queue
        self._needs = needs
        self._preemptible = preemptible
        self._damage = damage
        self._path = self._tree.path(queue)
        self._givers: dict[tuple[str, Right], _Giver] = {}
        """By victims' queue, and the right of the reclaiming queue or its ancestor where the two are compared."""
        self._unchanged: dict[str, Right | str] = {}
        """By ancestor: its right, or why it has none, if no pods are evicted."""
        found = self._rights({})
        self.excess = found if isinstance(found, str) else None
        """Why the queue or an ancestor exceeds its share with the needs if no pods are evicted; None if none does."""
        self._open = found if self.excess is None else self._rights(self._relief())
        excessive = self._path if self.excess is not None else ()
        self._excessive = [name for name in excessive if isinstance(self._right(name, None), str)]
        """The ancestors that need victims below themselves to stay within their shares."""

    def exceeds_by_more(self, most: Mapping[str, int]) -> str | None:
        """Why victims with at most these amounts do not suffice for an ancestor that needs some below itself."""
        for name in self._excessive:
            has, fair = self._shares.has[name].allocated, self._shares.fair[name]
            shares = [fair]
            deserved = self._tree.specs[name].deserved
            if not deserved.keys().isdisjoint(self._needs):
                shares.append({**fair, **deserved})
            if all(
                any(has.get(one, 0) + need - share.get(one, 0) > most.get(one, 0) for one, need in self._needs.items())
                for share in shares
            ):
                return f"queue {name!r} exceeds its share by more than the victims on one node would free"
        return None

    @property
    def refusal(self) -> str | None:
        """Why the queue must not reclaim at all, whatever the victims; None if it may."""
        return self._open if isinstance(self._open, str) else None

    @property
    def deserves(self) -> bool:
        """Whether the queue or an ancestor deserves the needs, possibly after evictions below it."""
        return not isinstance(self._open, str) and any(right.deserved for right in self._open.values())

    def may_evict(self, queue: str, amounts: Mapping[str, int]) -> bool:
        """Whether a pod may be a victim, on its own or with other victims."""
        giver = self._giver(queue, self._damage)
        return giver is not None and giver.why_not(amounts, {}, self._damage) is None

    def choose(self, units: Sequence[UnitAmounts]) -> list[int | None]:
        """For each unit its damage, or None if it must not be evicted in addition to those that may.

        Units without damage are chosen first, then those with less damage; of equal ones, the earlier. A unit without
        amounts does none.
        """
        damages: list[int | None] = [None if amounts else NO_DAMAGE for _, amounts in units]
        left: dict[str, Amounts] = {}
        for damage in DAMAGES[: self._damage + 1]:
            for index, (queue, amounts) in enumerate(units):
                giver = self._giver(queue, damage) if damages[index] is None else None
                if giver is not None and giver.why_not(amounts, left, damage) is None:
                    damages[index] = damage
                    self._take(queue, amounts, left)
        return damages

    def objection(self, units: Sequence[UnitAmounts]) -> str | None:
        """Why these units must not be the victims; None if they may."""
        left: dict[str, Amounts] = {}
        for queue, amounts in units:
            if queue == self._queue:
                return f"queue {queue!r} cannot reclaim from itself"
            self._take(queue, amounts, left)
        rights = self._rights(left)
        if isinstance(rights, str):
            return rights
        left = {}
        for queue, amounts in sorted(units, key=lambda unit: (sorted(unit[1].items()), unit[0])):
            why = self._compared(queue, rights).why_not(amounts, left, self._damage)
            if why is not None:
                return why
            self._take(queue, amounts, left)
        return None

    # ------------------------------------------------------------------ inside

    def _giver(self, queue: str, damage: int) -> _Giver | None:
        """The victims' queue; None if it may have no victims with at most this damage."""
        if damage < ELSEWHERE and self._excessive and not set(self._excessive).issubset(self._tree.path(queue)):
            return None
        if queue == self._queue or not self._tree.usable(queue) or isinstance(self._open, str):
            return None
        return self._compared(queue, self._open)

    def _compared(self, queue: str, rights: Mapping[str, Right]) -> _Giver:
        """The victims' queue, compared with the reclaiming queue, which has these rights."""
        own, other = _first_difference(self._tree, self._queue, queue)
        key = queue, rights[own]
        if key not in self._givers:
            self._givers[key] = _Giver(self._shares, queue, other, rights[own], self._needs)
        return self._givers[key]

    def _take(self, queue: str, amounts: Mapping[str, int], left: dict[str, Amounts]) -> None:
        """Remove a unit from what its queue and the queues above it have."""
        for name in self._tree.path(queue):
            total = left.get(name)
            if total is None:
                total = left[name] = dict(self._shares.has[name].allocated)
            for resource, amount in amounts.items():
                total[resource] = total.get(resource, 0) - amount

    def _rights(self, left: Mapping[str, Amounts]) -> Mapping[str, Right] | str:
        """The rights of the queue and its ancestors, given what victims leave to them; or why one has none."""
        found: dict[str, Right] = {}
        for name in self._path:
            right = self._right(name, left.get(name))
            if isinstance(right, str):
                return right
            found[name] = right
        return found

    def _right(self, name: str, left: Mapping[str, int] | None) -> Right | str:
        if left is not None:
            return self._right_with(name, left)
        if name not in self._unchanged:
            self._unchanged[name] = self._right_with(name, self._shares.has[name].allocated)
        return self._unchanged[name]

    def _right_with(self, name: str, has: Mapping[str, int]) -> Right | str:
        """The right of the queue or an ancestor that has these amounts, or why it has none."""
        shares, needs = self._shares, self._needs
        deserved, fair = self._tree.specs[name].deserved, shares.fair[name]
        if not self._preemptible:
            kept = shares.has[name].kept
            for resource in needs.keys() & deserved.keys():
                if kept.get(resource, 0) + needs[resource] > deserved[resource]:
                    return f"queue {name!r} would exceed its deserved {resource} with non-preemptible pods"
        above = next((one for one in needs if has.get(one, 0) + needs[one] > fair.get(one, 0)), None)
        if shares.deserves(name, needs, has):
            return Right(frozenset(needs.keys() & deserved.keys()), above is None)
        alone = name != self._queue and not self._tree.specs[name].parent and len(self._tree.children[""]) == 1
        if above is None or alone:  # a top-level queue without siblings may have the whole cluster
            return Right(frozenset(), fair=True)
        return f"queue {name!r} would exceed its fair share of {above}"

    def _relief(self) -> dict[str, Amounts]:
        """What the queue's ancestors have if all other queues below them give up what they may."""
        left: dict[str, Amounts] = {}
        freed: Amounts = {}
        for child, parent in zip(self._path, self._path[1:], strict=False):
            right = self._right(child, left.get(child))
            if isinstance(right, str):
                break
            for name in self._tree.children[parent]:
                if name != child:
                    for resource, amount in _gives(self._shares, name, right, self._needs, self._damage).items():
                        freed[resource] = freed.get(resource, 0) + amount
            has = self._shares.has[parent].allocated
            left[parent] = {resource: amount - freed.get(resource, 0) for resource, amount in has.items()}
        return left


class _Giver:
    """A queue with possible victims, compared with the reclaiming queue at one level."""

    def __init__(self, shares: QueueShares, queue: str, compared: str, right: Right, needs: Mapping[str, int]) -> None:
        """`compared`: the victims' queue or its ancestor at that level. `right`: that of the reclaiming queue there."""
        self._shares = shares
        self._compared = compared
        path = shares.tree.path(queue)
        self._below = path[: path.index(compared)]
        self._right = right
        self._has = shares.has[compared].allocated
        deserved = shares.tree.specs[compared].deserved
        self._floor = _floor(shares, compared, right, needs)
        """By resource for which victims may be taken: what the queue keeps."""
        self._over = [one for one, floor in self._floor.items() if self._has.get(one, 0) > floor]
        self._owed = frozenset(one for one, most in deserved.items() if self._has.get(one, 0) <= most)
        """The resources with at most the deserved amount."""
        self._unowed = frozenset(one for one in self._over if one not in right.deserved and one not in deserved)
        """The resources beyond its share for which its pods with owed resources are not taken."""

    def why_not(self, amounts: Mapping[str, int], left: Mapping[str, Amounts], damage: int) -> str | None:
        """Why a unit must not be a victim after those that leave `left`, with at most this damage; None if it may."""
        helping = [one for one in self._over if amounts.get(one)]
        if self._unowed and any(amounts.get(one) for one in self._owed):
            helping = [one for one in helping if one not in self._unowed]
        has = left.get(self._compared, self._has)
        if not helping:
            return f"queue {self._compared!r} does not exceed its share of the resources needed"
        if all(has.get(one, 0) - amounts.get(one, 0) >= self._floor[one] for one in self._over):
            return self._below_fair_share(amounts, left) if damage < BELOW_FAIR_SHARE else None
        if damage >= BELOW_SHARE and any(
            one in self._right.deserved and has.get(one, 0) > self._floor[one] for one in helping
        ):
            return None
        return f"queue {self._compared!r} would have less than its share"

    def _below_fair_share(self, amounts: Mapping[str, int], left: Mapping[str, Amounts]) -> str | None:
        """Why the unit's queue, or an ancestor below the compared one, would have less than its fair share."""
        for name in self._below:
            has, fair = left.get(name, self._shares.has[name].allocated), self._shares.fair[name]
            for one in self._over:
                if amounts.get(one) and has.get(one, 0) - amounts[one] < fair.get(one, 0):
                    return f"queue {name!r} would have less than its fair share"
        return None


def _floor(shares: QueueShares, queue: str, right: Right, needs: Mapping[str, int]) -> Amounts:
    """By resource for which victims may be taken from the queue: what it keeps."""
    deserved, fair = shares.tree.specs[queue].deserved, shares.fair[queue]
    return {one: deserved.get(one, 0) if one in right.deserved else fair.get(one, 0)
            for one in (needs if right.fair else right.deserved)}  # fmt: skip


def _gives(shares: QueueShares, queue: str, right: Right, needs: Mapping[str, int], damage: int) -> Amounts:
    """At most what the queue's preemptible pods give up."""
    counts, floor = shares.has[queue], _floor(shares, queue, right, needs)
    over = {one for one, least in floor.items() if counts.allocated.get(one, 0) > least}
    found: Amounts = {}
    for resource, amount in counts.allocated.items() if over else ():
        most = amount - counts.kept.get(resource, 0)
        if resource in over and not (damage >= BELOW_SHARE and resource in right.deserved):
            most = min(most, amount - floor[resource])
        found[resource] = max(0, most)
    return found


def _first_difference(tree: QueueTree, one: str, other: str) -> tuple[str, str]:
    """The first pair of ancestors, from the top, that differ. Both queues have no children and are different."""
    pairs = zip(reversed(tree.path(one)), reversed(tree.path(other)), strict=False)
    return next(pair for pair in pairs if pair[0] != pair[1])
