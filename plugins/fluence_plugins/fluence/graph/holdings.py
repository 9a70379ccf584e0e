"""The holdings of our pods, by names (paths, indices, units), which outlive ranks and ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import add, sub

from fluence_plugins.fluence.graph.accounting import Accounting, Amounts, PodShape
from fluence_plugins.fluence.graph.placement import Placement, overlap, with_above

Share = Mapping[int, Placement]
"""What one pod holds, by jobid."""


def within(share: Share, shape: PodShape, accounting: Accounting) -> Share:
    """What a pod of this shape keeps of its holdings after an in-place resize."""
    return {
        jobid: Placement(tuple(accounting.within(host, shape) for host in part.hosts), part.devices)
        for jobid, part in share.items()
    }


class Holdings:
    """The holdings of each of our pods, and their sums over hosts and devices, independent of the matcher."""

    def __init__(self, accounting: Accounting) -> None:
        self._accounting = accounting
        self.shares: dict[str, Share] = {}
        """What each of our pods holds, by pod uid."""
        self.missing: dict[str, list[tuple[int, Placement]]] = {}
        """Parts that the graph does not have now, with their jobids, by pod uid."""
        self.moved: set[str] = set()
        """Pods (uids) whose holdings changed since this was last emptied."""
        self.pods_of: dict[int, dict[str, None]] = {}
        """By jobid: the pods (uids) that hold a part of it."""
        self.whole_hosts = 0
        """The number of holdings of whole hosts."""
        self._used: dict[str, Amounts] = {}
        """The amounts of each host that our pods hold."""
        self._taken: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        """The paths of the devices that pods hold, and these with the paths of all that contain them."""

    def enter(self, uid: str, share: Share) -> None:
        """Add to a pod's holdings."""
        before = self.shares.get(uid)
        if before:
            more = {jobid: before[jobid].merged(part) if jobid in before else part for jobid, part in share.items()}
            self.shares[uid] = {**before, **more}
        else:
            self.shares[uid] = share
        for jobid in share:
            self.pods_of.setdefault(jobid, {})[uid] = None
        self.count(share.values(), 1)

    def leave(self, uid: str) -> Share:
        """Remove a pod's holdings, and return them."""
        share = self.shares.pop(uid, {})
        for jobid in share:
            pods = self.pods_of[jobid]
            del pods[uid]
            if not pods:
                del self.pods_of[jobid]
        self.count(share.values(), -1)
        return share

    def add_missing(self, uid: str, parts: Iterable[tuple[int, Placement]]) -> None:
        """Record parts (jobid, placement) of a pod that the graph does not have."""
        self.missing.setdefault(uid, []).extend(parts)

    def lose_all(self) -> None:
        """Record that the graph is a new one: all holdings are missing."""
        for uid, share in self.shares.items():
            self.add_missing(uid, share.items())
        for account in (self.shares, self.pods_of, self._used, self._held, self._taken):
            account.clear()
        self.whole_hosts = 0

    def count(self, parts: Iterable[Placement], sign: int) -> None:
        """Add parts to the sums (1), or subtract them (-1)."""
        for part in parts:
            for host in part.hosts:
                self.whole_hosts += sign * host.exclusive
                change = add if sign > 0 else sub
                self._used[host.name] = tuple(map(change, self.used_on(host.name), self._accounting.held(host)))
            for device in part.devices:
                for path in with_above(device.path):
                    self._held[path] += sign
                self._taken[device.path] += sign

    # ------------------------------------------------------------------ questions

    def of_job(self, jobid: int) -> dict[str, Placement]:
        """What each pod (uid) holds of an allocation."""
        return {uid: self.shares[uid][jobid] for uid in self.pods_of.get(jobid, ())}

    def of_pod(self, uid: str, host: str) -> Amounts | None:
        """The amounts of a host that a pod holds; None if it holds nothing of it."""
        share = self.shares.get(uid)
        if not share:
            return None
        found = [self._accounting.held(on) for part in share.values() for on in part.hosts if on.name == host]
        if not found:
            return None
        return found[0] if len(found) == 1 else tuple(map(sum, zip(*found, strict=True)))

    def used_on(self, host: str) -> Amounts:
        """The amounts of a host that our pods hold."""
        return self._used.get(host, self._accounting.nothing)

    def hosts_of(self, uid: str) -> set[str]:
        """The hosts with holdings, or missing parts, of a pod."""
        parts = [*self.shares.get(uid, {}).values(), *(part for _, part in self.missing.get(uid, ()))]
        return {host.name for part in parts for host in part.hosts}

    def with_devices(self) -> frozenset[str]:
        """The pods (uids) that hold devices."""
        return frozenset(uid for uid, share in self.shares.items() if any(part.devices for part in share.values()))

    def touches(self, uid: str, path: str) -> bool:
        """Whether a pod holds the device at this path, one in it, or one that contains it."""
        devices = (device for part in self.shares.get(uid, {}).values() for device in part.devices)
        return any(overlap(path, device.path) for device in devices)

    def is_unheld(self, path: str, above: Iterable[str]) -> bool:
        """Whether no pod holds the device at this path, one in it, or one that contains it."""
        return not self._held[path] and not any(self._taken[one] for one in above)
