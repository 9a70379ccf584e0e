"""Fluxion's own library as the matcher of the live graph: it decides every match.

The embedded engine is the ledger: it records all allocations, and answers all questions about them. This module adds
what the library lacks:

- It splits divisible pools into chunks.
- To keep the number of slots per host within the candidates' limits, it matches again for the remaining slots.
- To free a part of an allocation, it frees all of it and allocates the rest again.
- After a change of the graph it loads the whole graph, with all allocations, before the next match.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from fluence_plugins.fluence.graph.pool_chunks import PoolChunks
from fluxion_cy import Allocation, Busy, FluxionError, InvalidJobspec, Matcher, NotSupported
from fluxion_cy.wording import in_mib

log = logging.getLogger("fluence")

_REPEATED = (1 << 62) - 1
"""The library's jobid of a repeated match: below the jobids of foreign load, above those of pods."""
_CACHED = 1024
_Node = Mapping[str, Any]


class LibraryMatcher(Matcher):
    """`Matcher` over Fluxion's library; `chunks` is the number of units in one chunk of a pool, by type.

    The library's clock does not move: it gets neither durations nor `now`, and methods that return a time raise
    NotSupported. It does not get `prefer` either. The first match opens the library; `Engine.check` tests before
    whether it exists and has the policy.
    """

    def __init__(self, graph: Mapping[str, Any], policy: str, library: str | None, chunks: Mapping[str, int]) -> None:
        super().__init__(graph, policy=policy)
        self._library_policy = policy
        self._library_path = library
        self._sizes = tuple(sorted(chunks.items()))
        self._library: Matcher | None = None
        """None before the first match, and after each change of the graph."""
        self._chunks = PoolChunks({"graph": {"nodes": [], "edges": []}}, {})
        self._held = set[int]()
        """The jobs that the library holds."""

    # ---- matching ----------------------------------------------------------------------------------------------------

    def allocate(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Allocate what the library matches. Raises Busy or Unsatisfiable."""
        del now, prefer
        request = _read(jobspec if isinstance(jobspec, str) else json.dumps(jobspec), self._sizes)
        number = self.next_jobid if jobid is None else jobid
        library = self._library or self._open()
        nodes = self._library_match(library, request, number, None if candidates is None else np.asarray(candidates))
        held = self._chunks.take(number, nodes)
        try:
            found = super().update_allocate(number, _resource_set(held))
        except FluxionError as error:
            log.warning("[fluence] the library matched resources for job %d that another job holds: %s", number, error)
            library.retract(number)
            self._chunks.free(number)
            raise Busy(f"jobspec: the library matched resources that another job holds ({error})") from error
        self._held.add(number)
        return found

    def _library_match(self, library: Matcher, request: _Request, number: int, candidates: Any) -> Sequence[_Node]:
        """Match in the library, as the job `number`. Returns the vertices."""
        if candidates is None or candidates.dtype == np.bool_:
            return _nodes(library.allocate(request.text, jobid=number, candidates=candidates))
        if request.each is None:
            raise NotSupported("candidates: to limit slots per node, use a jobspec with one slot of plain resources")
        room = candidates.copy()
        if room.max(initial=0) == 1:  # one host a slot: no second match is necessary
            return _nodes(library.allocate(request.spread(), jobid=number, candidates=room > 0))
        return self._match_rest(library, request, request.each, number, room)

    @staticmethod
    def _match_rest(
        library: Matcher, request: _Request, each: Mapping[str, int], number: int, room: Any
    ) -> Sequence[_Node]:
        """Match until all slots have a host: keep at most the allowed slots of each host, and match the rest again.

        The slots are equal, so this finds every host with room. Each match but the last fills a host.
        """
        kept: list[_Node] = []
        left = request.slots
        while left > 0:
            name = _REPEATED if kept else number
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
        """What `allocate` would return."""
        found = self.allocate(jobspec, jobid, now=now, candidates=candidates, prefer=prefer)
        self.retract(found.jobid)
        return found

    def allocate_orelse_reserve(self, *_: Any, **__: Any) -> Allocation:
        """Not supported: the library's clock does not move."""
        raise _not_in_time("allocate_orelse_reserve")

    def without_allocating_future(self, *_: Any, **__: Any) -> Allocation:
        """Not supported: the library's clock does not move."""
        raise _not_in_time("without_allocating_future")

    def why(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> str:
        """What the ledger lacks, or that chunks are the reason."""
        del prefer
        found = super().why(jobspec, now=now, candidates=candidates)
        if found != "fits now":
            return found
        chunks = " and ".join(f"{kind} in chunks of {in_mib(size)}" for kind, size in self._sizes)
        return f"Fluxion's library finds no match, although enough of each type is free: it allocates {chunks}"

    # ---- allocations -------------------------------------------------------------------------------------------------

    def cancel(self, jobid: int, missing_ok: bool = False, *, now: int | None = None) -> None:
        """Free what a job holds."""
        super().cancel(jobid, missing_ok, now=now)
        self._drop(jobid)

    def retract(self, jobid: int) -> None:
        """Remove a job without a trace."""
        super().retract(jobid)
        self._drop(jobid)

    def partial_cancel(
        self,
        jobid: int,
        R: Any,  # noqa: N803 - R is Flux's name
        missing_ok: bool = False,
        *,
        now: int | None = None,
    ) -> bool:
        """Free the part of an allocation that `R` names. Returns whether nothing is left."""
        if missing_ok and not self._holds(jobid):
            return False
        ended = super().partial_cancel(jobid, R, missing_ok, now=now)
        self._drop(jobid)
        if not ended:
            self._hold(jobid)
        return ended

    def update_allocate(self, jobid: int, R: Any, *, now: int = 0) -> Allocation:  # noqa: N803 - R is Flux's name
        """Allocate exactly what `R` names."""
        found = super().update_allocate(jobid, R, now=now)
        self._hold(jobid)
        return found

    def _drop(self, jobid: int) -> None:
        """Remove a job from the library."""
        self._chunks.free(jobid)
        if jobid in self._held:
            self._held.discard(jobid)
            if self._library is not None:
                self._library.retract(jobid)

    def _hold(self, jobid: int) -> None:
        """Allocate in the library what a job holds in the ledger."""
        if self._library is None:
            return  # `_open` does it
        nodes = self._chunks.assign(jobid, _nodes(super().allocation(jobid)))
        if not any(node["metadata"].get("exclusive") for node in nodes):
            return  # no chunk is free for it
        try:
            self._library.update_allocate(jobid, _resource_set(nodes))
            self._held.add(jobid)
        except FluxionError as error:
            log.warning("[fluence] jobid %d: the library cannot allocate this job: %s", jobid, error)

    # ---- the graph ---------------------------------------------------------------------------------------------------

    def add_subgraph(self, graph: Any) -> None:
        """Add the vertices of a JGF that the graph lacks."""
        super().add_subgraph(graph)
        self.close()

    def remove_subgraph(self, path: str) -> None:
        """Remove a vertex and everything below it."""
        super().remove_subgraph(path)
        self.close()

    def resize(self, path: str, size: int) -> None:
        """Change the units of a vertex."""
        super().resize(path, size)
        self.close()

    def set_properties(self, path: str, properties: dict[str, str]) -> None:
        """Replace the properties of a vertex."""
        super().set_properties(path, properties)
        self.close()

    def set_status(self, path: str, up: bool) -> None:
        """Mark a vertex up or down."""
        super().set_status(path, up)
        self.close()

    def set_rank_status(self, ranks: Any, up: bool) -> None:
        """Mark the topmost vertex of each rank up or down."""
        super().set_rank_status(ranks, up)
        self.close()

    def clone(self) -> LibraryMatcher:
        """Not supported: a copy of the library's graph shares the records of its jobs."""
        raise NotSupported("clone: not supported with Fluxion's library")

    def close(self) -> None:
        """Close the library. The next match opens it again."""
        if self._library is not None:
            self._library.close()
            self._library = None

    def _open(self) -> Matcher:
        """Load the current graph and its allocations into the library.

        The library can change a loaded graph, but it can neither remove an only child nor count added nodes (flux-sched
        0.54).
        """
        started = perf_counter()
        self._chunks = PoolChunks(self.graph(), dict(self._sizes))
        self._library = library = open_library(self._chunks.document, self._library_policy, self._library_path)
        self._held.clear()
        for jobid, job in sorted(self._table.jobs.items()):
            if job.slot >= 0:
                self._hold(jobid)
        vertices, seconds = len(self._chunks.document["graph"]["nodes"]), perf_counter() - started
        log.info("[fluence] Fluxion's library loaded the graph: %d vertices in %.1f s", vertices, seconds)
        return library


def open_library(graph: Mapping[str, Any], policy: str, path: str | None) -> Matcher:
    """Load a graph without pools into the library. Raises FluxionError."""
    return Matcher(graph, policy=policy, engine="reapi", library=path)


class _Part(msgspec.Struct, frozen=True):
    """The vertices of one rank in a match."""

    rank: int
    nodes: Sequence[_Node]
    each: Mapping[str, int]
    """The number of vertices of each type in a slot."""

    @property
    def slots(self) -> int:
        """The number of slots in this part."""
        return min(len(self._of(kind)) // number for kind, number in self.each.items())

    def first(self, slots: int) -> Sequence[_Node]:
        """The vertices of the part's first slots: all vertices if the match has the whole host."""
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
    """The matched vertices of each rank."""
    found: dict[int, list[_Node]] = {}
    for node in nodes:
        if node["metadata"].get("exclusive"):
            found.setdefault(node["metadata"]["rank"], []).append(node)
    return found


class _Request(msgspec.Struct, frozen=True):
    """A jobspec in the library's units. `each`: the amounts of its only slot; None for a jobspec of another form."""

    document: Mapping[str, Any]
    text: str
    slots: int = 0
    each: Mapping[str, int] | None = None

    def of(self, slots: int) -> str:
        """The same jobspec with a different number of slots."""
        return json.dumps({**self.document, "resources": [{**self.document["resources"][0], "count": slots}]})

    def spread(self) -> str:
        """The same jobspec with one slot per host."""
        slot = {**self.document["resources"][0], "count": 1}
        return json.dumps({**self.document, "resources": [{"type": "node", "count": self.slots, "with": [slot]}]})


@lru_cache(_CACHED)
def _read(text: str, sizes: tuple[tuple[str, int], ...]) -> _Request:
    """A jobspec without its duration, with amounts rounded up to chunks."""
    try:
        document = json.loads(text)
        resources = [_in_chunks(resource, dict(sizes)) for resource in document["resources"]]
        system = {**document["attributes"].get("system", {}), "duration": 0}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidJobspec(f"jobspec: not in the form that this plugin writes: {error!r}") from None
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
    return NotSupported(f"{name}: not supported with `engine: reapi`, which has no clock; choose `engine: embedded`")
