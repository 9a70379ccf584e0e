"""The base class of both matchers: their operations, and the code that they share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from errno import EINVAL
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from fluxion_cy.base.arguments import entries_of, index_of, integer
from fluxion_cy.base.ranges import idset
from fluxion_cy.engine.engine import Engine
from fluxion_cy.engine.fast_path import Turn
from fluxion_cy.engine.job_table import JobTable, check_jobid
from fluxion_cy.engine.jobs import Allocation, JobInfo, MatchOp, Mode, info_of
from fluxion_cy.errors import InvalidGraph, InvalidJobspec, shown
from fluxion_cy.wording import Shortage, Words

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound="BaseMatcher")


def locked(method: Callable[Concatenate[M, P], T]) -> Callable[Concatenate[M, P], T]:
    """Runs one call at a time in one matcher. The engine releases the GIL while it searches."""

    @wraps(method)
    def inner(self: M, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._turn.call(method, self, args, kwargs)

    return inner


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `Matcher` other than the graph."""

    policy: str
    match_format: str
    load_format: str
    prune_filters: str
    engine: str
    traverser: str
    compatible: bool
    replan: bool
    library: str | None


class BaseMatcher(ABC):
    """The operations of `Matcher`. Each engine implements the abstract ones."""

    _turn: Turn
    _table: JobTable
    _engine: Engine
    """The graph as loaded. The embedded engine matches against it; the matcher over the library validates with it."""

    @abstractmethod
    def _set_up(self, graph: Any, options: Options) -> None:
        """Constructs the matcher."""

    @abstractmethod
    def close(self) -> None:
        """Frees the library's memory, after which operations raise; does nothing on the embedded engine."""

    # ---- matching ----------------------------------------------------------------------------------------------------

    def allocate(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Allocates resources from `now` on. Raises Busy."""
        request = (MatchOp.ALLOCATE, jobspec, jobid, now, candidates, prefer)
        return self._turn.run("allocate", self._match, request)

    def allocate_orelse_reserve(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Allocates resources from `now`, or reserves them from the first second that fits. Raises Unsatisfiable."""
        request = (MatchOp.ALLOCATE_ORELSE_RESERVE, jobspec, jobid, now, candidates, prefer)
        return self._turn.run("allocate_orelse_reserve", self._match, request)

    def allocate_with_satisfiability(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Allocates resources from `now` on. Raises Busy, or Unsatisfiable if no second ever fits."""
        request = (MatchOp.ALLOCATE_W_SATISFIABILITY, jobspec, jobid, now, candidates, prefer)
        return self._turn.run("allocate_with_satisfiability", self._match, request)

    def without_allocating(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Returns what `allocate` would return, and holds nothing."""
        request = (MatchOp.WITHOUT_ALLOCATING, jobspec, jobid, now, candidates, prefer)
        return self._turn.run("without_allocating", self._match, request)

    def without_allocating_future(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        """Returns what `allocate_orelse_reserve` would return, and holds nothing."""
        request = (MatchOp.WITHOUT_ALLOCATING_FUTURE, jobspec, jobid, now, candidates, prefer)
        return self._turn.run("without_allocating_future", self._match, request)

    @abstractmethod
    def _match(self, op: MatchOp, jobspec: Any, jobid: Any, now: Any, candidates: Any, prefer: Any) -> Allocation:
        """Any operation that returns resources."""

    @abstractmethod
    def satisfy(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> bool:
        """Whether the request would match if the graph were empty and everything up."""

    # ---- held work ---------------------------------------------------------------------------------------------------

    @property
    def next_jobid(self) -> int:
        """The id of the next job without an explicit one. It can only be raised."""
        return self._table.next_jobid

    @next_jobid.setter
    def next_jobid(self, value: int) -> None:
        self._set_next_jobid(value)

    @locked
    def _set_next_jobid(self, value: int) -> None:
        self._table.next_jobid = index_of(value, "next_jobid", self._table.next_jobid, 2**64 - 2)

    @abstractmethod
    def cancel(self, jobid: int, missing_ok: bool = False, *, now: int | None = None) -> None:
        """Frees what a job holds. Raises NoSuchJob if it holds nothing, unless `missing_ok`."""

    @abstractmethod
    def moved(self) -> list[int]:
        """The reservations that moved forward since the last call."""

    @abstractmethod
    def allocation(self, jobid: int) -> Allocation:
        """The resources that a job holds now."""

    def _holds(self, jobid: Any) -> bool:
        job = self._table.jobs.get(check_jobid(jobid))
        return job is not None and job.slot >= 0

    @abstractmethod
    def retract(self, jobid: int) -> None:
        """Undoes a job without a trace."""

    @abstractmethod
    def partial_cancel(
        self,
        jobid: int,
        R: Any,  # noqa: N803 - R is the field's own name
        missing_ok: bool = False,
        *,
        now: int | None = None,
    ) -> bool:
        """Frees the part of an allocation that `R` names. Returns whether nothing is left."""

    @abstractmethod
    def update_allocate(self, jobid: int, R: Any, *, now: int = 0) -> Allocation:  # noqa: N803 - R is the field's own name
        """Allocates exactly what `R` names, as `jobid`."""

    @locked
    def info(self, jobid: int) -> JobInfo:
        """The mode (ALLOCATED, RESERVED or CANCELED), `reserved` and `at` of a job. Raises NoSuchJob if it is unknown.

        Reads the matcher's own table of jobs: in the library, a clone and its original share the records, and a cancel
        in one of them shows in the other.
        """
        return info_of(self._table, jobid)

    # ---- the graph ---------------------------------------------------------------------------------------------------

    @locked
    def graph(self) -> dict[str, Any]:
        """The graph as JGF: as given, with later changes."""
        document: dict[str, Any] = self._engine.dump()
        return document

    @abstractmethod
    def find(self, criteria: str, *, now: int = 0) -> dict[str, Any] | None:
        """The vertices that meet the criteria, and their ancestors, as JGF; None if there are none."""

    @locked
    def stat(self) -> dict[str, Any]:
        """The number of vertices by type, of nodes up and down, and of jobs by mode."""
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

    @abstractmethod
    def why(self, jobspec: Any, *, now: int = 0, candidates: Any = None, prefer: Any = None) -> str:
        """Says whether the request fits, and if not, what it lacks."""

    @abstractmethod
    def shortage(
        self, jobspec: Any, *, now: int = 0, candidates: Any = None, words: Words | None = None
    ) -> Shortage | None:
        """What the request lacks, by counting, in these words; None where counting finds nothing."""

    def _vertex(self, path: Any) -> int:
        found = self._engine.lookup(path) if isinstance(path, str) else []
        if not found:
            raise InvalidGraph(f"path {shown(path)}: the graph has no such vertex", EINVAL)
        return int(found[0])

    @abstractmethod
    def set_status(self, path: str, up: bool) -> None:
        """Marks a vertex up or down. A vertex below one that is down is unusable, whatever its own mark."""

    @abstractmethod
    def get_status(self, path: str) -> bool:
        """Whether the vertex itself is up."""

    @abstractmethod
    def set_rank_status(self, ranks: Any, up: bool) -> None:
        """Marks the topmost vertex of each rank: `all`, an idset, a number or several. Ignores unknown ranks."""

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
            raise InvalidGraph(f"ranks: expected an idset or numbers, got {shown(ranks)}", EINVAL) from None

    @abstractmethod
    def get_rank_status(self, rank: int) -> bool:
        """Whether the topmost vertex of a rank is up."""

    def _top_of_rank(self, rank: Any) -> int:
        number = index_of(rank, "rank", 0, 2**31 - 1, InvalidGraph)
        found = self._engine.of_rank(number)
        if not found:
            raise InvalidGraph(f"rank {shown(number)}: no vertex has this rank", EINVAL)
        return found[0]

    @abstractmethod
    def set_properties(self, path: str, properties: dict[str, str]) -> None:
        """Replaces the properties of a vertex."""

    @abstractmethod
    def resize(self, path: str, size: int) -> None:
        """Changes the units of a vertex."""

    @abstractmethod
    def add_subgraph(self, graph: Any) -> None:
        """Adds the vertices of a JGF that are new. It must contain the path from the root."""

    @abstractmethod
    def remove_subgraph(self, path: str) -> None:
        """Removes a vertex and everything below it."""

    def _removable(self, path: Any) -> int:
        vertex = self._vertex(path)
        if vertex == self._engine.root:
            raise InvalidGraph(f"path {path!r}: the root cannot be removed", EINVAL)
        return vertex

    @abstractmethod
    def clone(self) -> Self:
        """A deep, independent copy, with all jobs."""

    def _copy(self) -> Self:
        """A copy with its own table, graph and lock. It shares everything else, including a subclass's attributes."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other._turn, other._table, other._engine = Turn(), self._table.copy(), self._engine.copy()
        return other


def _rank(value: Any) -> int:
    number = integer(value)
    if number is None:
        raise ValueError
    return number
