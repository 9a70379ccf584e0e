"""For any graph: writing gives the input back, and a written R can be allocated again."""

import copy
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxion_cy import Busy, FluxionError, Matcher
from fluxion_cy.base.ranges import hostlist, idset
from fluxion_cy.engine.encoding import hostlist_text, idset_text

from ....tools.examples import examples
from ....unit.fluxion_cy.graphs import Graph, slot, spec, want
from ....unit.fluxion_cy.rfc40 import complaints

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
MORE = st.dictionaries(st.sampled_from(["", "x", "label", "uuid", "Größe", "relation", "weight"]), VALUES, max_size=3)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1, max_size=5)
HOSTS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/,[] "), min_size=1, max_size=5)


def shuffled(draw: st.DrawFn, value: dict[str, Any]) -> dict[str, Any]:
    """The same mapping with its keys in another order."""
    return {key: value[key] for key in draw(st.permutations(list(value)))}


@st.composite
def odd_graphs(draw: st.DrawFn) -> dict[str, Any]:
    """JGF with unusual ids, unknown keys in every position and a second subsystem over the same vertices."""
    graph = Graph()
    root = graph.add("cluster", 0, **draw(MORE))
    for rank in range(draw(st.integers(1, 3))):
        node = graph.add("node", rank, root, rank=rank, name=f"n{rank}{draw(HOSTS)}", **draw(MORE))
        for number in range(draw(st.integers(1, 3))):
            optional = draw(st.fixed_dictionaries({}, optional={
                "size": st.integers(1, 9), "unit": WORDS | st.none(), "exclusive": st.booleans(), "rank": st.just(rank),
                "properties": st.dictionaries(WORDS, WORDS, max_size=2) | st.none(), "status": st.just(0),
                "divisible": st.booleans(), "basename": WORDS, "uniq_id": st.integers(100 + number, 100 + number),
            }))  # fmt: skip
            graph.add("core", number, node, **optional, **draw(MORE))
    document = graph.jgf()
    return draw(decorated(document))


@st.composite
def decorated(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    nodes, edges = document["graph"]["nodes"], document["graph"]["edges"]
    names = {node["id"]: draw(NAMES) + node["id"] for node in nodes}
    for node in nodes:
        node["metadata"].setdefault("uniq_id", int(node["id"]))
        node["id"] = names[node["id"]]
        if draw(st.booleans()):
            node["metadata"]["paths"]["power"] = draw(WORDS)
    for edge in edges:
        edge["source"], edge["target"] = names[edge["source"]], names[edge["target"]]
        if draw(st.booleans()):
            edge["metadata"] = {**draw(MORE), "subsystem": "containment"}
    for node in nodes[1:]:
        if draw(st.booleans()):
            metadata = {"subsystem": "power", "relationship": "feeds"}
            edges.append({"source": nodes[0]["id"], "target": node["id"], "metadata": metadata, **draw(MORE)})
    graph = {**draw(MORE), **document["graph"]}
    graph["nodes"] = [
        shuffled(draw, {**draw(MORE), **node, "metadata": shuffled(draw, node["metadata"])}) for node in nodes
    ]
    graph["edges"] = [shuffled(draw, {**draw(MORE), **edge}) for edge in edges]
    return shuffled(draw, {**draw(MORE), "graph": shuffled(draw, graph)})


@settings(max_examples=examples(150), deadline=None)
@given(odd_graphs())
def test_writing_a_graph_gives_back_every_key_and_its_position(document: dict[str, Any]) -> None:
    before = copy.deepcopy(document)
    matcher = Matcher(document)
    assert json.dumps(matcher.graph()) == json.dumps(before)
    assert document == before
    assert json.dumps(Matcher(json.dumps(before)).clone().graph()) == json.dumps(before)


@settings(max_examples=examples(60), deadline=None)
@given(odd_graphs(), st.integers(1, 3), st.booleans())
def test_an_r_of_any_graph_is_rfc40_and_can_be_allocated_again(
    document: dict[str, Any], count: int, whole: bool
) -> None:
    matcher = Matcher(document, match_format="rfc40")
    node = want("node", 1, slot(1, want("core", count)), **({"exclusive": True} if whole else {}))
    try:
        job = matcher.allocate(spec(node, duration=10))
    except Busy:
        return
    assert complaints(job.R) == []
    assert json.loads(json.dumps(job.R)) == job.R
    matcher.cancel(job.jobid)
    assert matcher.update_allocate(9, job.R).R == job.R


def cores_in(document: Any) -> set[str]:
    nodes = document["graph"]["nodes"] if document else []
    return {node["id"] for node in nodes if node["metadata"]["type"] == "core"}


@pytest.mark.parametrize("form", ["jgf", "jgf_shorthand", "rv1", "rv1_shorthand", "rv1_nosched", "rfc40"])
@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 4), st.booleans(), st.integers(1, 9))
def test_allocating_an_r_again_leaves_equal_free_resources(
    form: str, cores: list[int], count: int, whole: bool, duration: int
) -> None:
    graph = Graph()
    root = graph.add("cluster", 0)
    for rank, number in enumerate(cores):
        node = graph.add("node", rank, root, rank=rank)
        for i in range(number):
            graph.add("core", i, node, rank=rank)
    first, second = (Matcher(graph.jgf(), match_format=form) for _ in range(2))
    asked = want("node", 1, slot(1, want("core", count)), **({"exclusive": True} if whole else {}))
    try:
        job = first.allocate(spec(asked, duration=duration))
    except Busy:
        return
    second.update_allocate(job.jobid, job.R)
    for matcher in (first, second):
        assert matcher.partial_cancel(1, {"version": 1, "execution": {"R_lite": []}}) is False
    free = [matcher.find("sched-now=free") for matcher in (first, second)]
    if form == "rv1_nosched":  # names cores alone, and with all of them the node
        assert cores_in(free[0]) == cores_in(free[1])
    else:
        assert free[0] == free[1]


