"""Graphs read from recipes (GRUG) and from R version 1."""

import copy
import errno
import json
import time
from typing import Any

import pytest
import yaml

from fluxion_cy import FluxionError, InvalidGraph, Matcher, NotSupported

from ..graphs import machine, slot, spec, want

NODES = """<key id="t" for="node" attr.name="type" attr.type="string"/>
<key id="b" for="node" attr.name="basename" attr.type="string"/>
<key id="r" for="node" attr.name="root" attr.type="int"><default>0</default></key>
<key id="s" for="node" attr.name="size" attr.type="long"/>
<key id="u" for="node" attr.name="subsystem" attr.type="string"/>
<key id="n" for="edge" attr.name="multi_scale" attr.type="int"/>
<key id="g" for="edge" attr.name="gen_method" attr.type="string"/>
<key id="e" for="edge" attr.name="e_subsystem" attr.type="string"/>
"""
CLUSTER = '<node id="c"><data key="t">cluster</data><data key="r">1</data></node>'
NODE = '<node id="n"><data key="t">node</data><data key="b">host</data></node>'
CORE = '<node id="k"><data key="t">core</data></node>'


def edge(source: str, target: str, data: str = "") -> str:
    return f'<edge source="{source}" target="{target}">{data}</edge>'


def recipe(*parts: str, attributes: str = 'edgedefault="directed"', before: str = "") -> str:
    return f"{before}<graphml>{NODES}<graph {attributes}>{''.join(parts)}</graph></graphml>"


def scale(number: object) -> str:
    return f'<data key="n">{number}</data>'


SMALL = recipe(CLUSTER, NODE, CORE, edge("c", "n", scale(2)), edge("n", "k", scale(3)))


COLORED = recipe(CLUSTER.replace("<data", '<data key="s">1</data><data', 1)).replace('name="size"', 'name="color"')


def paths(matcher: Matcher) -> list[str]:
    return [node["metadata"]["paths"].get("containment", "") for node in matcher.graph()["graph"]["nodes"]]


def test_a_recipe_multiplies_what_lies_below_what() -> None:
    matcher = Matcher(SMALL, load_format="grug")
    assert matcher.stat()["by_type"] == {"cluster": 1, "node": 2, "core": 6}
    assert paths(matcher)[:4] == ["/cluster0", "/cluster0/host0", "/cluster0/host1", "/cluster0/host0/core0"]
    assert [matcher.get_rank_status(rank) for rank in (0, 1)] == [True, True]
    assert matcher.allocate(spec(want("node", 2, slot(1, want("core", 3))))).at == 0


def test_a_loaded_recipe_is_jgf_and_loads_as_such() -> None:
    document = Matcher(SMALL.encode(), load_format="grug").graph()
    assert Matcher(document).graph() == document
    assert document["graph"]["edges"][0] == {"source": "0", "target": "1"}


def test_other_relations_and_subsystems_are_kept_on_the_edge() -> None:
    keys = '<key id="w" for="edge" attr.name="relation" attr.type="string"/><key id="t"'
    text = recipe(CLUSTER, NODE, edge("c", "n", '<data key="w">houses</data>')).replace('<key id="t"', keys, 1)
    edges = Matcher(text, load_format="grug").graph()["graph"]["edges"]
    assert edges[0]["metadata"] == {"subsystem": "containment", "relationship": "houses"}


