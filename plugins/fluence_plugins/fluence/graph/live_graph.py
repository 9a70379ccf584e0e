"""The resource graph of the live cluster: matcher, names and who holds what, kept in step with each other.

Hosts come and go by name; pods that are not ours are held as *foreign load*, one allocation a host. What our pods hold
is kept by pod uid as names (paths, indices, units), so that it can be given back pod by pod, written down, and taken
again after a restart, when ranks and ids are others.

What a pod got is its own until it ends. A part that the graph loses (a node that shrinks or goes) is *missing*: the
other parts stay held, and the missing one is taken again as soon as the graph has it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add, sub
from time import perf_counter
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fluence_plugins.fluence.errors import AllocationError, GraphError
from fluence_plugins.fluence.graph.accounting import Accounting, Amounts, less
from fluence_plugins.fluence.graph.cluster_graph import ClusterGraph, HostResources, VirtualNode, build_graph
from fluence_plugins.fluence.graph.engine import EMBEDDED, Engine
from fluence_plugins.fluence.graph.jobspec import Jobspec, Resource, slot
from fluence_plugins.fluence.graph.level_names import HostLevels
from fluence_plugins.fluence.graph.placement import (
    HostHolding,
    Placement,
    overlap,
    placement_from_allocation,
    placement_on_host,
    with_above,
)
from fluence_plugins.fluence.graph.places import ByJob, seated
from fluence_plugins.fluence.graph.resource_set import allocation_from_placement
from fluence_plugins.fluence.metrics import MatchTimes
from fluence_plugins.resources import names
from fluence_plugins.resources.config import ResourcesConfig
from fluxion_cy import Busy, FluxionError, InvalidJobspec, Matcher, Unsatisfiable
from session_scheduler.model.columns import BoolColumn, IntColumn

log = logging.getLogger("fluence")

_FOREIGN_JOBS = 1 << 62
"""Where the jobids of what is no pod's share start: far from those of pods, which count from 1."""
_MANY_TREES = 32
"""From how many changed trees on the matcher is built anew: it works out its orders anew after each of them."""
_MOST_DEAD = 10_000
"""How many vertices that are gone a matcher may have beside twice those that are there: it keeps room for them all."""
_REMEMBERED = 1024
"""For how many different foreign loads the jobspec is kept."""

Share = Mapping[int, Placement]
"""What one pod holds, by jobid."""


@dataclass(frozen=True, slots=True)
class Job:
    """An allocation as the matcher made it."""

    jobid: int
    placement: Placement


