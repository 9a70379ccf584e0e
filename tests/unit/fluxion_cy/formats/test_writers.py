"""The forms of R, and reading them back."""

import errno
import json
from typing import Any

import pytest

from fluxion_cy import Busy, InvalidGraph, Matcher, NotSupported
from fluxion_cy.base.ranges import hostlist
from fluxion_cy.engine.encoding import hostlist_text, idset_text

from ..graphs import Graph, machine, pools, slot, sockets, spec, taken, want
from ..rfc40 import complaints

CORE = want("core", 1)
WHOLE = spec(want("node", 1, slot(1, CORE), exclusive=True), duration=60)
MAPPINGS = ("jgf", "jgf_shorthand", "rv1", "rv1_shorthand", "rv1_nosched", "rfc40")


def marked() -> dict[str, Any]:
    return machine(nodes=3, cores=4, properties={0: {"a": ""}, 2: {"a": "", "b": "x"}})


def two_nodes(form: str, **options: Any) -> Any:
    matcher = Matcher(marked(), policy="lonode", match_format=form, **options)
    return matcher.allocate(spec(want("node", 2, slot(1, want("core", 2))), duration=60)).R


def test_simple_is_a_line_per_vertex_indented_by_depth_children_first() -> None:
    text = Matcher(machine(nodes=1, cores=2), match_format="simple").allocate(spec(slot(1, CORE))).R
    assert text == "      ---------core1[1:x]\n      ------node0[1:s]\n      ---cluster0[1:s]\n"


def test_pretty_simple_is_the_same_from_the_root_down_in_words() -> None:
    text = Matcher(machine(nodes=1, cores=2), match_format="pretty_simple").allocate(spec(slot(1, CORE))).R
    assert text == "      ---cluster0[1:shared]\n      ------node0[1:shared]\n      ---------core1[1:exclusive]\n"


def test_rlite_joins_the_ranks_that_have_the_same_children() -> None:
    assert json.loads(two_nodes("rlite")) == [{"rank": "0-1", "children": {"core": "0-1"}}]
    assert two_nodes("rlite").endswith("]\n")


def test_rv1_names_hosts_properties_and_the_span() -> None:
    matcher = Matcher(marked(), match_format="rv1_nosched")
    rset = matcher.allocate(spec(want("node", 3, slot(1, CORE)), duration=60)).R
    assert rset["execution"] == {
        "R_lite": [{"rank": "0-2", "children": {"core": "3"}}],
        "nodelist": ["node[0-2]"],
        "properties": {"a": "0,2", "b=x": "2"},
        "starttime": 0,
        "expiration": 60,
    }
    assert "scheduling" not in rset
    busy = matcher.allocate_orelse_reserve(spec(want("node", 3, slot(1, want("core", 4))), duration=5))
    assert (busy.at, busy.R["execution"]["starttime"], busy.R["execution"]["expiration"]) == (60, 60, 65)


def test_rv1_holds_the_graph_that_jgf_is() -> None:
    assert two_nodes("rv1")["scheduling"] == two_nodes("jgf")


def test_shorthand_leaves_out_what_lies_below_what_is_taken_and_says_so() -> None:
    rset = Matcher(marked(), match_format="jgf_shorthand").allocate(WHOLE).R
    assert rset["writer"] == "fluxion:jgf_shorthand"
    assert list(taken(rset)) == ["/cluster0/node2"]
    assert len(rset["graph"]["edges"]) == 1
    assert "writer" not in two_nodes("jgf_shorthand")


def test_previews_have_the_same_form() -> None:
    matcher = Matcher(marked(), policy="low", match_format="rlite")
    assert matcher.without_allocating(WHOLE).R == matcher.allocate(WHOLE).R


@pytest.mark.parametrize("form", MAPPINGS)
def test_a_node_that_is_taken_whole_is_held_again_from_every_mapping_form(form: str) -> None:
    matcher = Matcher(marked(), match_format=form)
    job = matcher.allocate(WHOLE)
    matcher.cancel(job.jobid)
    for rset in (job.R, json.dumps(job.R)):
        back = matcher.update_allocate(7, rset)
        assert back.R.get("scheduling", back.R.get("graph")) == job.R.get("scheduling", job.R.get("graph"))
        with pytest.raises(Busy):
            matcher.allocate(spec(want("node", 3, slot(1, CORE), exclusive=True)))
        with pytest.raises(Busy):
            matcher.allocate(spec(slot(9, CORE)))
        assert matcher.partial_cancel(7, rset)
        matcher.without_allocating(spec(want("node", 3, slot(1, CORE), exclusive=True)))


