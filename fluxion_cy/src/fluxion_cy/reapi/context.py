"""One context of the library: its functions, with Python values."""

import errno as _errno
import json
import weakref
from collections.abc import Iterable
from ctypes import byref, c_bool, c_double, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

from fluxion_cy.engine.jobs import MatchOp
from fluxion_cy.errors import FluxionError
from fluxion_cy.reapi.library import LOCK, Library

_UP, _DOWN = 0, 1


class Failure(Exception):  # noqa: N818 - it becomes one of the package's errors before anybody sees it
    """A failed call: its errno (0: the library set none) and the library's text on one line."""

    def __init__(self, errno: int, text: str) -> None:
        super().__init__(text)
        self.errno = errno
        self.text = text


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a match: `at` in seconds, `overhead` (the seconds that it took), `R` as text."""

    at: int
    reserved: bool
    overhead: float
    R: str


class Context:
    """A `reapi_cli_ctx_t`. `close`, or the end of its owner, destroys it."""

    def __init__(self, library: Library, pointer: int) -> None:
        self._library = library
        self._pointer = pointer
        self._end = weakref.finalize(self, library.doom, pointer)
        self._end.atexit = False

    @classmethod
    def create(cls, library: Library, graph: bytes, options: bytes, types: Iterable[str]) -> "Context":
        """A context with a graph. Raises Failure if the library rejects it. `types`: those of the graph and options."""
        cls._teach(library, types)
        return cls._start(library, graph, options)

    @classmethod
    def _start(cls, library: Library, graph: bytes, options: bytes) -> "Context":
        with LOCK:
            pointer, errno = library.call("new")
        if not pointer:
            raise Failure(errno or _errno.ENOMEM, "no context")
        context = cls(library, pointer)
        context._call("initialize", graph, options)
        return context

    @classmethod
    def _teach(cls, library: Library, types: Iterable[str]) -> None:
        """Adds types to the library's table.

        The library closes the table of the process at the end of the first `initialize`, and then rejects graphs with
        other types. Only `add_subgraph` opens it again, so this adds the types to a temporary graph.
        """
        new = [kind for kind in dict.fromkeys(types) if kind not in library.types]
        if not new:
            return
        context = cls._start(library, _small_graph(()), b'{"load_format":"jgf"}')
        try:
            context._call("add_subgraph", _small_graph(new))
            library.types.update(new)
        finally:
            context.close()

    def clone(self) -> "Context":
        """A deep copy."""
        with LOCK:
            pointer, errno = self._library.call("clone", self._alive())
            if not pointer:
                raise Failure(errno, self._complaint())
        return Context(self._library, pointer)

    def close(self) -> None:
        """Destroys the context. Later calls raise."""
        self._pointer = 0
        self._end()

    def _alive(self) -> int:
        if not self._pointer:
            raise FluxionError("the matcher is closed")
        return self._pointer

    def _call(self, function: str, *arguments: Any) -> None:
        with LOCK:
            self._library.bury()
            pointer = self._alive()
            self._library.call("clear_err_msg", pointer)  # left by calls that did not fail
            result, errno = self._library.call(function, pointer, *arguments)
            if result:
                raise Failure(errno, self._complaint())

    def complaint(self) -> str:
        """The library's text since the start of the last call, which did not fail."""
        with LOCK:
            self._alive()
            return self._complaint()

    def _complaint(self) -> str:
        """Takes the library's error text, on one line."""
        text = self._library.take(self._library.call("get_err_msg", self._pointer)[0])
        self._library.call("clear_err_msg", self._pointer)
        return " ".join((text or "").split())

    # ---- jobs --------------------------------------------------------------------------------------------------------

    def match(self, op: MatchOp, jobspec: bytes, jobid: int) -> Answer:
        """Any match that returns resources."""
        reserved, at, overhead, found = c_bool(), c_int64(), c_double(), c_void_p()
        self._call(
            "match_with_jobid", op, jobspec, jobid, byref(reserved), byref(found), byref(at), byref(overhead)
        )  # fmt: skip
        return Answer(at.value, reserved.value, overhead.value, self._library.take(found.value) or "")

    def satisfy(self, jobspec: bytes) -> bool:
        """Whether the jobspec matches the empty graph. Raises Failure for any other answer."""
        satisfiable, overhead = c_bool(), c_double()
        try:
            self._call("match_satisfy", jobspec, byref(satisfiable), byref(overhead))
        except Failure as failure:
            if failure.errno != _errno.ENODEV:
                raise
            return False
        return satisfiable.value

    def update_allocate(self, jobid: int, resources: bytes) -> Answer:
        """Allocates what an R names."""
        at, overhead, found = c_int64(), c_double(), c_void_p()
        self._call("update_allocate", jobid, resources, byref(at), byref(overhead), byref(found))
        return Answer(at.value, False, overhead.value, self._library.take(found.value) or "")

    def cancel(self, jobid: int) -> None:
        """Frees a job."""
        self._call("cancel", jobid, False)

    def partial_cancel(self, jobid: int, resources: bytes) -> bool:
        """Frees what an R names. Returns whether nothing is left."""
        everything = c_bool()
        self._call("partial_cancel", jobid, resources, False, byref(everything))
        return everything.value

    # ---- the graph ---------------------------------------------------------------------------------------------------

    def find(self, criteria: bytes, form: bytes) -> str | None:
        """The vertices that meet the criteria, in a match format; None if there are none."""
        found = c_void_p()
        self._call("find", criteria, form, byref(found))
        return self._library.take(found.value)

    def add_subgraph(self, graph: bytes) -> None:
        """Adds the new vertices of a JGF, whose types may be new."""
        self._call("add_subgraph", graph)

    def remove_subgraph(self, path: bytes) -> None:
        """Removes a vertex and everything below it."""
        self._call("remove_subgraph", path)

    def set_status(self, path: bytes, up: bool) -> None:
        """Marks a vertex up or down."""
        self._call("set_status", path, _UP if up else _DOWN)

    def get_status(self, path: bytes) -> bool:
        """Whether a vertex is up."""
        status = c_int(-1)
        self._call("get_status", path, byref(status))
        return status.value == _UP

    def set_rank_status(self, ranks: bytes, up: bool) -> None:
        """Marks the topmost vertex of each rank of an idset."""
        self._call("set_rank_status", ranks, _UP if up else _DOWN)

    def get_rank_status(self, rank: bytes) -> bool:
        """Whether the node of a rank is up."""
        status = c_int(-1)
        self._call("get_rank_status", rank, byref(status))
        return status.value == _UP


def _small_graph(types: Iterable[str]) -> bytes:
    """A cluster with one vertex of each type below it."""
    kinds = ["cluster", *types]
    nodes = [
        {
            "id": str(i),
            "metadata": {"type": kind, "id": i, "name": f"x{i}", "paths": {"containment": f"/x0/x{i}" if i else "/x0"}},
        }
        for i, kind in enumerate(kinds)
    ]
    edges = [{"source": "0", "target": str(i)} for i in range(1, len(kinds))]
    return json.dumps({"graph": {"nodes": nodes, "edges": edges}}, ensure_ascii=False).encode()
