"""Held work: ids, cancel, partial cancel, replay, retract."""

import errno
import threading
from typing import Any

import pytest

from fluxion_cy import Busy, InvalidGraph, InvalidJobspec, JobExists, Matcher, NoSuchJob

from .graphs import Graph, machine, pools, slot, spec, taken, want

CORE = want("core", 1)
ASK = spec(want("node", 1, slot(1, want("core", 2))))
WHOLE = spec(want("node", 1, slot(1, want("core", 4))))


def test_ids_are_given_in_turn_also_where_there_was_no_place() -> None:
    matcher = Matcher(machine(nodes=1))
    assert matcher.allocate(WHOLE).jobid == 1
    with pytest.raises(Busy):
        matcher.allocate(WHOLE)
    with pytest.raises(InvalidJobspec):
        matcher.allocate("no jobspec")
    assert matcher.next_jobid == 3
    matcher.cancel(1)
    assert matcher.allocate(WHOLE).jobid == 3


def test_the_counter_ends_before_the_id_that_stands_for_no_job() -> None:
    matcher = Matcher(machine(nodes=1))
    matcher.next_jobid = 2**64 - 2
    last = matcher.allocate(ASK).jobid
    with pytest.raises(InvalidJobspec, match=r"^jobid: the counter for automatic ids is exhausted; pass an id"):
        matcher.allocate(ASK)
    matcher.cancel(last)
    assert matcher.allocate(ASK, jobid=1).jobid == 1
    with pytest.raises(InvalidJobspec, match=r"^next_jobid: "):
        matcher.next_jobid = 2**64 - 1


def test_a_held_vertex_that_is_resized_is_held_whole_and_given_back_by_its_own_r() -> None:
    matcher, gpu = Matcher(machine(nodes=1)), "/cluster0/node0/gpu0"
    held = matcher.allocate(spec(slot(1, CORE, want("gpu", 1))))
    matcher.resize(gpu, 16)
    again = matcher.allocation(held.jobid).R
    assert taken(again)[gpu] == 16
    Matcher(matcher.graph()).update_allocate(1, again)
    with pytest.raises(Busy, match="16 units are allocated"):
        matcher.resize(gpu, 4)
    assert matcher.partial_cancel(held.jobid, again)
    matcher.resize(gpu, 4)


def test_units_of_which_none_are_taken_are_no_hold() -> None:
    matcher = Matcher(pools())
    found = matcher.allocate(spec(slot(1, want("memory", 1)))).R
    matcher.cancel(1)
    for node in found["graph"]["nodes"]:
        node["metadata"]["size"] = 0 if node["metadata"]["type"] == "memory" else 1
    with pytest.raises(InvalidGraph, match=r"^R: has no exclusive vertex"):
        matcher.update_allocate(2, found)


def test_a_known_id_is_refused_and_the_largest_can_be_cancelled() -> None:
    matcher = Matcher(machine())
    matcher.allocate(ASK, 2**64 - 1)
    with pytest.raises(JobExists) as caught:
        matcher.allocate(ASK, 2**64 - 1)
    assert caught.value.errno == errno.EEXIST
    matcher.cancel(2**64 - 1)
    assert matcher.info(2**64 - 1).mode == "CANCELED"
    bad: Any
    for bad in (-1, 2**64, "1", 1.5, True, [1]):
        with pytest.raises(InvalidJobspec):
            matcher.allocate(ASK, bad)
        with pytest.raises(InvalidJobspec):
            matcher.cancel(bad, missing_ok=True)


def test_the_counter_moves_only_upwards() -> None:
    matcher = Matcher(machine())
    matcher.next_jobid = 41
    assert matcher.allocate(ASK).jobid == 41
    bad: Any
    for bad in (41, "50", 2**64, True):
        with pytest.raises(InvalidJobspec):
            matcher.next_jobid = bad


def test_cancel_is_told_once() -> None:
    matcher = Matcher(machine())
    job = matcher.allocate(ASK)
    matcher.cancel(job.jobid)
    with pytest.raises(NoSuchJob):
        matcher.cancel(job.jobid)
    matcher.cancel(job.jobid, missing_ok=True)
    with pytest.raises(NoSuchJob):
        matcher.info(99)