class LiveGraph:
    """Built on the first hosts, then grown and shrunk. All changes of the matcher go through here."""

    def __init__(
        self, config: ResourcesConfig, policy: str, accounting: Accounting | None = None, engine: Engine = EMBEDDED
    ) -> None:
        """`accounting`: how hosts given to `set_hosts` are counted."""
        self.accounting = accounting or Accounting(chunk_mib=engine.chunk_mib)
        self._config = config
        self._policy = policy
        self.engine = engine
        self._whole_nodes = policy.endswith("nodex") or "node_exclusive=true" in policy
        self.graph: ClusterGraph = build_graph((), config, wait_for_parents=True)
        self.matcher = self._new_matcher()
        self.next_jobid = 1
        """Counts pods' allocations, above the highest one replayed; what is undone gives its number back."""
        self.version = 0
        """Moves whenever ranks do."""
        self.shares: dict[str, Share] = {}
        """What each of our pods holds, by pod uid."""
        self._pods_of: dict[int, dict[str, None]] = {}
        """By jobid: the pods (uids) that hold of it."""
        self.missing: dict[str, list[tuple[int, Placement]]] = {}
        """What pods got and the graph does not have now, with the jobid that it had, by pod uid."""
        self.moved: set[str] = set()
        """Pods (uids) that began or ceased to hold something since somebody emptied this."""
        self._hosts: dict[str, HostResources] = {}
        self._left_out: dict[str, HostResources] = {}
        """Hosts that cannot be in the graph: something else has their path."""
        self._used: dict[str, Amounts] = {}
        """What our pods hold of each host."""
        self._whole_hosts = 0
        """How often a pod holds a host as a whole."""
        self._taken: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        """Paths of the devices that pods hold, and the same with all that they lie in."""
        self._left_crowd = False
        """Whether somebody left what more pods hold than may share it."""
        self._foreign: dict[str, tuple[int, Amounts, bool]] = {}
        """Of each host with foreign load: the jobid that holds it, the load, and whether all of it is held."""
        self._next_foreign = _FOREIGN_JOBS
        self.match_times = MatchTimes()
        self.many_trees = _MANY_TREES
        self._dead = 0
        """Vertices that are gone and of which the matcher still has something."""

    def _new_matcher(self) -> Matcher:
        return self.engine.matcher(self.graph.jgf(), self._policy)

    # ------------------------------------------------------------------ hosts

    def set_hosts(self, hosts: Mapping[str, HostResources | None]) -> None:
        """Make these hosts what is given (None: gone).

        A host that cannot be in the graph (its name is a backend's) is left out with a warning; the first hosts of all
        raise GraphError instead: then a start can be stopped.
        """
        changed = {name: host for name, host in hosts.items() if self._hosts.get(name) != host}
        if not changed:
            return
        self.version += 1
        if not self._hosts:
            self._build(changed)
        else:
            for name, host in changed.items():
                self._change_host(name, host)
        self._take_missing()
        self._compact()

    def _build(self, hosts: Mapping[str, HostResources | None]) -> None:
        found = {name: host for name, host in hosts.items() if host is not None}
        self.graph = build_graph(found.values(), self._config, wait_for_parents=True)
        self._hosts = found
        for uid, share in self.shares.items():
            self.missing.setdefault(uid, []).extend(share.items())
        for account in (self.shares, self._pods_of, self._foreign, self._used, self._held, self._taken):
            account.clear()
        self._whole_hosts = 0
        self._dead = 0
        self.matcher = self._new_matcher()
        if log.isEnabledFor(logging.DEBUG):
            log.debug("[fluence] graph %s", self.graph.jgf())

    def _change_host(self, name: str, host: HostResources | None) -> None:
        if name in self._hosts:
            self.drop_foreign(name)
            self._lose(self.graph.host_path(name))
            before = len(self.graph.builder)
            self.matcher.remove_subgraph(self.graph.remove_host(name))
            self._dead += before - len(self.graph.builder)
            del self._hosts[name]
        self._left_out.pop(name, None)
        if host is None:
            return
        try:
            grown = self.graph.add_host(host)
        except GraphError as error:
            log.warning("[fluence] node %s is left out of the graph: %s", name, error)
            self._left_out[name] = host
            return
        self.matcher.add_subgraph(grown)
        self._hosts[name] = host

    def _lose(self, *paths: str) -> None:
        """Let go of what pods hold of hosts or trees, and of devices below them; all else stays theirs."""
        lost_paths = frozenset(paths)
        if not lost_paths:
            return
        for uid, share in list(self.shares.items()):
            parts = {jobid: part.split(lost_paths) for jobid, part in share.items()}
            if all(lost is None for lost, _ in parts.values()):
                continue
            self._leave(uid)
            kept: dict[int, Placement] = {}
            for jobid, (lost, rest) in parts.items():
                if lost is not None:
                    self._give_back(jobid, lost)
                    self.missing.setdefault(uid, []).append((jobid, lost))
                if rest is not None:
                    kept[jobid] = rest
            self._enter(uid, kept)

    def _take_missing(self) -> None:
        """Take again what the graph has once more, under the same jobid where it is free."""
        by_job: dict[int, dict[str, Placement]] = {}
        before, self.missing = self.missing, {}
        for uid, found in before.items():
            for jobid, part in found:
                if self._is_gone(part):
                    self.missing.setdefault(uid, []).append((jobid, part))
                    continue
                parts = by_job.setdefault(jobid, {})
                parts[uid] = parts[uid].merged(part) if uid in parts else part
        self._take_lost(self._seated(by_job))

    def _take_lost(self, by_job: ByJob) -> None:
        for jobid, parts in sorted(by_job.items()):
            if not self._rejoin(jobid, parts):
                for uid, part in sorted(parts.items()):
                    self._take_what_is_there(jobid, uid, part)

    def _is_gone(self, part: Placement) -> bool:
        """Whether the graph has nothing at any path of the part: then nothing of it need be tried."""
        virtual = self.graph.virtual
        return not any(host.name in self._hosts for host in part.hosts) and not any(
            device.path in virtual or self.graph.same_device(device.path) for device in part.devices
        )

    def _take_what_is_there(self, jobid: int, uid: str, part: Placement) -> None:
        """Take piece by piece; the others are missing, as one part."""
        left = [piece for piece in part.pieces() if not self._take_again(jobid, uid, piece)]
        if left:
            self.missing.setdefault(uid, []).append((jobid, left[0].merged(*left[1:])))

    def _rejoin(self, jobid: int, parts: Mapping[str, Placement]) -> bool:
        """Hold parts, by pod uid, under their jobid, together with what pods still hold of it; whether that can be."""
        if jobid not in self._pods_of:
            return self._take(jobid, parts)
        held = self._parts(jobid).values()
        try:
            allocation_from_placement(self.graph, Placement().merged(*parts.values()))  # the cheaper half of it
            whole = allocation_from_placement(self.graph, Placement().merged(*held, *parts.values()))
        except AllocationError:
            return False
        self.matcher.retract(jobid)
        try:
            self.matcher.update_allocate(jobid, whole)
        except FluxionError:
            self.matcher.update_allocate(jobid, allocation_from_placement(self.graph, Placement().merged(*held)))
            return False
        for uid, part in parts.items():
            before = self.shares.get(uid, {}).get(jobid)
            self._count([part], 1)
            self._pods_of[jobid][uid] = None
            self.shares[uid] = {**self.shares.get(uid, {}), jobid: before.merged(part) if before else part}
        return True

    # ------------------------------------------------------------------ another configuration

    def set_config(self, config: ResourcesConfig) -> set[str]:
        """Make the virtual resources those of another configuration; return the hosts that can be in the graph now, and
        could not before.

        What pods hold of those that stay, stays theirs, under the same jobids; what they hold of others is missing
        until it is there again. Trees that stay as they were are not touched. Raises GraphError, and changes nothing,
        where two vertices would have one path. Nothing may be held aside.
        """
        self._check(config)
        self.version += 1
        missing, self.missing = self.missing, {}
        outdated = self.graph.outdated(config)
        self._config = config
        self._replace(outdated)
        left_out = set(self._left_out)
        for name, host in list(self._left_out.items()):
            self._change_host(name, host)
        self._take_missing()  # what was held until now goes first: others may have got what holds, or is in, the rest
        for uid, parts in missing.items():
            self.missing.setdefault(uid, []).extend(parts)
        self._take_missing()
        self._compact()
        return left_out - self._left_out.keys()

    def _replace(self, roots: Sequence[str], crowded: Mapping[str, int] = MappingProxyType({})) -> None:
        """Remove trees, and add those that the configuration has and the graph does not; with so many places more.

        What pods hold of those that go is missing then.
        """
        self._lose(*roots)
        before = len(self.graph.builder)
        gone = [self.graph.remove_tree(path) for path in roots]
        self._dead += before - len(self.graph.builder)
        self.graph.crowded.update(crowded)
        added = self.graph.adopt(self._config)
        if max(len(roots), len(added)) >= self.many_trees:
            self._renew()
            return
        for path in gone:
            self.matcher.remove_subgraph(path)
        for path in added:
            self.matcher.add_subgraph(self.graph.subgraph(path))

    def _renew(self) -> None:
        """A new matcher of the graph as it is now, in which the same is held under the same jobids."""
        self.matcher = self._new_matcher()
        self._dead = 0
        for jobid in sorted(self._pods_of):
            self._hold_again(jobid, held=False)
        foreign = {name: load for name, (_, load, _) in self._foreign.items()}
        self._foreign.clear()
        for name, load in sorted(foreign.items()):
            self.set_foreign(name, load)

    def _compact(self) -> None:
        """Begin with a new matcher where most of what this one has is gone: nodes and trees came and went for long."""
        if self._dead > _MOST_DEAD + 2 * len(self.graph.builder):
            self._renew()

    # ------------------------------------------------------------------ what pods share

    def _seated(self, wanted: ByJob) -> ByJob:
        """What pods are to hold, of places that are there; where these are too few, there are more from now on."""
        found, lacking = seated(self.graph, wanted, self._is_unheld)
        if lacking:
            crowded = {path: self.graph.crowded.get(path, 0) + more for path, more in lacking.items()}
            self._rebuild({self.graph.tree_of(path) for path in lacking}, {**self.graph.crowded, **crowded})
            found, _ = seated(self.graph, wanted, self._is_unheld)
        return found

    def _rebuild(self, roots: set[str], crowded: Mapping[str, int]) -> None:
        """Build trees anew, with so many places more; who holds of them holds the same, or the same of another place,
        as before.
        """
        self.version += 1
        missing, self.missing = self.missing, {}
        self._replace(sorted(roots), crowded)
        self._take_missing()
        for uid, parts in missing.items():
            self.missing.setdefault(uid, []).extend(parts)

    @property
    def left_crowd(self) -> bool:
        """Whether `settle_crowds` has something to do."""
        return self._left_crowd

    def settle_crowds(self) -> None:
        """Let what more pods hold than may share it have no more places than it needs, since some of them ended, and
        open it where they are few enough. Nothing may be held aside.
        """
        self._left_crowd = False
        if self.graph.crowded:
            roots = {self.graph.tree_of(path) for path in self.graph.crowded}
            self.graph.crowded.clear()
            self._rebuild(roots, {})

    def _is_unheld(self, path: str) -> bool:
        """Whether nothing holds what is at a path, anything in it, or anything that it is in."""
        above = self.graph.virtual[path].above
        return not self._held[path] and not any(self._taken[one] for one in above)

    def _check(self, config: ResourcesConfig) -> None:
        """Raise GraphError where the configuration cannot be in a graph of these hosts."""
        parents = {tree.parent for tree in config.resources}
        trial = build_graph((self._hosts[name] for name in sorted(parents & self._hosts.keys())), config, True)
        for name in self._hosts:
            if f"{trial.root.path}/{name}" in trial.virtual:
                raise GraphError(f"resource {name}: has the name of a node of the cluster; give it another name")

    # ------------------------------------------------------------------ our pods

    def match(
        self,
        jobspec: str,
        candidates: IntColumn | BoolColumn | None = None,
        prefer: NDArray[np.float64] | None = None,
    ) -> Job:
        """Allocate. Raises Busy or Unsatisfiable; `why` says more, and costs far more than the match."""
        log.debug("[fluence] jobspec %s", jobspec)
        started = perf_counter()
        try:
            found = self.matcher.allocate(jobspec, jobid=self.next_jobid, candidates=candidates, prefer=prefer)
        except (Busy, Unsatisfiable):
            seconds = perf_counter() - started
            self.match_times.add("busy" if self.matcher.satisfy(jobspec) else "unsatisfiable", seconds)
            raise
        except InvalidJobspec as error:  # no host has a type that is asked for, and so no vertex has
            self.match_times.add("unsatisfiable", perf_counter() - started)
            raise Unsatisfiable(str(error)) from error
        self.match_times.add("matched", perf_counter() - started)
        self.next_jobid += 1
        log.debug("[fluence] allocation %d: %s", found.jobid, found.R)
        return Job(found.jobid, placement_from_allocation(found.R))

    def why(self, jobspec: str, candidates: IntColumn | BoolColumn | None = None) -> str:
        """Why `match` refuses it now."""
        try:
            return self.matcher.why(jobspec, candidates=candidates)
        except InvalidJobspec as error:
            return str(error)

    def match_on(self, rank: int, jobspec: str) -> Job:
        """Allocate on one host. Raises Busy or Unsatisfiable."""
        started = perf_counter()
        try:
            found = self.matcher.allocate(jobspec, jobid=self.next_jobid, candidates=self._only(rank))
        except InvalidJobspec as error:
            raise Unsatisfiable(str(error)) from error
        self.match_times.add("matched", perf_counter() - started)
        self.next_jobid += 1
        return Job(found.jobid, placement_on_host(found.R))

    def _only(self, rank: int) -> BoolColumn:
        """That rank alone as candidates."""
        candidates = np.zeros(self.graph.ranks, np.bool_)
        candidates[rank] = True
        return candidates

    def hold(self, uid: str, share: Share) -> None:
        """Note what a pod holds of allocations that were just made."""
        self.moved.add(uid)
        self._enter(uid, share)

    def retract(self, jobids: Iterable[int], uids: Iterable[str], first: int | None = None) -> None:
        """Take allocations back as if they had never been; `first` is the jobid that comes next then."""
        for uid in uids:
            self._leave(uid)
        for jobid in jobids:
            log.debug("[fluence] Retract jobid: %d", jobid)
            self.matcher.retract(jobid)
        if first is not None:
            self.next_jobid = first

    def free(self, uid: str) -> None:
        """Give back what a pod holds, if anything: it ended, or its place was refused."""
        self.moved.add(uid)
        self.missing.pop(uid, None)
        self._left_crowd = self._left_crowd or bool(self.graph.crowded)
        for jobid, part in self._leave(uid).items():
            self._give_back(jobid, part)

    def _give_back(self, jobid: int, part: Placement) -> None:
        """Free a part of an allocation; an allocation of which nothing is left is forgotten."""
        try:
            ended = self.matcher.partial_cancel(jobid, allocation_from_placement(self.graph, part), missing_ok=True)
        except (FluxionError, AllocationError):
            log.exception("[fluence] jobid %d: %s cannot be freed", jobid, part)
            return
        if ended:
            log.info("[fluence] Cancel jobid: %d", jobid)
            self.matcher.retract(jobid)

    def replay(self, shares: Mapping[str, Share], *, exactly: bool = False) -> None:
        """Hold what pods held, under the same jobids where they are free.

        The pods of one allocation are replayed together; where that fails each piece is tried on its own, and what the
        graph does not have is missing. Of what is shared a pod may get another place, unless `exactly`.
        """
        self.moved.update(shares)
        by_job: dict[int, dict[str, Placement]] = {}
        for uid, share in shares.items():
            for jobid, part in share.items():
                by_job.setdefault(jobid, {})[uid] = part
        for jobid, parts in sorted((by_job if exactly else self._seated(by_job)).items()):
            if not self._take(jobid, parts):
                self._take_pieces(jobid, parts)

    def _take_pieces(self, jobid: int, parts: Mapping[str, Placement]) -> None:
        """Hold each piece that can be held; the others are missing."""
        for uid, part in sorted(parts.items()):
            for piece in part.pieces():
                if not self._take_again(jobid, uid, piece):
                    self.missing.setdefault(uid, []).append((jobid, piece))

    def _take_again(self, jobid: int, uid: str, part: Placement) -> bool:
        return self._take(jobid, {uid: part}) or self._take(self.next_jobid, {uid: part})

    def _take(self, jobid: int, parts: Mapping[str, Placement]) -> bool:
        whole = Placement().merged(*parts.values())
        try:
            self.matcher.update_allocate(jobid, allocation_from_placement(self.graph, whole))
        except (FluxionError, AllocationError) as error:
            log.debug("[fluence] jobid %d: %s cannot be held: %s", jobid, whole, error)
            return False
        self.next_jobid = max(self.next_jobid, jobid + 1)
        for uid, part in parts.items():
            self._enter(uid, {jobid: part})
        return True

    def held_of(self, uid: str, host: str) -> Amounts | None:
        """What a pod holds of a host; None where it holds nothing of it."""
        share = self.shares.get(uid)
        if not share:
            return None
        found = [self.accounting.held(on) for part in share.values() for on in part.hosts if on.name == host]
        if not found:
            return None
        return found[0] if len(found) == 1 else tuple(map(sum, zip(*found, strict=True)))

    def hosts_of(self, uid: str) -> set[str]:
        """The hosts of which a pod holds, or misses, something."""
        parts = [*self.shares.get(uid, {}).values(), *(part for _, part in self.missing.get(uid, ()))]
        return {host.name for part in parts for host in part.hosts}

    @property
    def amounts_tell(self) -> bool:
        """Whether a host has room for a pod without devices wherever enough of each amount is free: no host is, or is
        to be, held as a whole.
        """
        return not self._whole_nodes and not self._whole_hosts

    def free_on(self, host: str, given_back: Iterable[Amounts], load: Amounts | None) -> Amounts | None:
        """What would be free of a host if its pods gave so much back and others took this load, as far as there is
        room for it; None where it is not in the graph.
        """
        known = self._hosts.get(host)
        if known is None:
            return None
        used = self.used_on(host)
        for back in given_back:
            used = less(used, back)
        free = less(self.accounting.offered(known), used)
        if load is not None:
            free = less(free, load)
        return tuple([max(0, amount) for amount in free])

    def is_free(self, device: VirtualNode) -> bool:
        """Whether it is up and open, and nothing holds the device, anything in it, or anything that it is in."""
        return not device.down and not device.closed and self._is_unheld(device.path)

    def touches(self, uid: str, path: str) -> bool:
        """Whether a pod holds the device at this path, one in it, or one that it is in."""
        devices = (device for part in self.shares.get(uid, {}).values() for device in part.devices)
        return any(overlap(path, device.path) for device in devices)

    def set_aside(self, uid: str) -> Share:
        """Let go of what a pod holds, which is returned, until `take_back`: its jobs go on without it."""
        share = self._leave(uid)
        for jobid in share:
            self._hold_again(jobid, held=True)
        return share

    def take_back(self, shares: Mapping[str, Share]) -> None:
        """Undo `set_aside` of these pods (uids).

        What the graph does not have any more, or another one holds, is missing, and RuntimeError is raised then.
        """
        lost = []
        for uid, share in shares.items():
            held = share.keys() & self._pods_of.keys()
            self._enter(uid, share)
            lost += [why for jobid in share if (why := self._hold_again(jobid, held=jobid in held))]
        if lost:
            raise RuntimeError(f"not all can be held again after a trial: {lost[0]}")

    def _parts(self, jobid: int) -> dict[str, Placement]:
        """What each pod (uid) holds of an allocation."""
        return {uid: self.shares[uid][jobid] for uid in self._pods_of.get(jobid, ())}

    def _hold_again(self, jobid: int, *, held: bool) -> str:
        """Make an allocation what its pods hold of it now; `held`: whether it is there. Why not all of it, if so."""
        if held:
            self.matcher.retract(jobid)
        parts = self._parts(jobid)
        if not parts:
            return ""
        try:
            whole = Placement().merged(*parts.values())
            self.matcher.update_allocate(jobid, allocation_from_placement(self.graph, whole))
        except (FluxionError, AllocationError) as error:
            for uid in parts:
                left = self._leave(uid)
                self._enter(uid, {number: part for number, part in left.items() if number != jobid})
            self._take_pieces(jobid, parts)
            log.warning("[fluence] jobid %d: not all of it can be held again: %s", jobid, error)
            return f"allocation {jobid}: {error}"
        return ""

    # ------------------------------------------------------------------ held for nominated pods

    @property
    def whole_nodes(self) -> bool:
        """Whether the policy gives whole nodes."""
        return self._whole_nodes

    def levels_of(self, host: str) -> HostLevels:
        """The levels that a host lies in; none where it is not in the graph."""
        known = self._hosts.get(host)
        return known.levels if known is not None else ()

    def used_on(self, host: str) -> Amounts:
        """What our pods hold of a host."""
        return self._used.get(host, self.accounting.nothing)

    def whole_host(self, host: str) -> Placement | None:
        """All of a host; None where it is not in the graph."""
        known = self._hosts.get(host)
        if known is None:
            return None
        pooled = known.core_pool
        whole = HostHolding(
            host,
            self.graph.host_path(host),
            tuple(range(0 if pooled else known.cores)),
            tuple(range(known.gpus)),
            known.memory_mib,
            exclusive=True,
            millicores=known.cores if pooled else 0,
            pods=known.pods,
            others=tuple(sorted((kind, tuple(range(amount))) for kind, amount in known.others)),
        )
        return Placement((whole,))

    def hold_aside(self, part: Placement) -> int | None:
        """Hold something that is no pod's share until `let_go`: the jobid; None where it is not free."""
        try:
            self.matcher.update_allocate(self._next_foreign, allocation_from_placement(self.graph, part))
        except (FluxionError, AllocationError):
            return None
        self._next_foreign += 1
        self._count([Placement((), part.devices)], 1)  # of hosts it is counted what pods of ours hold
        return self._next_foreign - 1

    def let_go(self, jobid: int, part: Placement) -> None:
        """Undo `hold_aside`."""
        self._count([Placement((), part.devices)], -1)
        self.matcher.retract(jobid)

    # ------------------------------------------------------------------ foreign load

    @property
    def foreign_load_held(self) -> Mapping[str, bool]:
        """By host with foreign load that is held: whether all of it is."""
        return {name: whole for name, (_, _, whole) in self._foreign.items()}

    @property
    def foreign_jobs(self) -> Mapping[str, int]:
        """By host with foreign load that is held: the jobid that holds it."""
        return {name: jobid for name, (jobid, _, _) in self._foreign.items()}

    def drop_foreign(self, name: str) -> None:
        """Hold nothing for foreign pods on a host."""
        held = self._foreign.pop(name, None)
        if held is not None:
            self.matcher.retract(held[0])

    def set_foreign(self, name: str, load: Amounts | None) -> None:
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
        free = less(self.accounting.offered(host), self.used_on(name))
        wanted = tuple(max(0, min(pair)) for pair in zip(load, free, strict=True))
        if not any(wanted):
            return
        only = self._only(self.graph.rank_of(name))
        try:
            jobspec = _foreign_jobspec(wanted, self.accounting.types)
            self.matcher.allocate(jobspec, jobid=self._next_foreign, candidates=only)
        except (Busy, Unsatisfiable) as error:
            log.warning("[fluence] node %s: foreign load %s is not held: %s", name, load, error)
            return
        self._foreign[name] = (self._next_foreign, load, wanted == load)
        self._next_foreign += 1

    # ------------------------------------------------------------------ accounts

    def _enter(self, uid: str, share: Share) -> None:
        """Note what a pod holds, beside what it held before."""
        before = self.shares.get(uid)
        self.shares[uid] = {**before, **share} if before else share
        for jobid in share:
            self._pods_of.setdefault(jobid, {})[uid] = None
        self._count(share.values(), 1)

    def _leave(self, uid: str) -> Share:
        """Note that a pod holds nothing; returns what it held."""
        share = self.shares.pop(uid, {})
        for jobid in share:
            pods = self._pods_of[jobid]
            del pods[uid]
            if not pods:
                del self._pods_of[jobid]
        self._count(share.values(), -1)
        return share

    def _count(self, parts: Iterable[Placement], sign: int) -> None:
        for part in parts:
            for host in part.hosts:
                self._whole_hosts += sign * host.exclusive
                change = add if sign > 0 else sub
                self._used[host.name] = tuple(map(change, self.used_on(host.name), self.accounting.held(host)))
            for device in part.devices:
                for path in with_above(device.path):
                    self._held[path] += sign
                self._taken[device.path] += sign


@lru_cache(_REMEMBERED)
def _foreign_jobspec(amounts: Amounts, types: tuple[str, ...]) -> str:
    """One slot of whatever is not 0 of these, on a host, as JSON."""
    parts = [Resource(kind, amount) for kind, amount in zip(types, amounts, strict=True) if amount]
    return Jobspec.of(slot(1, *parts), constraints={"properties": [names.VIRTUAL_FALSE]}).to_json()
