"""What goes into the library and what comes back, against a library that writes it down."""

import errno
import gc
import json
import threading
from inspect import getattr_static
from typing import Any

import pytest

from fluxion_cy import NO_JOBID, FluxionError, InvalidJobspec, JobExists, Matcher, NoSuchJob, NotSupported
from fluxion_cy.matcher import ReapiMatcher
from fluxion_cy.reapi.matcher import LibraryMatcher

from ..graphs import machine, slot, spec, want
from .conftest import Fake

RECIPE = """<graphml>
<key id="t" for="node" attr.name="type" attr.type="string"/>
<key id="r" for="node" attr.name="root" attr.type="int"><default>0</default></key>
<key id="n" for="edge" attr.name="multi_scale" attr.type="int"/>
<graph edgedefault="directed">
<node id="c"><data key="t">cluster</data><data key="r">1</data></node>
<node id="n"><data key="t">node</data></node>
<node id="k"><data key="t">core</data></node>
<edge source="c" target="n"><data key="n">2</data></edge><edge source="n" target="k"><data key="n">3</data></edge>
</graph></graphml>"""
ASK = spec(slot(1, want("core", 1)))
R = '{"graph": {"nodes": [{"id": "é"}], "edges": []}}'


def test_the_engine_is_chosen_by_name_and_is_a_matcher(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    assert type(matcher) is ReapiMatcher
    assert isinstance(matcher, Matcher)
    assert type(Matcher(machine())) is Matcher
    assert type(Matcher(machine(), "first", "jgf", "jgf", "ALL:core", "reapi", library=fake.path)) is ReapiMatcher


def test_graph_and_options_are_handed_over_as_json(fake: Fake) -> None:
    fake.matcher(machine(nodes=1, cores=1, gpus=0), policy="low", prune_filters="ALL:core", traverser="flexible")
    graph, options = fake.called("initialize")[-1]
    assert json.loads(options) == {
        "load_format": "jgf", "matcher_policy": "low", "traverser_policy": "flexible", "match_format": "jgf",
        "prune_filters": "ALL:core",
    }  # fmt: skip
    core = json.loads(graph)["graph"]["nodes"][2]
    assert core == {
        "id": "2",
        "metadata": {
            "type": "core", "id": 0, "uniq_id": 2, "rank": 0, "basename": "core", "name": "core0", "size": 1,
            "status": 0, "paths": {"containment": "/cluster0/node0/core0"},
        },
    }  # fmt: skip
    assert json.loads(graph)["graph"]["edges"][-1] == {"source": "1", "target": "2"}


def test_types_are_taught_before_the_graph_that_has_them_and_only_once(fake: Fake) -> None:
    fake.matcher(machine(nodes=1), prune_filters="ALL:qpu")
    taught = {node["metadata"]["type"] for (text,) in fake.called("add_subgraph") for node in nodes(text)}
    assert {"gpu", "node", "core", "qpu"} <= taught
    fake.matcher(machine(nodes=1))
    assert len(fake.called("add_subgraph")) == 1


def nodes(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)["graph"]["nodes"]
    return found


@pytest.mark.parametrize(
    ("operation", "op"),
    [
        ("allocate", 1), ("allocate_with_satisfiability", 2), ("allocate_orelse_reserve", 3), ("without_allocating", 5),
        ("without_allocating_future", 6),
    ],
)  # fmt: skip
def test_every_match_operation_has_its_own_number(fake: Fake, operation: str, op: int) -> None:
    fake.answer(at=2**40, reserved=op == 3)
    fake.give(R)
    preview = op > 4
    found = getattr(fake.matcher(machine()), operation)(ASK, 77)
    assert (found.jobid, found.at, found.reserved, found.overhead, found.R) == (77, 2**40, op == 3, 0.25, json.loads(R))
    ((number, jobspec, jobid),) = fake.called("match_with_jobid")
    assert int(number) == op
    assert int(jobid) == (NO_JOBID if preview else 77)
    assert json.loads(jobspec) == {
        "version": 1,
        "resources": [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}],
        "tasks": [],
        "attributes": {"system": {"duration": 3600}},
    }