def test_ranks_alone_find_cores_below_sockets() -> None:
    matcher = Matcher(sockets(), match_format="rv1_nosched")
    rset = matcher.allocate(spec(slot(1, want("socket", 1, want("core", 3))))).R
    matcher.cancel(1)
    assert matcher.update_allocate(2, rset).R["execution"]["R_lite"] == rset["execution"]["R_lite"]
    assert matcher.find("jobid-alloc=2") is not None


def test_ids_that_a_rank_has_twice_are_refused_not_guessed() -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    node = graph.add("node", 0, root, rank=0)
    for s in range(2):
        graph.add("core", 0, graph.add("socket", s, node, rank=0), rank=0)
    row = {"rank": "0", "children": {"core": "0"}}
    rset = {"version": 1, "execution": {"R_lite": [row], "starttime": 0, "expiration": 0}}
    with pytest.raises(InvalidGraph, match="rank 0 has more than one core with id 0"):
        Matcher(graph.jgf()).update_allocate(1, rset)


def test_a_writer_that_nobody_knows_is_refused() -> None:
    matcher = Matcher(marked())
    rset = matcher.allocate(WHOLE).R
    matcher.cancel(1)
    with pytest.raises(InvalidGraph, match="writer"):
        matcher.update_allocate(2, {**rset, "writer": "other:jgf"})
    assert rset == matcher.update_allocate(2, {**rset, "writer": "fluxion"}).R


def test_load_format_shorthand_reads_a_bare_jgf_as_one() -> None:
    rset = Matcher(marked(), match_format="jgf_shorthand").allocate(WHOLE).R
    del rset["writer"]
    for load_format, held in (("jgf", 1), ("jgf_shorthand", 6)):
        assert len(taken(Matcher(marked(), load_format=load_format).update_allocate(1, rset).R)) == held


@pytest.mark.parametrize("form", ["rlite", "rv1", "rv1_nosched", "rfc40"])
def test_a_node_without_a_rank_is_an_error_that_holds_nothing(form: str) -> None:
    graph = Graph()
    node = graph.add("node", 0, graph.add("cluster", 0))
    graph.add("core", 0, node)
    matcher = Matcher(graph.jgf(), match_format=form)
    for _ in range(2):
        with pytest.raises(InvalidGraph, match=r"/cluster0/node0: has no rank") as caught:
            matcher.allocate(spec(slot(1, CORE)))
        assert caught.value.errno == errno.EINVAL
    assert matcher.find("jobid-tag=1") is None


def test_what_lies_below_no_node_is_in_the_graph_alone() -> None:
    graph = Graph()
    graph.add("qpu", 0, graph.add("cluster", 0))
    rset = Matcher(graph.jgf(), match_format="rv1").allocate(spec(slot(1, want("qpu", 1)))).R
    assert (rset["execution"]["R_lite"], rset["execution"]["nodelist"]) == ([], [])
    assert list(taken(rset["scheduling"])) == ["/cluster0/qpu0"]


def test_rfc40_writes_every_required_key_and_keeps_what_the_graph_says() -> None:
    document = marked()
    nodes, edges = document["graph"]["nodes"], document["graph"]["edges"]
    nodes[1]["metadata"] |= {"uuid": "own", "unit": "box", "basename": "host"}
    edges[0]["metadata"] = {"subsystem": "containment", "relationship": "houses"}
    edges[1]["metadata"] = {"name": {"containment": "holds"}}
    matcher = Matcher(document, policy="lonode", match_format="rfc40")
    rset = matcher.allocate(spec(slot(1, CORE), duration=60)).R
    assert complaints(rset) == []
    graph = rset["scheduling"]["graph"]
    node = next(node["metadata"] for node in graph["nodes"] if node["metadata"]["type"] == "node")
    assert (node["uuid"], node["unit"], node["basename"], node["properties"]) == ("own", "box", "host", {"a": ""})
    assert {edge["metadata"]["relationship"] for edge in graph["edges"]} == {"houses", "holds"}


def test_uuids_are_the_same_in_every_r_and_differ_by_place() -> None:
    first, second = (Matcher(pools(), match_format="rfc40").allocate(spec(slot(1, CORE))).R for _ in range(2))
    assert first == second
    assert complaints(first) == []


def test_the_validator_complains() -> None:
    rset = two_nodes("rfc40")
    del rset["scheduling"]["graph"]["nodes"][0]["metadata"]["uuid"]
    rset["scheduling"]["graph"]["edges"][0]["metadata"]["relationship"] = ""
    assert [text.rpartition(": ")[2] for text in complaints(rset)] == ["uuid", "relationship"]
    assert complaints({"version": 2}) == ["version is not 1"]
    assert complaints(two_nodes("rv1"))


