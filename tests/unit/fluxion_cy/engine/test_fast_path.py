"""A jobspec as text that is known already goes a quicker way than one as a mapping: to the same answers."""

import gc
import json
import random
from typing import Any

import pytest

from fluxion_cy import Allocation, Busy, FluxionError, InvalidJobspec, JobExists, Matcher

from ..graphs import Graph, machine, slot, spec, want

PROPERTIES = {0: {"fast": ""}, 2: {"zone": "a", "fast": ""}}
JOBSPECS = [
    spec(slot(1, want("core", 1))),
    spec(slot(2, want("core", 2), want("gpu", 1)), duration=100),
    spec(want("node", 2, slot(1, want("core", 1))), duration=50),
    spec(slot(1, want("core", 3)), constraints={"properties": ["fast"]}),
    spec(slot(1, want("node", 1)), duration=2**62),
    spec(slot(9, want("gpu", 1))),
]


def both(policy: str = "first") -> tuple[Matcher, Matcher]:
    graph = machine(nodes=4, gpus=2, properties=PROPERTIES)
    return Matcher(graph, policy=policy, match_format="rv1_nosched"), Matcher(
        graph, policy=policy, match_format="rv1_nosched"
    )


def answer(ask: Any) -> Any:
    try:
        found = ask()
    except FluxionError as error:
        return type(error), str(error)
    if isinstance(found, Allocation):
        return found.jobid, found.at, found.reserved, found.R
    return found


@pytest.mark.parametrize("policy", ["first", "low", "hinodex", "pack"])
@pytest.mark.parametrize("seed", range(4))
def test_it_answers_and_holds_what_the_longer_way_does(policy: str, seed: int) -> None:
    chance = random.Random(seed)
    quick, slow = both(policy)
    for step in range(120):
        jobspec = chance.choice(JOBSPECS)
        match chance.randrange(6):
            case 0 if step:
                jobid = chance.randrange(1, quick.next_jobid + 1)
                assert answer(lambda j=jobid: quick.cancel(j)) == answer(lambda j=jobid: slow.cancel(j))
            case 1:
                rank = str(chance.randrange(4))
                up = chance.random() < 0.7
                for matcher in (quick, slow):
                    matcher.set_rank_status(rank, up)
            case 2:
                jobid, now = chance.randrange(1, 60), chance.randrange(0, 300)
                assert answer(lambda j=jobid, n=now, s=jobspec: quick.allocate(json.dumps(s), j, now=n)) == answer(
                    lambda j=jobid, n=now, s=jobspec: slow.allocate(s, j, now=n)
                )
            case _:
                now = chance.choice([0, 0, step])
                assert answer(lambda n=now, s=jobspec: quick.allocate(json.dumps(s), now=n)) == answer(
                    lambda n=now, s=jobspec: slow.allocate(s, now=n)
                )
        assert quick.next_jobid == slow.next_jobid
        assert quick.stat()["jobs"] == slow.stat()["jobs"]
    assert [answer(lambda j=j: quick.info(j)) for j in range(1, 60)] == [
        answer(lambda j=j: slow.info(j)) for j in range(1, 60)
    ]


def test_a_graph_that_changes_is_not_asked_the_old_question() -> None:
    quick, _ = both()
    text = json.dumps(JOBSPECS[3])
    assert quick.allocate(text).R["execution"]["R_lite"][0]["rank"] in ("0", "2")
    for rank in (0, 2):
        quick.set_properties(f"/cluster0/node{rank}", {})
    quick.set_properties("/cluster0/node1", {"fast": ""})
    assert quick.allocate(text).R["execution"]["R_lite"][0]["rank"] == "1"
    quick.remove_subgraph("/cluster0/node1")
    with pytest.raises(Busy):
        quick.allocate(text)