def test_a_jobspec_is_sent_with_all_that_it_asks(fake: Fake) -> None:
    count = {"min": 2, "max": 4, "operator": "*", "operand": 2}
    rule = {"and": [{"hostlist": ["node[1-2]"]}, {"not": [{"ranks": ["1-4000000000"]}]}, {"properties": ["^x"]}, {}]}
    matcher = fake.matcher(machine())
    matcher.allocate(spec(want("node", count, exclusive=True), want("gpu", {"min": 1}), duration=0, constraints=rule))
    sent = json.loads(fake.called("match_with_jobid")[0][1])
    assert sent["resources"] == [
        {"type": "node", "count": count, "exclusive": True},
        {"type": "gpu", "count": {"min": 1, "max": 2**32 - 1, "operator": "+", "operand": 1}},
    ]
    assert sent["attributes"]["system"] == {
        "duration": 0,
        "constraints": {
            "and": [
                {"hostlist": ["node1", "node2"]},
                {"not": [{"ranks": ["1-2"]}]},
                {"properties": ["^x"]},
                {"and": []},
            ]
        },
    }


@pytest.mark.parametrize(
    ("count", "sent"),
    [
        ((3, 3, "*", 2), 3),
        ((0, 0, "+", 1), 0),
        ((1, 2**32 - 1, "+", 1), (1, 2**32 - 1, "+", 1)),
        ((2, 9, "+", 7), (2, 9, "+", 7)),
        ((2, 8, "+", 7), 2),
        ((2, 8, "+", 2**32 - 1), 2),
        ((1, 100, "*", 2), (1, 64, "*", 2)),
        ((2, 2**32 - 1, "*", 2), (2, 2**30, "*", 2)),
        ((3, 2**32 - 1, "*", 2**31), 3),
        ((2, 300, "^", 2), (2, 256, "^", 2)),
        ((2, 2**32 - 1, "^", 2), (2, 256, "^", 2)),
        ((2, 2**32 - 1, "^", 2**31), 2),
        ((2**32 - 1, 2**32 - 1, "*", 2), 2**32 - 1),
    ],
)
def test_a_count_is_sent_in_steps_that_do_not_wrap_round(fake: Fake, count: Any, sent: Any) -> None:
    keys = ("min", "max", "operator", "operand")
    asked = dict(zip(keys, count, strict=True)) if count[0] else 0
    fake.matcher(machine()).allocate(spec(slot(1, want("core", asked))))
    found = json.loads(fake.called("match_with_jobid")[0][1])["resources"][0]["with"][0]["count"]
    assert found == (dict(zip(keys, sent, strict=True)) if isinstance(sent, tuple) else sent)


@pytest.mark.parametrize(
    ("candidates", "rule"),
    [
        ([True, False, True, True], {"ranks": ["0,2-3"]}),
        ([True, True], {"ranks": ["0-1"]}),
        ([False] * 9, {"or": []}),
        ([], {"or": []}),
    ],
)
def test_candidates_become_a_constraint_to_ranks(fake: Fake, candidates: list[bool], rule: dict[str, Any]) -> None:
    matcher = fake.matcher(machine(nodes=4))
    matcher.allocate(ASK, candidates=candidates)
    matcher.satisfy(spec(slot(1, want("core", 1)), constraints={"properties": ["a"]}), candidates=candidates)
    plain = json.loads(fake.called("match_with_jobid")[0][1])
    both = json.loads(fake.called("match_satisfy")[0][0])
    assert plain["attributes"]["system"]["constraints"] == rule
    assert both["attributes"]["system"]["constraints"] == {"and": [{"properties": ["a"]}, rule]}


