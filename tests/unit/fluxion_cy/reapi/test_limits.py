"""What the library would not come back from is refused beforehand, with the remedy."""

from typing import Any

import pytest

from fluxion_cy import InvalidGraph, NotSupported

from ..graphs import Graph, machine, slot, spec, want
from .conftest import Fake

ASK = spec(slot(1, want("core", 1)))
TWO = spec(slot(1, want("core", 1)), slot(1, want("gpu", 1), label="b"))


def alone(kind: str = "cluster", *below: str) -> dict[str, Any]:
    graph = Graph()
    parent = graph.add(kind, 0)
    for inner in below:
        parent = graph.add(inner, 0, parent)
    return graph.jgf()


def with_part(document: dict[str, Any], kind: str, name: str, parent: str = "0") -> dict[str, Any]:
    """The graph with one vertex more."""
    nodes, edges = document["graph"]["nodes"], document["graph"]["edges"]
    path = next(node["metadata"]["paths"]["containment"] for node in nodes if node["id"] == parent)
    outer = str(1000 + sum(map(ord, name)))
    metadata = {"type": kind, "id": 0, "name": name, "paths": {"containment": f"{path}/{name}"}}
    new = {"id": outer, "metadata": metadata}
    return {"graph": {"nodes": [*nodes, new], "edges": [*edges, {"source": parent, "target": outer}]}}


@pytest.mark.parametrize(
    ("document", "filters"),
    [(alone(), "ALL:core"), (alone("rack", "gpu"), "node:core"), (alone("core", "gpu"), "ALL:core")],
)
def test_a_root_without_amounts_only_allocates_at_once(fake: Fake, document: dict[str, Any], filters: str) -> None:
    matcher = fake.matcher(document, prune_filters=filters)
    kind = document["graph"]["nodes"][0]["metadata"]["type"]
    ask = spec(want(kind, 1, exclusive=True))
    matcher.allocate(ask)
    matcher.without_allocating(ask)
    for seek in (
        matcher.allocate_orelse_reserve,
        matcher.allocate_with_satisfiability,
        matcher.without_allocating_future,
        matcher.satisfy,
    ):
        with pytest.raises(NotSupported, match=f"vertex /{kind}0: .*prune_filters, as in ALL:core"):
            seek(ask)
    assert {call[0] for call in fake.called("match_with_jobid")} == {"1", "5"}
    assert not fake.called("match_satisfy")


@pytest.mark.parametrize(
    ("document", "filters"),
    [(alone("cluster", "gpu"), "node:core"), (alone("rack", "gpu"), "rack:gpu"), (alone("rack", "gpu"), "ALL:core")],
)
def test_a_root_with_amounts_seeks_a_time(fake: Fake, document: dict[str, Any], filters: str) -> None:
    fake.matcher(document, prune_filters=filters).allocate_orelse_reserve(spec(slot(1, want("gpu", 1))))
    assert [call[0] for call in fake.called("match_with_jobid")] == ["3"]


@pytest.mark.parametrize(("field", "value"), [("size", 2**31), ("id", 2**39 + 1)])
def test_numbers_that_turn_over_are_refused(fake: Fake, field: str, value: int) -> None:
    document = machine()
    document["graph"]["nodes"][2]["metadata"][field] = value
    with pytest.raises(InvalidGraph, match=rf"vertex /cluster0/node0/core0: {field} {value} .*; "):
        fake.matcher(document)
    assert not fake.called("initialize")
    matcher = fake.matcher(machine())
    grown = with_part(machine(), "gpu", "more")
    grown["graph"]["nodes"][-1]["metadata"][field] = value
    with pytest.raises(InvalidGraph, match=f"{field} {value}"):
        matcher.add_subgraph(grown)
    assert not fake.called("add_subgraph")[1:]


@pytest.mark.parametrize("change", ["clone", "add_subgraph", "remove_subgraph"])
def test_a_search_for_a_time_is_ended_before_a_clone_or_a_change(fake: Fake, change: str) -> None:
    matcher = fake.matcher(machine())
    matcher.without_allocating_future(ASK)
    before = len(fake.calls)
    if change == "clone":
        matcher.clone()
    elif change == "add_subgraph":
        matcher.add_subgraph(with_part(machine(), "gpu", "more", "1"))
    else:
        matcher.remove_subgraph("/cluster0/node0")
    called = [call[0] for call in fake.calls[before:]]
    assert called[:3] == ["update_allocate", "cancel", change]
    held, text = fake.called("update_allocate")[-1]
    assert held == str(2**63 - 1)
    assert '"starttime":9007199254740991,"expiration":9007199254740992' in text
    matcher.clone()
    assert len(fake.called("update_allocate")) == 1, "once is enough"
    assert matcher.stat()["jobs"] == {"ALLOCATED": 0, "RESERVED": 0, "CANCELED": 0}