def test_a_root_alone_is_a_graph() -> None:
    assert paths(Matcher(recipe(CLUSTER), load_format="grug")) == ["/cluster0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not well-formed"),
        ("<graphml>", "not well-formed"),
        ("<graph/>", "<graph>, not <graphml>"),
        ("<graphml/>", "contains no <graph>"),
        (SMALL.replace("<graphml>", "<graphml>&x;"), "not well-formed"),
        ("<!DOCTYPE graphml>" + SMALL, "DOCTYPE and entities"),
        ('<!DOCTYPE x [<!ENTITY a "aaaa">]>' + SMALL, "DOCTYPE and entities"),
        (("<!DOCTYPE graphml>" + SMALL).encode("utf-16"), "DOCTYPE and entities"),
        (b'<?xml version="1.0" encoding="nonesuch"?>' + SMALL.encode(), "not well-formed"),
        ("<a>" * 50, "levels"),
        (recipe("<x/>" * 100_001), "elements"),
        (" " * 4_000_001, "longer than"),
        (recipe(CLUSTER, CLUSTER), "node 'c': the id is used twice"),
        (recipe("<node/>"), "<node> has no attribute 'id'"),
        (recipe('<node id="c"/>'), "node 'c': has no type"),
        (recipe(CLUSTER.replace('"t"', '"zz"')), "no <key> for node declares 'zz'"),
        (recipe(CLUSTER.replace('"t"', '"n"')), "no <key> for node declares 'n'"),
        (COLORED, "node 'c': 'color' is unknown; use one of root, type"),
        (recipe(CLUSTER.replace(">1<", ">yes<")), "root: expected a number from -2147483647 to 2147483647, got 'yes'"),
        (recipe(CLUSTER.replace("</node>", '<data key="s">-1</data></node>')), "size: expected a number from 0 to"),
        (recipe(CLUSTER.replace("</node>", f'<data key="s">{2**63}</data></node>')), "size: expected a number from"),
        (recipe(CLUSTER, NODE), "node 'n': no edge leads to it"),
        (recipe(NODE), "node 'n': no edge leads to it"),
        (recipe(""), "graph: no vertex is the root; give the root a containment path with a single slash"),
        (recipe(CLUSTER, edge("c", "x")), "the recipe has no node 'x'"),
        (recipe(CLUSTER, NODE, edge("c", "n", scale(-1))), "multi_scale: expected a number from 0 to"),
        (recipe(CLUSTER, NODE, edge("c", "n", scale("1_0"))), "multi_scale: expected a number from 0 to"),
        (recipe(CLUSTER, NODE, edge("c", "n", '<data key="g">GROW</data>')), "gen_method: expected MULT"),
        (recipe(CLUSTER, NODE, CORE, edge("c", "n"), edge("n", "k"), edge("c", "k")), "'k' already has another edge"),
        (recipe(CLUSTER, NODE, edge("c", "n"), edge("n", "c")), "node 'c' already has another edge"),
        (recipe(CLUSTER, NODE, edge("c", "n"), attributes='edgedefault="undirected"'), "is not directed"),
        (recipe(CLUSTER, NODE, edge("c", "n", scale(2**31 - 1))), "more than 5000000 vertices"),
    ],
)  # fmt: skip
def test_a_bad_recipe_is_an_error_of_one_line(text: Any, message: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidGraph, match=r"^(grug|graph):") as caught:
        Matcher(text, load_format="grug")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.errno == errno.EPROTO
    assert time.process_time() - began < 5


def test_a_scale_of_nothing_does_not_break_the_numbers_of_what_lies_further_down() -> None:
    keys = NODES + '<key id="i" for="edge" attr.name="id_scope" attr.type="int"/>'
    parts = CLUSTER + NODE.replace("</node>", '<data key="r">1</data></node>') + CORE
    parts += edge("c", "n", scale(0)) + edge("n", "k", scale(2) + '<data key="i">1</data>')
    text = f'<graphml>{keys}<graph edgedefault="directed">{parts}</graph></graphml>'
    found = Matcher(text, load_format="grug").graph()["graph"]["nodes"]
    assert [node["metadata"]["name"] for node in found] == ["cluster0", "core0", "core1"]


def test_entities_are_not_expanded_even_without_a_doctype_of_their_own() -> None:
    bomb = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(9))
    text = f'<!DOCTYPE g [<!ENTITY a0 "ha">{bomb}]><graphml>&a9;</graphml>'
    with pytest.raises(InvalidGraph, match="DOCTYPE"):
        Matcher(text, load_format="grug")


def test_association_cannot_make_more_edges_than_there_may_be() -> None:
    power = '<data key="u">power</data>'
    panel = f'<node id="p"><data key="t">panel</data><data key="r">1</data>{power}</node>'
    unit = f'<node id="q"><data key="t">unit</data>{power}</node>'
    cores = f'<node id="m"><data key="t">core</data>{power}</node>'
    many = '<data key="e">power</data><data key="g">ASSOCIATE_IN</data>'
    parts = [
        edge("c", "k", scale(20_000)),
        edge("p", "q", scale(1000) + '<data key="e">power</data>'),
        edge("q", "m", many),
    ]
    with pytest.raises(InvalidGraph, match="more than 10000000 edges"):
        Matcher(recipe(CLUSTER, CORE, panel, unit, cores, *parts), load_format="grug")


@pytest.mark.parametrize("value", [None, 7, {}, ["<graphml/>"]])
def test_a_recipe_is_text(value: Any) -> None:
    with pytest.raises(InvalidGraph, match="GraphML text"):
        Matcher(value, load_format="grug")


def r_version_1() -> dict[str, Any]:
    rows = [{"rank": "2,0", "children": {"core": "0-1", "gpu": "3"}}, {"rank": "5", "children": {"core": "7"}}]
    marks = {"fat": "0-2", "none": "40", "old": "5"}
    return {"version": 1, "execution": {"R_lite": rows, "nodelist": ["a[08-09]", "login"], "properties": marks}}


