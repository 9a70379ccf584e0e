"""The public matcher: operations, held jobs and the graph, over the embedded engine."""

import time
from collections.abc import Callable, Iterable
from errno import EINVAL
from functools import wraps
from inspect import Signature, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from fluxion_cy import _quick as quick
from fluxion_cy._scan import scan
from fluxion_cy._select import Select
from fluxion_cy.arguments import MAX_SIZE, index_of, integer, second_of
from fluxion_cy.documents import read_graph
from fluxion_cy.errors import Busy, InvalidGraph, InvalidJobspec, NotSupported, Unsatisfiable, shown
from fluxion_cy.finding import find
from fluxion_cy.flags import flag
from fluxion_cy.jobs import NO_JOBID, Allocation, Job, JobInfo, JobTable, Mode, check_jobid, info_of
from fluxion_cy.jobspec import FOREVER
from fluxion_cy.loaders import loader_of
from fluxion_cy.policy import policy_of, prune_filters_of
from fluxion_cy.ranges import idset
from fluxion_cy.release import remaining
from fluxion_cy.replanning import Request, copied, replan
from fluxion_cy.resource_set import check_free, holds_of, read_resource_set
from fluxion_cy.search import Compiler, Question, entries_of
from fluxion_cy.why import explain
from fluxion_cy.writers import WITH_NODELIST, Found, writer_of

P = ParamSpec("P")
T = TypeVar("T")


