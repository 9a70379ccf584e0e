"""`find`: criteria as the reference reads them, and what pruning filters count."""

from typing import Any

import pytest

from fluxion_cy import InvalidJobspec, Matcher

from ..graphs import Graph, machine, slot, spec, want

TWO = spec(want("node", 1, slot(1, want("core", 2))))


def racks() -> dict[str, Any]:
    graph = Graph()
    rack = graph.add("rack", 0, graph.add("cluster", 0))
    for n in range(2):
        socket = graph.add("socket", 0, graph.add("node", n, rack, rank=n), rank=n)
        for core in range(2):
            graph.add("core", core, socket, rank=n)
        graph.add("gpu", 0, socket, rank=n)
        graph.add("memory", 0, socket, rank=n, size=4)
    return graph.jgf()


def busy() -> Matcher:
    """Node0: job 7 has it whole; node1: jobs 9 and 8 have two cores each; job 10 waits for three cores on both."""
    matcher = Matcher(machine(nodes=2), policy="low")
    matcher.allocate(spec(slot(1, want("node", 1, want("core", 2)))), 7)
    matcher.allocate(TWO, 9)
    matcher.allocate(TWO, 8)
    assert matcher.allocate_orelse_reserve(spec(want("node", 2, slot(1, want("core", 3)))), 10).reserved
    return matcher


def names(found: dict[str, Any] | None) -> list[str]:
    nodes = found["graph"]["nodes"] if found else []
    return [node["metadata"]["paths"]["containment"].removeprefix("/cluster0").lstrip("/") for node in nodes]


def filters(found: dict[str, Any] | None) -> dict[str, dict[str, str]]:
    nodes = found["graph"]["nodes"] if found else []
    return {node["metadata"]["paths"]["containment"]: node["metadata"]["agfilter"] for node in nodes}


def test_agfilter_says_what_is_used_and_what_there_is_below_every_vertex() -> None:
    matcher = busy()
    everything = {
        "/cluster0/node0": {"core": "used:2, total:4"},
        "/cluster0/node1": {"core": "used:4, total:4"},
        "/cluster0": {"core": "used:6, total:8", "gpu": "used:0, total:2", "node": "used:1, total:2"},
    }
    for criteria in ("agfilter=true", "agfilter=T", "status=up or (status=down and agfilter=t)"):
        assert filters(matcher.find(criteria)) == everything
    assert list(filters(matcher.find("agfilter=t and names=node0"))) == ["/cluster0/node0", "/cluster0"]
    assert matcher.find("agfilter=false") is None
    assert "agfilter" not in matcher.find("agfilter=f or status=up")["graph"]["nodes"][0]["metadata"]  # type: ignore[index]


def test_agfilter_of_a_job_says_what_that_job_uses() -> None:
    matcher = busy()
    assert filters(matcher.find("jobid-alloc=7 and agfilter=t")) == {
        "/cluster0/node0": {"core": "used:2, total:4"},
        "/cluster0": {"core": "used:2, total:8", "gpu": "used:0, total:2", "node": "used:1, total:2"},
    }
    for criteria in ("jobid-span=9 and agfilter=t", "jobid-tag=9 and agfilter=t", "jobid-alloc=9 or agfilter=t"):
        assert filters(matcher.find(criteria))["/cluster0/node1"] == {"core": "used:2, total:4"}
        assert "/cluster0/node0" not in filters(matcher.find(criteria))
    assert matcher.find("jobid-alloc=9 and agfilter=t") is None, "cores have no filter"
    assert matcher.find("jobid-alloc=77 and agfilter=t") is None


def test_agfilter_looks_at_one_second() -> None:
    matcher = Matcher(machine(nodes=1))
    matcher.allocate(spec(slot(1, want("core", 3)), duration=10))
    used = [filters(matcher.find("agfilter=t", now=now))["/cluster0/node0"]["core"] for now in (0, 9, 10)]
    assert used == ["used:3, total:4", "used:3, total:4", "used:0, total:4"]
    with pytest.raises(InvalidJobspec, match="now"):
        matcher.find("agfilter=t", now=-1)


