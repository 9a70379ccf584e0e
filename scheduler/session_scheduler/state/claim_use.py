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
from msgspec.structs import replace

from session_scheduler.model.device_resources import DeviceResources
from session_scheduler.model.devices import Allocation, DeviceClass, ResourceClaim, ResourceSlice
from session_scheduler.model.queue_shares import Counts
from session_scheduler.model.queues import Amounts, add_each
from session_scheduler.state.counted_devices import CountedDevices, PoolId
from session_scheduler.state.tables import ObjectTables

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

    def __init__(self, counts_of: Callable[[str], Counts], objects: ObjectTables) -> None:
        self._counts_of = counts_of
        self._objects = objects
        self.devices = CountedDevices()
        self._amounts: dict[str, Mapping[str, int]] = {}
        self._possible: dict[str, Mapping[str, int]] = {}
        """Of claims whose allocation decides what they count with: what they may count with, for the demand."""
        self._decided: dict[str, Allocation] = {}
        """Allocations that the scheduler decided and that the watched claims do not have yet."""
        self._in_pools: dict[PoolId, set[str]] = {}
        """By pool: the claims that have devices of it, if devices count by attribute."""
        self._pools_of: dict[str, set[PoolId]] = {}
        """By claim: the pools of its devices."""
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

    def configure(self, devices: DeviceResources) -> None:
        """Set the device resources, before any object is added."""
        self.devices.resources = devices

    def start(self) -> None:
        """Count all objects, which were added before."""
        for part in self._objects.of(ResourceSlice).values():
            self.put(part)
        for claim in self._objects.of(ResourceClaim).values():
            self.put(claim)

    def put(self, obj: ResourceClaim | ResourceSlice | DeviceClass) -> bool:
        """Count a new or changed object. Returns whether that changes any amount."""
        if isinstance(obj, ResourceSlice):
            return self._recount(self.devices.put(obj))
        if isinstance(obj, DeviceClass):
            return self._recount_open()
        if obj.status.allocation is not None:
            self._decided.pop(obj.key, None)
        return self._count(obj)

    def remove(self, obj: ResourceClaim | ResourceSlice | DeviceClass) -> bool:
        """Stop counting a deleted object. Returns whether that changes any amount."""
        if isinstance(obj, ResourceSlice):
            return self._recount(self.devices.remove(obj))
        if isinstance(obj, DeviceClass):
            return self._recount_open()
        self._decided.pop(obj.key, None)
        self._note_pools(obj.key, None)
        return self._set(obj.key, _NOTHING, _NOTHING, allocated=False)

    def decide(self, claim: str, allocation: Allocation | None) -> bool:
        """Count a claim with the allocation that the scheduler decided for it; None ends that. The watched
        claim takes precedence. Returns whether that changes any amount.
        """
        known = self._objects.of(ResourceClaim).get(claim)
        if known is None or known.status.allocation is not None:
            return False
        if allocation is None:
            self._decided.pop(claim, None)
        else:
            self._decided[claim] = allocation
        return self._count(known)

    def _count(self, claim: ResourceClaim) -> bool:
        allocated, decided = claim.status.allocation is not None, self._decided.get(claim.key)
        if decided is not None:
            claim = replace(claim, status=replace(claim.status, allocation=decided))
        classes = self._objects.of(DeviceClass)
        amounts, possible = self.devices.resources.of_claim(claim, classes.get, self.devices.of)
        self._note_pools(claim.key, claim.status.allocation)
        return self._set(claim.key, amounts, possible, allocated=allocated)

    def _note_pools(self, claim: str, allocation: Allocation | None) -> None:
        if not self.devices.resources.by_device:
            return
        for pool in self._pools_of.pop(claim, ()):
            self._in_pools[pool].discard(claim)
            if not self._in_pools[pool]:
                del self._in_pools[pool]
        if allocation is not None:
            pools = self._pools_of[claim] = {(one.driver, one.pool) for one in allocation.devices.results}
            for pool in pools:
                self._in_pools.setdefault(pool, set()).add(claim)

    def _recount(self, pools: Iterable[PoolId]) -> bool:
        """Count the claims with devices of these pools again."""
        claims = self._objects.of(ResourceClaim)
        found = [self._count(claims[key]) for pool in pools for key in sorted(self._in_pools.get(pool, ()))]
        return any(found)

    def _recount_open(self) -> bool:
        """Count the claims without an allocation again: the selectors of a class have changed."""
        if not self.devices.resources.by_device:
            return False
        claims = self._objects.of(ResourceClaim).values()
        found = [self._count(claim) for claim in claims if claim.status.allocation is None]
        return any(found)

    def use(self, claims: Iterable[str], queue: str, names: Iterable[str], sign: int) -> None:
        """Count one more or one fewer pod of a queue or its descendants that uses these claims."""
        for claim in claims:
            queues = self._users.setdefault(claim, {})
            users = queues.setdefault(queue, _Users())
            before = users.counts_in()
            for name in names:
                setattr(users, name, getattr(users, name) + sign)
            after = users.counts_in()
            counts = self._counts_of(queue)
            for name in before ^ after:
                add_each(getattr(counts, name), self._amounts_in(name, claim), 1 if name in after else -1)
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

    def _amounts_in(self, name: str, claim: str) -> Mapping[str, int]:
        """What a claim counts with in one of a queue's `Counts`."""
        return self._possible.get(claim, self.amounts(claim)) if name == "pending" else self.amounts(claim)

    def _set(self, claim: str, amounts: Mapping[str, int], possible: Mapping[str, int], *, allocated: bool) -> bool:
        before, possible_before = self.amounts(claim), self._amounts_in("pending", claim)
        _put(self._amounts, claim, amounts if amounts else None)
        _put(self._possible, claim, possible if possible != amounts else None)
        if before == amounts and possible_before == possible and allocated == (claim in self._allocated):
            return False
        (self._allocated.add if allocated else self._allocated.discard)(claim)
        for queue, users in self._users.get(claim, {}).items():
            counts = self._counts_of(queue)
            for name in users.counts_in():
                pending = name == "pending"
                add_each(getattr(counts, name), possible_before if pending else before, -1)
                add_each(getattr(counts, name), possible if pending else amounts)
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


def _put(found: dict[str, Mapping[str, int]], claim: str, amounts: Mapping[str, int] | None) -> None:
    if amounts is None:
        found.pop(claim, None)
    else:
        found[claim] = amounts
