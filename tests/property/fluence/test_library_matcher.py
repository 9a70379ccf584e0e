"""Fluxion's library behind the live graph: its matches, allocations and cancels compared with a simple count.

It is the real library if that is installed, otherwise a stand-in with its limits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools.real_engine import LIBRARIES, REAL, use

from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.graph.cluster_graph import HostResources
from fluence_plugins.fluence.graph.library_matcher import LibraryMatcher
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import HostHolding, Placement
from fluence_plugins.fluence.matching.jobspecs import compute_jobspec_text
from fluence_plugins.resources.config import ResourcesConfig
from fluxion_cy import Busy, Matcher, Unsatisfiable

from ...tools.examples import examples

CHUNK = REAL.chunk_mib
POLICIES = ("first", "low", "high", "lonode", "hinode", "locality", "variation")
HOSTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=6)
SHAPES = st.builds(PodShape, st.integers(1, 3), st.integers(0, 2).map(CHUNK.__mul__), st.integers(0, 1))


@pytest.fixture(params=LIBRARIES, autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the engine fixture of all properties here, because these tests name the engine themselves."""
    use(request.param, monkeypatch)


class Model:
    """The free cores, chunks and gpus of each host."""

    def __init__(self, hosts: list[tuple[int, int, int]], policy: str) -> None:
        self.live = LiveGraph(ResourcesConfig(), policy, engine=REAL)
        self.names = [f"n{index}" for index in range(len(hosts))]
        self.free = dict(zip(self.names, map(list, hosts), strict=True))
        self.live.set_hosts(
            {name: HostResources(name, c, m * CHUNK, g) for name, (c, m, g) in zip(self.names, hosts, strict=True)}
        )
        self.held: dict[str, Placement] = {}
        self.count = 0

    def slots(self, name: str, shape: PodShape) -> int:
        wanted = (shape.cores, shape.memory_mib // CHUNK, shape.gpus)
        return min(have // want for have, want in zip(self.free[name], wanted, strict=True) if want)

    def match(self, shape: PodShape, count: int, room: list[int] | None) -> None:
        limits = dict(zip(self.names, room or [count] * len(self.names), strict=False))
        fits = sum(min(limits.get(name, 0), self.slots(name, shape)) for name in self.names)
        column = None
        if room is not None:
            column = np.zeros(self.live.graph.ranks, np.int64)
            for name, number in limits.items():
                column[self.live.graph.host_ranks[name]] = number
        try:
            job = self.live.allocations.match(compute_jobspec_text(shape, count), column)
        except (Busy, Unsatisfiable):
            assert fits < count
            return
        assert fits >= count
        for host in job.placement.hosts:
            slots = len(host.cores) // shape.cores
            assert slots <= limits[host.name]
            assert (len(host.cores), host.memory_mib, len(host.gpus)) == (
                slots * shape.cores,
                slots * shape.memory_mib,
                slots * shape.gpus,
            )
            self._take(host, 1)
        assert sum(len(host.cores) for host in job.placement.hosts) == count * shape.cores
        for host in job.placement.hosts:
            self.count += 1
            self.held[f"p{self.count}"] = Placement((host,))
            self.live.allocations.hold(f"p{self.count}", {job.jobid: Placement((host,))})

    def _take(self, host: HostHolding, sign: int) -> None:
        taken = (len(host.cores), host.memory_mib // CHUNK, len(host.gpus))
        self.free[host.name] = [have - sign * less for have, less in zip(self.free[host.name], taken, strict=True)]
        assert min(self.free[host.name]) >= 0

    def end(self, number: int) -> None:
        if self.held:
            uid = sorted(self.held)[number % len(self.held)]
            (host,) = self.held.pop(uid).hosts
            self._take(host, -1)
            self.live.allocations.free(uid)

    def come_or_go(self, number: int, host: tuple[int, int, int]) -> None:
        """Remove a host without pods, or add another one."""
        free = [name for name in self.names if not any(part.hosts[0].name == name for part in self.held.values())]
        if number % 2 and free:
            name = free[number % len(free)]
            self.names.remove(name)
            del self.free[name]
            self.live.set_hosts({name: None})
            return
        self.count += 1
        name = f"m{self.count}"
        self.names.append(name)
        self.free[name] = list(host)
        self.live.set_hosts({name: HostResources(name, host[0], host[1] * CHUNK, host[2])})

    def check(self) -> None:
        """Checks that the free amounts of the library and of the accounting equal the count."""
        matcher = self.live.matcher
        assert isinstance(matcher, LibraryMatcher)
        cores_and_gpus = {name: (have[0], have[2]) for name, have in self.free.items()}
        assert {name: (have[0], have[2]) for name, have in self._found_free(matcher).items()} == cores_and_gpus
        if matcher._library is not None and self.free:  # in a graph without children, find returns nothing
            assert self._found_free(matcher._library) == self.free

    def _found_free(self, matcher: Matcher) -> dict[str, list[int]]:
        found = matcher.find("sched-now=free") or {"graph": {"nodes": []}}
        free = {name: [0, 0, 0] for name in self.free}
        for metadata in (node["metadata"] for node in found["graph"]["nodes"]):
            if metadata["type"] in ("core", "memory", "gpu"):
                name = metadata["paths"]["containment"].split("/")[2]
                free[name][("core", "memory", "gpu").index(metadata["type"])] += 1
        return free


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("match"), SHAPES, st.integers(1, 8), st.none() | st.lists(st.integers(0, 4), max_size=6)),
        st.tuples(st.just("end"), st.integers(0, 99)),
        st.tuples(
            st.just("come_or_go"),
            st.integers(0, 99),
            st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 1)),
        ),
    ),
    max_size=12,
)


@settings(max_examples=examples(150))
@given(hosts=HOSTS, policy=st.sampled_from(POLICIES), steps=STEPS)
def test_it_places_a_slot_exactly_where_one_fits_and_accounts_for_it(
    hosts: list[tuple[int, int, int]], policy: str, steps: list[tuple[Any, ...]]
) -> None:
    model = Model(hosts, policy)
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
        model.check()
