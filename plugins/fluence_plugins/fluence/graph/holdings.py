"""Who holds what of the graph, by pod: names (paths, indices, units) that outlive ranks and ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import add, sub

from fluence_plugins.fluence.graph.accounting import Accounting, Amounts
from fluence_plugins.fluence.graph.placement import Placement, overlap, with_above

Share = Mapping[int, Placement]
"""What one pod holds, by jobid."""


class Holdings:
    """What each of our pods holds, and the sums over hosts and devices; the matcher is not asked."""

    def __init__(self, accounting: Accounting) -> None:
        self._accounting = accounting
        self.shares: dict[str, Share] = {}
        """What each of our pods holds, by pod uid."""
        self.missing: dict[str, list[tuple[int, Placement]]] = {}
        """What pods got and the graph does not have now, with the jobid that it had, by pod uid."""
        self.moved: set[str] = set()
        """Pods (uids) that began or ceased to hold something since this was last emptied."""
        self.pods_of: dict[int, dict[str, None]] = {}
        """By jobid: the pods (uids) that hold of it."""
        self.whole_hosts = 0
        """How often a pod holds a host as a whole."""
        self._used: dict[str, Amounts] = {}
        """What our pods hold of each host."""
        self._taken: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        """Paths of the devices that pods hold, and the same with all that they lie in."""

    def enter(self, uid: str, share: Share) -> None:
        """Note what a pod holds, beside what it held before."""
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
        """Note that a pod holds nothing; returns what it held."""
        share = self.shares.pop(uid, {})
        for jobid in share:
            pods = self.pods_of[jobid]
            del pods[uid]
            if not pods:
                del self.pods_of[jobid]
        self.count(share.values(), -1)
        return share

    def miss(self, uid: str, parts: Iterable[tuple[int, Placement]]) -> None:
        """Note that the graph does not have parts (jobid, placement) that a pod got."""
        self.missing.setdefault(uid, []).extend(parts)

    def miss_all(self) -> None:
        """Note that the graph is a new one: all that pods hold is missing."""
        for uid, share in self.shares.items():
            self.miss(uid, share.items())
        for account in (self.shares, self.pods_of, self._used, self._held, self._taken):
            account.clear()
        self.whole_hosts = 0

    def count(self, parts: Iterable[Placement], sign: int) -> None:
        """Add parts to the sums (1), or take them off (-1)."""
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
        """What a pod holds of a host; None where it holds nothing of it."""
        share = self.shares.get(uid)
        if not share:
            return None
        found = [self._accounting.held(on) for part in share.values() for on in part.hosts if on.name == host]
        if not found:
            return None
        return found[0] if len(found) == 1 else tuple(map(sum, zip(*found, strict=True)))

    def used_on(self, host: str) -> Amounts:
        """What our pods hold of a host."""
        return self._used.get(host, self._accounting.nothing)

    def hosts_of(self, uid: str) -> set[str]:
        """The hosts of which a pod holds, or misses, something."""
        parts = [*self.shares.get(uid, {}).values(), *(part for _, part in self.missing.get(uid, ()))]
        return {host.name for part in parts for host in part.hosts}

    def with_devices(self) -> frozenset[str]:
        """The pods (uids) that hold devices."""
        return frozenset(uid for uid, share in self.shares.items() if any(part.devices for part in share.values()))

    def touches(self, uid: str, path: str) -> bool:
        """Whether a pod holds the device at this path, one in it, or one that it is in."""
        devices = (device for part in self.shares.get(uid, {}).values() for device in part.devices)
        return any(overlap(path, device.path) for device in devices)

    def is_unheld(self, path: str, above: Iterable[str]) -> bool:
        """Whether nothing holds the device at this path, anything in it, or anything that it is in."""
        return not self._held[path] and not any(self._taken[one] for one in above)