@pytest.mark.parametrize(
    ("prune", "node", "cluster"),
    [
        ("node:gpu", {"gpu": "used:0, total:1"}, {"core": "used:1, total:4", "memory": "used:4, total:8"}),
        (
            "ALL:memory",
            {"memory": "used:4, total:4"},
            {"core": "used:1, total:4", "gpu": "used:0, total:2", "memory": "used:4, total:8"},
        ),
    ],
)
def test_agfilter_shows_the_types_that_are_pruned_there(
    prune: str, node: dict[str, str], cluster: dict[str, str]
) -> None:
    matcher = Matcher(racks(), prune_filters=prune)
    matcher.allocate(spec(slot(1, want("core", 1), want("memory", 1)), constraints={"ranks": ["1"]}))
    found = filters(matcher.find("agfilter=t"))
    assert (found["/cluster0/rack0/node1"], found["/cluster0"]) == (node, cluster)


def test_a_vertex_has_a_span_of_a_job_where_a_filter_counts_something_of_it() -> None:
    matcher = Matcher(racks(), policy="low", prune_filters="node:gpu")
    matcher.allocate(spec(want("socket", 1, slot(1, want("core", 1)))), 9)
    matcher.allocate(spec(slot(1, want("node", 1, want("socket", 1)))), 7)
    assert names(matcher.find("jobid-span=9")) == ["rack0/node0", "rack0", ""]
    assert matcher.find("jobid-span=7") is None, "neither node nor socket is pruned"
    assert names(matcher.find("jobid-tag=7 and jobid-alloc=7")) == ["rack0/node1/socket0", "rack0/node1", "rack0", ""]


@pytest.mark.parametrize(
    "word", ["9", "0x9", "+9", "ƒA", "fA", "0000.0000.0000.0009", "job.0000.0000.0000.0009", "job.9"]
)
def test_a_job_id_is_read_in_every_form_of_flux(word: str) -> None:
    assert names(busy().find(f"jobid-alloc={word}")) == ["node1/core0", "node1/core1", "node1", ""]


@pytest.mark.parametrize(
    "word", ["", "x", "9x", "-1", "9.0", "1_0", "0X9", "0x", "ƒ", "ƒ0", "18446744073709551616", "fzzzzzzzzzzzzzzzz"]
)
def test_what_is_no_job_id_is_named(word: str) -> None:
    with pytest.raises(InvalidJobspec, match="jobid-tag="):
        busy().find(f"jobid-tag={word}")


@pytest.mark.parametrize(
    ("criteria", "hits"),
    [
        ("names=node0 or names=node1 and names=gpu0", []),
        ("names=node0 or (names=node1 and names=gpu0)", ["node0", ""]),
        ("names=node0 status=up", ["node0", ""]),
        ("  ( names=Node0 )\tand\t((status=UP))  ", ["node0", ""]),
        ("names=core[2-3] and jobid-reserved=10", ["node0/core2", "node0", "node1/core2", "node1", ""]),
        ("not names=core[0-3] and not names=gpu0", ["node0", "node1", ""]),
        ("names=core3 and sched-now=free and sched-future=free", []),
        ("names=core3 and sched-future=free", ["node0/core3", "node0", "node1/core3", "node1", ""]),
        ("names=", []),
    ],
)
def test_criteria_are_read_from_left_to_right(criteria: str, hits: list[str]) -> None:
    assert names(busy().find(criteria)) == hits


@pytest.mark.parametrize(
    "criteria",
    [
        "STATUS=up",
        "status=up AND status=up",
        "status=up)",
        "status=up(names=core0)",
        "(status=up)(status=up)",
        "(status=up)or(status=up)",
        "status=up and and status=up",
        "and",
        "or=1",
        "not",
        "not " * 100 + "status=up",
        "agfilter=x",
        "agfilter",
        "names=core[",
        "property=",
    ],
)
def test_criteria_that_cannot_be_read_are_refused(criteria: str) -> None:
    with pytest.raises(InvalidJobspec, match="criteria"):
        busy().find(criteria)