@pytest.mark.parametrize("policy", ["first", "low", "high", "firstnodex", "pack"])
def test_retract_leaves_no_trace(policy: str) -> None:
    matcher = Matcher(machine(nodes=4), policy=policy)
    matcher.allocate(ASK)
    before = (matcher.graph(), matcher.stat(), matcher.find("sched-now=allocated"), matcher.next_jobid)
    follow = taken(matcher.clone().allocate(spec(slot(5, CORE))).R)
    job = matcher.allocate(spec(slot(3, CORE)))
    matcher.retract(job.jobid)
    assert (matcher.graph(), matcher.stat(), matcher.find("sched-now=allocated"), matcher.next_jobid) == before
    with pytest.raises(NoSuchJob):
        matcher.info(job.jobid)
    assert taken(matcher.allocate(spec(slot(5, CORE))).R) == follow


def test_retract_hands_back_only_the_last_number() -> None:
    matcher = Matcher(machine())
    first, second = matcher.allocate(ASK), matcher.allocate(ASK)
    matcher.retract(first.jobid)
    assert matcher.next_jobid == 3
    matcher.retract(second.jobid)
    assert matcher.next_jobid == 2


@pytest.mark.parametrize("ending", ["cancel", "partial_cancel", "remove_subgraph"])
def test_retract_erases_the_record_of_a_canceled_job(ending: str) -> None:
    matcher = Matcher(machine(nodes=2), policy="low")
    job, other = matcher.allocate(ASK, 7), matcher.allocate(ASK, 8)
    if ending == "cancel":
        matcher.cancel(7)
    elif ending == "partial_cancel":
        assert matcher.partial_cancel(7, job.R)
    else:
        matcher.remove_subgraph("/cluster0/node0")
        matcher.cancel(8, missing_ok=True)
        matcher.retract(8)
        other = matcher.allocate(ASK, 8)
    assert matcher.info(7).mode == "CANCELED"
    assert matcher.stat()["jobs"] == {"ALLOCATED": 1, "RESERVED": 0, "CANCELED": 1}
    matcher.retract(7)
    assert matcher.stat()["jobs"] == {"ALLOCATED": 1, "RESERVED": 0, "CANCELED": 0}
    for operation in (matcher.info, matcher.retract, matcher.cancel):
        with pytest.raises(NoSuchJob):
            operation(7)
    assert matcher.find("jobid-alloc=8") is not None
    again = matcher.allocate(ASK, 7)
    assert taken(again.R).keys().isdisjoint(taken(other.R))


