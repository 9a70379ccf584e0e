"""The `prebind` of DynamicResources: writes allocations and reservations of a pod's claims, and waits for the devices.

It raises ClaimError if a claim differs from the decision, or its devices are not usable in time. Source:
kube-scheduler's plugin DynamicResources (PreBind).
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from session_scheduler.base.clock import utc_now
from session_scheduler.builtin.devices.claims import (
    claim_names,
    consumer_of,
    made_by_owner,
    ready,
    waits_for_conditions,
)
from session_scheduler.builtin.devices.holdings import Holdings
from session_scheduler.builtin.waiting import wait_for_all
from session_scheduler.errors import AttemptError, ChangedMeanwhileError, FluenceError
from session_scheduler.framework.bindings import Binding
from session_scheduler.hookspecs import Refusal
from session_scheduler.model.devices import Allocation, Consumer, ResourceClaim, ResourceClaimStatus
from session_scheduler.model.objects import Pod, RequestMapping
from session_scheduler.model.times import time_text

_TRIES: Final = 5
"""How many times a write of a claim is retried after conflicts with other clients."""
_SEEN_SECONDS: Final = 5.0
"""How long to wait until the watch shows the change that a write conflicted with."""


class ClaimError(AttemptError):
    """A claim differs from the decision, or its devices did not become usable in time."""


class Special(msgspec.Struct):
    """The claim for a pod's extended resources, before it is created."""

    claim: ResourceClaim
    mappings: tuple[RequestMapping, ...]
    allocation: Allocation | None = None


