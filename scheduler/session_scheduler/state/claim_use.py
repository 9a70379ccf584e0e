"""Use of ResourceClaims by queues. A claim counts once in a queue and in each ancestor, however many pods use it there.

`QueueUse` reports which pods use claims, and the cache reports changes of claims. Each change costs as much as there
are queues that use the claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from session_scheduler.model.device_resources import DeviceResources
from session_scheduler.model.devices import ResourceClaim
from session_scheduler.model.queue_shares import Counts
from session_scheduler.model.queues import Amounts, add_each

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class _Users(msgspec.Struct):
    """The pods of a queue and its descendants that use one claim: how many count in each of the queue's `Counts`."""

    allocated: int = 0
    kept: int = 0
    pending: int = 0
    decided: int = 0
    decided_kept: int = 0

    def counts_in(self) -> set[str]:
        """The names of the queue's amounts in which the claim counts. A pending pod adds nothing to a running one."""
        found = {name for name in self.__struct_fields__ if getattr(self, name)}
        return found - {"pending"} if self.allocated else found


class ClaimUse:
    """The amounts of all claims, and the queues in which they count. `counts_of` returns a queue's counts."""

    def __init__(self, counts_of: Callable[[str], Counts]) -> None:
        self._counts_of = counts_of
        self.devices = DeviceResources()
        self._amounts: dict[str, Mapping[str, int]] = {}
        self._users: dict[str, dict[str, _Users]] = {}
        """By claim and queue."""
        self._holders: Counter[str] = Counter()
        """By claim: the number of pods on nodes that use it and count."""
        self._allocated: set[str] = set()
        self._of_others: dict[str, Mapping[str, int]] = {}
        """The amounts of allocated claims that no counted pod on a node uses."""
        self.others: Amounts = {}
        """Their sum."""

    # ------------------------------------------------------------------ reading

    def amounts(self, claim: str) -> Mapping[str, int]:
        """What a claim (its key) counts with; nothing if it does not exist."""
        return self._amounts.get(claim, _NOTHING)

    def counts_in(self, claim: str, queue: str, name: str) -> bool:
        """Whether a claim already counts in an amount of a queue: `allocated` or `kept`."""
        users = self._users.get(claim, {}).get(queue)
        return users is not None and getattr(users, name) > 0

    def holders(self, claim: str) -> int:
        """The number of pods on nodes that use the claim and count in queues."""
        return self._holders[claim]

    # ------------------------------------------------------------------ changes

    def put(self, claim: ResourceClaim) -> bool:
        """Count a new or changed claim. Returns whether that changes any amount."""
        amounts = self.devices.of_claim(claim)
        return self._set(claim.key, amounts, allocated=claim.status.allocation is not None)

    def remove(self, claim: str) -> bool:
        """Stop counting a deleted claim. Returns whether that changes any amount."""
        return self._set(claim, _NOTHING, allocated=False)

    def use(self, claims: Iterable[str], queue: str, names: Iterable[str], sign: int) -> None:
        """Count one more or one fewer pod of a queue or its descendants that uses these claims."""
        for claim in claims:
            queues = self._users.setdefault(claim, {})
            users = queues.setdefault(queue, _Users())
            before = users.counts_in()
            for name in names:
                setattr(users, name, getattr(users, name) + sign)
            after = users.counts_in()
            counts, amounts = self._counts_of(queue), self.amounts(claim)
            for name in before ^ after:
                add_each(getattr(counts, name), amounts, 1 if name in after else -1)
            if not after:
                del queues[queue]
                if not queues:
                    del self._users[claim]

    def hold(self, claims: Iterable[str], sign: int) -> None:
        """Count one more or one fewer pod on a node that uses these claims."""
        for claim in claims:
            self._holders[claim] += sign
            if not self._holders[claim]:
                del self._holders[claim]
            self._count_for_others(claim)

    def clear_users(self) -> None:
        """Forget all pods: they are counted again."""
        self._users.clear()
        for claim in list(self._holders):
            del self._holders[claim]
            self._count_for_others(claim)

    def _set(self, claim: str, amounts: Mapping[str, int], *, allocated: bool) -> bool:
        before = self._amounts.pop(claim, _NOTHING)
        if amounts:
            self._amounts[claim] = amounts
        if before == amounts and allocated == (claim in self._allocated):
            return False
        (self._allocated.add if allocated else self._allocated.discard)(claim)
        for queue, users in self._users.get(claim, {}).items():
            counts = self._counts_of(queue)
            for name in users.counts_in():
                add_each(getattr(counts, name), before, -1)
                add_each(getattr(counts, name), amounts)
            counts.freed += any(amount > amounts.get(name, 0) for name, amount in before.items())
            counts.moved += 1
            counts.changed += 1
        self._count_for_others(claim)
        return True

    def _count_for_others(self, claim: str) -> None:
        add_each(self.others, self._of_others.pop(claim, _NOTHING), -1)
        if claim in self._allocated and claim not in self._holders:
            self._of_others[claim] = self.amounts(claim)
            add_each(self.others, self._of_others[claim])