def test_satisfy_answers_yes_and_no(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    assert matcher.satisfy(ASK)
    fake.fail("match_satisfy", errno=errno.ENODEV)
    assert not matcher.satisfy(ASK)


FORMS = ["jgf", "jgf_shorthand", "rv1", "rv1_nosched", "rv1_shorthand", "rfc40", "rlite", "simple", "pretty_simple"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_written_here_from_jgf(fake: Fake, form: str) -> None:
    whole = spec(slot(1, want("node", 1)), duration=60)
    fake.give(json.dumps(Matcher(machine(), policy="firstnodex").allocate(whole).R))
    matcher = fake.matcher(machine(), policy="firstnodex", match_format=form)
    embedded = Matcher(machine(), policy="firstnodex", match_format=form)
    assert matcher.allocate(whole).R == embedded.allocate(whole).R
    assert matcher.clone().allocate(whole).R == matcher.without_allocating(whole).R
    assert json.loads(fake.called("initialize")[-1][1])["match_format"] == "jgf"


def test_a_span_ends_with_the_graph_or_with_its_resource_set(fake: Fake) -> None:
    fake.give(json.dumps(Matcher(machine()).allocate(ASK).R))
    matcher = fake.matcher(machine(), match_format="rv1_nosched")
    fake.answer(at=100, reserved=True)
    given = matcher.allocate_orelse_reserve(spec(slot(1, want("core", 1)), duration=60)).R["execution"]
    assert (given["starttime"], given["expiration"]) == (100, 160)
    rows = [{"rank": "0", "children": {"core": "0"}}]
    held = {"version": 1, "execution": {"R_lite": rows, "starttime": 100, "expiration": 130}}
    given = matcher.update_allocate(7, held).R["execution"]
    assert (given["starttime"], given["expiration"]) == (100, 130)


def test_graphs_in_every_form_reach_the_library_as_jgf(fake: Fake) -> None:
    rows = [{"rank": "0-1", "children": {"core": "0-3", "gpu": "0"}}]
    execution = {"R_lite": rows, "nodelist": ["node[0-1]"], "properties": {"fast": "1"}}
    for form, graph in (
        ("rv1exec", {"version": 1, "execution": execution}),
        ("grug", RECIPE),
        ("jgf_shorthand", machine()),
    ):
        matcher = fake.matcher(graph, load_format=form)
        sent = json.loads(fake.called("initialize")[-1][0])
        assert matcher.graph() == Matcher(graph, load_format=form).graph()
        assert Matcher(sent).stat() == matcher.stat()
        assert json.loads(fake.called("initialize")[-1][1])["load_format"] == "jgf"


def test_ids_count_as_in_the_embedded_engine(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    assert [matcher.allocate(ASK).jobid, matcher.allocate(ASK, 2).jobid, matcher.allocate(ASK).jobid] == [1, 2, 3]
    fake.fail("match_with_jobid", errno=errno.EBUSY)
    with pytest.raises(FluxionError):
        matcher.allocate(ASK)
    fake.forget()
    assert matcher.next_jobid == 5
    assert matcher.without_allocating(ASK).jobid == NO_JOBID
    matcher.next_jobid = 10
    assert matcher.allocate(ASK).jobid == 10
    matcher.retract(10)
    assert matcher.next_jobid == 10
    assert [jobid for jobid, _ in fake.called("cancel")] == ["10"]
    with pytest.raises(NoSuchJob):
        matcher.info(10)


def test_a_held_id_never_reaches_the_library_again(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    matcher.allocate(ASK, 2**63 - 1)
    for call in (lambda: matcher.allocate(ASK, 2**63 - 1), lambda: matcher.update_allocate(2**63 - 1, held(matcher))):
        with pytest.raises(JobExists):
            call()
    assert len(fake.called("match_with_jobid")) == 1
    matcher.cancel(2**63 - 1)
    assert fake.called("cancel") == [[str(2**63 - 1), "0"]]
    matcher.allocate(ASK, 2**63 - 1)


def test_ids_that_could_not_be_cancelled_are_refused(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    for jobid in (2**63, 2**64 - 1):
        with pytest.raises(InvalidJobspec, match="above") as caught:
            matcher.allocate(ASK, jobid)
        assert caught.value.errno == errno.EOVERFLOW
    assert not fake.called("match_with_jobid")


def held(matcher: Matcher, path: str = "/cluster0/node1/core0", rank: int = 1) -> dict[str, Any]:
    kind = path.rpartition("/")[2].rstrip("0123456789")
    return {"graph": {"nodes": [{"metadata": vertex(kind, path, rank)}], "edges": []}}


def vertex(kind: str, path: str, rank: int) -> dict[str, Any]:
    return {"type": kind, "rank": rank, "exclusive": True, "paths": {"containment": path}}


def test_cancelling_frees_once(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    matcher.allocate(ASK, 5)
    assert matcher.info(5).mode == "ALLOCATED"
    matcher.cancel(5)
    assert matcher.info(5).mode == "CANCELED"
    matcher.cancel(5, missing_ok=True)
    with pytest.raises(NoSuchJob):
        matcher.cancel(5)
    assert len(fake.called("cancel")) == 1
    assert matcher.moved() == []


def test_reservations_are_known_as_such(fake: Fake) -> None:
    fake.answer(at=30, reserved=True)
    matcher = fake.matcher(machine())
    matcher.allocate_orelse_reserve(ASK, 5)
    info = matcher.info(5)
    assert (info.mode, info.reserved, info.at) == ("RESERVED", True, 30)
    with pytest.raises(InvalidJobspec, match="reservation"):
        matcher.partial_cancel(5, held(matcher))


def test_update_sends_what_r_takes_and_all_above_it(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    envelope = {"version": 1, "execution": {"starttime": 5, "expiration": 9}, "scheduling": held(matcher)}
    fake.answer(at=5)
    assert matcher.update_allocate(8, envelope).at == 5
    ((jobid, text),) = fake.called("update_allocate")
    sent = json.loads(text)
    assert jobid == "8"
    assert sent["execution"] == {"starttime": 5, "expiration": 9}
    given = {
        node["metadata"]["paths"]["containment"]: node["metadata"] for node in sent["scheduling"]["graph"]["nodes"]
    }
    assert {path for path, fields in given.items() if fields.get("exclusive")} == {"/cluster0/node1/core0"}
    assert given.keys() == {"/cluster0/node1/core0", "/cluster0/node1", "/cluster0"}
    assert len(sent["scheduling"]["graph"]["edges"]) == 2
    assert matcher.info(8).mode == "ALLOCATED"


def test_update_of_a_whole_node_takes_all_below_it(fake: Fake) -> None:
    matcher = fake.matcher(machine(cores=2))
    matcher.update_allocate(8, held(matcher, "/cluster0/node1"))
    given = nodes(json.dumps(json.loads(fake.called("update_allocate")[0][1])["scheduling"]))
    assert sum(node["metadata"].get("exclusive", False) for node in given) == 4


TREE = ("/cluster0", -1), ("/cluster0/node0", 0), ("/cluster0/node0/core0", 0), ("/cluster0/node1", 1), (
    "/cluster0/node1/core0", 1), ("/cluster0/node1/core1", 1)  # fmt: skip


def tree_of(*places: tuple[str, int]) -> str:
    found = [{"metadata": {"rank": rank, "paths": {"containment": path}}} for path, rank in places]
    return json.dumps({"graph": {"nodes": found, "edges": []}})


def test_a_part_is_freed_by_ranks_of_which_the_job_holds_something(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    matcher.allocate(ASK, 5)
    fake.give(tree_of(*TREE))
    fake.answer(flag=False)
    rows = [{"rank": "1-2", "children": {"core": "0"}}]
    assert not matcher.partial_cancel(5, {"version": 1, "execution": {"R_lite": rows}})
    ((jobid, text, missing_ok),) = fake.called("partial_cancel")
    assert (jobid, missing_ok) == ("5", "0")
    assert json.loads(text)["execution"]["R_lite"] == [{"rank": "1", "children": {}}]
    assert fake.called("find") == [["jobid-tag=5", "jgf"]]
    assert matcher.info(5).mode == "ALLOCATED"
    rows = [{"rank": "2", "children": {"core": "0"}}]
    assert not matcher.partial_cancel(5, {"version": 1, "execution": {"R_lite": rows}})
    assert len(fake.called("partial_cancel")) == 1


def test_the_last_part_ends_the_job(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    matcher.allocate(ASK, 5)
    fake.give(tree_of(*TREE))
    assert matcher.partial_cancel(5, held(matcher, "/cluster0/node0/core0", 0))
    assert json.loads(fake.called("partial_cancel")[0][1])["execution"]["R_lite"] == [{"rank": "0", "children": {}}]
    assert matcher.info(5).mode == "CANCELED"
    assert not matcher.partial_cancel(5, held(matcher), missing_ok=True)
    with pytest.raises(NoSuchJob):
        matcher.partial_cancel(5, held(matcher))


def test_vertices_are_freed_only_where_they_are_all_of_a_rank(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    matcher.allocate(ASK, 5)
    fake.give(tree_of(*TREE))
    with pytest.raises(NotSupported, match=r"lacks vertex .*node1/core1; on rank 1,"):
        matcher.partial_cancel(5, held(matcher))
    with pytest.raises(FluxionError, match=r"node2/core0 is not allocated"):
        matcher.partial_cancel(5, held(matcher, "/cluster0/node2/core0", 2))
    everything = [vertex("core", path, rank) for path, rank in TREE if "core" in path]
    assert matcher.partial_cancel(5, {"graph": {"nodes": [{"metadata": fields} for fields in everything]}})
    assert not fake.called("partial_cancel")
    assert fake.called("cancel") == [["5", "0"]]


def test_find_answers_none_for_nothing(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    fake.give(R)
    assert matcher.find("(status=up) and  (names=node1 or property=x)") == json.loads(R)
    assert fake.called("find") == [["(status=up) and  (names=node1 or property=x)", "jgf"]]
    fake.give(None)
    assert matcher.find("status=up") is None
    fake.give('{"graph": {"nodes": [], "edges": []}}')
    assert matcher.find("status=up") is None


def test_status_goes_by_path_and_by_ranks(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    matcher.set_status("/cluster0/node1", False)
    matcher.set_rank_status("0,2-4000000000", False)
    matcher.set_rank_status([2, 7], True)
    matcher.set_rank_status("9", True)
    assert fake.called("set_status") == [["/cluster0/node1", "1"]]
    assert fake.called("set_rank_status") == [["0,2", "1"], ["2", "0"]]
    down = [n["metadata"]["name" if "name" in n["metadata"] else "id"] for n in matcher.graph()["graph"]["nodes"]
            if n["metadata"].get("status")]  # fmt: skip
    assert down == [0, 1]
    assert (matcher.stat()["nodes_up"], matcher.stat()["nodes_down"]) == (1, 2)
    assert matcher.get_status("/cluster0/node1")
    assert matcher.get_rank_status(2)
    fake.answer(flag=False)
    assert not matcher.get_status("/cluster0/node1")
    assert not matcher.get_rank_status(2)
    assert fake.called("get_rank_status") == [["2"], ["2"]]


def test_the_graph_grows_and_shrinks_on_both_sides(fake: Fake) -> None:
    matcher = fake.matcher(machine(nodes=1, cores=1))
    more = machine(nodes=2, cores=1)
    matcher.add_subgraph(more)
    sent = nodes(fake.called("add_subgraph")[-1][0])
    assert [node["metadata"]["paths"]["containment"] for node in sent][4:5] == ["/cluster0/node1"]
    assert matcher.stat()["by_type"]["node"] == 2
    matcher.remove_subgraph("/cluster0/node0")
    assert fake.called("remove_subgraph") == [["/cluster0/node0"]]
    assert matcher.stat()["by_type"]["node"] == 1
    with pytest.raises(FluxionError, match="root"):
        matcher.remove_subgraph("/cluster0")
    for path in ("/cluster0/node1", "/cluster0/node1/core0/nope"):
        with pytest.raises(FluxionError, match=r"only child|no such vertex"):
            matcher.remove_subgraph(path)
    assert len(fake.called("remove_subgraph")) == 1


def test_the_graph_stays_when_the_library_refuses_the_change(fake: Fake) -> None:
    matcher = fake.matcher(machine(nodes=2))
    for function in ("add_subgraph", "remove_subgraph", "set_status", "set_rank_status"):
        fake.fail(function, errno=errno.EINVAL)
    before = matcher.graph()
    for call in (
        lambda: matcher.add_subgraph(machine(nodes=3)),
        lambda: matcher.remove_subgraph("/cluster0/node0"),
        lambda: matcher.set_status("/cluster0/node0", False),
        lambda: matcher.set_rank_status("all", False),
    ):
        with pytest.raises(FluxionError):
            call()
    assert matcher.graph() == before


def test_what_the_c_api_lacks_is_not_supported(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    for call in (
        lambda: matcher.why(ASK),
        lambda: matcher.allocation(1),
        lambda: matcher.cancel(1, now=5),
        lambda: matcher.partial_cancel(1, held(matcher), now=5),
        lambda: matcher.find("status=up", now=5),
        lambda: matcher.resize("/cluster0/node0/core0", 2),
        lambda: matcher.set_properties("/cluster0/node0", {}),
        lambda: matcher.allocate(ASK, now=5),
        lambda: matcher.satisfy(ASK, now=5),
        lambda: matcher.update_allocate(1, held(matcher), now=5),
        lambda: matcher.allocate(ASK, prefer=[1.0]),
        lambda: matcher.allocate(ASK, candidates=[1, 2]),
        lambda: matcher.allocate(spec(slot(1, want("core", 1)), slot(1, want("gpu", 1), label="b"))),
    ):
        with pytest.raises(NotSupported):
            call()
    assert not fake.called("match_with_jobid")


def test_every_public_operation_is_the_real_engines_own_or_needs_no_library() -> None:
    shared = {"graph", "stat", "next_jobid", "info"}
    public = {name for name in dir(Matcher) if not name.startswith("_")}
    matches = {name for name in public if name.startswith(("allocate_", "without_"))}
    assert public - vars(LibraryMatcher).keys() == shared | matches
    assert not LibraryMatcher.__abstractmethods__
    assert all(getattr_static(ReapiMatcher, name) is getattr_static(LibraryMatcher, name) for name in public)


def test_a_clone_is_a_context_of_its_own(fake: Fake) -> None:
    matcher = fake.matcher(machine())
    matcher.allocate(ASK, 5)
    other = matcher.clone()
    matcher.cancel(5)
    assert (matcher.info(5).mode, other.info(5).mode) == ("CANCELED", "ALLOCATED")
    alive = fake.controls.fake_alive()
    del other
    gc.collect()
    assert fake.controls.fake_alive() == alive - 1


def test_the_context_goes_with_the_matcher_or_when_it_is_closed(fake: Fake) -> None:
    before = fake.controls.fake_alive()
    matcher = fake.matcher(machine())
    assert isinstance(matcher, ReapiMatcher)
    assert fake.controls.fake_alive() == before + 1
    matcher.close()
    matcher.close()
    assert fake.controls.fake_alive() == before
    with pytest.raises(FluxionError, match="closed"):
        matcher.allocate(ASK)
    del matcher
    gc.collect()
    assert fake.controls.fake_alive() == before


def test_calls_of_all_threads_go_one_by_one_and_leave_python_free(fake: Fake) -> None:
    matchers = [fake.matcher(machine()) for _ in range(4)]
    fake.answer(microseconds=2000)
    ticks, done = 0, threading.Event()

    def work(matcher: Matcher) -> None:
        for _ in range(10):
            matcher.allocate(ASK)
            matcher.satisfy(ASK)

    threads = [threading.Thread(target=work, args=(matcher,)) for matcher in matchers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ticks += 1
        done.wait(0.001)
    assert fake.controls.fake_most_inside() == 1
    assert len(fake.called("match_with_jobid")) == 40
    assert ticks > 20
