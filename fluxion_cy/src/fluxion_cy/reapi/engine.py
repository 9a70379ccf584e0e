"""The matcher over Fluxion's own library, with the embedded engine's checks before each call and its errors after."""

import errno as _errno
from typing import Any

from fluxion_cy._quick import Turn
from fluxion_cy._select import Select
from fluxion_cy.arguments import index_of
from fluxion_cy.criteria import read_criteria
from fluxion_cy.documents import read_graph
from fluxion_cy.errors import (
    Busy,
    FluxionError,
    InvalidGraph,
    InvalidJobspec,
    NotSupported,
    Unsatisfiable,
    shown,
)
from fluxion_cy.flags import flag
from fluxion_cy.jobs import NO_JOBID, Allocation, Job, JobInfo, JobTable, Mode, check_jobid, info_of
from fluxion_cy.jobspec import FOREVER
from fluxion_cy.loaders import loader_of
from fluxion_cy.matcher import Matcher
from fluxion_cy.policy import policy_of, prune_filters_of
from fluxion_cy.reapi import hazards, sending
from fluxion_cy.reapi.answers import completed, held_in, parsed
from fluxion_cy.reapi.arguments import check_choice, check_extras
from fluxion_cy.reapi.context import Answer, Context, Failure, Op
from fluxion_cy.reapi.library import open_library
from fluxion_cy.reapi.refusals import (
    criteria_refused,
    graph_refused,
    holding_refused,
    job_refused,
    match_refused,
    resources_refused,
    told,
)
from fluxion_cy.reapi.releasing import ranks_to_free
from fluxion_cy.resource_set import holds_of, read_resource_set
from fluxion_cy.writers import WITH_NODELIST, Found, writer_of

_HIGHEST = 2**63 - 1
_PREVIEWS = (Op.WITHOUT_ALLOCATING, Op.WITHOUT_ALLOCATING_FUTURE)
_SEEKING = (Op.ALLOCATE_W_SATISFIABILITY, Op.ALLOCATE_ORELSE_RESERVE, Op.WITHOUT_ALLOCATING_FUTURE)
_HELD, _GONE = 0, -1


def class_for(kind: type[Matcher]) -> type[Matcher]:
    """The class of this engine for `Matcher`, or for a subclass of it, whose methods come first."""
    if kind is Matcher:
        return ReapiMatcher
    if issubclass(kind, ReapiMatcher):
        return kind
    return type(kind.__name__, (kind, ReapiMatcher), {"__module__": kind.__module__})