def test_a_part_of_a_job_is_freed_by_rank_or_by_vertex() -> None:
    matcher = Matcher(machine(), policy="low")
    job = matcher.allocate(spec(want("node", 3, slot(1, want("core", 4)))))
    lite = {"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"core": "0-3"}}]}}
    assert not matcher.partial_cancel(job.jobid, lite)
    assert {p.split("/")[2] for p in taken(matcher.allocate(WHOLE).R)} == {"node0"}
    rest = [node for node in job.R["graph"]["nodes"] if node["metadata"]["rank"] == 1]
    assert not matcher.partial_cancel(job.jobid, {"graph": {"nodes": rest, "edges": []}})
    with pytest.raises(InvalidGraph, match="not allocated"):
        matcher.partial_cancel(job.jobid, {"graph": {"nodes": rest, "edges": []}})
    last = [node for node in job.R["graph"]["nodes"] if node["metadata"]["rank"] == 2]
    assert matcher.partial_cancel(job.jobid, {"graph": {"nodes": last, "edges": []}})
    assert matcher.info(job.jobid).mode == "CANCELED"
    assert not matcher.partial_cancel(job.jobid, lite, missing_ok=True)


def test_a_reservation_is_not_cancelled_in_part() -> None:
    matcher = Matcher(machine(nodes=1))
    matcher.allocate(WHOLE)
    later = matcher.allocate_orelse_reserve(WHOLE)
    with pytest.raises(InvalidJobspec, match="reservation"):
        matcher.partial_cancel(later.jobid, later.R)


def test_units_of_a_pool_are_freed_in_part() -> None:
    matcher = Matcher(pools(), policy="low")
    job = matcher.allocate(spec(slot(1, want("memory", 60))))
    part = {
        "type": "memory",
        "rank": 0,
        "size": 20,
        "exclusive": True,
        "paths": {"containment": "/cluster0/node0/memory0"},
    }
    assert not matcher.partial_cancel(job.jobid, {"graph": {"nodes": [{"metadata": part}]}})
    assert taken(matcher.find(f"jobid-alloc={job.jobid}")) != {}
    assert taken(matcher.allocate(spec(slot(1, want("memory", 60)), constraints={"ranks": ["0"]})).R) != {}


def test_replay_holds_exactly_what_the_set_names() -> None:
    matcher = Matcher(machine())
    job = matcher.allocate(spec(want("node", 2, slot(1, want("core", 2), want("gpu", 1)))))
    other = Matcher(machine())
    again = other.update_allocate(job.jobid, job.R)
    assert taken(again.R) == taken(job.R)
    assert again.R == job.R
    with pytest.raises(JobExists):
        other.update_allocate(job.jobid, job.R)
    with pytest.raises(Busy) as caught:
        other.update_allocate(9, job.R)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(NoSuchJob):
        other.info(9)


def test_an_envelope_says_from_when_to_when() -> None:
    matcher = Matcher(machine(nodes=1))
    lite = [{"rank": "0", "children": {"core": "0-3"}}]
    envelope = {"version": 1, "execution": {"R_lite": lite, "starttime": 50, "expiration": 80}}
    assert matcher.update_allocate(7, envelope).at == 50
    assert matcher.allocate(spec(want("node", 1, slot(1, want("core", 4))), duration=50)).at == 0
    assert matcher.allocate_orelse_reserve(WHOLE).at == 80


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"paths": {"containment": "/cluster0/nowhere"}}, errno.ENOENT),
        ({"rank": 5}, errno.ENOENT),
        ({"type": "gpu"}, errno.EINVAL),
        ({"size": 3}, errno.EINVAL),
        ({"size": "3"}, errno.EINVAL),
        ({"paths": None}, errno.EINVAL),
        ({"exclusive": False}, errno.EINVAL),
    ],
)
def test_a_set_that_does_not_fit_the_graph_is_refused(change: dict[str, Any], code: int) -> None:
    fields = {"type": "core", "rank": 0, "exclusive": True, "paths": {"containment": "/cluster0/node0/core0"}, **change}
    matcher = Matcher(machine())
    with pytest.raises(InvalidGraph) as caught:
        matcher.update_allocate(1, {"graph": {"nodes": [{"metadata": fields}]}})
    assert caught.value.errno == code
    assert matcher.find("sched-now=allocated") is None


def test_nothing_is_replayed_below_what_another_job_has_whole() -> None:
    matcher = Matcher(machine(nodes=1))
    matcher.allocate(spec(slot(1, want("node", 1, CORE))))
    fields = {"type": "core", "rank": 0, "exclusive": True, "paths": {"containment": "/cluster0/node0/core3"}}
    with pytest.raises(Busy):
        matcher.update_allocate(2, {"graph": {"nodes": [{"metadata": fields}]}})


def qpus() -> Graph:
    """A cluster below whose grouping vertices hang a node and a node with a pool of shots."""
    graph = Graph()
    root = graph.add("cluster", 0, name="cluster")
    account = graph.add("group", 0, root, name="au")
    graph.add("node", 0, account, name="qpu0", rank=0)
    other = graph.add("node", 1, account, name="qpu1", rank=1)
    graph.add("shots", 0, other, rank=1, size=100, divisible=True)
    return graph


def taking(graph: Graph, *paths: str, start: int = 0, end: int = 100, units: int = 1) -> dict[str, Any]:
    """A resource set that takes these vertices from start to end."""
    nodes = [node["metadata"] for node in graph.nodes if node["metadata"]["paths"]["containment"] in paths]
    taken_here = [{"metadata": {**fields, "exclusive": True, "size": units}} for fields in nodes]
    execution = {"starttime": start, "expiration": end}
    return {"version": 1, "execution": execution, "scheduling": {"graph": {"nodes": taken_here}}}


@pytest.mark.parametrize("order", [("/cluster/au/qpu0", "/cluster/au"), ("/cluster/au", "/cluster/au/qpu0")])
def test_a_vertex_and_what_lies_below_it_are_never_held_by_two_jobs(order: tuple[str, str]) -> None:
    graph = qpus()
    matcher = Matcher(graph.jgf())
    matcher.update_allocate(1, taking(graph, order[0], start=50))
    why = f"vertex {order[0]} is already allocated, so {order[1]} cannot be allocated"
    with pytest.raises(Busy, match=why) as caught:
        matcher.update_allocate(2, taking(graph, order[1]))
    assert caught.value.errno == errno.EINVAL
    assert matcher.stat()["jobs"]["ALLOCATED"] == 1
    assert matcher.update_allocate(2, taking(graph, order[1], end=50)).at == 0
    assert matcher.update_allocate(3, taking(graph, order[1], start=100, end=150)).at == 100
    matcher.cancel(1)
    assert taken(matcher.update_allocate(4, taking(graph, order[1], start=50)).R) == {order[1]: 1}


