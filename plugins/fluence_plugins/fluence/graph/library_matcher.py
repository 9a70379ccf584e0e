"""Fluxion's own library as the matcher of the live graph: it decides every match.

Beside it stands the embedded engine as the ledger: what the library gave is entered there, and what is given back,
taken again or asked about is read there. What the library does not have is added here: divisible pools are cut into
chunks, a number of slots a host is kept by asking again for what is left, what a job gives back in part is freed as a
whole and the rest held again, and after a change of the graph the library gets all of it again, with what is held,
before the next match.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np

from fluence_plugins.fluence.graph.pool_chunks import PoolChunks
from fluxion_cy import Allocation, Busy, FluxionError, InvalidJobspec, Matcher, NotSupported
from fluxion_cy.wording import in_mib

log = logging.getLogger("fluence")

_ASKED_FOR_MORE = (1 << 62) - 1
"""The library's jobid of what a request got beyond its first answer: below those of foreign load, above all of pods."""
_CACHED = 1024
_Node = Mapping[str, Any]


class LibraryMatcher(Matcher):
    """`Matcher` over Fluxion's library; `chunks` are the units of one vertex of a pool, by type.

    Time stands still here: durations and `now` are not passed on, and what would answer with a time is NotSupported.
    `prefer` is not passed on either. The library is opened with the first match: check before whether it is there
    and has the policy.
    """

    def __init__(self, graph: Mapping[str, Any], policy: str, library: str | None, chunks: Mapping[str, int]) -> None:
        super().__init__(graph, policy=policy)
        self._library_policy = policy
        self._library_path = library
        self._sizes = tuple(sorted(chunks.items()))
        self._library: Matcher | None = None
        """None until it is asked, and where the graph is not any more as it has it."""
        self._chunks = PoolChunks({"graph": {"nodes": [], "edges": []}}, {})
        self._held = set[int]()
        """The jobs that the library has."""

    # ---- matching ----------------------------------------------------------------------------------------------------

    def allocate(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Holds what the library gives, or raises Busy."""
        del now, prefer
        request = _read(jobspec if isinstance(jobspec, str) else json.dumps(jobspec), self._sizes)
        number = self.next_jobid if jobid is None else jobid
        library = self._library or self._open()
        nodes = self._library_match(library, request, number, None if candidates is None else np.asarray(candidates))
        held = self._chunks.take(number, nodes)
        try:
            found = super().update_allocate(number, _resource_set(held))
        except FluxionError as error:
            log.warning("[fluence] the library gave %d what is held already: %s", number, error)
            library.retract(number)
            self._chunks.free(number)
            raise Busy(f"jobspec: the library gives what is held already ({error})") from error
        self._held.add(number)
        return found

    def _library_match(self, library: Matcher, request: _Request, number: int, candidates: Any) -> Sequence[_Node]:
        """What the library gives, and now holds as `number`."""
        if candidates is None or candidates.dtype == np.bool_:
            return _nodes(library.allocate(request.text, jobid=number, candidates=candidates))
        if request.each is None:
            raise NotSupported("candidates: a number of slots needs a jobspec of one slot with plain resources")
        room = candidates.copy()
        if room.max(initial=0) == 1:  # as many hosts as slots: one answer says it all
            spread = request.on_hosts_of_their_own()
            return _nodes(library.allocate(spread, jobid=number, candidates=room > 0))
        return self._match_rest(library, request, request.each, number, room)

    @staticmethod
    def _match_rest(
        library: Matcher, request: _Request, each: Mapping[str, int], number: int, room: Any
    ) -> Sequence[_Node]:
        """Keep what each host may take of an answer, leave out the hosts that are full then, and ask for the rest.

        The slots are all alike, so that whoever has room still is found in the end. After every answer but the last a
        host is full.
        """
        kept: list[_Node] = []
        left = request.slots
        while left > 0:
            name = _ASKED_FOR_MORE if kept else number
            try:
                found = _nodes(library.allocate(request.of(left), jobid=name, candidates=room > 0))
            except FluxionError:
                if kept:
                    library.retract(number)
                raise
            parts = [_Part(rank, nodes, each) for rank, nodes in _by_rank(found).items()]
            if not kept and all(part.slots <= room[part.rank] for part in parts):
                return found
            library.retract(name)
            if kept:
                library.retract(number)
            for part in parts:
                stay = min(part.slots, int(room[part.rank]))
                kept += part.first(stay)
                left -= stay
                room[part.rank] -= stay
            library.update_allocate(number, _resource_set(kept))
        return kept

    def without_allocating(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """What `allocate` would give."""
        found = self.allocate(jobspec, jobid, now=now, candidates=candidates, prefer=prefer)
        self.retract(found.jobid)
        return found

    def allocate_orelse_reserve(self, *_: Any, **__: Any) -> Allocation:
        """Not there: the library's clock stands still."""
        raise _not_in_time("allocate_orelse_reserve")

    def without_allocating_future(self, *_: Any, **__: Any) -> Allocation:
        """Not there: the library's clock stands still."""
        raise _not_in_time("without_allocating_future")

    def why(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> str:
        """What the ledger lacks, or that the library allocates in chunks."""
        del prefer
        found = super().why(jobspec, now=now, candidates=candidates)
        if found != "fits now":
            return found
        chunks = " and ".join(f"{kind} in chunks of {in_mib(size)}" for kind, size in self._sizes)
        return f"Fluxion's library finds no match, although enough of each type is free: it allocates {chunks}"

    # ---- held work ---------------------------------------------------------------------------------------------------

    def cancel(self, jobid: int, missing_ok: bool = False, *, now: int | None = None) -> None:
        """Frees what a job holds."""
        super().cancel(jobid, missing_ok, now=now)
        self._let_go(jobid)

    def retract(self, jobid: int) -> None:
        """Takes a job back as if it had never been."""
        super().retract(jobid)
        self._let_go(jobid)

    def partial_cancel(
        self,
        jobid: int,
        R: Any,  # noqa: N803 - R is the field's own name
        missing_ok: bool = False,
        *,
        now: int | None = None,
    ) -> bool:
        """Frees the part of an allocation that `R` names; answers whether nothing is left."""
        if missing_ok and not self._holds(jobid):
            return False
        ended = super().partial_cancel(jobid, R, missing_ok, now=now)
        self._let_go(jobid)
        if not ended:
            self._hold(jobid)
        return ended

    def update_allocate(self, jobid: int, R: Any, *, now: int = 0) -> Allocation:  # noqa: N803 - R is the field's own name
        """Holds exactly what `R` names."""
        found = super().update_allocate(jobid, R, now=now)
        self._hold(jobid)
        return found

    def _let_go(self, jobid: int) -> None:
        """Make the library hold nothing as `jobid`."""
        self._chunks.free(jobid)
        if jobid in self._held:
            self._held.discard(jobid)
            if self._library is not None:
                self._library.retract(jobid)

    def _hold(self, jobid: int) -> None:
        """Make the library hold what the book says of a job."""
        if self._library is None:
            return  # it gets all of it when it is opened
        nodes = self._chunks.assign(jobid, _nodes(super().allocation(jobid)))
        if not any(node["metadata"].get("exclusive") for node in nodes):
            return  # what is left of it is less than the chunks that there are
        try:
            self._library.update_allocate(jobid, _resource_set(nodes))
            self._held.add(jobid)
        except FluxionError as error:
            log.warning("[fluence] the library cannot hold %d: %s", jobid, error)

    # ---- the graph ---------------------------------------------------------------------------------------------------

    def add_subgraph(self, graph: Any) -> None:
        """Adds what a JGF has beyond the graph."""
        super().add_subgraph(graph)
        self.close()

    def remove_subgraph(self, path: str) -> None:
        """Removes a vertex and all below it."""
        super().remove_subgraph(path)
        self.close()

    def resize(self, path: str, size: int) -> None:
        """Changes the units of a vertex."""
        super().resize(path, size)
        self.close()

    def set_properties(self, path: str, properties: dict[str, str]) -> None:
        """Replaces the properties of a vertex."""
        super().set_properties(path, properties)
        self.close()

    def set_status(self, path: str, up: bool) -> None:
        """Marks a vertex up or down."""
        super().set_status(path, up)
        self.close()

    def set_rank_status(self, ranks: Any, up: bool) -> None:
        """Marks the topmost vertex of each rank."""
        super().set_rank_status(ranks, up)
        self.close()

    def clone(self) -> LibraryMatcher:
        """Not there: a copy of the library's graph shares the records of its jobs."""
        raise NotSupported("clone: not with Fluxion's library")

    def close(self) -> None:
        """Gives the library's memory back; it is opened again with the next match."""
        if self._library is not None:
            self._library.close()
            self._library = None

    def _open(self) -> Matcher:
        """Give the library the graph as it is now, and what is held of it.

        It could grow and shrink one, but neither lose an only child nor count the nodes that came (flux-sched 0.54).
        """
        started = perf_counter()
        self._chunks = PoolChunks(self.graph(), dict(self._sizes))
        self._library = library = open_library(self._chunks.document, self._library_policy, self._library_path)
        self._held.clear()
        for jobid, job in sorted(self._table.jobs.items()):
            if job.slot >= 0:
                self._hold(jobid)
        vertices = len(self._chunks.document["graph"]["nodes"])
        log.info("[fluence] Fluxion's library has the graph: %d vertices in %.1f s", vertices, perf_counter() - started)
        return library


def open_library(graph: Mapping[str, Any], policy: str, path: str | None) -> Matcher:
    """The library with a graph without pools. Raises FluxionError."""
    return Matcher(graph, policy=policy, engine="reapi", library=path)


@dataclass(frozen=True, slots=True)
class _Part:
    """What an answer holds of one rank."""

    rank: int
    nodes: Sequence[_Node]
    each: Mapping[str, int]
    """Vertices of each type that a slot has."""

    @property
    def slots(self) -> int:
        """How many slots there are in it."""
        return min(len(self._of(kind)) // number for kind, number in self.each.items())

    def first(self, slots: int) -> Sequence[_Node]:
        """What so many of its slots have: all of it where the host was taken whole."""
        if slots and any(node["metadata"]["type"] not in self.each for node in self.nodes):
            return self.nodes
        return [node for kind, number in self.each.items() for node in self._of(kind)[: slots * number]]

    def _of(self, kind: str) -> list[_Node]:
        found = (node for node in self.nodes if node["metadata"]["type"] == kind)
        return sorted(found, key=lambda node: int(node["metadata"]["id"]))


def _nodes(allocation: Allocation) -> Sequence[_Node]:
    found: Sequence[_Node] = allocation.R["graph"]["nodes"]
    return found


def _by_rank(nodes: Sequence[_Node]) -> Mapping[int, Sequence[_Node]]:
    """Of what is taken, that of each rank."""
    found: dict[int, list[_Node]] = {}
    for node in nodes:
        if node["metadata"].get("exclusive"):
            found.setdefault(node["metadata"]["rank"], []).append(node)
    return found


@dataclass(frozen=True, slots=True)
class _Request:
    """A jobspec in the library's units. `each`: what the one slot at its top has; None for any other form."""

    document: Mapping[str, Any]
    text: str
    slots: int = 0
    each: Mapping[str, int] | None = None

    def of(self, slots: int) -> str:
        """The same with another number of slots."""
        return json.dumps({**self.document, "resources": [{**self.document["resources"][0], "count": slots}]})

    def on_hosts_of_their_own(self) -> str:
        """The same with each slot on a host of its own."""
        slot = {**self.document["resources"][0], "count": 1}
        return json.dumps({**self.document, "resources": [{"type": "node", "count": self.slots, "with": [slot]}]})


@lru_cache(_CACHED)
def _read(text: str, sizes: tuple[tuple[str, int], ...]) -> _Request:
    """A jobspec without its duration, with amounts of what is held in chunks rounded up to them."""
    try:
        document = json.loads(text)
        resources = [_in_chunks(resource, dict(sizes)) for resource in document["resources"]]
        system = {**document["attributes"].get("system", {}), "duration": 0}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidJobspec(f"jobspec: is not what this plugin writes: {error!r}") from None
    document = {**document, "resources": resources, "attributes": {**document["attributes"], "system": system}}
    each = {below["type"]: below["count"] for below in resources[0].get("with", ()) if not below.get("with")}
    plain = len(resources) == 1 and resources[0]["type"] == "slot" and len(each) == len(resources[0]["with"])
    counts = (resources[0]["count"], *each.values())
    if not plain or not all(type(count) is int for count in counts):
        return _Request(document, json.dumps(document))
    return _Request(document, json.dumps(document), resources[0]["count"], each)


def _in_chunks(resource: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    chunk = sizes.get(resource["type"], 1)
    found = {**resource}
    if chunk > 1:
        found["count"] = -(-resource["count"] // chunk)
    if resource.get("with"):
        found["with"] = [_in_chunks(below, sizes) for below in resource["with"]]
    return found


def _resource_set(nodes: Sequence[_Node]) -> dict[str, Any]:
    return {"graph": {"nodes": list(nodes), "edges": []}}


def _not_in_time(name: str) -> NotSupported:
    return NotSupported(f"{name}: not with Fluxion's library, whose clock stands still; choose engine: embedded")
