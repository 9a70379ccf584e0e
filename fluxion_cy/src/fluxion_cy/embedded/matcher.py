"""The embedded matcher: matches, jobs and changes of the graph, on the compiled engine."""

import time
from errno import EINVAL
from typing import Any, Self

from fluxion_cy.base.arguments import MAX_SIZE, flag, index_of, second_of
from fluxion_cy.embedded.diagnosis import explain, shortage
from fluxion_cy.embedded.find import find
from fluxion_cy.embedded.replan import Request, copied, replan
from fluxion_cy.embedded.search import Compiler, Question
from fluxion_cy.embedded.type_index import TypeIndex
from fluxion_cy.engine import fast_path
from fluxion_cy.engine.base_matcher import BaseMatcher, Options, locked
from fluxion_cy.engine.engine import Engine
from fluxion_cy.engine.job_table import NO_JOBID, Job, JobTable, check_jobid
from fluxion_cy.engine.jobs import PREVIEWS, Allocation, MatchOp, Mode
from fluxion_cy.engine.scan import scan
from fluxion_cy.errors import Busy, InvalidGraph, InvalidJobspec, NotSupported, Unsatisfiable, shown
from fluxion_cy.formats.jgf import read_graph
from fluxion_cy.formats.loaders import loader_of
from fluxion_cy.formats.resource_set import check_free, holds_of, read_resource_set, remaining
from fluxion_cy.formats.writers import WITH_NODELIST, Found, writer_of
from fluxion_cy.jobspec.reader import FOREVER
from fluxion_cy.policy import policy_of, prune_filters_of
from fluxion_cy.wording import Shortage, Words