@pytest.mark.parametrize("form", [copy.copy, json.dumps, yaml.safe_dump, lambda rset: json.dumps(rset).encode()])
def test_r_version_1_gives_a_node_per_rank(form: Any) -> None:
    document = Matcher(form(r_version_1()), load_format="rv1exec").graph()
    nodes = [n["metadata"] for n in document["graph"]["nodes"] if n["metadata"]["type"] == "node"]
    by_rank = {n["rank"]: (n["name"], n["basename"], n["id"], n.get("properties")) for n in nodes}
    assert by_rank == {
        0: ("a08", "a", 8, {"fat": ""}),
        2: ("a09", "a", 9, {"fat": ""}),
        5: ("login", "login", -1, {"old": ""}),
    }
    assert "/cluster0/a09/gpu3" in [n["metadata"]["paths"]["containment"] for n in document["graph"]["nodes"]]


def broken(path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(r_version_1())
    *above, last = path.split(".")
    part: Any = document
    for key in above:
        part = part[int(key)] if key.isdigit() else part[key]
    part[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("version", 2, "R.version: expected 1, got 2"),
        ("version", True, "R.version: expected 1, got True"),
        ("execution", None, "R.execution: must be a mapping"),
        ("execution.R_lite", {}, "R.execution.R_lite: must be a list"),
        ("execution.R_lite", [], "at least one entry"),
        ("execution.R_lite", [3], "R_lite[0]: needs rank and children"),
        ("execution.R_lite.0.rank", 3, "R_lite[0].rank: expected an idset such as '0-3,7', got 3"),
        ("execution.R_lite.0.rank", "3-1", "R_lite[0].rank: expected an idset such as '0-3,7', got '3-1'"),
        ("execution.R_lite.1.rank", "0", "R_lite[1].rank: rank 0 is listed twice"),
        ("execution.R_lite.0.rank", "0-4294967295", "more than 5000000 vertices"),
        ("execution.R_lite.0.children", {"core": "0-4294967295"}, "more than 5000000 vertices"),
        ("execution.R_lite.0.children", {"core": "x"}, "children.core: expected an idset such as '0-3,7', got 'x'"),
        ("execution.R_lite.0.children", {"a/b": "0"}, "children: expected the name of a type, got 'a/b'"),
        ("execution.R_lite.0.children", {str(n): "0" for n in range(101)}, "more than 100 types"),
        ("execution.nodelist", "a[1-3]", "nodelist: must be a list"),
        ("execution.nodelist", ["a[0-1]"], "names 2 hosts for 3 ranks"),
        ("execution.nodelist", ["a[0-"], "expected a hostlist of at most 200,000 hosts, got 'a[0-'"),
        ("execution.nodelist", [7], "expected a hostlist of at most 200,000 hosts, got 7"),
        ("execution.nodelist", ["a[0-99999999]"], "expected a hostlist of at most 200,000 hosts, got 'a[0-99999999]'"),
        ("execution.nodelist", ["a/b", "c", "d"], "has a slash"),
        ("execution.nodelist", ["a" + "1" * 30, "c", "d"], "is too large"),
        ("execution.properties", ["fat"], "properties: must be a mapping"),
        ("execution.properties", {"fat": 0}, "properties.fat: expected an idset such as '0-3,7', got 0"),
        ("execution.properties", {3: "0"}, "properties: expected a string as a name, got 3"),
    ],
)
def test_a_bad_r_names_the_field(path: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidGraph) as caught:
        Matcher(broken(path, value), load_format="rv1exec")
    assert message in str(caught.value)
    assert caught.value.errno == errno.EPROTO


@pytest.mark.parametrize("value", [None, "", "[", 3, [], "a: &x 1\nb: *x"])
def test_what_is_no_r_at_all_is_an_error(value: Any) -> None:
    with pytest.raises(InvalidGraph, match=r"^R"):
        Matcher(value, load_format="rv1exec")


def test_properties_of_many_ranks_are_bounded() -> None:
    document = r_version_1()
    execution = document["execution"]
    execution["R_lite"], execution["nodelist"] = [{"rank": "0-99999", "children": {}}], ["n[0-99999]"]
    execution["properties"] = {f"p{n}": "0-4294967295" for n in range(51)}
    with pytest.raises(InvalidGraph, match="more than 5000000 properties"):
        Matcher(document, load_format="rv1exec")


def test_what_is_written_as_r_is_a_graph_to_load() -> None:
    rset = (
        Matcher(machine(nodes=3), match_format="rv1_nosched")
        .allocate(spec(want("node", 2, slot(1, want("core", 2)))))
        .R
    )
    assert Matcher(rset, load_format="rv1exec").stat()["by_type"] == {"cluster": 1, "node": 2, "core": 4}


def test_forms_do_not_matter_to_what_is_no_text_of_theirs() -> None:
    for load_format in ("jgf", "rv1exec", "grug"):
        for value in ("<graphml/>", "{}", machine(), object()):
            if load_format == "jgf" and isinstance(value, dict):
                continue
            with pytest.raises(FluxionError) as caught:
                Matcher(value, load_format=load_format)
            assert not isinstance(caught.value, NotSupported)
