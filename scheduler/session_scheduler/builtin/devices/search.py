"""The search for the devices of one pod's claims on one node: the first combination that satisfies all requests.

It is a depth-first search with backtracking: it chooses one device after the other for each request of each claim. It
tries pools, slices and devices in a fixed order, so the result is deterministic. It skips choices that cannot succeed:
devices that are interchangeable with one that failed at the same place, and requests that limits of queues leave too
little for. `evaluation` runs it for each shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from session_scheduler.builtin.devices.alike import Contents
from session_scheduler.builtin.devices.capacities import consumption, fits
from session_scheduler.builtin.devices.constraints import Constraint, Distinct, started
from session_scheduler.builtin.devices.errors import CLAIM, AllocationError
from session_scheduler.builtin.devices.inventory import Counters, Inventory, Pool, PoolId
from session_scheduler.builtin.devices.matching import Matching, OutOfWorkError
from session_scheduler.builtin.devices.usage import DeviceId, Usage
from session_scheduler.model.device_resources import DeviceLimit
from session_scheduler.model.devices import (
    ALL,
    EXACT_COUNT,
    RESULTS_LIMIT,
    Device,
    DeviceClass,
    ExactRequest,
    ResourceClaimSpec,
    ResourceSlice,
)
from session_scheduler.model.meta import Quantity
from session_scheduler.model.quantity import QuantityError, billionths

_BLOCKING: Final = ("NoSchedule", "NoExecute")


class Candidate(msgspec.Struct, frozen=True):
    """A device with its slice and pool."""

    id: DeviceId
    device: Device
    part: ResourceSlice
    pool: Pool


class Ask(msgspec.Struct):
    """A request, or one of its alternatives, on the node."""

    name: str
    parent: str
    exact: ExactRequest
    of_class: DeviceClass
    count: int = 0
    all_devices: tuple[Candidate, ...] | None = None
    """For the allocation mode All: all matching devices."""

    @property
    def full(self) -> str:
        """The name in the allocation."""
        return f"{self.parent}/{self.name}" if self.parent else self.name

    @property
    def admin(self) -> bool:
        """Whether the request has admin access, which does not allocate devices."""
        return not self.parent and bool(self.exact.admin_access)


class Chosen(msgspec.Struct, frozen=True):
    """One device of the result."""

    ask: Ask
    of: Candidate
    shared: bool
    consumed: Mapping[str, Quantity]
    counts: Sequence[int] = ()
    """What the choice counts with in each limit."""


class Limits(msgspec.Struct, frozen=True):
    """Limits of queues on what the first claims of a search may get."""

    listed: tuple[DeviceLimit, ...] = ()
    claims: int = 0
    """The number of the first claims, to which the limits apply."""


NO_LIMITS: Final = Limits()


class _Claim(msgspec.Struct):
    requests: list[list[Ask]]
    """The alternatives of each; one for `exactly`."""
    constraints: list[Constraint]
    chosen: list[Chosen] = msgspec.field(default_factory=list)


class _TooManyError(Exception):
    """The claim would have more devices than allowed; other choices for its earlier requests do not help."""


class Search:
    """One search on one node."""

    def __init__(
        self,
        node: int,
        pools: Sequence[Pool],
        inventory: Inventory,
        usage: Usage,
        classes: Mapping[str, DeviceClass],
        matching: Matching,
        steps: int,
        limits: Limits = NO_LIMITS,
    ) -> None:
        self._row = node
        self._pools = pools
        self._inventory = inventory
        self._usage = usage
        self._classes = classes
        self._matching = matching
        self._name = inventory.name_of(node)
        self._usable = [one for pool in pools if not pool.incomplete and not pool.invalid
                        for one in self._candidates(pool)]  # fmt: skip
        """The node's devices in the order of the search."""
        self._claims: list[_Claim] = []
        self._asks: dict[tuple[int, int, DeviceId], bool] = {}
        self._allocating: dict[DeviceId, set[int]] = {}
        self._sharing: dict[DeviceId, dict[str, int]] = {}
        self._shares: dict[DeviceId, int] = {}
        self._available: dict[PoolId, Counters] = {}
        self._spent: dict[PoolId, dict[tuple[str, str], int]] = {}
        self.steps = steps
        """How many more choices may be tried."""
        self._contents: Contents | None = None
        """None if no devices are interchangeable, because their order matters."""
        self._listed: list[tuple[tuple[int, int], Ask]] = []
        """All requests, each by the indices of its claim and in the claim."""
        self._limits = limits
        self._left_of = [limit.left for limit in limits.listed]
        self._counted: dict[tuple[int, DeviceId], Sequence[int]] = {}
        """By request and device: what the choice counts with in each limit."""
        self.exceeded: set[int] = set()
        """The limits that have excluded a choice."""

    def run(self, claims: Sequence[ResourceClaimSpec]) -> list[list[Chosen]] | None:
        """The devices of each claim; None if there are none. Raises AllocationError or OutOfWorkError."""
        for index, claim in enumerate(claims):
            self._claims.append(self._checked(claim, index))
        self._listed = [((index, number), ask) for index, claim in enumerate(self._claims)
                        for number, asks in enumerate(claim.requests) for ask in asks]  # fmt: skip
        constraints = [constraint for claim in self._claims for constraint in claim.constraints]
        if not any(isinstance(constraint, Distinct) for constraint in constraints) and not any(
            ask.all_devices is not None for _, ask in self._listed
        ):
            of_limits = (name for limit in self._limits.listed for name in limit.resource.device_attributes)
            self._contents = Contents(dict.fromkeys((*(one.attribute for one in constraints), *of_limits)))
        try:
            found = self._claim(0)
        except _TooManyError:
            raise AllocationError("allocation max size exceeded") from None
        except RecursionError:
            raise AllocationError("too many devices for one pod") from None
        return [claim.chosen for claim in self._claims] if found else None

    # ------------------------------------------------------------------ validation of requests

    def _checked(self, spec: ResourceClaimSpec, index: int) -> _Claim:
        requests, least = [], 0
        for request in spec.devices.requests:
            parent = request.name if request.first_available else ""
            exacts = request.first_available or ((request.exactly,) if request.exactly is not None else ())
            asks = [self._ask(exact, exact.name if parent else request.name, parent, index) for exact in exacts]
            requests.append(asks)
            least += min((ask.count for ask in asks), default=0)
        if least > RESULTS_LIMIT:
            raise AllocationError(f"claim {CLAIM}: number of requested devices {least} exceeds the claim limit of "
                                  f"{RESULTS_LIMIT}", index)  # fmt: skip
        constraints = [started(constraint) for constraint in spec.devices.constraints]
        if None in constraints:
            raise AllocationError(f"claim {CLAIM}, constraint #{constraints.index(None)}: empty constraint "
                                  "(unsupported constraint type?)", index)  # fmt: skip
        return _Claim(requests, [constraint for constraint in constraints if constraint is not None])

    def _ask(self, exact: ExactRequest, name: str, parent: str, claim: int) -> Ask:
        where = f"claim {CLAIM}, request {name}"
        for number, selector in enumerate(exact.selectors):
            if selector.cel is None:
                raise AllocationError(f"{where}, selector #{number}: CEL expression empty (unsupported selector "
                                      "type?)", claim)  # fmt: skip
        if not exact.device_class_name:
            raise AllocationError(f"{where}: missing device class name (unsupported request type?)", claim)
        of_class = self._classes.get(exact.device_class_name)
        if of_class is None:
            missing = f'deviceclass.resource.k8s.io "{exact.device_class_name}" not found'
            raise AllocationError(f"{where}: could not retrieve device class {exact.device_class_name}: {missing}",
                                  claim)  # fmt: skip
        ask = Ask(name, parent, exact, of_class, exact.count)
        if exact.allocation_mode == ALL:
            ask.all_devices = self._all(ask, claim, where)
            ask.count = len(ask.all_devices)
        elif exact.allocation_mode != EXACT_COUNT:
            raise AllocationError(f"{where}: unsupported count mode {exact.allocation_mode}", claim)
        return ask

    def _all(self, ask: Ask, claim: int, where: str) -> tuple[Candidate, ...]:
        found = []
        for pool in self._pools:
            state = "being updated" if pool.incomplete else "invalid" if pool.invalid else ""
            if state:
                raise AllocationError(f"{where}: asks for all devices, but resource pool {'/'.join(pool.id)} is "
                                      f"currently {state}", claim)  # fmt: skip
            found += [one for one in self._candidates(pool) if self._selectable(ask, one, claim)
                      and self._fits(ask, one)]  # fmt: skip
        return tuple(found)

    def _candidates(self, pool: Pool) -> list[Candidate]:
        return [Candidate((*pool.id, device.name), device, part, pool)
                for part in pool.slices for device in part.spec.devices]  # fmt: skip

    # ------------------------------------------------------------------ choosing

    def _claim(self, index: int) -> bool:
        """Whether this claim and those after it can be satisfied."""
        if index >= len(self._claims):
            return True
        try:
            return self._request(index, 0)
        except _TooManyError:
            if index:  # another choice for an earlier claim may help
                return False
            raise

    def _request(self, claim: int, index: int) -> bool:
        """Whether this request, by its first possible alternative, and those after it can be satisfied."""
        requests = self._claims[claim].requests
        if index >= len(requests):
            return self._claim(claim + 1)
        asks = requests[index]
        if not asks or not asks[0].parent:
            return not asks or self._device(claim, index, asks[0], 0, 0)
        all_too_many = True
        for ask in asks:
            try:
                if self._device(claim, index, ask, 0, 0):
                    return True
                all_too_many = False
            except _TooManyError:
                continue
        if all_too_many:
            raise _TooManyError
        return False

    def _device(self, claim: int, request: int, ask: Ask, number: int, start: int) -> bool:
        """Whether the request's devices from `number` on can be chosen; `start`: the index of the next candidate."""
        self._step()
        if ask.all_devices is not None and not ask.all_devices:
            return False
        if number >= ask.count:
            return self._request(claim, request + 1)
        if len(self._claims[claim].chosen) + ask.count - number > RESULTS_LIMIT:
            raise _TooManyError
        if ask.all_devices is not None:
            return self._try(claim, request, ask, number, ask.all_devices[number], 0, must=True)
        if claim < self._limits.claims and self._beyond_limits(claim, request, ask, number, start):
            return False
        failed: set[object] = set()
        for following, one in enumerate(self._usable[start:], start + 1):
            used = claim in self._allocating.get(one.id, ()) if ask.admin else self._in_use(one.id)
            if used or not self._selectable(ask, one, claim) or not self._fits(ask, one):
                continue
            if failed and self._kind(claim, request, ask, one) in failed:
                continue
            if self._try(claim, request, ask, number, one, following):
                return True
            failed.add(self._kind(claim, request, ask, one))
        return False

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise OutOfWorkError

    def _kind(self, claim: int, request: int, ask: Ask, one: Candidate) -> object:
        """What is equal for interchangeable devices: if one fails at this place, the others fail, too.

        A later request whose selectors were not evaluated for the device was not reached with it.
        """
        if self._contents is None or ask.admin:
            return one.id
        later = tuple(self._asks.get((id(other), place[0], one.id))
                      for place, other in self._listed if place > (claim, request))  # fmt: skip
        consumed, sharing = self._usage.consumed(one.id), self._sharing.get(one.id)
        here = None if sharing is None else tuple(sorted(sharing.items()))
        return self._contents.of(one.pool.id, one.device), later, tuple(sorted(consumed.items())), here

    # more than five parameters: this runs for each choice of a device, up to `steps` times a pod; an object is slower
    def _try(
        self, claim: int, request: int, ask: Ask, number: int, one: Candidate, start: int, *, must: bool = False
    ) -> bool:
        """Choose a device and continue; undo the choice if that fails."""
        undo = self._choose(claim, ask, one, must=must)
        if undo is None:
            self._step()
            return False
        done = False
        try:
            done = self._device(claim, request, ask, number + 1, start)
        finally:
            if not done:
                self._undo(claim, ask, one, undo)
        return done

    def _in_use(self, id_: DeviceId) -> bool:
        return self._usage.is_exclusive(id_) or bool(self._allocating.get(id_))

    def _selectable(self, ask: Ask, one: Candidate, claim: int) -> bool:
        key = (id(ask), claim, one.id)
        found = self._asks.get(key)
        if found is None:
            driver, device, of_class, matches = one.id[0], one.device, ask.of_class, self._matching.matches
            found = (
                matches(device, driver, of_class.spec.selectors, f"class {of_class.metadata.name}", -1)
                and matches(device, driver, ask.exact.selectors, f"claim {CLAIM}", claim)
                and (not one.part.spec.per_device_node_selection or self._inventory.reached(
                    self._row, self._name, device.node_name, device.all_nodes, device.node_selector))
            )  # fmt: skip
            self._asks[key] = found
        return found

    def _fits(self, ask: Ask, one: Candidate) -> bool:
        if not one.device.capacity and ask.exact.capacity is None:
            return True
        try:
            return fits(ask.exact.capacity, one.device, self._usage.consumed(one.id), self._sharing.get(one.id, {}))
        except QuantityError:
            return False

    # ------------------------------------------------------------------ one choice

    def _choose(self, claim: int, ask: Ask, one: Candidate, *, must: bool) -> int | None:
        """Choose the device. Returns 1 if it consumes counters, else 0; None if it cannot be chosen."""
        shared = bool(one.device.allow_multiple_allocations)
        if not shared and ask.admin and claim in self._allocating.get(one.id, ()):
            return None
        if not ask.admin and self._in_use(one.id):
            return None
        consumed = consumption(ask.exact.capacity, one.device) if shared else {}
        counts = self._counts(claim, ask, one)
        if self._exceeds(counts):
            return None
        paid = shared and (self._usage.consumed(one.id) or one.id in self._sharing)  # by the first share of the device
        counted = bool(one.device.consumes_counters) and not paid
        if counted and not self._count(one):
            return None
        if _repelled(one.device, ask.exact) or not self._constrained(claim, ask, one, must=must):
            if counted:
                self._spend(one, -1)
            return None
        if must and not self._fits(ask, one):  # an earlier choice consumed some of its capacity
            for constraint in self._claims[claim].constraints:
                constraint.remove(ask.parent or ask.name, ask.full)
            if counted:
                self._spend(one, -1)
            return None
        self._take(claim, one, shared=shared, consumed=consumed)
        for index, amount in enumerate(counts):
            self._left_of[index] -= amount
        self._claims[claim].chosen.append(Chosen(ask, one, shared, consumed, counts))
        return int(counted)

    def _undo(self, claim: int, ask: Ask, one: Candidate, counted: int) -> None:
        chosen = self._claims[claim].chosen.pop()
        for index, amount in enumerate(chosen.counts):
            self._left_of[index] += amount
        if chosen.shared:
            self._shares[one.id] -= 1
            of_device = self._sharing[one.id]
            for name, quantity in chosen.consumed.items():
                of_device[name] -= billionths(quantity)
            if not self._shares[one.id]:
                del self._sharing[one.id], self._shares[one.id]
        else:
            self._allocating[one.id].discard(claim)
        for constraint in self._claims[claim].constraints:
            constraint.remove(ask.parent or ask.name, ask.full)
        if counted:
            self._spend(one, -1)

    def _take(self, claim: int, one: Candidate, *, shared: bool, consumed: Mapping[str, Quantity]) -> None:
        if not shared:
            self._allocating.setdefault(one.id, set()).add(claim)
            return
        of_device = self._sharing.setdefault(one.id, {})
        self._shares[one.id] = self._shares.get(one.id, 0) + 1
        for name, quantity in consumed.items():
            of_device[name] = of_device.get(name, 0) + billionths(quantity)

    def _constrained(self, claim: int, ask: Ask, one: Candidate, *, must: bool) -> bool:
        base, driver = ask.parent or ask.name, one.id[0]
        constraints = self._claims[claim].constraints
        for number, constraint in enumerate(constraints):
            if constraint.add(base, ask.full, one.device, driver):
                continue
            for counted in constraints[:number]:
                counted.remove(base, ask.full)
            if must:
                raise AllocationError(f"claim {CLAIM}, request {ask.name}: cannot add device {'/'.join(one.id)} "
                                      "because a claim constraint would not be satisfied", claim)  # fmt: skip
            return False
        return True

    # ------------------------------------------------------------------ limits of queues

    def _counts(self, claim: int, ask: Ask, one: Candidate) -> Sequence[int]:
        """What a choice counts with in each limit."""
        if claim >= self._limits.claims or ask.admin:
            return ()
        key = (id(ask), one.id)
        found = self._counted.get(key)
        if found is None:
            consumed = consumption(ask.exact.capacity, one.device) if one.device.allow_multiple_allocations else None
            found = self._counted[key] = [limit.resource.of_device(one.device, one.id[0], consumed)
                                          for limit in self._limits.listed]  # fmt: skip
        return found

    def _exceeds(self, counts: Sequence[int]) -> bool:
        """Whether this exceeds a limit. Nothing exceeds none, not even one that is already exceeded."""
        exceeded = {index for index, amount in enumerate(counts) if amount and amount > self._left_of[index]}
        self.exceeded |= exceeded
        return bool(exceeded)

    def _beyond_limits(self, claim: int, request: int, ask: Ask, number: int, start: int) -> bool:
        """Whether the least that a request, from its device `number` on, and those after it can get exceeds a limit.

        Only requests without alternatives whose selectors were evaluated for all free devices are included: the search
        reports the errors of the others.
        """
        most, asked = RESULTS_LIMIT - len(self._claims[claim].chosen), 0
        total = [0] * len(self._left_of)
        for place, one in self._listed:
            own = place == (claim, request)
            if place[0] >= self._limits.claims or place < (claim, request) or (own and one is not ask):
                continue
            if one.all_devices is not None or one.admin or (one.parent and not own):
                return False
            needed = one.count - (number if own else 0)
            asked += needed if place[0] == claim else 0
            least = self._least(place[0], one, needed, start if own else 0)
            if least is None or asked > most:  # the search reports too many devices
                return False
            total = [before + more for before, more in zip(total, least, strict=True)]
            if self._exceeds(total):
                return True
        return False

    def _least(self, claim: int, ask: Ask, needed: int, start: int) -> list[int] | None:
        """The least that a number of free devices count with in each limit; None if it is not known yet."""
        found = []
        for one in self._usable[start:]:
            if not self._in_use(one.id):
                selectable = self._asks.get((id(ask), claim, one.id))
                if selectable is None:
                    return None
                if selectable and self._fits(ask, one):
                    found.append(self._counts(claim, ask, one))
        columns = zip(*found, strict=True) if found else [()] * len(self._left_of)
        return [sum(sorted(column)[:needed]) for column in columns]

    # ------------------------------------------------------------------ shared counters

    def _count(self, one: Candidate) -> bool:
        """Consume the device's counters from its pool; False if too little is left."""
        available = self._available.get(one.pool.id)
        if available is None:
            available = self._available[one.pool.id] = self._left(one.pool)
        self._spend(one, 1)
        spent = self._spent[one.pool.id]
        short = any(amount > available.get(name, {}).get(key, amount) for (name, key), amount in spent.items()) or any(
            left < 0 for counters in available.values() for left in counters.values()
        )
        if short:
            self._spend(one, -1)
        return not short

    def _spend(self, one: Candidate, sign: int) -> None:
        spent = self._spent.setdefault(one.pool.id, {})
        for consumed in one.device.consumes_counters:
            for name, counter in consumed.counters.items():
                key = (consumed.counter_set, name)
                spent[key] = spent.get(key, 0) + sign * billionths(counter.value)

    def _left(self, pool: Pool) -> Counters:
        """The pool's counters without what allocated devices consume."""
        left = {name: dict(counters) for name, counters in (pool.counters or {}).items()}
        for part in (*pool.slices, *pool.elsewhere):
            for device in part.spec.devices:
                if device.consumes_counters and self._usage.is_allocated((*pool.id, device.name)):
                    for consumed in device.consumes_counters:
                        counters = left.get(consumed.counter_set, {})
                        for name, counter in consumed.counters.items():
                            if name in counters:
                                counters[name] -= billionths(counter.value)
        return left


def _repelled(device: Device, exact: ExactRequest) -> bool:
    """Whether the request does not tolerate one of the device's taints."""
    return any(
        taint.effect in _BLOCKING and not any(toleration.tolerates(taint) for toleration in exact.tolerations)
        for taint in device.taints
    )