@pytest.mark.parametrize("above", ["/cluster/au/qpu1", "/cluster/au", "/cluster"])
def test_some_units_of_a_pool_keep_what_is_above_it_from_being_held(above: str) -> None:
    graph = qpus()
    matcher = Matcher(graph.jgf())
    pool = "/cluster/au/qpu1/shots0"
    matcher.update_allocate(1, taking(graph, pool, units=30))
    with pytest.raises(Busy, match=f"{pool} is already allocated"):
        matcher.update_allocate(2, taking(graph, above))
    matcher.update_allocate(2, taking(graph, pool, units=70))
    with pytest.raises(Busy, match=f"{pool} is already allocated"):
        matcher.update_allocate(3, taking(graph, pool, units=1))
    matcher.update_allocate(4, taking(graph, "/cluster/au/qpu0"))


def test_one_job_may_take_a_vertex_together_with_what_lies_below_it() -> None:
    graph = qpus()
    matcher = Matcher(graph.jgf())
    both = ("/cluster/au", "/cluster/au/qpu0")
    assert taken(matcher.update_allocate(1, taking(graph, *both)).R) == dict.fromkeys(both, 1)
    matcher.cancel(1)
    whole = matcher.allocate(spec(slot(1, want("group", 1, want("node", 2)))))
    other = Matcher(graph.jgf())
    assert other.update_allocate(whole.jobid, whole.R).R == whole.R


def test_what_is_added_below_a_held_vertex_is_held_with_it() -> None:
    graph = qpus()
    matcher = Matcher(graph.jgf())
    matcher.update_allocate(1, taking(graph, "/cluster/au"))
    graph.add("node", 2, 1, name="qpu2", rank=2)
    matcher.add_subgraph(graph.jgf())
    with pytest.raises(Busy, match="vertex /cluster/au is already allocated"):
        matcher.update_allocate(2, taking(graph, "/cluster/au/qpu2"))
    with pytest.raises(Busy):
        matcher.allocate(spec(slot(1, want("node", 1))))
    matcher.cancel(1)
    matcher.update_allocate(2, taking(graph, "/cluster/au/qpu2"))
    with pytest.raises(Busy, match="vertex /cluster/au/qpu2 is already allocated"):
        matcher.update_allocate(3, taking(graph, "/cluster/au"))


def test_find_follows_criteria() -> None:
    matcher = Matcher(machine(nodes=2, properties={1: {"big": ""}}), policy="low")
    matcher.allocate(ASK, 7)
    assert sorted(taken(matcher.find("jobid-alloc=7 and names=core[0-1]"))) == [
        "/cluster0",
        "/cluster0/node0",
        "/cluster0/node0/core0",
        "/cluster0/node0/core1",
    ]
    assert sorted(taken(matcher.find("property=big"))) == ["/cluster0", "/cluster0/node1"]
    assert len(taken(matcher.find("sched-now=free and (names=gpu0 or not names=core0)"))) > 2
    assert matcher.find("status=down") is None
    bad: Any
    for bad in ("", "foo=bar", "status=up and", "(status=up", "status=up )", "jobid-tag=x", "status", 5, "(" * 1000):
        with pytest.raises(InvalidJobspec):
            matcher.find(bad)


def test_a_clone_goes_its_own_way() -> None:
    matcher = Matcher(machine(nodes=1))
    job = matcher.allocate(WHOLE)
    other = matcher.clone()
    other.cancel(job.jobid)
    other.allocate(WHOLE)
    with pytest.raises(Busy):
        matcher.allocate(WHOLE)
    assert matcher.info(job.jobid).mode == "ALLOCATED"


def test_threads_share_one_matcher() -> None:
    matcher = Matcher(machine(nodes=40))
    found: list[str] = []
    ask = spec(slot(1, CORE))

    def work() -> None:
        for _ in range(40):
            found.extend(taken(matcher.allocate(ask).R))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(found) == len(set(found)) == 160
    with pytest.raises(Busy):
        matcher.allocate(ask)
