"""Allocations that were decided on and are not seen in the cluster yet: whose they are, so that no other claim gets
them.

Pods that share a claim share its allocation, which is free when the last of them lets go before it was written. What
was written counts until the cluster shows a claim that is as new, or is as new without the claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from session_scheduler.builtin.devices.usage import Usage
from session_scheduler.model.devices import Allocation, ResourceClaim


@dataclass(slots=True)
class Held:
    """One claim's allocation."""

    claim: ResourceClaim
    """As it was when this was decided, or as it was written."""
    allocation: Allocation
    pods: set[str] = field(default_factory=set)
    """Uids."""
    written: bool = False


class Holdings:
    """All of them, by the claim's uid, and what all claims use together."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.version = 0
        """Moves with every change of what is allocated."""
        self._held: dict[str, Held] = {}
        self._of_pod: dict[str, list[str]] = {}
        self._counted: dict[str, Allocation] = {}
        self._elsewhere: dict[str, Allocation] = {}
        """What claims were given by others while something else was decided for them here."""
        self._seen: dict[str, ResourceClaim] = {}
        self._seen_version = -1
        self._unseen: dict[str, ResourceClaim] = {}
        """What was written of claims that are not, or not any more, in the cluster as it is seen."""

    # ------------------------------------------------------------------ what is seen

    def see(self, claims: Mapping[str, ResourceClaim], version: int, newest: int = 0) -> None:
        """Update from the claims of the cluster, if they are not those that were seen last.

        `newest` is the highest resourceVersion that was seen: what is older and not there is gone.
        """
        for uid, written in list(self._unseen.items()):
            seen = claims.get(written.key)
            if seen is not None and seen.metadata.uid == uid:
                del self._unseen[uid]
            elif newest >= int(written.metadata.resource_version):
                self.forget(uid)
        if version == self._seen_version:
            return
        self._seen_version = version
        for key, claim in claims.items():
            if self._seen.get(key) is not claim:
                before = self._seen.get(key)
                self._seen[key] = claim
                if before is not None and before.metadata.uid != claim.metadata.uid:
                    self.forget(before.metadata.uid)
                self._reconcile(claim)
        if len(self._seen) != len(claims):
            for key in [key for key in self._seen if key not in claims]:
                self.forget(self._seen.pop(key).metadata.uid)

    def _reconcile(self, claim: ResourceClaim) -> None:
        uid = claim.metadata.uid
        held = self._held.get(uid)
        if held is not None and held.written and newer(claim, held.claim):
            self._forget(uid)
            held = None
        if held is None:
            self._count(uid, claim.status.allocation)
        elif not held.written:
            self._count_elsewhere(uid, claim.status.allocation)

    def _count(self, uid: str, allocation: Allocation | None) -> None:
        """What a claim has, as far as it is known; no other client has given it anything else."""
        self._count_in(self._elsewhere, uid, None)
        self._count_in(self._counted, uid, allocation)

    def _count_elsewhere(self, uid: str, allocation: Allocation | None) -> None:
        """What another client gave a claim: taken, too, until what was decided here is given up."""
        decided = self._counted.get(uid)
        same = allocation is None or (decided is not None and allocation.devices == decided.devices)
        self._count_in(self._elsewhere, uid, None if same else allocation)

    def _count_in(self, counted: dict[str, Allocation], uid: str, allocation: Allocation | None) -> None:
        before = counted.get(uid)
        if before == allocation:
            return
        if before is not None:
            self.usage.add(before, -1)
            del counted[uid]
        if allocation is not None:
            self.usage.add(allocation)
            counted[uid] = allocation
        self.version += 1

    # ------------------------------------------------------------------ what is decided

    def now(self, claim: ResourceClaim) -> ResourceClaim:
        """The claim as it is by now: what was written of it may not be seen yet."""
        held = self._held.get(claim.metadata.uid)
        return held.claim if held is not None and held.written and not newer(claim, held.claim) else claim

    def of(self, claim: ResourceClaim) -> Allocation | None:
        """What was decided for a claim."""
        held = self._held.get(claim.metadata.uid)
        return held.allocation if held is not None else None

    def of_pod(self, uid: str) -> list[Held]:
        """What was decided for a pod's claims."""
        return [self._held[claim] for claim in self._of_pod.get(uid, ()) if claim in self._held]

    def hold(self, pod: str, claim: ResourceClaim, allocation: Allocation) -> None:
        """Keep an allocation for a pod; the one that other pods hold already where they share the claim."""
        uid = claim.metadata.uid
        held = self._held.get(uid)
        if held is None:
            held = self._held[uid] = Held(claim, allocation)
            self._count(uid, allocation)
        held.pods.add(pod)
        self._of_pod.setdefault(pod, []).append(uid)

    def release(self, pod: str) -> None:
        """Let go of what was decided for a pod. What was written stays until something newer is seen."""
        for uid in self._of_pod.pop(pod, ()):
            held = self._held.get(uid)
            if held is None:
                continue
            held.pods.discard(pod)
            if not held.pods and not held.written:
                self._forget(uid)
                seen = self._seen.get(held.claim.key)
                same = seen is not None and seen.metadata.uid == uid
                self._count(uid, seen.status.allocation if seen is not None and same else None)

    def wrote(self, claim: ResourceClaim) -> None:
        """The claim was written, and is so."""
        held = self._held.get(claim.metadata.uid)
        allocation = claim.status.allocation
        seen = self._seen.get(claim.key)
        if seen is not None and seen.metadata.uid == claim.metadata.uid and newer(seen, claim):
            self._forget(claim.metadata.uid)
            self._count(claim.metadata.uid, seen.status.allocation)
        elif allocation is not None:
            pods = held.pods if held is not None else set()
            self._held[claim.metadata.uid] = Held(claim, allocation, pods, written=True)
            known = seen is not None and seen.metadata.uid == claim.metadata.uid
            if not known and claim.metadata.resource_version.isdecimal():
                self._unseen[claim.metadata.uid] = claim
            self._count(claim.metadata.uid, allocation)

    def forget(self, uid: str) -> None:
        """What was decided for a claim is another's now."""
        self._forget(uid)
        self._count(uid, None)

    def _forget(self, uid: str) -> None:
        self._held.pop(uid, None)
        self._unseen.pop(uid, None)


def newer(claim: ResourceClaim, than: ResourceClaim) -> bool:
    """Whether a claim is at least as new: its resourceVersions are numbers that grow (Kubernetes 1.35 and later)."""
    one, other = claim.metadata.resource_version, than.metadata.resource_version
    return int(one) >= int(other) if one.isdecimal() and other.isdecimal() else True
