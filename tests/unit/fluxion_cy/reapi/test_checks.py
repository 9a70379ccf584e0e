"""No input reaches the library that it could stumble over."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from fluxion_cy import FluxionError, InvalidGraph, InvalidJobspec, NotSupported

from ..graphs import Graph, machine, slot, spec, want
from .conftest import Fake

ASK = spec(slot(1, want("core", 1)))


def with_vertex(**metadata: Any) -> dict[str, Any]:
    graph = Graph()
    root = graph.add("cluster", 0)
    graph.add("core", 0, root)
    graph.nodes[-1]["metadata"].update(metadata)
    return graph.jgf()


@pytest.mark.parametrize(
    ("document", "kind", "given"),
    [
        (with_vertex(properties={"a": 1}), InvalidGraph, "propert"),
        (with_vertex(paths={"containment": 5}), InvalidGraph, "containment"),
        (with_vertex(paths={}), InvalidGraph, "containment is missing"),
        (with_vertex(paths={"containment": "a/b/c"}), InvalidGraph, "slash"),
        (with_vertex(size=2**32), InvalidGraph, "size 4294967296"),
        (with_vertex(uniq_id=-1), InvalidGraph, "negative"),
        (with_vertex(id=-2), InvalidGraph, "negative"),
        (with_vertex(type="a\0b"), InvalidGraph, "null"),
        (with_vertex(name="\udcff"), InvalidGraph, "valid text"),
        (with_vertex(divisible=True), NotSupported, "divisible"),
        ("{", InvalidGraph, "graph"),
    ],
)
def test_graphs_that_end_the_process_or_are_cut_are_refused(
    fake: Fake, document: Any, kind: type[FluxionError], given: str
) -> None:
    with pytest.raises(kind, match=given):
        fake.matcher(document)
    assert not fake.calls


def test_every_default_is_filled_in_and_nothing_unknown_is_sent(fake: Fake) -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    graph.add("node", 0, root, name="host0077")
    del graph.nodes[1]["metadata"]["id"]
    graph.nodes[1]["metadata"] |= {"new": [1.5], "unit": 3, "exclusive": True}
    graph.add("core", 0, 1)
    del graph.nodes[2]["metadata"]["id"]
    graph.nodes[2]["metadata"]["paths"]["power"] = "/pdu0/core0"
    document = graph.jgf()
    document["graph"]["edges"].append({"source": "0", "target": "2", "metadata": {"subsystem": "power"}})
    matcher = fake.matcher(document)
    assert matcher.graph() == document
    sent = json.loads(fake.called("initialize")[-1][0])["graph"]
    node, core = (vertex["metadata"] for vertex in sent["nodes"][1:])
    assert (node["id"], node["uniq_id"], node["name"]) == (77, 1, "host0077")
    assert not {"new", "unit", "exclusive"} & node.keys()
    assert (core["id"], core["name"], core["paths"]) == (2, "core2", {"containment": "/cluster0/host0077/core0"})
    assert sent["edges"] == [{"source": "0", "target": "1"}, {"source": "1", "target": "2"}]


def test_the_default_id_is_the_embedded_engines(fake: Fake) -> None:
    for name in ("n1", "n", "n1x", "007", "n٣"):
        document = with_vertex(type="node", name=name)
        del document["graph"]["nodes"][1]["metadata"]["id"]
        matcher = fake.matcher(document)
        sent = json.loads(fake.called("initialize")[-1][0])["graph"]["nodes"][1]["metadata"]
        assert sent["id"] == matcher._engine.id_of(1), name


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        ({"policy": "policy"}, InvalidJobspec),
        ({"policy": 5}, InvalidJobspec),
        ({"policy": "pack"}, NotSupported),
        ({"prune_filters": 5}, InvalidJobspec),
        ({"prune_filters": "core"}, InvalidJobspec),
        ({"traverser": "other"}, NotSupported),
        ({"traverser": None}, NotSupported),
        ({"match_format": "jfg"}, NotSupported),
        ({"load_format": "hwloc"}, NotSupported),
        ({"compatible": False}, NotSupported),
        ({"replan": True}, NotSupported),
    ],
)
def test_options_that_end_the_process_or_mean_another_are_refused(
    fake: Fake, option: dict[str, Any], kind: type[FluxionError]
) -> None:
    with pytest.raises(kind, match=next(iter(option))):
        fake.matcher(machine(), **option)
    assert not fake.calls


@pytest.mark.parametrize(
    "jobspec",
    [
        spec(want("node", 1, exclusive=True), duration=-1),
        spec(want("node", 1, exclusive=True), duration=1e12),
        spec(want("warpdrive", 1, exclusive=True)),
        spec(want("core", 1)),
        spec(slot(1, want("core", -1))),
        spec(slot(1, want("core", 1)), constraints={"hostlist": ["a[0-99999999]"]}),
        spec(slot(1, want("core", 1)), constraints={"properties": ["\udcff"]}),
        spec(slot(1, want("core", 1)), constraints={"properties": ["a\0"]}),
        "{",
        None,
    ],
    ids=str,
)
def test_jobspecs_that_leave_a_trace_are_refused(fake: Fake, jobspec: Any) -> None:
    matcher = fake.matcher(machine())
    for operation in (matcher.allocate, matcher.satisfy, matcher.without_allocating):
        with pytest.raises(InvalidJobspec):
            operation(jobspec)
    assert not fake.called("match_with_jobid")
    assert not fake.called("match_satisfy")
    assert matcher.next_jobid == 1


def test_an_empty_slot_is_kept_from_the_flexible_traverser(fake: Fake) -> None:
    matcher = fake.matcher(machine(), traverser="flexible")
    core = want("core", 1)
    for ask in (
        spec(slot(1)),
        spec(slot(1, slot(1, core))),
        spec(slot(1, core), slot(1)),
        spec(want("node", 1, want("xor_slot", 1, label="a"))),
    ):
        with pytest.raises(FluxionError):
            matcher.allocate(ask)
    assert not fake.called("match_with_jobid")
    matcher.allocate(spec(slot(1, core), slot(1, want("gpu", 1), label="b")))
    fake.matcher(machine()).allocate(spec(slot(1)))
    assert len(fake.called("match_with_jobid")) == 2


JUNK: list[Any] = [
    None, True, 0, -1, 2**31, 2**63, 2**64, 10**5000, 0.5, float("nan"), "", "x", "1", "a\0b", "\udcff", b"x", [], [1],
    {}, {"a": 1}, {1: 2}, (), set(), object(), "[" * 50_000, "a: &a [*a]",
]  # fmt: skip


def test_junk_as_an_argument_is_an_error_of_ours_or_harmless(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    matcher.allocate(ASK, 77)
    envelope = {"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"core": "0"}}]}}
    calls: list[Callable[[Any], object]] = [
        lambda junk: matcher.allocate(ASK, junk),
        lambda junk: matcher.allocate(junk),
        lambda junk: matcher.allocate(ASK, candidates=junk),
        lambda junk: matcher.allocate(ASK, candidates=[junk]),
        lambda junk: matcher.allocate(ASK, prefer=junk),
        lambda junk: matcher.allocate(ASK, now=junk),
        matcher.satisfy, matcher.cancel, matcher.retract, matcher.info, matcher.find, matcher.get_status,
        matcher.get_rank_status, matcher.remove_subgraph, matcher.add_subgraph,
        lambda junk: matcher.partial_cancel(junk, envelope),
        lambda junk: matcher.partial_cancel(77, junk),
        lambda junk: matcher.update_allocate(78, junk),
        lambda junk: matcher.update_allocate(79, envelope, now=junk),
        lambda junk: matcher.set_status(junk, True),
        lambda junk: matcher.set_rank_status(junk, True),
        lambda junk: matcher.set_rank_status([junk], True),
        lambda junk: setattr(matcher, "next_jobid", junk),
        lambda junk: fake.matcher(machine(), policy=junk),
        lambda junk: fake.matcher(machine(), prune_filters=junk),
        lambda junk: fake.matcher(machine(), match_format=junk),
        lambda junk: fake.matcher(machine(), traverser=junk),
        lambda junk: fake.matcher(machine(), compatible=junk),
        lambda junk: fake.matcher(junk),
    ]  # fmt: skip
    for call in calls:
        for junk in JUNK:
            with contextlib.suppress(FluxionError):
                call(junk)
