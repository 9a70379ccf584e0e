"""Fluxion's own library for tests of the plugin: the real one, and a stand-in that refuses the same requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.graph.engine import DEFAULT_CHUNK_MIB, Engine
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluxion_cy import Allocation, Matcher, NotSupported

VARIABLE = "FLUXION_REAPI_LIB"
THERE = bool(os.environ.get(VARIABLE))
NEEDS_IT = pytest.mark.skipif(not THERE, reason=f"{VARIABLE} names no library of Fluxion's own")
REAL = Engine("reapi", None, DEFAULT_CHUNK_MIB)
ENGINES = ("embedded", "reapi") if THERE else ("embedded",)
"""The engines for tests of placements."""
embedded_only = pytest.mark.parametrize("engine", ["embedded"], indirect=True)
"""For tests of features that the library lacks."""
LIBRARIES = ("stand-in", pytest.param("real", marks=NEEDS_IT))


class StandIn(Matcher):
    """The embedded engine limited to the features of the library; all others raise NotSupported."""

    def __init__(self, graph: Any, policy: str) -> None:
        super().__init__(graph, policy=policy)
        if policy == "pack":
            raise NotSupported("policy='pack': only the embedded engine supports this policy")
        if any(node["metadata"].get("divisible") for node in graph["graph"]["nodes"]):
            raise NotSupported("the library has no divisible vertices")

    def allocate(
        self, jobspec: Any, jobid: int | None = None, *, now: int = 0, candidates: Any = None, prefer: Any = None
    ) -> Allocation:
        if now or prefer is not None:
            raise NotSupported("now, prefer: the library has neither")
        if candidates is not None and np.asarray(candidates).dtype != np.bool_:
            raise NotSupported("candidates: the library takes true or false per rank")
        return super().allocate(jobspec, jobid, candidates=candidates)

    def partial_cancel(self, *_: Any, **__: Any) -> bool:
        raise NotSupported("the library only frees everything that a job holds on a rank")

    def allocation(self, jobid: int) -> Allocation:
        raise NotSupported("the library returns the resources of a job only when it matches")

    def why(self, *_: Any, **__: Any) -> str:
        raise NotSupported("the library does not say what a request lacks")

    def resize(self, path: str, size: int) -> None:
        raise NotSupported("the library's C API cannot do it")

    def set_properties(self, path: str, properties: dict[str, str]) -> None:
        raise NotSupported("the library's C API cannot do it")


def stand_in(graph: Any, policy: str, path: str | None) -> Matcher:
    """Replaces `library_matcher.open_library`."""
    del path
    return StandIn(graph, policy)


def use(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the real library or the stand-in."""
    if library == "stand-in":
        monkeypatch.setattr("fluence_plugins.fluence.graph.library_matcher.open_library", stand_in)


@pytest.fixture(autouse=True, params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test's graphs and plugins use this engine, unless they name one or request features that the library lacks."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "reapi":
            patch.setattr(LiveGraph.__init__, "__defaults__", (None, REAL))
            patch.setattr(FluenceArguments, "matching", lambda self: REAL if _has(self) else Engine())
        yield


def _has(arguments: FluenceArguments) -> bool:
    """Whether the library supports the requested features.

    With the library `auto` means `cores`, so a test that names `auto` needs the embedded engine.
    """
    whole = arguments.cpu_accounting == "cores" or "cpu_accounting" not in arguments.model_fields_set
    return whole and arguments.policy != "pack"
