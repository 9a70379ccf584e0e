"""Held allocations: allocations that the scheduler decided and that the watch does not show yet.

DynamicResources keeps them, so that it gives no device to two claims. Pods that share a claim share its allocation. An
unwritten allocation is free after the last pod's `release`. A written one counts until the watch shows the claim at
least as new, or shows that it was deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from session_scheduler.builtin.devices.usage import Usage
from session_scheduler.model.devices import Allocation, ResourceClaim


class Held(msgspec.Struct):
    """One claim's allocation."""

    claim: ResourceClaim
    """The claim at the time of the decision, or as written."""
    allocation: Allocation
    pods: set[str] = msgspec.field(default_factory=set)
    """Uids."""
    written: bool = False


class Holdings:
    """The held allocations by the claim's uid, and the usage of all claims together."""

    def __init__(self, decided: Callable[[str, Allocation | None], None] = lambda *_: None) -> None:
        """`decided` is called with each claim (its key) whose allocation is held from now on; with None: no longer."""
        self._decided = decided
        self.usage = Usage()
        self.version = 0
        """Increases with every change of an allocation."""
        self._held: dict[str, Held] = {}
        self._of_pod: dict[str, list[str]] = {}
        self._joined: dict[str, set[str]] = {}
        """By claim: the pods (uids) that use its written allocation, but for which it is not reserved yet."""
        self._counted: dict[str, Allocation] = {}
        self._elsewhere: dict[str, Allocation] = {}
        """Allocations that another client wrote for claims with a different decision here."""
        self._seen: dict[str, ResourceClaim] = {}
        self._seen_version = -1
        self._unseen: dict[str, ResourceClaim] = {}
        """Written claims that the watch does not show yet, or no longer shows."""
        self._gone: set[str] = set()
        """The pods (uids) whose removal is simulated."""
        self._freed: dict[str, tuple[Allocation, Held | None]] = {}
        """By claim: the allocations that this frees, and how they were held."""

    # ------------------------------------------------------------------ watched claims

    def see(self, claims: Mapping[str, ResourceClaim], version: int, newest: int = 0) -> None:
        """Update from the watched claims if `version` changed.

        `newest` is the highest resourceVersion watched: an older written claim that is absent was deleted.
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
        self._joined.get(uid, set()).difference_update(one.uid for one in claim.status.reserved_for)
        held = self._held.get(uid)
        if held is not None and held.written and newer(claim, held.claim):
            self._forget(uid)
            held = None
        if held is None:
            self._count(uid, claim.status.allocation)
        elif not held.written:
            self._count_elsewhere(uid, claim.status.allocation)

    def _count(self, uid: str, allocation: Allocation | None) -> None:
        """Set a claim's allocation, without a different one by another client."""
        self._count_in(self._elsewhere, uid, None)
        self._count_in(self._counted, uid, allocation)

    def _count_elsewhere(self, uid: str, allocation: Allocation | None) -> None:
        """Set the allocation that another client wrote. It counts in addition until the decision here is released."""
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

    # ------------------------------------------------------------------ decisions

    @property
    def any(self) -> bool:
        """Whether any allocation is held."""
        return bool(self._held)

    def now(self, claim: ResourceClaim) -> ResourceClaim:
        """The newest version of the claim: as written, if the watch does not show that yet."""
        held = self._held.get(claim.metadata.uid)
        return held.claim if held is not None and held.written and not newer(claim, held.claim) else claim

    def of(self, claim: ResourceClaim) -> Allocation | None:
        """The allocation decided for a claim."""
        held = self._held.get(claim.metadata.uid)
        return held.allocation if held is not None else None

    def of_pod(self, uid: str) -> list[Held]:
        """The allocations decided for a pod's claims."""
        return [self._held[claim] for claim in self._of_pod.get(uid, ()) if claim in self._held]

    def of_key(self, key: str) -> Allocation | None:
        """The allocation decided for the claim with this key, else the watched one."""
        claim = self._seen.get(key)
        return (self.of(claim) or claim.status.allocation) if claim is not None else None

    def hold(self, pod: str, claim: ResourceClaim, allocation: Allocation) -> None:
        """Hold an allocation for a pod. A pod that shares the claim joins the allocation held for the others."""
        uid = claim.metadata.uid
        held = self._held.get(uid)
        if held is None:
            held = self._held[uid] = Held(claim, allocation)
            self._count(uid, allocation)
            self._decided(claim.key, allocation)
        held.pods.add(pod)
        self._of_pod.setdefault(pod, []).append(uid)

    def join(self, pod: str, claim: ResourceClaim) -> None:
        """Note that a pod uses a claim's written allocation. The claim is reserved for the pod only later."""
        self._joined.setdefault(claim.metadata.uid, set()).add(pod)
        self._of_pod.setdefault(pod, []).append(claim.metadata.uid)

    def release(self, pod: str) -> None:
        """Release the decisions for a pod. Written allocations stay until the watch shows a newer claim."""
        for uid in self._of_pod.pop(pod, ()):
            joined = self._joined.get(uid, set())
            joined.discard(pod)
            if not joined:
                self._joined.pop(uid, None)
            held = self._held.get(uid)
            if held is None:
                continue
            held.pods.discard(pod)
            if not held.pods and not held.written:
                self._forget(uid)
                seen = self._seen.get(held.claim.key)
                same = seen is not None and seen.metadata.uid == uid
                known = seen.status.allocation if seen is not None and same else None
                self._count(uid, None if uid in self._freed else known)

    def wrote(self, claim: ResourceClaim) -> None:
        """Note that the claim was written."""
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
            self._decided(claim.key, allocation)

    # ------------------------------------------------------------------ simulated removal

    def remove(self, pod: str, claims: Iterable[ResourceClaim]) -> None:
        """Simulate the end of a pod (uid): its claims that no other pod uses or will use become free."""
        self._gone.add(pod)
        for claim in claims:
            uid, users = claim.metadata.uid, {one.uid for one in claim.status.reserved_for}
            allocation, held = self._counted.get(uid), self._held.get(uid)
            if users:
                users |= self._joined.get(uid, set()) | (held.pods if held is not None else set())
            if users and users <= self._gone and allocation is not None:
                self._freed[uid] = allocation, self._held.pop(uid, None)
                self._count_in(self._counted, uid, None)

    def is_freed(self, claim: ResourceClaim) -> bool:
        """Whether this frees the claim: its controller deallocates it once its last user is gone."""
        return claim.metadata.uid in self._freed

    def put_back(self, pod: str, claims: Iterable[ResourceClaim]) -> None:
        """Undo `remove`."""
        self._gone.discard(pod)
        for claim in claims:
            uid = claim.metadata.uid
            allocation, held = self._freed.pop(uid, (None, None))
            if allocation is not None:
                self._count_in(self._counted, uid, allocation)
            if held is not None:
                self._held[uid] = held
                self._decided(held.claim.key, held.allocation)

    # ------------------------------------------------------------------ the end of claims

    def forget(self, uid: str) -> None:
        """Drop everything that is known about a claim: its written form replaces it, or it was deleted."""
        self._forget(uid)
        self._count(uid, None)

    def _forget(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        self._unseen.pop(uid, None)
        if held is not None:
            self._decided(held.claim.key, None)


def newer(claim: ResourceClaim, than: ResourceClaim) -> bool:
    """Whether a claim is at least as new: resourceVersions are increasing numbers (Kubernetes 1.35 and later)."""
    one, other = claim.metadata.resource_version, than.metadata.resource_version
    return int(one) >= int(other) if one.isdecimal() and other.isdecimal() else True