class Writer:
    """Writes the allocations of pods' claims."""

    def __init__(self, holdings: Holdings, timeout: float) -> None:
        self._holdings = holdings
        self._timeout = timeout

    def is_late(self, allocation: Allocation) -> bool:
        """Whether the timeout for the devices' binding conditions has expired."""
        since = allocation.allocation_timestamp
        if since is None or not waits_for_conditions(allocation):
            return False
        try:
            began = datetime.fromisoformat(since)
            return (datetime.now(UTC) - began).total_seconds() > self._timeout
        except (ValueError, TypeError):  # not a time, or a time without a zone
            return False

    async def write(self, binding: Binding, special: Special | None) -> None:
        """Write all claims of a pod, one after the other. Raises ClaimError or ClusterError."""
        held = {one.claim.metadata.uid: one.allocation for one in self._holdings.of_pod(binding.task.uid)}
        names = claim_names(binding.pod)
        if isinstance(names, Refusal):
            raise ClaimError(names.reason)
        written = []
        for named in names:
            claim = self._known(binding, named.name)
            decided = held.get(claim.metadata.uid)
            if decided is None and claim.status.allocation is None:
                raise ClaimError(f"claim {claim.key}: claim allocation not found for node {binding.node}")
            consumer = consumer_of(named, binding.pod, binding.task.group.pod_group)
            written.append(await self._reserve(binding, claim, decided, consumer))
        if special is not None and special.allocation is not None:
            written.append(await self._create(binding, special, special.allocation))
        await self._wait_until_usable(binding, written)

    def _known(self, binding: Binding, name: str) -> ResourceClaim:
        """A claim as it was last watched or written."""
        key = f"{binding.pod.metadata.namespace}/{name}"
        claim = binding.objects(ResourceClaim).get(key)
        if claim is None:
            raise ClaimError(f"claim {key} was deleted")
        return self._holdings.now(claim)

    async def _reserve(
        self, binding: Binding, claim: ResourceClaim, decided: Allocation | None, consumer: Consumer
    ) -> ResourceClaim:
        """Write the claim's allocation, unless it is written, and reserve the claim for its consumer."""
        for attempt in range(_TRIES):
            if attempt:
                claim = await self._wait_for_change(binding, claim)
            status = self._status(binding.pod, claim, decided, consumer)
            if status is None:
                return claim
            try:
                claim = await binding.cluster.allocate_claim(claim, status)
            except ChangedMeanwhileError:
                continue
            self._holdings.wrote(claim)
            return claim
        raise ClaimError(f"claim {claim.key}: too many conflicts with other writers")

    async def _wait_for_change(self, binding: Binding, was: ResourceClaim) -> ResourceClaim:
        """Wait until the watch shows the claim as another client wrote it."""
        name = was.metadata.name
        if await wait_for_all(
            {name: was}, lambda _: self._known(binding, name).metadata != was.metadata, _SEEN_SECONDS
        ):
            raise ClaimError(f"claim {was.key}: conflict with another writer")
        claim = self._known(binding, name)
        if claim.metadata.uid != was.metadata.uid:
            raise ClaimError(f"claim {was.key} was recreated in the meantime")
        return claim

    def _status(
        self, pod: Pod, claim: ResourceClaim, decided: Allocation | None, consumer: Consumer
    ) -> ResourceClaimStatus | None:
        """The status to write; None if the claim already has it."""
        if claim.metadata.deletion_timestamp is not None:
            raise ClaimError(f"claim {claim.key} was deleted in the meantime")
        allocation = claim.status.allocation
        if allocation is None and decided is None:
            raise ClaimError(f"claim {claim.key} was deallocated elsewhere in the meantime")
        if allocation is not None and decided is not None and not _same(allocation, decided):
            raise ClaimError(f"claim {claim.key} was allocated elsewhere in the meantime")
        uids = (pod.metadata.uid, consumer.uid)  # a deleted PodGroup of the same name does not count
        if allocation is not None and any(one.uid in uids for one in claim.status.reserved_for):
            return None
        if allocation is None and decided is not None:
            allocation = replace(decided, allocation_timestamp=time_text(utc_now()))
        others = tuple(one for one in claim.status.reserved_for if one.uid != consumer.uid)
        return replace(claim.status, allocation=allocation, reserved_for=(*others, consumer))

    async def _create(self, binding: Binding, special: Special, allocation: Allocation) -> ResourceClaim:
        """Create the claim for extended resources, and set it in the pod's status.

        It deallocates a claim of an earlier attempt, which is deleted with its pod.
        """
        synthetic = special.claim
        for claim in made_by_owner(binding.objects(ResourceClaim).values()).get(binding.task.uid, ()):
            self._holdings.wrote(await binding.cluster.allocate_claim(claim, ResourceClaimStatus()))
        claim = await binding.cluster.create(replace(synthetic, metadata=replace(synthetic.metadata, uid="")))
        try:
            consumer = Consumer(resource="pods", name=binding.pod.metadata.name, uid=binding.pod.metadata.uid)
            claim = await self._reserve(binding, claim, allocation, consumer)
            self._holdings.forget(synthetic.metadata.uid)
            await binding.cluster.name_extended_claim(binding.pod, claim.metadata.name, special.mappings)
        except FluenceError:
            if claim.status.allocation is not None:
                await binding.cluster.allocate_claim(claim, ResourceClaimStatus())
            raise
        return claim

    async def _wait_until_usable(self, binding: Binding, claims: list[ResourceClaim]) -> None:
        """Wait for the binding conditions of the claims' devices."""
        allocated = ((claim, claim.status.allocation) for claim in claims)
        waiting = {claim.key: claim for claim, found in allocated if found is not None and waits_for_conditions(found)}
        if waiting:
            note = f"waiting for binding conditions for device on node {binding.node}"
            binding.tell("BindingConditionsPending", note)  # codespell:ignore tell
        late = await wait_for_all(waiting, partial(self._is_usable, binding), self._timeout)
        if late:
            raise ClaimError(f"device binding timeout: claim={', '.join(claim.metadata.name for claim in late)}")

    def _is_usable(self, binding: Binding, was: ResourceClaim) -> bool:
        claim = binding.objects(ResourceClaim).get(was.key, was)
        if claim.metadata.uid != was.metadata.uid:
            raise ClaimError(f"claim {was.key} was deleted")
        claim = self._holdings.now(claim)
        allocation = claim.status.allocation
        state = ready(claim, allocation) if allocation is not None else False
        if isinstance(state, str):
            raise ClaimError(state)
        return state


def _same(one: Allocation, other: Allocation) -> bool:
    """Whether both allocations have the same devices."""
    return [(r.request, r.driver, r.pool, r.device) for r in one.devices.results] == [
        (r.request, r.driver, r.pool, r.device) for r in other.devices.results
    ]