class ReapiMatcher(Matcher):
    """What `Matcher(graph, engine="reapi")` gives.

    The library decides every match. Beside it stand the graph as it was read, without any loss (`graph`, `stat`, the
    checks), and the table of jobs (ids that are held or were). What the library cannot do is NotSupported.
    """

    def __init__(
        self,
        graph: Any,
        policy: str = "first",
        match_format: str = "jgf",
        load_format: str = "jgf",
        prune_filters: str = "ALL:core,ALL:node",
        engine: str = "reapi",
        traverser: str = "simple",
        compatible: bool = True,
        replan: bool = False,
        library: str | None = None,
    ) -> None:
        check_choice("engine", engine, ("reapi",))
        load, self._write = loader_of(load_format), writer_of(match_format)
        self._plain, self._shorthand = match_format == "jgf", load_format == "jgf_shorthand"
        check_choice("traverser", traverser, ("simple", "flexible"))
        check_choice("compatible", flag(compatible, "compatible"), (True,))
        check_choice("replan", flag(replan, "replan"), (False,))
        self._policy = policy_of(policy)
        if policy == "pack":
            raise NotSupported("policy='pack': only the embedded engine has it")
        self._flexible = traverser == "flexible"
        self._turn = Turn()
        self._lock = self._turn.lock
        self._table = JobTable()
        self._engine = Select()
        self._engine.lists_hosts = match_format in WITH_NODELIST
        self._engine.filters = prune_filters_of(prune_filters)
        options = {
            "load_format": "jgf",
            "matcher_policy": policy,
            "traverser_policy": traverser,
            "match_format": "jgf",  # its other writers free twice what they could not write
            "prune_filters": prune_filters,
        }
        document = load(graph)
        self._engine.units = load_format == "grug"
        self._engine.load(document)
        self._engine.plan()
        hazards.check_sizes(self._engine, self._engine.vertices())
        self._untold = self._engine.units or any(
            node["metadata"]["paths"].keys() != {"containment"} for node in document["graph"]["nodes"]
        )
        self._counted = hazards.leaf_types(self._engine)
        self._sought = False  # a search for a time is left halfway in the library
        text = sending.graph_text(document, self._engine)
        wishes = sending.text_of(options, InvalidJobspec, "options")
        opened = open_library(library)
        types = [*self._engine.types, *(kind for pair in self._engine.filters for kind in pair if kind)]
        self._context = told(lambda: Context.create(opened, text, wishes, types), graph_refused)

    def close(self) -> None:
        """Gives the library's memory back, as the end of the last reference does; later operations are errors."""
        with self._lock:
            self._context.close()

    # ---- matching ----------------------------------------------------------------------------------------------------

    def allocate(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Holds resources, or raises Busy."""
        return self._match(Op.ALLOCATE, jobspec, jobid, now, candidates, prefer)

    def allocate_orelse_reserve(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Holds resources at once or from the first second at which they are free."""
        return self._match(Op.ALLOCATE_ORELSE_RESERVE, jobspec, jobid, now, candidates, prefer)

    def allocate_with_satisfiability(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Holds resources, or raises Busy, or Unsatisfiable."""
        return self._match(Op.ALLOCATE_W_SATISFIABILITY, jobspec, jobid, now, candidates, prefer)

    def without_allocating(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Answers what `allocate` would give, and holds nothing."""
        return self._match(Op.WITHOUT_ALLOCATING, jobspec, jobid, now, candidates, prefer)

    def without_allocating_future(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Answers what `allocate_orelse_reserve` would give, and holds nothing."""
        return self._match(Op.WITHOUT_ALLOCATING_FUTURE, jobspec, jobid, now, candidates, prefer)

    def satisfy(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> bool:
        """Whether the graph could hold the request if it were empty and everything were up."""
        with self._lock:
            check_extras(now, prefer)
            text, _ = self._jobspec(jobspec, candidates)
            hazards.check_root(self._engine)
            return told(lambda: self._context.satisfy(text), match_refused)

    def _jobspec(self, jobspec: Any, candidates: Any) -> tuple[bytes, int]:
        """The text for the library, and the seconds that it asks for."""
        whole_nodes = self._policy.node_exclusive
        return sending.jobspec_text(jobspec, self._engine, candidates, whole_nodes, self._flexible)

    def _match(self, op: Op, jobspec: Any, jobid: Any, now: Any, candidates: Any, prefer: Any) -> Allocation:
        with self._lock:
            check_extras(now, prefer)
            preview = op in _PREVIEWS
            if preview and jobid is None:
                number, automatic = NO_JOBID, False
            else:
                number, automatic = self._new_jobid(jobid)
            text, duration = self._jobspec(jobspec, candidates)
            if op in _SEEKING:
                hazards.check_root(self._engine)
                self._sought = True
            if preview:
                answer = told(lambda: self._context.match(op, text, NO_JOBID), match_refused)
                return self._allocation(number, answer, False, min(answer.at + duration, FOREVER))
            return self._hold(op, text, number, automatic, duration)

    def _hold(self, op: Op, text: bytes, number: int, automatic: bool, duration: int) -> Allocation:
        try:
            answer = told(lambda: self._context.match(op, text, number), match_refused)
        except (Busy, Unsatisfiable):
            self._table.advance(number, automatic)
            raise
        try:
            allocation = self._allocation(number, answer, answer.reserved, min(answer.at + duration, FOREVER))
        except FluxionError:  # nobody would learn what is held
            told(lambda: self._context.cancel(number), job_refused)
            raise
        self._table.advance(number, automatic)
        mode = Mode.RESERVED if answer.reserved else Mode.ALLOCATED
        self._table.jobs[number] = Job(_HELD, answer.at, mode, automatic)
        return allocation

    def _new_jobid(self, jobid: Any) -> tuple[int, bool]:
        number, automatic = self._table.choose(jobid)
        if number > _HIGHEST:
            message = f"jobid {number}: the real engine could not cancel a job with an id above 2**63-1; choose another"
            raise InvalidJobspec(message, _errno.EOVERFLOW)
        return number, automatic

    def _allocation(self, number: int, answer: Answer, reserved: bool, end: int) -> Allocation:
        resources = self._read(answer.R)
        if not self._plain:
            self._engine.arrange(held_in(resources, self._engine))
            resources = self._write(Found(self._engine, answer.at, end))
        return Allocation(number, answer.at, reserved, answer.overhead, resources)

    def _read(self, text: str) -> Any:
        document = parsed(text)
        return completed(document, self._engine) if self._untold else document

    # ---- held work ---------------------------------------------------------------------------------------------------

    def cancel(self, jobid: int, missing_ok: bool = False, *, now: int | None = None) -> None:
        """Frees what a job holds; NoSuchJob if it holds nothing, unless `missing_ok`."""
        with self._lock:
            check_extras(0 if now is None else now, None)
            jobid = check_jobid(jobid)
            if missing_ok and not self._holds(jobid):
                return
            job = self._table.held(jobid)
            told(lambda: self._context.cancel(jobid), job_refused)
            job.slot, job.mode = _GONE, Mode.CANCELED

    def retract(self, jobid: int) -> None:
        """Cancels a job and forgets it here, as if it had never been; its automatic id is free again."""
        with self._lock:
            jobid = check_jobid(jobid)
            if self._table.known(jobid).slot == _HELD:
                self.cancel(jobid)
            self._table.forget(jobid)

    def partial_cancel(
        self,
        jobid: int,
        R: Any,  # noqa: N803 - R is the field's own name
        missing_ok: bool = False,
        *,
        now: int | None = None,
    ) -> bool:
        """Frees the part of an allocation that `R` names; answers whether nothing is left."""
        with self._lock:
            check_extras(0 if now is None else now, None)
            jobid = check_jobid(jobid)
            if missing_ok and not self._holds(jobid):
                return False
            job = self._table.held(jobid)
            if job.mode is not Mode.ALLOCATED:
                raise InvalidJobspec(f"jobid {jobid}: only an allocation can be cancelled in part, not a reservation")
            ranks = ranks_to_free(read_resource_set(R, self._shorthand), self._touched(jobid), self._engine)
            if ranks is None:
                self.cancel(jobid)
                return True
            return bool(ranks) and self._free(jobid, job, ranks)

    def _touched(self, jobid: int) -> set[int]:
        text = f"jobid-tag={jobid}".encode()
        found = told(lambda: self._context.find(text, b"jgf"), criteria_refused)
        entries = held_in(None if found is None else parsed(found), self._engine)
        return {vertex for vertex, _, _ in entries}

    def _free(self, jobid: int, job: Job, ranks: str) -> bool:
        text = sending.ranks_text(ranks)
        everything = told(lambda: self._context.partial_cancel(jobid, text), resources_refused)
        if everything:
            job.slot, job.mode = _GONE, Mode.CANCELED
        return everything

    def update_allocate(self, jobid: int, R: Any, *, now: int = 0) -> Allocation:  # noqa: N803 - R is the field's own name
        """Holds exactly what `R` names, as `jobid`; Busy (EINVAL) if some of it is held already."""
        with self._lock:
            check_extras(now, None)
            number, automatic = self._new_jobid(jobid)
            rset = read_resource_set(R, self._shorthand)
            holds = [hold for hold in holds_of(rset, self._engine) if hold[2]]
            if not holds:
                raise InvalidGraph("R: names nothing that is taken; mark it with exclusive: true", _errno.EINVAL)
            text = sending.holding_text(holds, self._engine, rset.start or 0, rset.duration)
            answer = told(lambda: self._context.update_allocate(number, text), holding_refused)
            self._table.jobs[number] = Job(_HELD, answer.at, Mode.ALLOCATED, automatic)
            return self._allocation(number, answer, False, answer.at + rset.duration)

    def info(self, jobid: int) -> JobInfo:
        """Mode (ALLOCATED, RESERVED or CANCELED), `reserved` and `at` of a job; NoSuchJob if it is unknown.

        From the table here: clones of the library share their jobs' records, and one's cancel shows in the other.
        """
        with self._lock:
            return info_of(self._table, jobid)

    def moved(self) -> list[int]:
        """None: the library never moves a reservation."""
        return []

    def allocation(self, jobid: int) -> Allocation:  # noqa: ARG002
        """Not there: the library says once, when it matches, what a job has."""
        raise NotSupported("allocation: the real engine says only when it matches what a job has")

    # ---- the graph ---------------------------------------------------------------------------------------------------

    def find(self, criteria: str, *, now: int = 0) -> dict[str, Any] | None:
        """The vertices that meet the criteria, and their ancestors, as JGF; None if there are none."""
        with self._lock:
            check_extras(now, None)
            read_criteria(criteria)
            text = sending.word(criteria, InvalidJobspec, "criteria")
            found = told(lambda: self._context.find(text, b"jgf"), criteria_refused)
            document: dict[str, Any] | None = None if found is None else self._read(found)
            return document if document and document.get("graph", {}).get("nodes") else None

    def why(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> str:  # noqa: ARG002
        """Not there: the library does not say what stands in the way."""
        raise NotSupported("why: the real engine does not say what stands in the way; ask an embedded one")

    def set_properties(self, path: str, properties: dict[str, str]) -> None:  # noqa: ARG002
        """Not there: the C API has no such function."""
        raise NotSupported("set_properties: the real engine's C API cannot do it; make a new matcher")

    def resize(self, path: str, size: int) -> None:  # noqa: ARG002
        """Not there: the C API has no such function."""
        raise NotSupported("resize: the real engine's C API cannot do it; make a new matcher")

    def _path(self, path: Any) -> bytes:
        self._vertex(path)
        return sending.word(path, InvalidGraph, "path")

    def set_status(self, path: str, up: bool) -> None:
        """Marks a vertex up or down; what is below something down cannot be used, whatever its own mark says."""
        with self._lock:
            text, up = self._path(path), flag(up, "up")
            told(lambda: self._context.set_status(text, up), resources_refused)
            for vertex in self._engine.lookup(path):
                self._engine.set_down(vertex, not up)

    def get_status(self, path: str) -> bool:
        """Whether the vertex itself is up."""
        with self._lock:
            text = self._path(path)
            return told(lambda: self._context.get_status(text), resources_refused)

    def set_rank_status(self, ranks: Any, up: bool) -> None:
        """Marks the topmost vertex of each rank (`all`, an idset, a number or several); unknown ranks are ignored."""
        with self._lock:
            up = flag(up, "up")
            known = [rank for rank in self._ranks(ranks) if rank >= 0 and self._engine.of_rank(rank)]
            text = sending.idset_of(known).encode()
            if not text:
                return
            told(lambda: self._context.set_rank_status(text, up), resources_refused)
            for rank in known:
                self._engine.set_down(self._engine.of_rank(rank)[0], not up)

    def get_rank_status(self, rank: int) -> bool:
        """Whether the node of a rank is up."""
        with self._lock:
            rank = index_of(rank, "rank", 0, 2**31 - 1, InvalidGraph)
            if not self._engine.of_rank(rank):
                raise InvalidGraph(f"rank {shown(rank)}: no vertex has it", _errno.EINVAL)
            return told(lambda: self._context.get_rank_status(str(rank).encode()), resources_refused)

    def add_subgraph(self, graph: Any) -> None:
        """Adds what a JGF has beyond the graph; it must contain the path from the root."""
        with self._lock:
            document = read_graph(graph)
            grown = self._engine.copy()
            try:
                grown.add(document)
                known = sending.known_ids(document, self._engine)
                text = sending.graph_text(document, self._engine, known)
                hazards.check_sizes(grown, grown.vertices())
            except InvalidGraph as error:
                raise InvalidGraph(str(error), _errno.EINVAL) from None
            grown.plan()
            if self._anything_held():
                hazards.check_growth(self._counted, grown)
            self._settle()
            told(lambda: self._context.add_subgraph(text), resources_refused)
            self._engine = grown
            self._untold = True
            self._counted |= hazards.leaf_types(grown)

    def remove_subgraph(self, path: str) -> None:
        """Removes a vertex and all below it."""
        with self._lock:
            text = self._path(path)
            vertex = self._vertex(path)
            if vertex == self._engine.root:
                raise InvalidGraph(f"path {path!r}: the root cannot be removed", _errno.EINVAL)
            hazards.check_removal(self._engine, path, vertex)
            if self._anything_held():
                hazards.check_growth(self._counted, self._engine)
            self._settle()
            told(lambda: self._context.remove_subgraph(text), resources_refused)
            self._engine.remove(vertex)
            self._engine.plan()

    def clone(self) -> "ReapiMatcher":
        """A deep copy with all allocations; both go their own ways."""
        with self._lock:
            if self._anything_held():
                hazards.check_clone(self._counted, self._engine)
            self._settle()
            other = object.__new__(type(self))
            vars(other).update(vars(self))  # what a subclass has of its own
            other._turn = Turn()
            other._lock = other._turn.lock
            other._policy, other._write, other._flexible = self._policy, self._write, self._flexible
            other._plain, other._shorthand, other._untold = self._plain, self._shorthand, self._untold
            other._table = self._table.copy()
            other._engine = self._engine.copy()
            other._counted, other._sought = hazards.leaf_types(other._engine), False
            other._context = told(self._context.clone, resources_refused)
            return other

    def _anything_held(self) -> bool:
        return any(job.slot == _HELD for job in self._table.jobs.values())

    def _settle(self) -> None:
        """Ends the last search for a time, of which a clone would make a tree with a vertex in it twice.

        Only what is held at the root ends it, so a leaf is held for a second that is far away.
        """
        if self._sought and not any(map(self._touch, hazards.leaves_to_hold(self._engine))):
            raise NotSupported(
                "graph: the real engine's last search for a time is in the way, and it cannot count what would end it; "
                "name the types of all leaves in prune_filters, as in ALL:core"
            )
        self._sought = False

    def _touch(self, leaf: int) -> bool:
        """Holds a leaf for a moment; whether the library could count it up to the root."""
        number = next(number for number in range(_HIGHEST, 0, -1) if number not in self._table.jobs)
        text = sending.holding_text([(leaf, self._engine.size_of(leaf), True)], self._engine, sending.LATEST - 1, 1)
        try:
            self._context.update_allocate(number, text)
            complaint = self._context.complaint()
            self._context.cancel(number)
        except Failure:
            return False
        return not complaint