def test_a_search_that_cannot_be_ended_is_told(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    matcher.clone()
    matcher.allocate_orelse_reserve(ASK)
    fake.fail("update_allocate", errno=22)
    with pytest.raises(NotSupported, match=r"cannot finish its last search for a start time; name .*prune_filters"):
        matcher.clone()
    assert len(fake.called("clone")) == 1
    assert len(fake.called("update_allocate")) == 2, "a leaf of each type is tried"


def test_a_new_type_of_leaf_waits_until_nothing_is_held(fake: Fake) -> None:
    matcher = fake.matcher(machine(), prune_filters="ALL:core,ALL:ssd")
    matcher.allocate(ASK, 1)
    matcher.add_subgraph(with_part(machine(), "ssd", "ssd0", "1"))
    with pytest.raises(NotSupported, match=r"start counting 'qpu'.*prune_filters.*ALL:qpu"):
        matcher.add_subgraph(with_part(machine(), "qpu", "qpu0", "1"))
    matcher.cancel(1)
    matcher.add_subgraph(with_part(machine(), "qpu", "qpu0", "1"))
    matcher.allocate(ASK, 2)
    matcher.remove_subgraph("/cluster0/node0/qpu0")
    with pytest.raises(NotSupported, match="no vertex of type 'qpu' left"):
        matcher.clone()
    matcher.cancel(2)
    matcher.clone()


def test_a_cluster_below_the_root_is_not_changed_while_jobs_are_held(fake: Fake) -> None:
    inner = with_part(machine(), "cluster", "inner")
    document = with_part(inner, "gpu", "far", inner["graph"]["nodes"][-1]["id"])
    matcher = fake.matcher(document)
    matcher.allocate(ASK, 1)
    for change in (
        matcher.clone,
        lambda: matcher.remove_subgraph("/cluster0/node0"),
        lambda: matcher.add_subgraph(document),
    ):
        with pytest.raises(NotSupported, match=r"vertex /cluster0/inner: while jobs have allocations.*prune_filters"):
            change()
    matcher.cancel(1)
    matcher.clone()
    counted = fake.matcher(document, prune_filters="ALL:core,ALL:gpu")
    counted.allocate(ASK, 1)
    counted.clone()


def test_a_branch_with_a_path_that_lies_elsewhere_too_is_not_removed(fake: Fake) -> None:
    document = with_part(machine(), "core", "core0", "1")
    document["graph"]["nodes"][-1]["metadata"]["rank"] = 7
    matcher = fake.matcher(document)
    message = r"path '/cluster0/node0/core0': several vertices have this path.*its own path"
    with pytest.raises(NotSupported, match=message):
        matcher.remove_subgraph("/cluster0/node0")
    matcher.remove_subgraph("/cluster0/node1")
    assert fake.called("remove_subgraph") == [["/cluster0/node1"]]


def test_a_rank_of_which_nothing_is_left_is_not_marked(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    matcher.remove_subgraph("/cluster0/node1")
    matcher.set_rank_status("all", False)
    matcher.set_rank_status(1, False)
    assert fake.called("set_rank_status") == [["0,2", "1"]]
    with pytest.raises(InvalidGraph, match="rank 1: no vertex has this rank"):
        matcher.get_rank_status(1)


@pytest.mark.parametrize(
    ("resources", "given"),
    [
        (
            [slot(1, want("core", 1)), want("gpu", 1)],
            "requires that gpu, a sibling of a slot, directly contains resources but no slots",
        ),
        ([slot(1)], "requires that each slot directly contains resources but no slots"),
        ([slot(1, slot(1, want("core", 1)))], "requires that each slot directly contains resources but no slots"),
        (
            [want("node", 1, slot(1, want("core", 1)), want("socket", 1))],
            "that socket, a sibling of a slot, directly contains resources but no slots",
        ),
        (
            [slot(1, want("core", 1), want("core", 2)), slot(1, want("gpu", 1), label="b")],
            "two entries of the same type",
        ),
    ],
)
def test_what_the_flexible_traverser_takes_for_an_endless_slot_is_refused(
    fake: Fake, resources: list[dict[str, Any]], given: str
) -> None:
    matcher = fake.matcher(with_part(machine(), "socket", "s"), traverser="flexible")
    with pytest.raises(NotSupported, match=f"resources: .*{given}"):
        matcher.allocate(spec(*resources))
    assert not fake.called("match_with_jobid")


def test_slots_side_by_side_have_few_ways_to_be_filled(fake: Fake) -> None:
    document = machine(nodes=1, cores=1, gpus=1)
    fake.matcher(document, traverser="flexible").allocate(TWO)
    for node in document["graph"]["nodes"][2:]:
        node["metadata"]["size"] = 400
    with pytest.raises(NotSupported, match=r"cannot try all ways .* 800 units of core, gpu; use xor_slot"):
        fake.matcher(document, traverser="flexible").allocate(TWO)
    alternatives = spec(*(slot | {"type": "xor_slot"} for slot in TWO["resources"]))
    fake.matcher(document, traverser="flexible").allocate(alternatives)


def test_what_a_call_said_that_went_well_is_not_told_with_the_next(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    matcher.allocate(ASK)
    fake.fail("match_with_jobid", errno=16, text="first")
    for _ in range(2):
        with pytest.raises(Exception, match="first") as caught:
            matcher.allocate(ASK)
        assert str(caught.value).count("first") == 1