def test_units_of_a_pool_are_written_and_held_again() -> None:
    matcher = Matcher(pools(), match_format="rfc40")
    job = matcher.allocate(spec(slot(1, CORE, want("memory", 30))))
    assert complaints(job.R) == []
    matcher.cancel(job.jobid)
    assert matcher.update_allocate(2, job.R).R["scheduling"] == job.R["scheduling"]
    assert sum(taken(job.R["scheduling"]).values()) == 31


@pytest.mark.parametrize("option", [{"match_format": "rv3"}, {"match_format": None}, {"load_format": "hwloc"}])
def test_an_unknown_form_names_those_that_are_known(option: dict[str, Any]) -> None:
    with pytest.raises(NotSupported, match=r"is unknown; use one of .*jgf_shorthand"):
        Matcher(marked(), **option)


def test_a_clone_writes_as_its_original() -> None:
    matcher = Matcher(marked(), match_format="rlite")
    assert matcher.clone().allocate(WHOLE).R == matcher.allocate(WHOLE).R


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["login"], "login"),
        (["n1"], "n1"),
        (["n1", "n2", "n4"], "n[1-2,4]"),
        (["n2", "n1"], "n[2,1]"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n8", "n9", "n10"], "n[8-10]"),
        (["n9", "n010"], "n[9,010]"),
        (["a1", "b2", "b3", "c"], "a1,b[2-3],c"),
        (["7", "8"], "[7-8]"),
        (["n1", "n1"], "n[1,1]"),
    ],
)
def test_hostlists_are_written_as_they_are_read(names: list[str], text: str) -> None:
    assert hostlist_text(names) == text
    assert hostlist(text) == names


@pytest.mark.parametrize("digits", [1, 11, 12, 13, 17, 18, 19])
def test_a_hostlist_is_read_back_however_long_its_numbers_are(digits: int) -> None:
    for first in (10 ** (digits - 1), 10**digits - 2):
        names = [f"n{first}", f"n{first + 1}"]
        assert hostlist(hostlist_text(names)) == names


def named(name: str, **metadata: Any) -> Any:
    graph = Graph()
    node = graph.add("node", 0, graph.add("cluster", 0), name=name, **{"rank": 0, **metadata})
    graph.add("core", 0, node, rank=0)
    return graph.jgf()


@pytest.mark.parametrize("name", ["node[1]", "a,b", "a b", "a\tb", "a\nb", "n]", "\0", ""])
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("form", ["rv1", "rv1_nosched", "rv1_shorthand", "rfc40"])
def test_a_name_that_a_hostlist_would_take_apart_is_refused_where_r_has_one(name: str, text: bool, form: str) -> None:
    document = named(name)
    with pytest.raises(InvalidGraph, match=r"^vertex '1': the name .* is not valid in the nodelist of R"):
        Matcher(json.dumps(document) if text else document, match_format=form)


@pytest.mark.parametrize("form", ["jgf", "jgf_shorthand", "rlite", "simple"])
def test_any_name_is_taken_where_r_has_no_nodelist(form: str) -> None:
    matcher = Matcher(named("node[1]"), match_format=form)
    assert "node[1]" in json.dumps(matcher.graph())
    assert matcher.allocate(spec(slot(1, CORE))).R


def test_only_nodes_with_a_rank_come_into_a_nodelist() -> None:
    Matcher(named("node[1]", rank=-1), match_format="rv1")
    Matcher(named("node-1.é"), match_format="rv1").allocate(spec(slot(1, CORE)))


def test_a_subgraph_with_such_a_name_changes_nothing() -> None:
    matcher, graph = Matcher(machine(nodes=1), match_format="rv1"), Graph()
    graph.add("node", 9, graph.add("cluster", 0), name="a b", rank=9)
    document, before = graph.jgf(), matcher.graph()
    document["graph"]["nodes"][1]["id"] = document["graph"]["edges"][0]["target"] = "999"
    for _ in range(2):
        with pytest.raises(InvalidGraph, match="vertex '999': the name 'a b'") as refused:
            matcher.add_subgraph(document)
        assert refused.value.errno == errno.EINVAL
    assert matcher.graph() == before
    matcher.clone().allocate(spec(slot(1, CORE)))
    with pytest.raises(InvalidGraph, match="vertex '999': the name 'a b'"):
        matcher.clone().add_subgraph(document)


def test_idsets_are_sorted_and_joined() -> None:
    assert idset_text([]) == ""
    assert idset_text([7, 1, 0, 3, 2, 2]) == "0-3,7"
