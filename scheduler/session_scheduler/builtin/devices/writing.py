"""Before a pod is bound: its claims are given their devices and that the pod uses them, and devices become usable.

Source: kube-scheduler's plugin DynamicResources (PreBind). Raises ClaimError where a claim is not any more what was
decided, or its devices do not become usable in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from msgspec.structs import replace

from session_scheduler.base.clock import utc_now
from session_scheduler.builtin.devices.claims import claim_names, made_by_owner, ready, waits_for_conditions
from session_scheduler.builtin.devices.holdings import Holdings
from session_scheduler.builtin.waiting import wait_for_all
from session_scheduler.errors import AttemptError, ChangedMeanwhileError, FluenceError
from session_scheduler.framework.bindings import Binding
from session_scheduler.hookspecs import Refusal
from session_scheduler.model.devices import Allocation, Consumer, ResourceClaim, ResourceClaimStatus
from session_scheduler.model.objects import Pod, RequestMapping
from session_scheduler.model.times import time_text

_TRIES: Final = 5
"""How often a claim is written that another client writes at the same time."""
_SEEN_SECONDS: Final = 5.0
"""How long it may take until a change is seen that a write has run into."""


class ClaimError(AttemptError):
    """A claim is not what was decided, or its devices were not usable in time."""


@dataclass(slots=True)
class Special:
    """The claim that a pod gets for its extended resources, before it exists."""

    claim: ResourceClaim
    mappings: tuple[RequestMapping, ...]
    allocation: Allocation | None = None


class Writer:
    """Writes what was decided for pods."""

    def __init__(self, holdings: Holdings, timeout: float) -> None:
        self._holdings = holdings
        self._timeout = timeout

    def is_late(self, allocation: Allocation) -> bool:
        """Whether devices that become usable only after conditions had long enough."""
        since = allocation.allocation_timestamp
        if since is None or not waits_for_conditions(allocation):
            return False
        try:
            began = datetime.fromisoformat(since)
            return (datetime.now(UTC) - began).total_seconds() > self._timeout
        except (ValueError, TypeError):  # a time that is none, or is one of no zone: then it says nothing
            return False

    async def write(self, binding: Binding, special: Special | None) -> None:
        """All claims of a pod, one after the other. Raises ClaimError, ClusterError."""
        held = {one.claim.metadata.uid: one.allocation for one in self._holdings.of_pod(binding.task.uid)}
        names = claim_names(binding.pod)
        if isinstance(names, Refusal):
            raise ClaimError(names.reason)
        written = []
        for name, _ in names:
            claim = self._known(binding, name)
            decided = held.get(claim.metadata.uid)
            if decided is None and claim.status.allocation is None:
                raise ClaimError(f"claim {claim.key}: claim allocation not found for node {binding.node}")
            written.append(await self._reserve(binding, claim, decided))
        if special is not None and special.allocation is not None:
            written.append(await self._make(binding, special, special.allocation))
        await self._usable(binding, written)

    def _known(self, binding: Binding, name: str) -> ResourceClaim:
        """A claim as it was seen or written last."""
        key = f"{binding.pod.metadata.namespace}/{name}"
        claim = binding.objects(ResourceClaim).get(key)
        if claim is None:
            raise ClaimError(f"claim {key} is gone")
        return self._holdings.now(claim)

    async def _reserve(self, binding: Binding, claim: ResourceClaim, decided: Allocation | None) -> ResourceClaim:
        """Write the allocation, unless it is there, and that the pod uses it."""
        for tried in range(_TRIES):
            if tried:
                claim = await self._changed(binding, claim)
            status = self._status(binding.pod, claim, decided)
            if status is None:
                return claim
            try:
                claim = await binding.cluster.allocate_claim(claim, status)
            except ChangedMeanwhileError:
                continue
            self._holdings.wrote(claim)
            return claim
        raise ClaimError(f"claim {claim.key} is written by others all the time")

    async def _changed(self, binding: Binding, was: ResourceClaim) -> ResourceClaim:
        """The claim once it is seen as another client wrote it."""
        name = was.metadata.name
        if await wait_for_all(
            {name: was}, lambda _: self._known(binding, name).metadata != was.metadata, _SEEN_SECONDS
        ):
            raise ClaimError(f"claim {was.key} was changed by another writer")
        claim = self._known(binding, name)
        if claim.metadata.uid != was.metadata.uid:
            raise ClaimError(f"claim {was.key} was made anew in the meantime")
        return claim

    def _status(self, pod: Pod, claim: ResourceClaim, decided: Allocation | None) -> ResourceClaimStatus | None:
        """What the status is to be; None where it is so."""
        if claim.metadata.deletion_timestamp is not None:
            raise ClaimError(f"claim {claim.key} got deleted in the meantime")
        allocation = claim.status.allocation
        if allocation is None and decided is None:
            raise ClaimError(f"claim {claim.key} got deallocated elsewhere in the meantime")
        if allocation is not None and decided is not None and not _same(allocation, decided):
            raise ClaimError(f"claim {claim.key} got allocated elsewhere in the meantime")
        if allocation is not None and claim.reserved_by(pod.metadata.uid):
            return None
        if allocation is None and decided is not None:
            allocation = replace(decided, allocation_timestamp=time_text(utc_now()))
        consumer = Consumer(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
        others = tuple(one for one in claim.status.reserved_for if one.uid != consumer.uid)
        return replace(claim.status, allocation=allocation, reserved_for=(*others, consumer))

    async def _make(self, binding: Binding, special: Special, allocation: Allocation) -> ResourceClaim:
        """Create the claim for extended resources, and let the pod name it.

        One that was made for an earlier attempt loses its devices; it ends with its pod.
        """
        synthetic = special.claim
        for claim in made_by_owner(binding.objects(ResourceClaim).values()).get(binding.task.uid, ()):
            self._holdings.wrote(await binding.cluster.allocate_claim(claim, ResourceClaimStatus()))
        claim = await binding.cluster.create(replace(synthetic, metadata=replace(synthetic.metadata, uid="")))
        try:
            claim = await self._reserve(binding, claim, allocation)
            self._holdings.forget(synthetic.metadata.uid)
            await binding.cluster.name_extended_claim(binding.pod, claim.metadata.name, special.mappings)
        except FluenceError:
            if claim.status.allocation is not None:
                await binding.cluster.allocate_claim(claim, ResourceClaimStatus())
            raise
        return claim

    async def _usable(self, binding: Binding, claims: list[ResourceClaim]) -> None:
        """Wait for the conditions of the claims' devices."""
        allocated = ((claim, claim.status.allocation) for claim in claims)
        waiting = {claim.key: claim for claim, found in allocated if found is not None and waits_for_conditions(found)}
        if waiting:
            note = f"waiting for binding conditions for device on node {binding.node}"
            binding.tell("BindingConditionsPending", note)
        late = await wait_for_all(waiting, partial(self._is_usable, binding), self._timeout)
        if late:
            raise ClaimError(f"device binding timeout: claim={', '.join(claim.metadata.name for claim in late)}")

    def _is_usable(self, binding: Binding, was: ResourceClaim) -> bool:
        claim = binding.objects(ResourceClaim).get(was.key, was)
        if claim.metadata.uid != was.metadata.uid:
            raise ClaimError(f"claim {was.key} is gone")
        claim = self._holdings.now(claim)
        allocation = claim.status.allocation
        state = ready(claim, allocation) if allocation is not None else False
        if isinstance(state, str):
            raise ClaimError(state)
        return state


def _same(one: Allocation, other: Allocation) -> bool:
    """Whether both are of the same devices."""
    return [(r.request, r.driver, r.pool, r.device) for r in one.devices.results] == [
        (r.request, r.driver, r.pool, r.device) for r in other.devices.results
    ]
