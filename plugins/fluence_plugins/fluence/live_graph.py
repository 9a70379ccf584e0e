"""The resource graph of the live cluster: matcher, names and who holds what, kept in step with each other.

Hosts come and go by name; pods that are not ours are held as *foreign load*, one allocation a host. What our pods hold
is kept by pod uid as names (paths, indices, units), so that it can be given back pod by pod, written down, and taken
again after a restart, when ranks and ids are others.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fluence_plugins.fluence import names
from fluence_plugins.fluence.cluster_graph import (
    CORE,
    GPU,
    MEMORY,
    ClusterGraph,
    HostResources,
    VirtualNode,
    build_graph,
)
from fluence_plugins.fluence.errors import AllocationError
from fluence_plugins.fluence.jobspec import Jobspec, Resource, slot
from fluence_plugins.fluence.needs import ForeignLoad
from fluence_plugins.fluence.placement import Placement, placement_from_allocation
from fluence_plugins.fluence.replay import allocation_from_placement
from fluence_plugins.fluence.resources import ResourcesConfig
from fluxion_cy import Busy, FluxionError, InvalidJobspec, Matcher, Unsatisfiable
from session_scheduler.model.columns import IntColumn

log = logging.getLogger("fluence")

_FOREIGN_JOBS = 1 << 62
"""Where the jobids of foreign load start: far from those of pods, which count from 1."""

_NOTHING = (0, 0, 0)

Share = Mapping[int, Placement]
"""What one pod holds, by jobid."""


@dataclass(frozen=True, slots=True)
class Job:
    """An allocation as the matcher made it."""

    jobid: int
    placement: Placement


class LiveGraph:
    """Built on the first hosts, then grown and shrunk. All changes of the matcher go through here."""

    def __init__(self, config: ResourcesConfig, policy: str) -> None:
        self._config = config
        self._policy = policy
        self._whole_nodes = policy.endswith("nodex") or "node_exclusive=true" in policy
        self.graph: ClusterGraph = build_graph((), config, wait_for_parents=True)
        self.matcher = self._new_matcher()
        self.next_jobid = 1
        """Counts pods' allocations, above the highest one replayed; what is undone gives its number back."""
        self.version = 0
        """Moves whenever ranks do."""
        self.shares: dict[str, Share] = {}
        """What each of our pods holds, by pod uid."""
        self._hosts: dict[str, HostResources] = {}
        self._used: dict[str, tuple[int, int, int]] = {}
        """Cores, MiB and gpus that our pods hold of each host."""
        self._taken: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        """Paths of the devices that pods hold, and the same with all that they lie in."""
        self._foreign: dict[str, tuple[int, ForeignLoad, bool]] = {}
        """Of each host with foreign load: the jobid that holds it, the load, and whether all of it is held."""
        self._next_foreign = _FOREIGN_JOBS

    def _new_matcher(self) -> Matcher:
        return Matcher(self.graph.jgf(), policy=self._policy)

    # ------------------------------------------------------------------ hosts

    def set_hosts(self, hosts: Mapping[str, HostResources | None]) -> list[str]:
        """Make these hosts what is given (None: gone). Returns the uids of pods whose share no longer fits anywhere."""
        changed = {name: host for name, host in hosts.items() if self._hosts.get(name) != host}
        if not changed:
            return []
        self.version += 1
        if not self._hosts:
            return self._build(changed)
        lost: list[str] = []
        for name, host in changed.items():
            lost += self._change_host(name, host)
        return lost

    def _build(self, hosts: Mapping[str, HostResources | None]) -> list[str]:
        found = {name: host for name, host in hosts.items() if host is not None}
        self.graph = build_graph(found.values(), self._config, wait_for_parents=True)
        self._hosts = found
        held, self.shares = self.shares, {}
        self._foreign.clear()
        self._used.clear()
        self._held.clear()
        self._taken.clear()
        self.matcher = self._new_matcher()
        if log.isEnabledFor(logging.DEBUG):
            log.debug("[fluence] graph %s", self.graph.jgf())
        return self.replay(held)

    def _change_host(self, name: str, host: HostResources | None) -> list[str]:
        lost: dict[str, Share] = {}
        if name in self._hosts:
            self.drop_foreign(name)
            path = self.graph.host_path(name)
            lost = {uid: share for uid, share in self.shares.items() if _touches(share, path)}
            for uid in lost:
                self.free(uid)
            self.matcher.remove_subgraph(self.graph.remove_host(name))
            del self._hosts[name]
        if host is not None:
            self.matcher.add_subgraph(self.graph.add_host(host))
            self._hosts[name] = host
        return self.replay(lost)

    # ------------------------------------------------------------------ our pods

    def match(
        self, jobspec: str, candidates: IntColumn | None = None, prefer: NDArray[np.float64] | None = None
    ) -> Job:
        """Allocate. Raises Busy or Unsatisfiable, with why in the message."""
        log.debug("[fluence] jobspec %s", jobspec)
        try:
            found = self.matcher.allocate(jobspec, jobid=self.next_jobid, candidates=candidates, prefer=prefer)
        except (Busy, Unsatisfiable) as error:
            raise type(error)(self.matcher.why(jobspec)) from error
        except InvalidJobspec as error:  # no host has a type that is asked for, and so no vertex has
            raise Unsatisfiable(str(error)) from error
        self.next_jobid += 1
        log.debug("[fluence] allocation %d: %s", found.jobid, found.R)
        placement = placement_from_allocation(found.R)
        log.info("[fluence] placement %d: %s", found.jobid, placement)
        return Job(found.jobid, placement)

    def hold(self, uid: str, share: Share) -> None:
        """Note what a pod holds of allocations that were just made."""
        self.shares[uid] = share
        self._count(share, 1)

    def retract(self, jobids: Iterable[int], uids: Iterable[str]) -> None:
        """Take allocations back as if they had never been."""
        for uid in uids:
            self._count(self.shares.pop(uid, {}), -1)
        for jobid in jobids:
            self.matcher.retract(jobid)
            if jobid == self.next_jobid - 1:
                self.next_jobid = jobid

    def free(self, uid: str) -> list[int]:
        """Give back what a pod holds, if anything. Returns the jobids of which nothing is left."""
        ended = []
        share = self.shares.pop(uid, {})
        self._count(share, -1)
        for jobid, placement in share.items():
            if self.matcher.partial_cancel(jobid, allocation_from_placement(self.graph, placement), missing_ok=True):
                ended.append(jobid)
                log.info("[fluence] Cancel jobid: %d", jobid)
        return ended

    def replay(self, shares: Mapping[str, Share]) -> list[str]:
        """Hold again what pods held, under the same jobids. Returns the uids whose share the graph no longer has.

        The pods of one allocation are replayed together; where that fails each is tried on its own.
        """
        lost: list[str] = []
        by_job: dict[int, dict[str, Placement]] = {}
        for uid, share in shares.items():
            for jobid, placement in share.items():
                by_job.setdefault(jobid, {})[uid] = placement
        for jobid, parts in sorted(by_job.items()):
            if self._take(jobid, parts):
                continue
            if len(parts) == 1:
                lost.extend(parts)
                continue
            for uid, placement in sorted(parts.items()):
                if not self._take(self.next_jobid, {uid: placement}):
                    lost.append(uid)
        for uid in dict.fromkeys(lost):
            self.free(uid)
        return list(dict.fromkeys(lost))

    def _take(self, jobid: int, parts: Mapping[str, Placement]) -> bool:
        whole = Placement().merged(*parts.values())
        try:
            self.matcher.update_allocate(jobid, allocation_from_placement(self.graph, whole))
        except (FluxionError, AllocationError) as error:
            log.warning("[fluence] jobid %d cannot be held again: %s", jobid, error)
            return False
        self.next_jobid = max(self.next_jobid, jobid + 1)
        for uid, placement in parts.items():
            self.shares[uid] = {**self.shares.get(uid, {}), jobid: placement}
            self._count({jobid: placement}, 1)
        return True

    # ------------------------------------------------------------------ foreign load

    def drop_foreign(self, name: str) -> None:
        """Hold nothing for foreign pods on a host."""
        held = self._foreign.pop(name, None)
        if held is not None:
            self.matcher.retract(held[0])

    def set_foreign(self, name: str, load: ForeignLoad | None) -> None:
        """Hold what foreign pods take of a host, or as much of it as is free: the host may be overcommitted."""
        if self._whole_nodes:
            return  # nothing would be left of a node on which the cluster's own pods run
        held = self._foreign.get(name)
        if held is not None and held[1] == load and held[2]:
            return
        self.drop_foreign(name)
        host = self._hosts.get(name)
        if load is None or host is None:
            return
        used = self._used.get(name, _NOTHING)
        free = (host.cores - used[0], host.memory_mib - used[1], host.gpus - used[2])
        wanted = [max(0, min(pair)) for pair in zip((load.cores, load.memory_mib, load.gpus), free, strict=True)]
        parts = [Resource(kind, n) for kind, n in zip((CORE, MEMORY, GPU), wanted, strict=True) if n]
        if not parts:
            return
        jobspec = Jobspec.of(slot(1, *parts), constraints={"properties": [names.VIRTUAL_FALSE]})
        candidates = np.zeros(self.graph.ranks, np.int64)
        candidates[self.graph.rank_of(name)] = 1
        try:
            self.matcher.allocate(jobspec.to_json(), jobid=self._next_foreign, candidates=candidates)
        except (Busy, Unsatisfiable) as error:
            log.warning("[fluence] node %s: foreign load %s is not held: %s", name, load, error)
            return
        whole = wanted == [load.cores, load.memory_mib, load.gpus]
        self._foreign[name] = (self._next_foreign, load, whole)
        self._next_foreign += 1

    # ------------------------------------------------------------------ accounts

    def _count(self, share: Share, sign: int) -> None:
        for placement in share.values():
            for host in placement.hosts:
                used = self._used.get(host.name, _NOTHING)
                more = (len(host.cores), host.memory_mib, len(host.gpus))
                self._used[host.name] = (used[0] + sign * more[0], used[1] + sign * more[1], used[2] + sign * more[2])
            for device in placement.devices:
                node = self.graph.virtual.get(device.path)
                for path in (device.path, *(node.above if node is not None else ())):
                    self._held[path] += sign
                self._taken[device.path] += sign

    def is_free(self, device: VirtualNode) -> bool:
        """Whether nothing holds the device, anything in it, or anything that it is in."""
        return not self._held[device.path] and not any(self._taken[path] for path in device.above)


def _touches(share: Share, path: str) -> bool:
    """Whether a share holds the host at `path`, or a device below it."""
    below = path + "/"
    return any(
        any(host.path == path for host in placement.hosts)
        or any(device.path.startswith(below) for device in placement.devices)
        for placement in share.values()
    )