def test_what_it_cannot_take_changes_nothing() -> None:
    quick, _ = both()
    text = json.dumps(JOBSPECS[0])
    assert quick.allocate(text, 7).jobid == 7
    assert quick.allocate(text).jobid == 1
    with pytest.raises(JobExists):
        quick.allocate(text, 7)
    for wrong in (-1, 2**64, "7", 1.5):
        with pytest.raises(FluxionError, match="jobid"):
            quick.allocate(text, wrong)  # type: ignore[arg-type]
    for wrong in (-1, 2**61, "7", 1.5):
        with pytest.raises(FluxionError, match="now"):
            quick.allocate(text, now=wrong)  # type: ignore[arg-type]
    assert quick.stat()["jobs"]["ALLOCATED"] == 2
    assert quick.next_jobid == 2


def test_a_finaliser_in_the_middle_of_it_is_refused() -> None:
    quick, _ = both()
    text = json.dumps(JOBSPECS[0])
    quick.allocate(text)
    given = []

    class Ring:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            try:
                quick.stat()
            except FluxionError as error:
                given.append(str(error))

    old = gc.get_threshold()
    try:
        gc.set_threshold(1)  # every new container may end the ring
        for _ in range(20):
            Ring()
            answer(lambda: quick.allocate(text))
    finally:
        gc.set_threshold(*old)
    assert quick.next_jobid - 1 == quick.stat()["jobs"]["ALLOCATED"] + 5
    assert all(text == "stat: another call to this matcher is in flight in the same thread" for text in given)


def test_an_allocation_is_one_like_any_other() -> None:
    quick, slow = both()
    text = json.dumps(JOBSPECS[0])
    quick.allocate(text)
    found, other = quick.allocate(text), slow.allocate(JOBSPECS[0])
    assert type(found) is Allocation
    assert 0 < found.overhead < 10
    assert found == Allocation(2, 0, False, found.overhead, found.R)
    assert repr(found).startswith("Allocation(jobid=2, at=0, reserved=False, overhead=")
    assert found.R["version"] == other.R["version"] == 1
    with pytest.raises(AttributeError):
        found.jobid = 3  # type: ignore[misc]


def test_what_is_refused_once_is_refused_again() -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    node = graph.add("node", 0, root, rank=0)
    graph.add("memory", 0, node, rank=0, size=2**21, divisible=True)
    matcher = Matcher(graph.jgf(), match_format="rv1_nosched")
    text = json.dumps(
        spec(want("slot", {"min": 1, "max": 2**31, "operator": "+", "operand": 1}, want("memory", 1), label="task"))
    )
    for _ in range(3):
        with pytest.raises(InvalidJobspec, match="more than a million slots"):
            matcher.allocate(text)


def test_a_second_counts_also_where_the_jobid_is_refused() -> None:
    moved = []
    for write in (json.dumps, lambda jobspec: jobspec):
        matcher = Matcher(machine(nodes=1, cores=1), match_format="rv1_nosched", replan=True)
        whole = write(spec(slot(1, want("core", 1)), duration=1000))
        matcher.allocate(whole, 7)
        matcher.allocate_orelse_reserve(whole, 8)
        with pytest.raises(JobExists):
            matcher.allocate(whole, 7, now=500)
        matcher.cancel(7)
        moved.append(matcher.info(8).at)
    assert moved == [500, 500]


def test_a_match_that_fails_is_told_of_like_any_other() -> None:
    quick, slow = both()
    quick.allocate(json.dumps(JOBSPECS[0]))
    slow.allocate(JOBSPECS[0])
    given = [answer(lambda: quick.allocate(json.dumps(JOBSPECS[5]))) for _ in range(3)]
    assert given == [answer(lambda: slow.allocate(JOBSPECS[5]))] * 3
    assert given[0][0] is Busy


def test_the_counter_cannot_be_set_in_the_middle_of_a_match() -> None:
    matcher = Matcher(machine(), policy="low")

    class Setting:
        def __float__(self) -> float:
            matcher.next_jobid = 5000
            return 0.0

    with pytest.raises(FluxionError):
        matcher.allocate(JOBSPECS[0], prefer=[Setting()])
    assert matcher.next_jobid < 10
