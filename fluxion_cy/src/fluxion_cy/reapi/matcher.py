"""The matcher over Fluxion's own library. The embedded engine validates each call before the library."""

import errno as _errno
from typing import Any, Self

from fluxion_cy.base.arguments import flag
from fluxion_cy.base.ranges import idset_of
from fluxion_cy.engine.base_matcher import BaseMatcher, Options, locked
from fluxion_cy.engine.engine import Engine
from fluxion_cy.engine.fast_path import Turn
from fluxion_cy.engine.job_table import NO_JOBID, Job, JobTable, check_jobid
from fluxion_cy.engine.jobs import AT_ONCE, PREVIEWS, Allocation, MatchOp, Mode
from fluxion_cy.errors import Busy, FluxionError, InvalidGraph, InvalidJobspec, NotSupported, Unsatisfiable
from fluxion_cy.formats.criteria import read_criteria
from fluxion_cy.formats.jgf import read_graph
from fluxion_cy.formats.loaders import loader_of
from fluxion_cy.formats.resource_set import holds_of, read_resource_set
from fluxion_cy.formats.writers import WITH_NODELIST, Found, writer_of
from fluxion_cy.jobspec.reader import FOREVER
from fluxion_cy.policy import policy_of, prune_filters_of
from fluxion_cy.reapi import limits, marshalling
from fluxion_cy.reapi.context import Answer, Context, Failure
from fluxion_cy.reapi.failures import (
    criteria_refused,
    graph_refused,
    holding_refused,
    job_refused,
    match_refused,
    resources_refused,
    translated,
)
from fluxion_cy.reapi.library import open_library
from fluxion_cy.wording import Shortage, Words

_HIGHEST = 2**63 - 1
_HELD, _GONE = 0, -1


