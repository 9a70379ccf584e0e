"""The allocations of our pods: created by matches, replayed by name, freed pod by pod.

A pod keeps its allocation until it ends. A part that the graph loses (a node that shrinks or is removed) is *missing*:
the pod keeps the other parts, and gets the missing one back as soon as the graph has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from fluence_plugins.fluence.errors import AllocationError
from fluence_plugins.fluence.graph.foreign_load import ForeignLoad
from fluence_plugins.fluence.graph.holdings import Holdings, Share
from fluence_plugins.fluence.graph.loaded_graph import LoadedGraph
from fluence_plugins.fluence.graph.match_times import MatchTimes
from fluence_plugins.fluence.graph.placement import HostHolding, Placement
from fluence_plugins.fluence.graph.places import ByJob, with_places
from fluence_plugins.fluence.graph.resource_set import (
    allocation_from_placement,
    placement_from_allocation,
    placement_on_host,
)
from fluxion_cy import Busy, FluxionError, InvalidJobspec, Unsatisfiable
from fluxion_cy.wording import Shortage, Words
from session_scheduler.model.columns import BoolColumn, IntColumn

log = logging.getLogger("fluence")


class Job(msgspec.Struct, frozen=True):
    """An allocation of the matcher."""

    jobid: int
    placement: Placement


class Allocations:
    """Matches jobspecs, and keeps matcher and holdings consistent."""

    def __init__(self, loaded: LoadedGraph, holdings: Holdings, foreign: ForeignLoad) -> None:
        self._loaded = loaded
        self._holdings = holdings
        self._foreign = foreign
        self.next_jobid = 1
        """The jobid of the next allocation, above the highest one replayed. Undoing an allocation frees its number."""
        self.match_times = MatchTimes()
        self.can_shrink = False
        """Whether a pod ended while more pods held a device than may share it: see `shrink_places`."""

    # ------------------------------------------------------------------ matches

    def match(
        self,
        jobspec: str,
        candidates: IntColumn | BoolColumn | None = None,
        prefer: NDArray[np.float64] | None = None,
    ) -> Job:
        """Allocate. Raises Busy or Unsatisfiable; `shortage` says why, and costs more than the match."""
        log.debug("[fluence] jobspec %s", jobspec)
        matcher = self._loaded.matcher
        started = perf_counter()
        try:
            found = matcher.allocate(jobspec, jobid=self.next_jobid, candidates=candidates, prefer=prefer)
        except (Busy, Unsatisfiable):
            seconds = perf_counter() - started
            self.match_times.add("busy" if matcher.satisfy(jobspec) else "unsatisfiable", seconds)
            raise
        except InvalidJobspec as error:  # no host, and so no vertex, has a requested type
            self.match_times.add("unsatisfiable", perf_counter() - started)
            raise Unsatisfiable(str(error)) from error
        self.match_times.add("matched", perf_counter() - started)
        self.next_jobid += 1
        log.debug("[fluence] allocation %d: %s", found.jobid, found.R)
        return Job(found.jobid, placement_from_allocation(found.R))

    def shortage(self, jobspec: str, candidates: IntColumn | BoolColumn | None, words: Words) -> Shortage | None:
        """What a jobspec lacks now. It takes one pass over the graph, or more if no type is short by itself.

        None if counting finds no shortage: `why` then has the reason.
        """
        try:
            return self._loaded.matcher.shortage(jobspec, candidates=candidates, words=words)
        except InvalidJobspec as error:
            return Shortage(str(error))

    def why(self, jobspec: str, candidates: IntColumn | BoolColumn | None) -> str:
        """Why `match` finds no match where `shortage` finds nothing."""
        return self._loaded.matcher.why(jobspec, candidates=candidates)

    def match_on(self, rank: int, jobspec: str) -> Job:
        """Allocate on one host. Raises Busy or Unsatisfiable."""
        started = perf_counter()
        try:
            only = self._loaded.candidate(rank)
            found = self._loaded.matcher.allocate(jobspec, jobid=self.next_jobid, candidates=only)
        except InvalidJobspec as error:
            raise Unsatisfiable(str(error)) from error
        self.match_times.add("matched", perf_counter() - started)
        self.next_jobid += 1
        return Job(found.jobid, placement_on_host(found.R))

    # ------------------------------------------------------------------ what pods hold

    def hold(self, uid: str, share: Share) -> None:
        """Record what a pod holds of new allocations."""
        self._holdings.moved.add(uid)
        self._holdings.enter(uid, share)

    def retract(self, jobids: Iterable[int], uids: Iterable[str], first: int | None = None) -> None:
        """Undo allocations without a trace; `first` is the next jobid then."""
        for uid in uids:
            self._holdings.leave(uid)
        for jobid in jobids:
            log.debug("[fluence] Retract jobid: %d", jobid)
            self._loaded.matcher.retract(jobid)
        if first is not None:
            self.next_jobid = first

    def free(self, uid: str) -> None:
        """Free what a pod holds, if anything: it ended, or its bind was rejected."""
        self._holdings.moved.add(uid)
        self._holdings.missing.pop(uid, None)
        self.can_shrink = self.can_shrink or bool(self._loaded.graph.extra_places)
        for jobid, part in self._holdings.leave(uid).items():
            self._give_back(jobid, part)

    def shrink(self, uid: str, kept: Share) -> None:
        """Free the amounts of hosts that a pod holds beyond `kept`, after an in-place resize."""
        for jobid, part in self._holdings.leave(uid).items():
            freed = tuple(filter(None, map(_beyond, part.hosts, kept[jobid].hosts)))
            if freed:
                self._give_back(jobid, Placement(freed))
        self._holdings.enter(uid, kept)

    def _give_back(self, jobid: int, part: Placement) -> None:
        """Free a part of an allocation, and erase the allocation if nothing is left."""
        matcher = self._loaded.matcher
        try:
            named = allocation_from_placement(self._loaded.graph, part)
            ended = matcher.partial_cancel(jobid, named, missing_ok=True)
        except (FluxionError, AllocationError):
            log.exception("[fluence] jobid %d: %s cannot be freed", jobid, part)
            return
        if ended:
            log.info("[fluence] Cancel jobid: %d", jobid)
            matcher.retract(jobid)

    def replay(self, shares: Mapping[str, Share], *, exactly: bool = False) -> None:
        """Hold what pods held, under the same jobids if they are free.

        The pods of one allocation are replayed together, and join those that hold parts of it already. If that fails,
        each piece is tried by itself, and pieces that the graph does not have are missing. A pod may get another place
        of a shared device, unless `exactly`.
        """
        self._holdings.moved.update(shares)
        by_job: dict[int, dict[str, Placement]] = {}
        for uid, share in shares.items():
            for jobid, part in share.items():
                by_job.setdefault(jobid, {})[uid] = part
        for jobid, parts in sorted((by_job if exactly else self._with_places(by_job)).items()):
            if not self._rejoin(jobid, parts):
                self._take_pieces(jobid, parts)

    def _take(self, jobid: int, parts: Mapping[str, Placement]) -> bool:
        """Hold parts, by pod uid, as a new allocation. Returns whether that is possible."""
        whole = Placement().merged(*parts.values())
        try:
            self._loaded.allocate_exactly(jobid, whole)
        except (FluxionError, AllocationError) as error:
            log.debug("[fluence] jobid %d: cannot allocate %s: %s", jobid, whole, error)
            return False
        self.next_jobid = max(self.next_jobid, jobid + 1)
        for uid, part in parts.items():
            self._holdings.enter(uid, {jobid: part})
        return True

    def _take_pieces(self, jobid: int, parts: Mapping[str, Placement]) -> None:
        """Hold each piece that is free; the others are missing."""
        for uid, part in sorted(parts.items()):
            left = self._lacking_pieces(jobid, uid, part)
            if left:
                self._holdings.add_missing(uid, [(jobid, piece) for piece in left])

    def _lacking_pieces(self, jobid: int, uid: str, part: Placement) -> list[Placement]:
        """Hold a part piece by piece, each under its jobid or another. Returns the pieces that are not free."""
        return [
            piece
            for piece in part.pieces()
            if not self._take(jobid, {uid: piece}) and not self._take(self.next_jobid, {uid: piece})
        ]

    # ------------------------------------------------------------------ simulated removals

    def set_aside(self, uid: str) -> Share:
        """Free what a pod holds until `take_back`, and return it. The pod's jobs continue without what is freed."""
        share = self._holdings.leave(uid)
        for jobid in share:
            self._hold_again(jobid, held=True)
        return share

    def take_back(self, shares: Mapping[str, Share]) -> None:
        """Undo `set_aside` of these pods (uids).

        Parts that the graph no longer has, or that another job holds, are missing. Raises RuntimeError then.
        """
        lost = []
        for uid, share in shares.items():
            held = share.keys() & self._holdings.pods_of.keys()
            self._holdings.enter(uid, share)
            lost += [why for jobid in share if (why := self._hold_again(jobid, held=jobid in held))]
        if lost:
            raise RuntimeError(f"cannot restore the allocations after a trial: {lost[0]}")

    def _hold_again(self, jobid: int, *, held: bool) -> str:
        """Set an allocation to what its pods hold of it now, and return why a part does not fit.

        `held`: whether the allocation exists.
        """
        if held:
            self._loaded.matcher.retract(jobid)
        parts = self._holdings.of_job(jobid)
        if not parts:
            return ""
        try:
            self._loaded.allocate_exactly(jobid, Placement().merged(*parts.values()))
        except (FluxionError, AllocationError) as error:
            for uid in parts:
                left = self._holdings.leave(uid)
                self._holdings.enter(uid, {number: part for number, part in left.items() if number != jobid})
            self._take_pieces(jobid, parts)
            log.warning("[fluence] jobid %d: cannot restore the complete allocation: %s", jobid, error)
            return f"allocation {jobid}: {error}"
        return ""

    # ------------------------------------------------------------------ the graph changes

    def lose(self, *paths: str) -> None:
        """Free what pods hold of hosts or trees, and of devices below them. They keep everything else."""
        lost_paths = frozenset(paths)
        if not lost_paths:
            return
        for uid, share in list(self._holdings.shares.items()):
            parts = {jobid: part.split(lost_paths) for jobid, part in share.items()}
            if all(lost is None for lost, _ in parts.values()):
                continue
            self._holdings.leave(uid)
            kept: dict[int, Placement] = {}
            for jobid, (lost, rest) in parts.items():
                if lost is not None:
                    self._give_back(jobid, lost)
                    self._holdings.add_missing(uid, [(jobid, lost)])
                if rest is not None:
                    kept[jobid] = rest
            self._holdings.enter(uid, kept)

    def replace_trees(self, roots: Sequence[str], extra_places: Mapping[str, int] = MappingProxyType({})) -> None:
        """Remove trees, and add those of the configuration that the graph lacks, with these additional places.

        Afterwards, what pods hold of removed trees is missing.
        """
        self.lose(*roots)
        if self._loaded.replace_trees(roots, extra_places):
            self._hold_all_again()

    def compact(self) -> None:
        """Replace the matcher if most of its vertices are gone."""
        if self._loaded.is_sparse:
            self._loaded.renew()
            self._hold_all_again()

    def _hold_all_again(self) -> None:
        """Hold all allocations in a new matcher, under the same jobids."""
        for jobid in sorted(self._holdings.pods_of):
            self._hold_again(jobid, held=False)
        self._foreign.hold_again()

    def recover_missing(self) -> None:
        """Hold missing parts that the graph has again, under the same jobid if it is free."""
        by_job: dict[int, dict[str, Placement]] = {}
        before, self._holdings.missing = self._holdings.missing, {}
        for uid, found in before.items():
            for jobid, part in found:
                if self._is_gone(part):
                    self._holdings.add_missing(uid, [(jobid, part)])
                    continue
                parts = by_job.setdefault(jobid, {})
                parts[uid] = parts[uid].merged(part) if uid in parts else part
        for jobid, together in sorted(self._with_places(by_job).items()):
            if not self._rejoin(jobid, together):
                for uid, part in sorted(together.items()):
                    left = self._lacking_pieces(jobid, uid, part)
                    if left:  # as one part
                        self._holdings.add_missing(uid, [(jobid, left[0].merged(*left[1:]))])

    def _is_gone(self, part: Placement) -> bool:
        """Whether the graph has no vertex at any path of the part, so that no piece of it needs a try."""
        graph = self._loaded.graph
        return not any(host.name in self._loaded.hosts for host in part.hosts) and not any(
            device.path in graph.virtual or graph.same_device(device.path) for device in part.devices
        )

    def _rejoin(self, jobid: int, parts: Mapping[str, Placement]) -> bool:
        """Hold further parts, by pod uid, under their jobid. Returns whether that is possible."""
        if jobid not in self._holdings.pods_of:
            return self._take(jobid, parts)
        graph, matcher = self._loaded.graph, self._loaded.matcher
        held = self._holdings.of_job(jobid).values()
        try:
            allocation_from_placement(graph, Placement().merged(*parts.values()))  # the cheaper half of it
            whole = allocation_from_placement(graph, Placement().merged(*held, *parts.values()))
        except AllocationError:
            return False
        matcher.retract(jobid)
        try:
            matcher.update_allocate(jobid, whole)
        except FluxionError:
            self._loaded.allocate_exactly(jobid, Placement().merged(*held))
            return False
        for uid, part in parts.items():
            self._holdings.enter(uid, {jobid: part})
        return True

    # ------------------------------------------------------------------ places of shared devices

    def _with_places(self, wanted: ByJob) -> ByJob:
        """What pods are to hold, with existing places. It adds places if there are too few."""
        found, lacking = with_places(self._loaded.graph, wanted, self._is_unheld)
        if lacking:
            graph = self._loaded.graph
            more = {path: graph.extra_places.get(path, 0) + number for path, number in lacking.items()}
            self._rebuild({graph.tree_of(path) for path in lacking}, {**graph.extra_places, **more})
            found, _ = with_places(graph, wanted, self._is_unheld)
        return found

    def _is_unheld(self, path: str) -> bool:
        return self._holdings.is_unheld(path, self._loaded.graph.virtual[path].above)

    def shrink_places(self) -> None:
        """Remove the spare places of devices that more pods hold than may share them, after some of these ended. Open a
        device once its holders are few enough. There must be no reservations.
        """
        self.can_shrink = False
        graph = self._loaded.graph
        if graph.extra_places:
            roots = {graph.tree_of(path) for path in graph.extra_places}
            graph.extra_places.clear()
            self._rebuild(roots, {})

    def _rebuild(self, roots: set[str], extra_places: Mapping[str, int]) -> None:
        """Rebuild trees with additional places. Pods keep what they hold, or get the same elsewhere."""
        self._loaded.version += 1
        missing, self._holdings.missing = self._holdings.missing, {}
        self.replace_trees(sorted(roots), extra_places)
        self.recover_missing()
        for uid, parts in missing.items():
            self._holdings.add_missing(uid, parts)


def _beyond(held: HostHolding, kept: HostHolding) -> HostHolding | None:
    """The part of a holding that the pod does not keep; None if it keeps all of it."""
    if held == kept:
        return None
    return HostHolding(
        held.name,
        held.path,
        cores=held.cores[len(kept.cores) :],
        memory_mib=held.memory_mib - kept.memory_mib,
        millicores=held.millicores - kept.millicores,
    )