@given(st.sets(st.integers(0, 200)))
def test_idsets_round_trip(numbers: set[int]) -> None:
    spans = idset(idset_text(numbers))
    assert sorted(n for low, high in spans for n in range(low, high + 1)) == sorted(numbers)


STEMS = st.sampled_from(["", "n", "node-", "rack1-n", "a0b"])


@given(st.lists(st.tuples(STEMS, st.integers(0, 120), st.integers(0, 4)), max_size=12))
def test_hostlists_round_trip(parts: list[tuple[str, int, int]]) -> None:
    names = [f"{stem}{str(number).zfill(width)}" for stem, number, width in parts]
    assert hostlist(hostlist_text(names)) == names


RECIPE = (
    '<graphml><key id="t" for="node" attr.name="type" attr.type="string"/><key id="r" for="node" attr.name="root" '
    'attr.type="int"/><key id="m" for="edge" attr.name="multi_scale" attr.type="int"/><graph edgedefault="directed">'
    '<node id="a"><data key="t">cluster</data><data key="r">1</data></node>'
    '<node id="b"><data key="t">node</data></node><edge source="a" target="b"><data key="m">3</data></edge>'
    "</graph></graphml>"
)
RSET = json.dumps({
    "version": 1,
    "execution": {
        "R_lite": [{"rank": "0-1", "children": {"core": "0-3"}}], "nodelist": ["n[0-1]"], "properties": {"p": "1"},
        "starttime": 0, "expiration": 9,
    },
})  # fmt: skip


@st.composite
def spoiled(draw: st.DrawFn, text: str) -> str:
    """The text with a few pieces removed, doubled or replaced."""
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, len(text)))
        last = min(len(text), first + draw(st.integers(0, 8)))
        word = draw(
            st.sampled_from(
                ["", text[first:last] * 2, "0", "-", "99", "99999999", "9" * 30, "[", '"', "<", "null", "\x00", "é"]
            )
        )
        text = text[:first] + word + text[last:]
    return text


def rendered(text: str, load_format: str) -> object:
    return Matcher(text, load_format=load_format).graph()


def refusal(step: Callable[[], object]) -> str | None:
    """The message of a FluxionError, None without one; any other error passes through."""
    try:
        step()
    except FluxionError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("load_format", "text"), [("grug", RECIPE), ("rv1exec", RSET)])
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_damaged_text_loads_or_gives_an_error_of_one_line(load_format: str, text: str, data: st.DataObject) -> None:
    for form in (text, data.draw(spoiled(text))):
        message = refusal(partial(rendered, form, load_format))
        assert message is None or (form != text and "\n" not in message)


@settings(max_examples=examples(200), deadline=None)
@given(spoiled(RSET))
def test_a_damaged_r_is_allocated_or_an_error_without_leftovers(text: str) -> None:
    matcher = Matcher(RSET, load_format="rv1exec", match_format="rv1")
    before = matcher.find("sched-now=free")
    for step in (matcher.update_allocate, matcher.partial_cancel):
        message = refusal(partial(step, 1, text))
        assert message is None or "\n" not in message
    matcher.cancel(1, missing_ok=True)
    assert matcher.find("sched-now=free") == before