def _locked(method: "Callable[Concatenate[Matcher, P], T]") -> "Callable[Concatenate[Matcher, P], T]":
    """One call at a time in one matcher; the GIL is free while the engine searches."""

    @wraps(method)
    def inner(self: "Matcher", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._turn.call(method, self, args, kwargs)

    return inner


class Matcher:
    """A resource graph and what is held in it.

    `graph` is what `load_format` says: JGF or R version 1 (`rv1exec`) as a mapping or as JSON or YAML text, or a recipe
    (`grug`) as GraphML text. `match_format` chooses the form of `R`. `policy` is a name or a custom string,
    `prune_filters` a list such as `ALL:core,ALL:node`. `compatible` keeps constraints to vertices of type node and
    storage_node, as the reference does; otherwise they hold for every vertex that carries properties. Any failure here
    is an InvalidGraph (EPROTO), InvalidJobspec (an option's value) or NotSupported (an option that this engine does not
    have).
    """

    def __new__(cls, *arguments: Any, **options: Any) -> "Matcher":
        """The class of the engine that is asked for."""
        engine = options.get("engine", arguments[5] if len(arguments) > 5 else "")
        if isinstance(engine, str) and engine == "reapi":
            from fluxion_cy.reapi.engine import class_for

            return object.__new__(class_for(cls))
        return object.__new__(cls)

    def __init__(
        self,
        graph: Any,
        policy: str = "first",
        match_format: str = "jgf",
        load_format: str = "jgf",
        prune_filters: str = "ALL:core,ALL:node",
        engine: str = "embedded",
        traverser: str = "simple",
        compatible: bool = True,
        replan: bool = False,
        library: str | None = None,
    ) -> None:
        self._check_options(engine, library)
        if traverser not in ("simple", "flexible"):
            raise NotSupported(f"traverser={shown(traverser)}: choose 'simple' or 'flexible'")
        replan = flag(replan, "replan")
        load = loader_of(load_format)
        self._write, self._lite = writer_of(match_format), match_format == "rv1_nosched"
        self._shorthand = load_format == "jgf_shorthand"
        self._turn = quick.Turn()
        self._moved: list[int]
        self._policy = policy_of(policy)
        self._table = JobTable()
        self._engine = Select()
        self._engine.units = load_format == "grug"  # of a JGF the reference forgets them, and R without them is equal
        self._engine.lists_hosts = match_format in WITH_NODELIST
        self._engine.filters = prune_filters_of(prune_filters)
        chosen = self._policy
        self._engine.set_policy(
            chosen.high,
            chosen.node_centric,
            chosen.stop_on_1_matches,
            chosen.node_exclusive,
            flag(compatible, "compatible"),
            chosen.ordering,
        )
        plain = load is read_graph and isinstance(graph, (str, bytes)) and scan(self._engine, graph)
        if not plain:
            self._engine.load(load(graph))
        self._engine.plan()
        self._flexible = traverser == "flexible"
        self._compile = Compiler(self._engine, self._flexible)
        self._replan, self._moved = replan, []

    #: What `help` shows: without this, the arguments of `__new__`.
    __signature__ = Signature(list(signature(__init__).parameters.values())[1:])

    @staticmethod
    def _check_options(engine: str, library: str | None) -> None:
        given = {
            "engine": (engine, "embedded"),
            "library": (library, None),
        }
        for name, (value, only) in given.items():
            if value != only:
                raise NotSupported(f"{name}={shown(value)}: this engine only has {only!r}")

    def close(self) -> None:
        """Nothing here; with `engine="reapi"` it gives the library's memory back, and later operations are errors."""

    # ---- matching ----------------------------------------------------------------------------------------------------

    def allocate(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Holds resources from `now` on, or raises Busy."""
        if candidates is None and prefer is None and self._lite:
            known = self._compile.known
            return quick.allocate(self, self._turn, self._engine, self._table, known, jobspec, jobid, now)
        return self._allocate(jobspec, jobid, now, candidates, prefer)

    @_locked
    def _allocate(self, jobspec: Any, jobid: int | None, now: int, candidates: Any, prefer: Any) -> Allocation:
        return self._place(jobspec, jobid, now, candidates, prefer, self._at_once)

    @_locked
    def allocate_orelse_reserve(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Holds resources from `now` or from the first second at which they are free; Unsatisfiable if never."""
        return self._place(jobspec, jobid, now, candidates, prefer, self._soonest)

    @_locked
    def allocate_with_satisfiability(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Holds resources from `now` on, or raises Busy, or Unsatisfiable if they can never be had."""
        return self._place(jobspec, jobid, now, candidates, prefer, self._at_once_or_say)

    @_locked
    def without_allocating(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Answers what `allocate` would give, and holds nothing."""
        return self._preview(jobspec, jobid, now, candidates, prefer, self._at_once)

    @_locked
    def without_allocating_future(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Answers what `allocate_orelse_reserve` would give, and holds nothing."""
        return self._preview(jobspec, jobid, now, candidates, prefer, self._soonest)

    @_locked
    def satisfy(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> bool:
        """Whether the graph could hold the request if it were empty and everything were up."""
        self._clock(now)
        return self._question(jobspec, candidates, prefer).ever()

    def _question(self, jobspec: Any, candidates: Any, prefer: Any) -> Question:
        return Question(self._engine, self._compile(jobspec), candidates, prefer)

    @staticmethod
    def _at_once(question: Question, now: int) -> int:
        if not question.now(now):
            raise question.busy()
        return now

    @staticmethod
    def _at_once_or_say(question: Question, now: int) -> int:
        if not question.now(now):
            raise question.refusal()
        return now

    @staticmethod
    def _soonest(question: Question, now: int) -> int:
        if question.now(now):
            return now
        at = question.later(now)
        if at is None:
            raise question.refusal()
        return at

    def _place(
        self,
        jobspec: Any,
        jobid: Any,
        now: int,
        candidates: Any,
        prefer: Any,
        seek: Callable[[Question, int], int],
        tried: bool = False,
    ) -> Allocation:
        """`tried`: the engine has just sought a match at `now`, in vain."""
        began = time.perf_counter()
        now = self._clock(now)
        if self._replan:  # they are asked again later: an iterator would be empty by then
            candidates, prefer = copied(candidates, "candidates"), copied(prefer, "prefer")
        compiled = self._compile(jobspec)
        question = Question(self._engine, compiled, candidates, prefer, tried)
        number, automatic = self._table.choose(jobid)
        try:
            at = seek(question, now)
        except (Busy, Unsatisfiable):
            self._table.advance(number, automatic)
            raise
        self._table.advance(number, automatic)
        end = min(at + question.duration, now + FOREVER)
        resources = self._resources(at, end)  # first, because it may raise
        slot = self._engine.commit(at, end, now)
        reserved = at != now
        job = Job(slot, at, Mode.RESERVED if reserved else Mode.ALLOCATED, automatic)
        if reserved and self._replan:
            job.request = Request(compiled, candidates, prefer)
        self._table.jobs[number] = job
        return Allocation(number, at, reserved, time.perf_counter() - began, resources)

    def _clock(self, now: Any) -> int:
        """The second of a call; None is the latest that any call has named."""
        if now is not None:
            now = second_of(now)
            self._table.latest = max(self._table.latest, now)
        return self._table.latest if now is None else int(now)

    def _preview(
        self, jobspec: Any, jobid: Any, now: int, candidates: Any, prefer: Any, seek: Callable[[Question, int], int]
    ) -> Allocation:
        began = time.perf_counter()
        now = self._clock(now)
        number = NO_JOBID if jobid is None else self._table.choose(jobid)[0]
        question = self._question(jobspec, candidates, prefer)
        at = seek(question, now)
        if self._engine.node_only:
            self._engine.glance(now)
        resources = self._resources(at, min(at + question.duration, now + FOREVER))
        return Allocation(number, at, False, time.perf_counter() - began, resources)

    def _resources(self, at: int, end: int) -> Any:
        """R of the engine's last result, from `at` to `end`."""
        return self._write(Found(self._engine, at, end))

    # ---- held work ---------------------------------------------------------------------------------------------------

    @property
    def next_jobid(self) -> int:
        """The id that the next automatic job gets; it can only be set upwards."""
        return self._table.next_jobid

    @next_jobid.setter
    def next_jobid(self, value: int) -> None:
        self._set_next_jobid(value)

    @_locked
    def _set_next_jobid(self, value: int) -> None:
        self._table.next_jobid = index_of(value, "next_jobid", self._table.next_jobid, 2**64 - 2)

    @_locked
    def cancel(self, jobid: int, missing_ok: bool = False, *, now: int | None = None) -> None:
        """Frees what a job holds; NoSuchJob if it holds nothing, unless `missing_ok`.

        With `replan`, reservations move forward, to `now` at the earliest: by default the latest second that any call
        has named. `moved` says which. So they do where a vertex comes, comes up, grows or gets other properties.
        """
        now = self._clock(now)
        if missing_ok and not self._holds(jobid):
            return
        job = self._table.held(jobid)
        self._engine.release(job.slot)
        job.slot, job.mode, job.request = -1, Mode.CANCELED, None
        self._freed(now)

    def _freed(self, now: int | None = None) -> None:
        """There may be more room than before, from `now` or the latest second that any call has named."""
        if self._replan:
            self._moved += replan(self._engine, self._table, self._compile, self._table.latest if now is None else now)

    @_locked
    def moved(self) -> list[int]:
        """The reservations that have been moved forward since this was last asked; `allocation` says what they have."""
        found, self._moved = [jobid for jobid in dict.fromkeys(self._moved) if self._holds(jobid)], []
        return found

    @_locked
    def allocation(self, jobid: int) -> Allocation:
        """What a held job has as it stands, without overhead; NoSuchJob if it holds nothing."""
        number = check_jobid(jobid)
        job = self._table.held(number)
        self._engine.arrange(self._engine.entries(job.slot))
        resources = self._resources(*self._engine.span(job.slot))
        return Allocation(number, job.at, job.mode is Mode.RESERVED, 0.0, resources)

    def _holds(self, jobid: Any) -> bool:
        job = self._table.jobs.get(check_jobid(jobid))
        return job is not None and job.slot >= 0

    @_locked
    def retract(self, jobid: int) -> None:
        """Takes a job back as if it had never been: `info` knows nothing of it, and its automatic id is free again.

        Of a job that is CANCELED already this erases the record. NoSuchJob if there is none.
        """
        number = check_jobid(jobid)
        job = self._table.known(number)
        if job.slot >= 0:
            self._engine.unweigh(job.slot)
            self._engine.release(job.slot)
        self._table.forget(number)

    @_locked
    def partial_cancel(
        self,
        jobid: int,
        R: Any,  # noqa: N803 - R is the field's own name
        missing_ok: bool = False,
        *,
        now: int | None = None,
    ) -> bool:
        """Frees the part of an allocation that `R` names; answers whether nothing is left. `now` as in `cancel`.

        Of an R without a graph (`rv1_nosched`) only the ranks count: all that the job holds of them is freed, whatever
        `children` say.
        """
        now = self._clock(now)
        if missing_ok and not self._holds(jobid):
            return False
        job = self._table.held(jobid)
        if job.mode is not Mode.ALLOCATED:
            raise InvalidJobspec(f"jobid {jobid}: only an allocation can be cancelled in part, not a reservation")
        rest = remaining(self._engine, job.slot, read_resource_set(R, self._shorthand))
        self._engine.keep(job.slot, self._engine.arrange(rest))
        if not rest:
            job.slot, job.mode = -1, Mode.CANCELED
        self._freed(now)
        return not rest

    @_locked
    def update_allocate(self, jobid: int, R: Any, *, now: int = 0) -> Allocation:  # noqa: N803 - R is the field's own name
        """Holds exactly what `R` names, as `jobid`; Busy (EINVAL) names a vertex that is held already.

        Of a vertex that `R` takes, nothing may be held above or below it either, at any second of the span.
        A resource set in an RFC 20 envelope says from when to when; a bare JGF is held from `now` for 100 years.
        """
        began, now = time.perf_counter(), self._clock(now)
        number, automatic = self._table.choose(jobid)
        rset = read_resource_set(R, self._shorthand)
        at = now if rset.start is None else rset.start
        holds = [hold for hold in holds_of(rset, self._engine) if hold[2] and hold[1] > 0]
        if not holds:
            raise InvalidGraph("R: names nothing that is taken; mark it with exclusive: true", EINVAL)
        check_free(self._engine, holds, at, at + rset.duration)
        entries = self._engine.arrange(holds)
        resources = self._resources(at, at + rset.duration)
        slot = self._engine.hold(entries, at, at + rset.duration, at)
        self._table.jobs[number] = Job(slot, at, Mode.ALLOCATED, automatic)
        return Allocation(number, at, False, time.perf_counter() - began, resources)

    @_locked
    def info(self, jobid: int) -> JobInfo:
        """Mode (ALLOCATED, RESERVED or CANCELED), `reserved` and `at` of a job; NoSuchJob if it is unknown."""
        return info_of(self._table, jobid)

    # ---- the graph ---------------------------------------------------------------------------------------------------

    @_locked
    def graph(self) -> dict[str, Any]:
        """The graph as JGF, equal to what was given but for what was changed since."""
        document: dict[str, Any] = self._engine.dump()
        return document

    @_locked
    def find(self, criteria: str, *, now: int = 0) -> dict[str, Any] | None:
        """The vertices that meet the criteria, and their ancestors, as JGF; None if there are none.

        What has ended by `now` is neither allocated nor reserved. With `agfilter=true` their metadata also say what is
        used below them at `now`.
        """
        return find(self._engine, self._table, criteria, self._clock(now))

    @_locked
    def stat(self) -> dict[str, Any]:
        """Vertices by type, nodes up and down, and jobs by mode."""
        modes = [job.mode for job in self._table.jobs.values()]
        engine = self._engine
        down = [v for v in engine.vertices() if engine.is_down(v)]
        by_type = engine.describe()
        nodes_down = sum(engine.type_of(v) == "node" for v in down)
        return {
            "vertices": sum(by_type.values()),
            "by_type": by_type,
            "nodes_up": by_type.get("node", 0) - nodes_down,
            "nodes_down": nodes_down,
            "jobs": {str(mode): modes.count(mode) for mode in Mode},
            "next_jobid": self._table.next_jobid,
        }

    @_locked
    def why(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> str:
        """Says in words whether the request fits at `now` within the candidates, and if not, what is missing."""
        now, compiled = self._clock(now), self._compile(jobspec)
        return explain(self._engine, compiled, candidates, prefer, now, self._policy.node_exclusive)

    def _vertex(self, path: Any) -> int:
        found = self._engine.lookup(path) if isinstance(path, str) else []
        if not found:
            raise InvalidGraph(f"path {shown(path)}: no such vertex is in the graph", EINVAL)
        return int(found[0])

    @_locked
    def set_status(self, path: str, up: bool) -> None:
        """Marks a vertex up or down; what is below something down cannot be used, whatever its own mark says."""
        self._engine.set_down(self._vertex(path), not flag(up, "up"))
        if up:
            self._freed()

    @_locked
    def get_status(self, path: str) -> bool:
        """Whether the vertex itself is up."""
        return not self._engine.is_down(self._vertex(path))

    @_locked
    def set_rank_status(self, ranks: Any, up: bool) -> None:
        """Marks the topmost vertex of each rank (`all`, an idset, a number or several); unknown ranks are ignored."""
        up = flag(up, "up")
        for rank in self._ranks(ranks):
            found = self._engine.of_rank(rank)
            if found:
                self._engine.set_down(found[0], not up)
        if up:
            self._freed()

    def _ranks(self, ranks: Any) -> Iterable[int]:
        known = set(self._engine.ranks())
        if isinstance(ranks, str) and ranks == "all":
            return sorted(known)
        try:
            if isinstance(ranks, str):
                return [rank for low, high in idset(ranks) for rank in sorted(known) if low <= rank <= high]
            number = integer(ranks)
            if number is not None:
                return known & {number}
            return sorted(known & set(map(_rank, entries_of(ranks, "ranks"))))
        except InvalidJobspec as error:
            raise InvalidGraph(str(error), EINVAL) from None
        except (TypeError, ValueError, OverflowError):
            raise InvalidGraph(f"ranks: {shown(ranks)} is neither an idset nor numbers", EINVAL) from None

    @_locked
    def get_rank_status(self, rank: int) -> bool:
        """Whether the topmost vertex of a rank is up."""
        rank = index_of(rank, "rank", 0, 2**31 - 1, InvalidGraph)
        found = self._engine.of_rank(rank)
        if not found:
            raise InvalidGraph(f"rank {shown(rank)}: no vertex has it", EINVAL)
        return not self._engine.is_down(found[0])

    @_locked
    def set_properties(self, path: str, properties: dict[str, str]) -> None:
        """Replaces the properties of a vertex."""
        try:
            self._engine.set_props(self._vertex(path), properties)
        except InvalidGraph as error:
            raise InvalidGraph(str(error), EINVAL) from None
        self._freed()

    @_locked
    def resize(self, path: str, size: int) -> None:
        """Changes the units of a vertex; Busy if more than that are held at some time."""
        vertex = self._vertex(path)
        size = index_of(size, f"vertex {path}: size", 0, MAX_SIZE, InvalidGraph)
        if self._engine.peak(vertex) > size:
            raise Busy(f"vertex {path}: {self._engine.peak(vertex)} units are held, more than {size}")
        try:
            self._engine.resize(vertex, size)
        except InvalidGraph as error:
            raise InvalidGraph(str(error), EINVAL) from None
        self._freed()

    @_locked
    def add_subgraph(self, graph: Any) -> None:
        """Adds what a JGF has beyond the graph; it must contain the path from the root."""
        document = read_graph(graph)
        try:
            self._engine.add(document)
        except InvalidGraph as error:
            raise InvalidGraph(str(error), EINVAL) from None
        finally:
            self._engine.plan()
        self._freed()

    @_locked
    def remove_subgraph(self, path: str) -> None:
        """Removes a vertex and all below it; jobs keep what they hold elsewhere."""
        vertex = self._vertex(path)
        if vertex == self._engine.root:
            raise InvalidGraph(f"path {path!r}: the root cannot be removed", EINVAL)
        gone = set(self._engine.subtree(vertex))
        for job in self._table.jobs.values():
            if job.slot >= 0 and any(hold[0] in gone for hold in self._engine.entries(job.slot)):
                rest = [hold for hold in self._engine.entries(job.slot) if hold[2] and hold[0] not in gone]
                self._engine.keep(job.slot, self._engine.arrange(rest))
                job.slot = job.slot if rest else -1
                job.mode = job.mode if rest else Mode.CANCELED
        self._engine.remove(vertex)
        self._engine.plan()
        self._freed()

    @_locked
    def clone(self) -> "Matcher":
        """A deep copy with all allocations; both go their own ways."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))  # what a subclass has of its own
        other._turn = quick.Turn()
        other._policy = self._policy
        other._write, other._lite, other._shorthand = self._write, self._lite, self._shorthand
        other._table = self._table.copy()
        other._engine = self._engine.copy()
        other._flexible = self._flexible
        other._compile = Compiler(other._engine, other._flexible)
        other._replan, other._moved = self._replan, list(self._moved)
        return other


def _rank(value: Any) -> int:
    number = integer(value)
    if number is None:
        raise ValueError
    return number
