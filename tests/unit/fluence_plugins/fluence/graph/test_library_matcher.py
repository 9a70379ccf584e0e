"""The live graph over Fluxion's library: the real one where it is there, else a stand-in with its limits."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tests.tools.real_engine import LIBRARIES, REAL, use

from fluence_plugins.fluence.graph.accounting import PodShape
from fluence_plugins.fluence.graph.cluster_graph import HostResources
from fluence_plugins.fluence.graph.library_matcher import LibraryMatcher
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import HostHolding, Placement
from fluence_plugins.fluence.matching.jobspecs import compute_jobspec, compute_jobspec_text, device_jobspecs
from fluence_plugins.fluence.matching.shortages import PodWords
from fluence_plugins.resources.config import load_resources
from fluxion_cy import Busy, NotSupported

TREES = "resources: [{type: qdevice, name: aurora, with: [{type: qpu, count: 2, with: [{type: qubit, count: 3}]}]}]"


@pytest.fixture(params=LIBRARIES, autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use(request.param, monkeypatch)


def hosts(count: int, cores: int = 4, memory: int = 8192, gpus: int = 0) -> dict[str, HostResources | None]:
    return {f"n{index}": HostResources(f"n{index}", cores, memory, gpus) for index in range(count)}


def live(nodes: dict[str, HostResources | None], policy: str = "first", trees: str = TREES) -> LiveGraph:
    graph = LiveGraph(load_resources(trees, "resources.yaml"), policy, engine=REAL)
    graph.set_hosts(nodes)
    return graph


def cores_by_host(placement: Placement) -> dict[str, int]:
    return {host.name: len(host.cores) for host in placement.hosts}


def room(graph: LiveGraph, **more: int) -> np.ndarray:
    column = np.zeros(graph.graph.ranks, np.int64)
    for name, number in more.items():
        column[graph.graph.host_ranks[name]] = number
    return column


def test_memory_is_given_in_whole_chunks() -> None:
    graph = live(hosts(1, cores=8, memory=4096))
    shape = PodShape(cores=1, memory_mib=1500)
    for _ in range(2):
        assert graph.allocations.match(compute_jobspec_text(shape, 1)).placement.hosts[0].memory_mib == 2048
    with pytest.raises(Busy):
        graph.allocations.match(compute_jobspec_text(shape, 1))
    assert graph.allocations.match(compute_jobspec_text(PodShape(1), 4)).placement.hosts[0].memory_mib == 0


def test_the_rest_of_a_chunk_is_free() -> None:
    graph = live(hosts(1, memory=2500))
    graph.allocations.match(compute_jobspec_text(PodShape(1, 1024), 2))
    with pytest.raises(Busy):
        graph.allocations.match(compute_jobspec_text(PodShape(1, 1), 1))


@pytest.mark.parametrize("policy", ["first", "low", "high", "lonode", "hinode", "locality"])
def test_no_host_gets_more_slots_than_it_has_room_for(policy: str) -> None:
    graph = live(hosts(4), policy)
    placed = graph.allocations.match(
        compute_jobspec_text(PodShape(1, 1024), 6), room(graph, n0=1, n1=2, n2=3)
    ).placement
    assert cores_by_host(placed) == {"n0": 1, "n1": 2, "n2": 3}
    assert {host.name: host.memory_mib for host in placed.hosts} == {"n0": 1024, "n1": 2048, "n2": 3072}
    graph.allocations.match(compute_jobspec_text(PodShape(1), 10))  # nothing else is held
    with pytest.raises(Busy):
        graph.allocations.match(compute_jobspec_text(PodShape(1), 1))


def test_hosts_that_take_one_each_are_asked_for_at_once() -> None:
    graph = live(hosts(4))
    placed = graph.allocations.match(compute_jobspec_text(PodShape(1), 3), room(graph, n0=1, n1=1, n3=1)).placement
    assert cores_by_host(placed) == {"n0": 1, "n1": 1, "n3": 1}


def test_too_little_room_holds_nothing() -> None:
    graph = live(hosts(3))
    for asked, there in ((6, {"n0": 1, "n1": 4}), (4, {"n0": 1, "n1": 1, "n2": 1}), (1, {})):
        with pytest.raises(Busy):
            graph.allocations.match(compute_jobspec_text(PodShape(1), asked), room(graph, **there))
    assert graph.allocations.next_jobid == 1
    assert len(graph.allocations.match(compute_jobspec_text(PodShape(1), 12)).placement.hosts) == 3


def test_a_policy_of_whole_nodes_gives_whole_nodes() -> None:
    graph = live(hosts(3), "lonodex")
    placed = graph.allocations.match(compute_jobspec_text(PodShape(1), 3), room(graph, n0=1, n1=2, n2=5)).placement
    assert [host.name for host in placed.hosts] == ["n0", "n1"]
    assert all(host.exclusive and len(host.cores) == 4 and host.memory_mib == 8192 for host in placed.hosts)


@pytest.mark.parametrize("policy", ["first", "low", "high", "lonode", "hinode", "locality"])
def test_devices_at_every_depth_are_found(policy: str) -> None:
    graph = live(hosts(2), policy)
    for kind, count in (("qubit", 2), ("qpu", 1)):
        found = graph.allocations.match(device_jobspecs(graph.graph, kind, count)[0].to_json()).placement
        assert len(found.devices) == count
    with pytest.raises(Busy):
        graph.allocations.match(device_jobspecs(graph.graph, "qdevice", 1)[0].to_json())


def test_a_pod_of_a_gang_gives_its_own_part_back() -> None:
    graph = live(hosts(1))
    job = graph.allocations.match(compute_jobspec_text(PodShape(2, 1500), 2))
    (host,) = job.placement.hosts
    parts = {
        uid: Placement((HostHolding(host.name, host.path, host.cores[2 * i : 2 * i + 2], (), 2048),))
        for i, uid in enumerate("ab")
    }
    for uid, part in parts.items():
        graph.allocations.hold(uid, {job.jobid: part})
    graph.allocations.free("a")
    graph.allocations.match(compute_jobspec_text(PodShape(2, 4096), 1))
    with pytest.raises(Busy):
        graph.allocations.match(compute_jobspec_text(PodShape(1), 1))
    graph.allocations.free("b")
    assert set(graph.allocations.match(compute_jobspec_text(PodShape(2, 4096), 1)).placement.hosts[0].cores) == set(
        parts["b"].hosts[0].cores
    )


def test_what_is_held_stays_held_when_hosts_come_and_go() -> None:
    graph = live(hosts(1))
    job = graph.allocations.match(compute_jobspec_text(PodShape(3, 5000), 1))
    graph.allocations.hold("a", {job.jobid: job.placement})
    graph.set_hosts(hosts(3))
    placed = graph.allocations.match(compute_jobspec_text(PodShape(1), 9)).placement
    assert cores_by_host(placed) == {"n0": 1, "n1": 4, "n2": 4}
    graph.set_hosts({"n1": None, "n2": None})
    graph.allocations.free("a")
    assert cores_by_host(graph.allocations.match(compute_jobspec_text(PodShape(3, 8192), 1)).placement) == {"n0": 3}


def test_a_record_of_amounts_that_were_not_rounded_is_held_as_far_as_chunks_go() -> None:
    graph = live(hosts(1, memory=4096))
    path = graph.graph.host_path("n0")
    for index, uid in enumerate("abc"):
        part = Placement((HostHolding("n0", path, (index,), (), 1300),))
        graph.allocations.replay({uid: {index + 1: part}})
    assert not graph.holdings.missing
    with pytest.raises(Busy):
        graph.allocations.match(compute_jobspec_text(PodShape(1, 1), 1))
    for uid in "abc":
        graph.allocations.free(uid)
    graph.allocations.match(compute_jobspec_text(PodShape(4, 4096), 1))


def test_scores_durations_and_the_time_are_not_passed_on() -> None:
    graph = live(hosts(2))
    text = compute_jobspec(PodShape(4), 1).to_mapping()
    text["attributes"]["system"]["duration"] = 60
    graph.matcher.allocate(text, jobid=1, now=1000, prefer=np.array([0.0, 1.0]))
    graph.matcher.allocate(text, jobid=2, now=1000)
    with pytest.raises(Busy):
        graph.matcher.allocate(text, jobid=3, now=5000)


def test_what_answers_with_a_time_is_refused_by_name() -> None:
    matcher = live(hosts(1)).matcher
    for name in ("allocate_orelse_reserve", "without_allocating_future", "clone"):
        with pytest.raises(NotSupported, match=name):
            getattr(matcher, name)(*(() if name == "clone" else (compute_jobspec_text(PodShape(1), 1),)))


def test_a_refusal_says_what_is_short_or_that_chunks_are() -> None:
    graph = live(hosts(1, memory=2048))
    graph.allocations.match(compute_jobspec_text(PodShape(1, 1500), 1))
    words = PodWords(graph.accounting, PodShape(8), {"cpu": 8000})
    found = graph.allocations.shortage(compute_jobspec_text(PodShape(8), 1), None, words)
    assert found is not None
    assert found.reason == "no node has 8 cores even when empty; the only node has 4"
    graph.allocations.free("unknown")
    chunked = live(hosts(1, memory=1500)).allocations
    text = compute_jobspec_text(PodShape(1, 1200), 1)
    assert chunked.shortage(text, None, words) is None
    assert chunked.why(text, None) == (
        "Fluxion's library finds no match, although enough of each type is free: it allocates memory in chunks of 1 GiB"
    )


def test_a_preview_holds_nothing() -> None:
    matcher = live(hosts(1)).matcher
    text = compute_jobspec_text(PodShape(4), 1)
    assert matcher.without_allocating(text, jobid=7).R == matcher.allocate(text, jobid=7).R


def test_what_the_library_gives_and_is_held_already_is_not_given(caplog: pytest.LogCaptureFixture) -> None:
    graph = live(hosts(1))
    matcher = graph.matcher
    assert isinstance(matcher, LibraryMatcher)
    job = graph.allocations.match(compute_jobspec_text(PodShape(4), 1))
    assert matcher._library
    matcher._library.retract(job.jobid)  # as if it had forgotten it
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(Busy, match="jobspec: the library matched resources that another"),
    ):
        graph.allocations.match(compute_jobspec_text(PodShape(1), 1))
    assert "the library matched resources for job 2 that another job holds" in caplog.text
