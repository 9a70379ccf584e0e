"""The two engines of bench_matcher.py with one interface: text in, R out, with only the steps that a caller needs.

The benchmark calls the real library through its C API and not through `engine="reapi"`, so that its figures exclude the
project's own checks and marshalling.
"""

import ctypes
import os
from typing import Any, Protocol

_OPS = {"allocate": 1, "reserve": 3}


class Engine(Protocol):
    """`match` and `satisfy` return whether they succeeded; job ids count from 1, one for every match."""

    def match(self, op: str, jobspec: str) -> bool: ...

    def satisfy(self, jobspec: str) -> bool: ...

    def cancel(self, jobid: int) -> None: ...

    def clear(self) -> None: ...


class Embedded:
    """This project's engine."""

    def __init__(self, graph: str, policy: str) -> None:
        from fluxion_cy import Busy, Matcher, NotSupported, Unsatisfiable

        self._full = (Busy, Unsatisfiable)
        try:
            self._matcher = Matcher(graph, policy=policy, match_format="rv1_nosched")
        except NotSupported:
            self._matcher = Matcher(graph, policy=policy)
        self._call = {"allocate": self._matcher.allocate, "reserve": self._matcher.allocate_orelse_reserve}

    def match(self, op: str, jobspec: str) -> bool:
        try:
            return bool(self._call[op](jobspec).R)
        except self._full:
            return False

    def satisfy(self, jobspec: str) -> bool:
        return self._matcher.satisfy(jobspec)

    def cancel(self, jobid: int) -> None:
        self._matcher.cancel(jobid)

    def clear(self) -> None:
        """Cancels all jobs."""
        for jobid in range(1, self._matcher.next_jobid):
            self._matcher.cancel(jobid, missing_ok=True)


class Real:
    """Fluxion's library, named by FLUXION_REAPI_LIB."""

    def __init__(self, graph: str, policy: str) -> None:
        self._library = library = ctypes.CDLL(os.environ["FLUXION_REAPI_LIB"])
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]
        library.reapi_cli_new.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(library.reapi_cli_new())
        self._jobid, self._reserved, self._answer = ctypes.c_uint64(), ctypes.c_bool(), ctypes.c_void_p()
        self._at, self._overhead = ctypes.c_int64(), ctypes.c_double()
        options = (
            f'{{"load_format":"jgf","matcher_policy":"{policy}","match_format":"rv1_nosched",'
            '"prune_filters":"ALL:core,ALL:node"}'
        )
        if library.reapi_cli_initialize(self._context, graph.encode(), options.encode()):
            raise RuntimeError(f"the library refuses the graph for policy {policy}")

    def match(self, op: str, jobspec: str) -> bool:
        by = ctypes.byref
        failed = self._library.reapi_cli_match(
            self._context, _OPS[op], jobspec.encode(), by(self._jobid), by(self._reserved), by(self._answer),
            by(self._at), by(self._overhead),
        )  # fmt: skip
        if failed:
            return False
        found = ctypes.string_at(self._answer).decode()
        self._free(self._answer)
        return bool(found)

    def satisfy(self, jobspec: str) -> bool:
        by = ctypes.byref
        self._library.reapi_cli_match_satisfy(self._context, jobspec.encode(), by(self._reserved), by(self._overhead))
        return self._reserved.value

    def cancel(self, jobid: int) -> None:
        if self._library.reapi_cli_cancel(self._context, ctypes.c_uint64(jobid), False):
            raise RuntimeError(f"job {jobid} cannot be cancelled")


ENGINES: dict[str, Any] = {"embedded": Embedded, "real": Real}
