"""The matcher over Fluxion's own library, with the embedded engine's checks before each call and its errors after."""

import errno as _errno
import json
import operator
import threading
from typing import Any

from fluxion_cy._select import Select
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
from fluxion_cy.jobs import NO_JOBID, Job, JobInfo, JobTable, Mode
from fluxion_cy.matcher import Allocation, Matcher
from fluxion_cy.policy import policy_of, prune_filters_of
from fluxion_cy.reapi import sending
from fluxion_cy.reapi.context import Answer, Context, Op
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
from fluxion_cy.reapi.releasing import ranks_to_free, touched_by
from fluxion_cy.resource_set import holds_of, read_resource_set

_JSON_FORMATS = ("jgf", "jgf_shorthand", "rv1", "rv1_nosched", "rv1_shorthand")
_TEXT_FORMATS = ("rlite", "simple", "pretty_simple")
_HIGHEST = 2**63 - 1
_PREVIEWS = (Op.WITHOUT_ALLOCATING, Op.WITHOUT_ALLOCATING_FUTURE)
_HELD, _GONE = 0, -1


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
        _check_choice("engine", engine, ("reapi",))
        _check_choice("match_format", match_format, (*_JSON_FORMATS, *_TEXT_FORMATS))
        _check_choice("load_format", load_format, ("jgf",))
        _check_choice("traverser", traverser, ("simple", "flexible"))
        _check_choice("compatible", compatible, (True,))
        _check_choice("replan", replan, (False,))
        self._policy = policy_of(policy)
        if policy == "pack":
            raise NotSupported("policy='pack': only the embedded engine has it")
        self._format, self._flexible = match_format, traverser == "flexible"
        self._lock = threading.RLock()
        self._table = JobTable()
        self._engine = Select()
        self._engine.filters = prune_filters_of(prune_filters)
        options = {
            "load_format": "jgf",
            "matcher_policy": policy,
            "traverser_policy": traverser,
            "match_format": match_format,
            "prune_filters": prune_filters,
        }
        document = read_graph(graph)
        self._engine.load(document)
        self._engine.plan()
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
            _check_extras(now, prefer)
            text = self._jobspec(jobspec, candidates)
            return told(lambda: self._context.satisfy(text), match_refused)

    def _jobspec(self, jobspec: Any, candidates: Any) -> bytes:
        whole_nodes = self._policy.node_exclusive
        return sending.jobspec_text(jobspec, self._engine, candidates, whole_nodes, self._flexible)

    def _match(self, op: Op, jobspec: Any, jobid: Any, now: Any, candidates: Any, prefer: Any) -> Allocation:
        with self._lock:
            _check_extras(now, prefer)
            preview = op in _PREVIEWS
            if preview and jobid is None:
                number, automatic = NO_JOBID, False
            else:
                number, automatic = self._new_jobid(jobid)
            text = self._jobspec(jobspec, candidates)
            if preview:
                answer = told(lambda: self._context.match(op, text, NO_JOBID), match_refused)
                return self._allocation(number, answer, False)
            return self._hold(op, text, number, automatic)

    def _hold(self, op: Op, text: bytes, number: int, automatic: bool) -> Allocation:
        try:
            answer = told(lambda: self._context.match(op, text, number), match_refused)
        except (Busy, Unsatisfiable):
            self._table.advance(number, automatic)
            raise
        try:
            allocation = self._allocation(number, answer, answer.reserved)
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

    def _allocation(self, number: int, answer: Answer, reserved: bool) -> Allocation:
        resources: Any = _parsed(answer.R) if self._format in _JSON_FORMATS else answer.R
        return Allocation(number, answer.at, reserved, answer.overhead, resources)

    # ---- held work ---------------------------------------------------------------------------------------------------

    def cancel(self, jobid: int, missing_ok: bool = False, *, now: int | None = None) -> None:
        """Frees what a job holds; NoSuchJob if it holds nothing, unless `missing_ok`."""
        with self._lock:
            _check_extras(now or 0, None)
            if missing_ok and not self._holds(jobid):
                return
            job = self._table.held(jobid)
            told(lambda: self._context.cancel(int(jobid)), job_refused)
            job.slot, job.mode = _GONE, Mode.CANCELED

    def retract(self, jobid: int) -> None:
        """Cancels a job and forgets it here, as if it had never been; its automatic id is free again."""
        with self._lock:
            if self._table.known(jobid).slot == _HELD:
                self.cancel(jobid)
            self._table.forget(int(jobid))

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
            _check_extras(now or 0, None)
            if missing_ok and not self._holds(jobid):
                return False
            job = self._table.held(jobid)
            if job.mode is not Mode.ALLOCATED:
                raise InvalidJobspec(f"jobid {jobid}: only an allocation can be cancelled in part, not a reservation")
            ranks = ranks_to_free(read_resource_set(R), self._touched(jobid), self._engine)
            if ranks is None:
                self.cancel(jobid)
                return True
            return bool(ranks) and self._free(int(jobid), job, ranks)

    def _touched(self, jobid: int) -> set[int]:
        text = f"jobid-tag={int(jobid)}".encode()
        found = told(lambda: self._context.find(text, b"jgf"), criteria_refused)
        return touched_by(None if found is None else _parsed(found), self._engine)

    def _free(self, jobid: int, job: Job, ranks: str) -> bool:
        text = sending.ranks_text(ranks)
        everything = told(lambda: self._context.partial_cancel(jobid, text), resources_refused)
        if everything:
            job.slot, job.mode = _GONE, Mode.CANCELED
        return everything

    def update_allocate(self, jobid: int, R: Any, *, now: int = 0) -> Allocation:  # noqa: N803 - R is the field's own name
        """Holds exactly what `R` names, as `jobid`; Busy (EINVAL) if some of it is held already."""
        with self._lock:
            _check_extras(now, None)
            number, automatic = self._new_jobid(jobid)
            rset = read_resource_set(R)
            holds = [hold for hold in holds_of(rset, self._engine) if hold[2]]
            if not holds:
                raise InvalidGraph("R: names nothing that is taken; mark it with exclusive: true", _errno.EINVAL)
            text = sending.holding_text(holds, self._engine, rset.start or 0, rset.duration)
            answer = told(lambda: self._context.update_allocate(number, text), holding_refused)
            self._table.jobs[number] = Job(_HELD, answer.at, Mode.ALLOCATED, automatic)
            return self._allocation(number, answer, False)

    def info(self, jobid: int) -> JobInfo:
        """Mode (ALLOCATED, RESERVED or CANCELED), `reserved` and `at` of a job; NoSuchJob if it is unknown.

        From the table here: clones of the library share their jobs' records, and one's cancel shows in the other.
        """
        with self._lock:
            return self._table.info(jobid)

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
            _check_extras(now, None)
            read_criteria(criteria)
            text = sending.word(criteria, InvalidJobspec, "criteria")
            found = told(lambda: self._context.find(text, b"jgf"), criteria_refused)
            document: dict[str, Any] | None = None if found is None else _parsed(found)
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
        """Marks a vertex, and so all below it, up or down."""
        with self._lock:
            text = self._path(path)
            told(lambda: self._context.set_status(text, bool(up)), resources_refused)
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
            known = [rank for rank in self._ranks(ranks) if rank >= 0]
            text = sending.idset_of(known).encode()
            if not text:
                return
            told(lambda: self._context.set_rank_status(text, bool(up)), resources_refused)
            for rank in known:
                self._engine.set_down(self._engine.of_rank(rank)[0], not up)

    def get_rank_status(self, rank: int) -> bool:
        """Whether the node of a rank is up."""
        with self._lock:
            if isinstance(rank, bool) or not isinstance(rank, int) or rank not in self._engine.ranks() or rank < 0:
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
            except InvalidGraph as error:
                raise InvalidGraph(str(error), _errno.EINVAL) from None
            grown.plan()
            told(lambda: self._context.add_subgraph(text), resources_refused)
            self._engine = grown

    def remove_subgraph(self, path: str) -> None:
        """Removes a vertex and all below it."""
        with self._lock:
            text = self._path(path)
            vertex = self._vertex(path)
            if vertex == self._engine.root:
                raise InvalidGraph(f"path {path!r}: the root cannot be removed", _errno.EINVAL)
            if len(self._engine.children(self._engine.parent_of(vertex))) == 1:  # it would loop for ever
                raise NotSupported(f"path {path!r}: the real engine cannot remove an only child; remove its parent")
            if len(self._engine.lookup(path)) > 1:
                raise NotSupported(f"path {path!r}: several vertices have it; the real engine would remove any of them")
            told(lambda: self._context.remove_subgraph(text), resources_refused)
            self._engine.remove(vertex)
            self._engine.plan()

    def clone(self) -> "ReapiMatcher":
        """A deep copy with all allocations; both go their own ways."""
        with self._lock:
            other = object.__new__(ReapiMatcher)
            other._lock = threading.RLock()
            other._policy, other._format, other._flexible = self._policy, self._format, self._flexible
            other._table = self._table.copy()
            other._engine = self._engine.copy()
            other._context = told(self._context.clone, resources_refused)
            return other


# ---- checks ----------------------------------------------------------------------------------------------------------


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise NotSupported(f"{name}={shown(value)}: the real engine only has {', '.join(map(repr, choices))}")


def _check_extras(now: Any, prefer: Any) -> None:
    """Its clock stands still, and it has no preferences."""
    try:
        second = operator.index(now)
    except TypeError:
        raise InvalidJobspec(f"now: {shown(now)} is not a whole number of seconds") from None
    if second != 0:
        raise NotSupported(f"now={shown(now)}: the real engine's clock is always at 0")
    if prefer is not None:
        raise NotSupported("prefer: the real engine has no preferences")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise FluxionError(f"the library's answer is no JSON: {text[:40]!r}", _errno.EPROTO) from None