class LibraryMatcher(BaseMatcher):
    """A matcher in which the library decides every match.

    It also has the complete graph as loaded (for `graph`, `stat` and validation) and the table of jobs. It raises
    NotSupported for what the library cannot do.
    """

    def _set_up(self, graph: Any, options: Options) -> None:
        limits.check_choice("engine", options.engine, ("reapi",))
        load, self._write = loader_of(options.load_format), writer_of(options.match_format)
        self._plain, self._shorthand = options.match_format == "jgf", options.load_format == "jgf_shorthand"
        limits.check_choice("traverser", options.traverser, ("simple", "flexible"))
        limits.check_choice("compatible", flag(options.compatible, "compatible"), (True,))
        limits.check_choice("replan", flag(options.replan, "replan"), (False,))
        self._policy = policy_of(options.policy)
        if options.policy == "pack":
            raise NotSupported("policy='pack': only the embedded engine supports this policy")
        self._flexible = options.traverser == "flexible"
        self._turn = Turn()
        self._table = JobTable()
        self._engine = Engine()
        self._engine.lists_hosts = options.match_format in WITH_NODELIST
        self._engine.filters = prune_filters_of(options.prune_filters)
        wishes = {
            "load_format": "jgf",
            "matcher_policy": options.policy,
            "traverser_policy": options.traverser,
            "match_format": "jgf",  # after an error the other writers free memory twice
            "prune_filters": options.prune_filters,
        }
        document = load(graph)
        self._engine.units = options.load_format == "grug"
        self._engine.load(document)
        self._engine.prepare()
        limits.check_sizes(self._engine, self._engine.vertices())
        self._untold = self._engine.units or any(
            node["metadata"]["paths"].keys() != {"containment"} for node in document["graph"]["nodes"]
        )
        self._counted = limits.leaf_types(self._engine)
        self._sought = False  # the library does not finish a search for a start time
        text = marshalling.graph_text(document, self._engine)
        said = marshalling.text_of(wishes, InvalidJobspec, "options")
        opened = open_library(options.library)
        types = [*self._engine.types, *(kind for pair in self._engine.filters for kind in pair if kind)]
        self._context = translated(lambda: Context.create(opened, text, said, types), graph_refused)

    @locked
    def close(self) -> None:
        """Frees the library's memory, as the end of the last reference does. Later operations raise."""
        self._context.close()

    # ---- matching ----------------------------------------------------------------------------------------------------

    allocate = BaseMatcher.allocate  # not the embedded engine's fast path

    @locked
    def satisfy(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> bool:
        """Whether the request would match if the graph were empty and everything up."""
        limits.check_extras(now, prefer)
        text, _ = self._jobspec(jobspec, candidates)
        limits.check_root(self._engine)
        return translated(lambda: self._context.satisfy(text), match_refused)

    def _jobspec(self, jobspec: Any, candidates: Any) -> tuple[bytes, int]:
        """The text for the library, and the duration."""
        whole_nodes = self._policy.node_exclusive
        return marshalling.jobspec_text(jobspec, self._engine, candidates, whole_nodes, self._flexible)

    def _match(self, op: MatchOp, jobspec: Any, jobid: Any, now: Any, candidates: Any, prefer: Any) -> Allocation:
        limits.check_extras(now, prefer)
        preview = op in PREVIEWS
        if preview and jobid is None:
            number, automatic = NO_JOBID, False
        else:
            number, automatic = self._new_jobid(jobid)
        text, duration = self._jobspec(jobspec, candidates)
        if op not in AT_ONCE:
            limits.check_root(self._engine)
            self._sought = True
        if preview:
            answer = translated(lambda: self._context.match(op, text, NO_JOBID), match_refused)
            return self._allocation(number, answer, False, min(answer.at + duration, FOREVER))
        return self._hold(op, text, number, automatic, duration)

    def _hold(self, op: MatchOp, text: bytes, number: int, automatic: bool, duration: int) -> Allocation:
        try:
            answer = translated(lambda: self._context.match(op, text, number), match_refused)
        except (Busy, Unsatisfiable):
            self._table.advance(number, automatic)
            raise
        try:
            allocation = self._allocation(number, answer, answer.reserved, min(answer.at + duration, FOREVER))
        except FluxionError:  # the caller would not know the allocation
            translated(lambda: self._context.cancel(number), job_refused)
            raise
        self._table.advance(number, automatic)
        mode = Mode.RESERVED if answer.reserved else Mode.ALLOCATED
        self._table.jobs[number] = Job(_HELD, answer.at, mode, automatic)
        return allocation

    def _new_jobid(self, jobid: Any) -> tuple[int, bool]:
        number, automatic = self._table.choose(jobid)
        if number > _HIGHEST:
            message = f"jobid {number}: the library could not cancel a job with an id above 2**63-1; choose a lower one"
            raise InvalidJobspec(message, _errno.EOVERFLOW)
        return number, automatic

    def _allocation(self, number: int, answer: Answer, reserved: bool, end: int) -> Allocation:
        resources = self._read(answer.R)
        if not self._plain:
            self._engine.arrange(marshalling.held_in(resources, self._engine))
            resources = self._write(Found(self._engine, answer.at, end))
        return Allocation(number, answer.at, reserved, answer.overhead, resources)

    def _read(self, text: str) -> Any:
        document = marshalling.parsed(text)
        return marshalling.completed(document, self._engine) if self._untold else document

    # ---- held work ---------------------------------------------------------------------------------------------------

    @locked
    def cancel(self, jobid: int, missing_ok: bool = False, *, now: int | None = None) -> None:
        """Frees what a job holds. Raises NoSuchJob if it holds nothing, unless `missing_ok`."""
        limits.check_extras(0 if now is None else now, None)
        jobid = check_jobid(jobid)
        if missing_ok and not self._holds(jobid):
            return
        self._cancel(jobid, self._table.held(jobid))

    def _cancel(self, jobid: int, job: Job) -> None:
        translated(lambda: self._context.cancel(jobid), job_refused)
        job.slot, job.mode = _GONE, Mode.CANCELED

    @locked
    def retract(self, jobid: int) -> None:
        """Cancels a job and erases its record. Its automatic id is free again."""
        jobid = check_jobid(jobid)
        job = self._table.known(jobid)
        if job.slot == _HELD:
            self._cancel(jobid, job)
        self._table.forget(jobid)

    @locked
    def partial_cancel(
        self,
        jobid: int,
        R: Any,  # noqa: N803 - R is the field's own name
        missing_ok: bool = False,
        *,
        now: int | None = None,
    ) -> bool:
        """Frees the part of an allocation that `R` names. Returns whether nothing is left."""
        limits.check_extras(0 if now is None else now, None)
        jobid = check_jobid(jobid)
        if missing_ok and not self._holds(jobid):
            return False
        job = self._table.held(jobid)
        if job.mode is not Mode.ALLOCATED:
            raise InvalidJobspec(f"jobid {jobid}: only allocations, not reservations, can be cancelled in part")
        ranks = limits.ranks_to_free(read_resource_set(R, self._shorthand), self._touched(jobid), self._engine)
        if ranks is None:
            self._cancel(jobid, job)
            return True
        return bool(ranks) and self._free(jobid, job, ranks)

    def _touched(self, jobid: int) -> set[int]:
        text = f"jobid-tag={jobid}".encode()
        found = translated(lambda: self._context.find(text, b"jgf"), criteria_refused)
        entries = marshalling.held_in(None if found is None else marshalling.parsed(found), self._engine)
        return {vertex for vertex, _, _ in entries}

    def _free(self, jobid: int, job: Job, ranks: str) -> bool:
        text = marshalling.ranks_text(ranks)
        everything = translated(lambda: self._context.partial_cancel(jobid, text), resources_refused)
        if everything:
            job.slot, job.mode = _GONE, Mode.CANCELED
        return everything

    @locked
    def update_allocate(self, jobid: int, R: Any, *, now: int = 0) -> Allocation:  # noqa: N803 - R is the field's own name
        """Allocates exactly what `R` names, as `jobid`. Raises Busy (EINVAL) if a job holds some of it."""
        limits.check_extras(now, None)
        number, automatic = self._new_jobid(jobid)
        rset = read_resource_set(R, self._shorthand)
        holds = [hold for hold in holds_of(rset, self._engine) if hold[2]]
        if not holds:
            raise InvalidGraph(
                "R: has no exclusive vertex; set exclusive: true on each vertex that the job holds", _errno.EINVAL
            )
        text = marshalling.holding_text(holds, self._engine, rset.start or 0, rset.duration)
        answer = translated(lambda: self._context.update_allocate(number, text), holding_refused)
        self._table.jobs[number] = Job(_HELD, answer.at, Mode.ALLOCATED, automatic)
        return self._allocation(number, answer, False, answer.at + rset.duration)

    def moved(self) -> list[int]:
        """Always empty: the library never moves a reservation."""
        return []

    def allocation(self, jobid: int) -> Allocation:  # noqa: ARG002
        """Not supported: the library returns the resources of a job only when it matches the job."""
        raise NotSupported("allocation: the library returns the resources of a job only when it matches the job")

    # ---- the graph ---------------------------------------------------------------------------------------------------

    @locked
    def find(self, criteria: str, *, now: int = 0) -> dict[str, Any] | None:
        """The vertices that meet the criteria, and their ancestors, as JGF; None if there are none."""
        limits.check_extras(now, None)
        read_criteria(criteria)
        text = marshalling.word(criteria, InvalidJobspec, "criteria")
        found = translated(lambda: self._context.find(text, b"jgf"), criteria_refused)
        document: dict[str, Any] | None = None if found is None else self._read(found)
        return document if document and document.get("graph", {}).get("nodes") else None

    def why(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> str:  # noqa: ARG002
        """Not supported: the C API has no such function."""
        raise NotSupported("why: the library does not say what a request lacks; use the embedded engine")

    def shortage(
        self,
        jobspec: Any,  # noqa: ARG002
        *,
        now: int = 0,  # noqa: ARG002
        candidates: Any = None,  # noqa: ARG002
        words: Words | None = None,  # noqa: ARG002
    ) -> Shortage | None:
        """Not supported: the C API has no such function."""
        raise NotSupported("shortage: the library does not say what a request lacks; use the embedded engine")

    def set_properties(self, path: str, properties: dict[str, str]) -> None:  # noqa: ARG002
        """Not supported: the C API has no such function."""
        raise NotSupported("set_properties: the library's C API has no such function; make a new matcher")

    def resize(self, path: str, size: int) -> None:  # noqa: ARG002
        """Not supported: the C API has no such function."""
        raise NotSupported("resize: the library's C API has no such function; make a new matcher")

    def _path(self, path: Any) -> bytes:
        self._vertex(path)
        return marshalling.word(path, InvalidGraph, "path")

    @locked
    def set_status(self, path: str, up: bool) -> None:
        """Marks a vertex up or down. A vertex below one that is down is unusable, whatever its own mark."""
        text, up = self._path(path), flag(up, "up")
        translated(lambda: self._context.set_status(text, up), resources_refused)
        for vertex in self._engine.lookup(path):
            self._engine.set_down(vertex, not up)

    @locked
    def get_status(self, path: str) -> bool:
        """Whether the vertex itself is up."""
        text = self._path(path)
        return translated(lambda: self._context.get_status(text), resources_refused)

    @locked
    def set_rank_status(self, ranks: Any, up: bool) -> None:
        """Marks the topmost vertex of each rank: `all`, an idset, a number or several. Ignores unknown ranks."""
        up = flag(up, "up")
        known = [rank for rank in self._ranks(ranks) if rank >= 0 and self._engine.of_rank(rank)]
        text = idset_of(known).encode()
        if not text:
            return
        translated(lambda: self._context.set_rank_status(text, up), resources_refused)
        for rank in known:
            self._engine.set_down(self._engine.of_rank(rank)[0], not up)

    @locked
    def get_rank_status(self, rank: int) -> bool:
        """Whether the node of a rank is up."""
        text = str(self._engine.rank_of(self._top_of_rank(rank))).encode()
        return translated(lambda: self._context.get_rank_status(text), resources_refused)

    @locked
    def add_subgraph(self, graph: Any) -> None:
        """Adds the vertices of a JGF that are new. It must contain the path from the root."""
        document = read_graph(graph)
        grown = self._engine.copy()
        try:
            grown.add(document)
            known = marshalling.known_ids(document, self._engine)
            text = marshalling.graph_text(document, self._engine, known)
            limits.check_sizes(grown, grown.vertices())
        except InvalidGraph as error:
            raise InvalidGraph(str(error), _errno.EINVAL) from None
        grown.prepare()
        if self._anything_held():
            limits.check_growth(self._counted, grown)
        self._end_search()
        translated(lambda: self._context.add_subgraph(text), resources_refused)
        self._engine = grown
        self._untold = True
        self._counted |= limits.leaf_types(grown)

    @locked
    def remove_subgraph(self, path: str) -> None:
        """Removes a vertex and everything below it."""
        text = self._path(path)
        vertex = self._removable(path)
        limits.check_removal(self._engine, path, vertex)
        if self._anything_held():
            limits.check_growth(self._counted, self._engine)
        self._end_search()
        translated(lambda: self._context.remove_subgraph(text), resources_refused)
        self._engine.remove(vertex)
        self._engine.prepare()

    @locked
    def clone(self) -> Self:
        """A deep, independent copy, with all jobs."""
        if self._anything_held():
            limits.check_clone(self._counted, self._engine)
        self._end_search()
        other = self._copy()
        other._counted, other._sought = limits.leaf_types(other._engine), False
        other._context = translated(self._context.clone, resources_refused)
        return other

    def _anything_held(self) -> bool:
        return any(job.slot == _HELD for job in self._table.jobs.values())

    def _end_search(self) -> None:
        """Ends the last search for a start time, which would put a vertex twice into the tree of a clone.

        Only an allocation at the root ends it, so this holds a leaf for a second in the far future.
        """
        if self._sought and not any(map(self._touch, limits.leaves_to_hold(self._engine))):
            raise NotSupported(
                "graph: the library cannot finish its last search for a start time; name the types of all leaves in "
                "prune_filters, as in ALL:core"
            )
        self._sought = False

    def _touch(self, leaf: int) -> bool:
        """Holds a leaf for a moment. Returns whether the library counted it up to the root."""
        number = next(number for number in range(_HIGHEST, 0, -1) if number not in self._table.jobs)
        text = marshalling.holding_text(
            [(leaf, self._engine.size_of(leaf), True)], self._engine, marshalling.LATEST - 1, 1
        )
        try:
            self._context.update_allocate(number, text)
            complaint = self._context.complaint()
            self._context.cancel(number)
        except Failure:
            return False
        return not complaint
