"""Text that is read natively gives the graph, and the errors, that the mapping gives."""

import json
from typing import Any

import pytest

from fluxion_cy import FluxionError, Matcher
from fluxion_cy.engine.engine import Engine
from fluxion_cy.engine.scan import scan


def document(**changes: Any) -> dict[str, Any]:
    root = {"type": "cluster", "id": 0, "rank": -1, "paths": {"containment": "/cluster0"}}
    host = {"type": "node", "basename": "h", "name": "h7", "id": 7, "uniq_id": 1, "rank": 0, "size": 1, "unit": "",
            "exclusive": False, "paths": {"containment": "/cluster0/h7"},
            "properties": {"fast": "", "é": "x"}}  # fmt: skip
    core = {"type": "core", "id": 0, "rank": 0, "paths": {"containment": "/cluster0/h7/core0"}} | changes
    nodes = [{"id": str(i), "metadata": metadata} for i, metadata in enumerate((root, host, core))]
    edges: list[dict[str, Any]] = [
        {"source": "0", "target": "1"},
        {"source": "1", "target": "2", "metadata": {"subsystem": "containment", "note": [1]}},
    ]
    return {"before": 1, "graph": {"directed": True, "nodes": nodes, "edges": edges}, "after": {"x": None}}


PLAIN: list[dict[str, Any]] = [
    {}, {"size": 2**60 // 10**3}, {"properties": {}}, {"properties": None}, {"status": 1}, {"divisible": True},
    {"unknown": [1, {"a": "b"}]}, {"name": 'a"b'}, {"name": "\u00fc"}, {"exclusive": "x"}, {"uniq_id": 12}, {"rank": 5},
    {"paths": {"containment": "/elsewhere/core0", "power": "/p/q"}}, {"unit": None}, {"id": -3},
]  # fmt: skip
WRONG: list[dict[str, Any]] = [
    {"rank": -2}, {"size": -1}, {"size": 1.5}, {"id": "x"}, {"type": ""}, {"type": 3}, {"paths": None}, {"id": 10**30},
    {"uniq_id": 2**62 + 1}, {"properties": {"a": 1}}, {"properties": []}, {"rank": None}, {"name": 1}, {"status": 2},
    {"paths": {"containment": "/again"}}, {"paths": {"containment": 3}},
]  # fmt: skip


@pytest.mark.parametrize("changes", PLAIN)
@pytest.mark.parametrize("indent", [None, 1])
def test_text_gives_the_graph_of_the_mapping_to_the_order_of_keys(changes: dict[str, Any], indent: int | None) -> None:
    given = document(**changes)
    for ascii_only in (True, False):
        text = json.dumps(given, indent=indent, ensure_ascii=ascii_only)
        assert json.dumps(Matcher(text).graph()) == json.dumps(given) == json.dumps(Matcher(text.encode()).graph())


@pytest.mark.parametrize("changes", WRONG)
def test_errors_are_those_of_the_mapping(changes: dict[str, Any]) -> None:
    with pytest.raises(FluxionError) as other:
        Matcher(document(**changes))
    with pytest.raises(FluxionError) as found:
        Matcher(json.dumps(document(**changes)))
    assert str(found.value) == str(other.value)


def test_plain_text_is_read_natively_and_other_text_leaves_nothing_behind() -> None:
    text = json.dumps(document())
    engine = Engine()
    assert scan(engine, text)
    for wrong in (
        text[:-1],
        text + "x",
        text.replace('"before": 1', '"before": '),
        "[]",
        "",
        text.replace("-1", "-01"),
    ):
        engine = Engine()
        assert not scan(engine, wrong)
        assert engine.vertices() == []
        engine.load(document())
        assert engine.dump() == document()


def test_no_cut_or_changed_byte_gives_another_graph_than_the_mapping() -> None:
    text = json.dumps(document(), separators=(",", ":"))
    for place in range(len(text)):
        for changed in (text[:place], text[:place] + "," + text[place:], text[:place] + "\0" + text[place + 1 :]):
            engine = Engine()
            if scan(engine, changed):
                assert engine.dump() == json.loads(changed)