class EmbeddedMatcher(BaseMatcher):
    """A matcher on the compiled engine."""

    def _set_up(self, graph: Any, options: Options) -> None:
        self._check_choices(options)
        replan = flag(options.replan, "replan")
        load = loader_of(options.load_format)
        self._write, self._lite = writer_of(options.match_format), options.match_format == "rv1_nosched"
        self._shorthand = options.load_format == "jgf_shorthand"
        self._turn = fast_path.Turn()
        self._policy = policy_of(options.policy)
        self._table = JobTable()
        self._engine = Engine()
        self._engine.units = options.load_format == "grug"  # Fluxion drops the units of a JGF, so R has none then
        self._engine.lists_hosts = options.match_format in WITH_NODELIST
        self._engine.filters = prune_filters_of(options.prune_filters)
        chosen = self._policy
        self._engine.set_policy(
            chosen.high,
            chosen.node_centric,
            chosen.stop_on_1_matches,
            chosen.node_exclusive,
            flag(options.compatible, "compatible"),
            chosen.ordering,
        )
        plain = load is read_graph and isinstance(graph, (str, bytes)) and scan(self._engine, graph)
        if not plain:
            self._engine.load(load(graph))
        self._engine.prepare()
        self._flexible = options.traverser == "flexible"
        self._compile = Compiler(self._engine, self._flexible)
        self._types = TypeIndex(self._engine)
        self._replan = replan
        self._moved: list[int] = []

    @staticmethod
    def _check_choices(options: Options) -> None:
        if options.engine != "embedded":
            raise NotSupported(f"engine={shown(options.engine)}: choose 'embedded' or 'reapi'")
        if options.library is not None:
            raise NotSupported(f"library={shown(options.library)}: remove it, or choose engine='reapi'")
        if options.traverser not in ("simple", "flexible"):
            raise NotSupported(f"traverser={shown(options.traverser)}: choose 'simple' or 'flexible'")

    def close(self) -> None:
        """Does nothing; with `engine="reapi"` it frees the library's memory."""

    # ---- matching ----------------------------------------------------------------------------------------------------

    def allocate(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Allocates resources from `now` on. Raises Busy."""
        if candidates is None and prefer is None and self._lite:
            known = self._compile.known
            return fast_path.allocate(self, self._turn, self._engine, self._table, known, jobspec, jobid, now)
        request = (MatchOp.ALLOCATE, jobspec, jobid, now, candidates, prefer)
        return self._turn.run("allocate", self._place, request)

    def _match(self, op: MatchOp, jobspec: Any, jobid: Any, now: Any, candidates: Any, prefer: Any) -> Allocation:
        method = self._preview if op in PREVIEWS else self._place
        return method(op, jobspec, jobid, now, candidates, prefer)

    def _place(
        self, op: MatchOp, jobspec: Any, jobid: Any, now: Any, candidates: Any, prefer: Any, tried: bool = False
    ) -> Allocation:
        """`tried`: the engine has just found no match at `now`."""
        began = time.perf_counter()
        now = self._clock(now)
        if self._replan:  # replanning reads them again, when an iterator would be empty
            candidates, prefer = copied(candidates, "candidates"), copied(prefer, "prefer")
        compiled = self._compile(jobspec)
        question = Question(self._engine, compiled, candidates, prefer, tried)
        number, automatic = self._table.choose(jobid)
        try:
            at = question.seek(op, now)
        except (Busy, Unsatisfiable):
            self._table.advance(number, automatic)
            raise
        self._table.advance(number, automatic)
        end = min(at + question.duration, now + FOREVER)
        resources = self._write(Found(self._engine, at, end))  # first, because it may raise
        slot = self._engine.commit(at, end, now)
        reserved = at != now
        job = Job(slot, at, Mode.RESERVED if reserved else Mode.ALLOCATED, automatic)
        if reserved and self._replan:
            job.request = Request(compiled, candidates, prefer)
        self._table.jobs[number] = job
        return Allocation(number, at, reserved, time.perf_counter() - began, resources)

    def _clock(self, now: Any) -> int:
        """The second of a call; None stands for the latest second of all calls."""
        if now is None:
            return self._table.latest
        second = second_of(now)
        self._table.latest = max(self._table.latest, second)
        return second

    def _preview(self, op: MatchOp, jobspec: Any, jobid: Any, now: Any, candidates: Any, prefer: Any) -> Allocation:
        began = time.perf_counter()
        now = self._clock(now)
        number = NO_JOBID if jobid is None else self._table.choose(jobid)[0]
        question = Question(self._engine, self._compile(jobspec), candidates, prefer)
        at = question.seek(op, now)
        if self._engine.node_only:
            self._engine.glance(now)
        resources = self._write(Found(self._engine, at, min(at + question.duration, now + FOREVER)))
        return Allocation(number, at, False, time.perf_counter() - began, resources)

    @locked
    def satisfy(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> bool:
        """Whether the request would match if the graph were empty and everything up."""
        self._clock(now)
        return Question(self._engine, self._compile(jobspec), candidates, prefer).ever()

    # ---- held work ---------------------------------------------------------------------------------------------------

    @locked
    def cancel(self, jobid: int, missing_ok: bool = False, *, now: int | None = None) -> None:
        """Frees what a job holds. Raises NoSuchJob if it holds nothing, unless `missing_ok`.

        With `replan`, reservations move forward, to `now` at the earliest (by default the latest second of all calls);
        `moved` returns them. They also move when a vertex is added, comes up, grows or gets other properties.
        """
        now = self._clock(now)
        if missing_ok and not self._holds(jobid):
            return
        job = self._table.held(jobid)
        self._engine.release(job.slot)
        job.slot, job.mode, job.request = -1, Mode.CANCELED, None
        self._freed(now)

    def _freed(self, now: int | None = None) -> None:
        """Replans, since more may be free from `now` (by default the latest second of all calls)."""
        if self._replan:
            self._moved += replan(self._engine, self._table, self._compile, self._table.latest if now is None else now)

    @locked
    def moved(self) -> list[int]:
        """The reservations that moved forward since the last call; `allocation` returns their resources."""
        found, self._moved = [jobid for jobid in dict.fromkeys(self._moved) if self._holds(jobid)], []
        return found

    @locked
    def allocation(self, jobid: int) -> Allocation:
        """The resources that a job holds now, without overhead. Raises NoSuchJob if it holds nothing."""
        number = check_jobid(jobid)
        job = self._table.held(number)
        self._engine.arrange(self._engine.entries(job.slot))
        resources = self._write(Found(self._engine, *self._engine.span(job.slot)))
        return Allocation(number, job.at, job.mode is Mode.RESERVED, 0.0, resources)

    @locked
    def retract(self, jobid: int) -> None:
        """Undoes a job without a trace: `info` does not know it, and its automatic id is free again.

        For a CANCELED job it erases the record. Raises NoSuchJob without a record.
        """
        number = check_jobid(jobid)
        job = self._table.known(number)
        if job.slot >= 0:
            self._engine.unweigh(job.slot)
            self._engine.release(job.slot)
        self._table.forget(number)

    @locked
    def partial_cancel(
        self,
        jobid: int,
        R: Any,  # noqa: N803 - R is the field's own name
        missing_ok: bool = False,
        *,
        now: int | None = None,
    ) -> bool:
        """Frees the part of an allocation that `R` names. Returns whether nothing is left. `now` as in `cancel`.

        In an R without a graph (`rv1_nosched`) only the ranks count: it frees everything that the job holds on them,
        whatever the `children`.
        """
        now = self._clock(now)
        if missing_ok and not self._holds(jobid):
            return False
        job = self._table.held(jobid)
        if job.mode is not Mode.ALLOCATED:
            raise InvalidJobspec(f"jobid {jobid}: only allocations, not reservations, can be cancelled in part")
        rest = remaining(self._engine, job.slot, read_resource_set(R, self._shorthand))
        self._engine.keep(job.slot, self._engine.arrange(rest))
        if not rest:
            job.slot, job.mode = -1, Mode.CANCELED
        self._freed(now)
        return not rest

    @locked
    def update_allocate(self, jobid: int, R: Any, *, now: int = 0) -> Allocation:  # noqa: N803 - R is the field's own name
        """Allocates exactly what `R` names, as `jobid`. Raises Busy (EINVAL), naming an allocated vertex.

        No job may hold anything above or below an exclusive vertex of `R` either, at any second of the span. An RFC 20
        envelope has the span; a bare JGF is held from `now` for 100 years.
        """
        began, now = time.perf_counter(), self._clock(now)
        number, automatic = self._table.choose(jobid)
        rset = read_resource_set(R, self._shorthand)
        at = now if rset.start is None else rset.start
        holds = [hold for hold in holds_of(rset, self._engine) if hold[2] and hold[1] > 0]
        if not holds:
            raise InvalidGraph(
                "R: has no exclusive vertex; set exclusive: true on each vertex that the job holds", EINVAL
            )
        check_free(self._engine, holds, at, at + rset.duration)
        entries = self._engine.arrange(holds)
        resources = self._write(Found(self._engine, at, at + rset.duration))
        slot = self._engine.hold(entries, at, at + rset.duration, at)
        self._table.jobs[number] = Job(slot, at, Mode.ALLOCATED, automatic)
        return Allocation(number, at, False, time.perf_counter() - began, resources)

    # ---- the graph ---------------------------------------------------------------------------------------------------

    @locked
    def find(self, criteria: str, *, now: int = 0) -> dict[str, Any] | None:
        """The vertices that meet the criteria, and their ancestors, as JGF; None if there are none.

        Jobs that have ended by `now` have nothing allocated or reserved. With `agfilter=true` the metadata also say
        what is used below a vertex at `now`.
        """
        return find(self._engine, self._table, criteria, self._clock(now))

    @locked
    def why(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> str:
        """Says whether the request fits at `now` within the candidates, and if not, what it lacks."""
        now, compiled = self._clock(now), self._compile(jobspec)
        self._types = self._types.current()
        return explain(self._types, compiled, candidates, prefer, now, self._policy.node_exclusive)

    @locked
    def shortage(
        self, jobspec: Any, *, now: int = 0, candidates: Any = None, words: Words | None = None
    ) -> Shortage | None:
        """What the request lacks at `now` within the candidates; None where counting finds nothing."""
        now, compiled = self._clock(now), self._compile(jobspec)
        whole = self._policy.node_exclusive
        self._types = self._types.current()
        return shortage(self._types, compiled, candidates, now, whole, words or Words())

    @locked
    def set_status(self, path: str, up: bool) -> None:
        """Marks a vertex up or down. A vertex below one that is down is unusable, whatever its own mark."""
        self._engine.set_down(self._vertex(path), not flag(up, "up"))
        if up:
            self._freed()

    @locked
    def get_status(self, path: str) -> bool:
        """Whether the vertex itself is up."""
        return not self._engine.is_down(self._vertex(path))

    @locked
    def set_rank_status(self, ranks: Any, up: bool) -> None:
        """Marks the topmost vertex of each rank: `all`, an idset, a number or several. Ignores unknown ranks."""
        up = flag(up, "up")
        for rank in self._ranks(ranks):
            found = self._engine.of_rank(rank)
            if found:
                self._engine.set_down(found[0], not up)
        if up:
            self._freed()

    @locked
    def get_rank_status(self, rank: int) -> bool:
        """Whether the topmost vertex of a rank is up."""
        return not self._engine.is_down(self._top_of_rank(rank))

    @locked
    def set_properties(self, path: str, properties: dict[str, str]) -> None:
        """Replaces the properties of a vertex."""
        try:
            self._engine.set_props(self._vertex(path), properties)
        except InvalidGraph as error:
            raise InvalidGraph(str(error), EINVAL) from None
        self._freed()

    @locked
    def resize(self, path: str, size: int) -> None:
        """Changes the units of a vertex. Raises Busy if jobs hold more at some second."""
        vertex = self._vertex(path)
        size = index_of(size, f"vertex {path}: size", 0, MAX_SIZE, InvalidGraph)
        if self._engine.peak(vertex) > size:
            raise Busy(f"vertex {path}: {self._engine.peak(vertex)} units are allocated, more than the new size {size}")
        try:
            self._engine.resize(vertex, size)
        except InvalidGraph as error:
            raise InvalidGraph(str(error), EINVAL) from None
        self._freed()

    @locked
    def add_subgraph(self, graph: Any) -> None:
        """Adds the vertices of a JGF that are new. It must contain the path from the root."""
        document = read_graph(graph)
        try:
            self._engine.add(document)
        except InvalidGraph as error:
            raise InvalidGraph(str(error), EINVAL) from None
        finally:
            self._engine.prepare()
        self._freed()

    @locked
    def remove_subgraph(self, path: str) -> None:
        """Removes a vertex and everything below it. Jobs keep what they hold elsewhere."""
        vertex = self._removable(path)
        gone = set(self._engine.subtree(vertex))
        for job in self._table.jobs.values():
            if job.slot >= 0 and any(hold[0] in gone for hold in self._engine.entries(job.slot)):
                rest = [hold for hold in self._engine.entries(job.slot) if hold[2] and hold[0] not in gone]
                self._engine.keep(job.slot, self._engine.arrange(rest))
                job.slot = job.slot if rest else -1
                job.mode = job.mode if rest else Mode.CANCELED
        self._engine.remove(vertex)
        self._engine.prepare()
        self._freed()

    @locked
    def clone(self) -> Self:
        """A deep, independent copy, with all jobs."""
        other = self._copy()
        other._compile = Compiler(other._engine, other._flexible)
        other._types = TypeIndex(other._engine)
        other._moved = list(self._moved)
        return other
