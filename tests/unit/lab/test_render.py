"""Rendered views are escaped, need no network, and are equal for equal views."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import numpy as np
from tests.unit.lab.observations import NOW, nodes, observed, pod

from fluence_lab.history import History
from fluence_lab.render import embedded_json, fragments, notebook, number, page, update
from fluence_lab.view import Column, Table, View
from fluence_lab.views.gangs import gangs
from fluence_lab.views.overview import overview
from fluence_lab.views.pending import pending
from session_scheduler.observation.values import Gang

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(html: str) -> Elements:
    elements = Elements()
    elements.feed(html)
    return elements


def busy() -> View:
    known = observed(nodes(["n1"]), [pod(f"a/{EVIL}", reason=EVIL, queue=EVIL, group=EVIL)], problems={"Pod x": EVIL})
    return pending(known)


def test_names_and_reasons_cannot_add_elements() -> None:
    elements = parsed(page([busy()], EVIL))
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert not [tag for tag, attributes in elements.found if tag == "img" or "onerror" in attributes]
    assert EVIL in "".join(elements.text)


def test_a_page_has_no_reference_to_another_file_or_host() -> None:
    for tag, attributes in parsed(page([busy()], "x")).found:
        addresses = [value for name, value in attributes.items() if name in ("src", "href", "srcset", "action")]
        assert addresses == [], tag


def test_a_notebooks_output_is_a_frame_with_the_page() -> None:
    [(tag, attributes)] = parsed(notebook(busy())).found
    assert tag == "iframe"
    assert attributes["srcdoc"] == page([busy()], "Why pending")


def test_equal_views_give_equal_output() -> None:
    assert page([busy()], "x") == page([busy()], "x")
    assert json.dumps(fragments(busy()).figures) == json.dumps(fragments(busy()).figures)


def test_an_update_has_the_sources_that_the_page_drew() -> None:
    times = NOW + np.arange(10.0)
    view = overview(observed(nodes(["n1"], used=[2])), History(times, {"pending": times, "running": times}))
    changed = update(view)
    drawn = fragments(view).figures
    assert changed["figures"].keys() == drawn.keys()
    assert {name: figure["drawn"] for name, figure in changed["figures"].items()} == {
        "utilisation": True, "over-time": True, "rates": False,
    }  # fmt: skip
    assert drawn["rates"]["item"] is None
    for name, figure in changed["figures"].items():
        if not figure["drawn"]:
            continue
        text = json.dumps(drawn[name]["item"])
        for source in figure["sources"]:
            assert f'"name": "{source}"' in text
    assert changed["figures"]["over-time"]["sources"]["lines"]["pending"] == times.tolist()


def test_an_update_names_all_parts_and_empties_optional_tables() -> None:
    view = View("v", "V", "", (), (Table("t", "T", (Column("x"),), (), optional=True), Table("u", "U", (), ())))
    changed = update(view)
    assert changed["parts"] == ["table t", "table u"]
    assert changed["tables"]["t"] == ""
    assert "<p>None.</p>" in changed["tables"]["u"]
    assert "figure over-time" in update(overview(observed(), History(np.array([NOW]))))["parts"]


def test_a_plot_has_the_rule_of_its_height_and_seconds_are_its_finest_ticks() -> None:
    rows = [pod(f"a/p{row}", group=f"g{row}", reason=f"reason {row}") for row in range(3)]
    gang = Gang("a", "g0", "q", 0, 2, 1, 0, NOW, None)
    known = observed(nodes(["n1"]), rows, gangs=[gang])
    bars = fragments(pending(known)).figures["reasons"]["item"]["doc"]["roots"][0]["attributes"]
    assert bars["height"] == 94 + 2 * 34
    assert {"source": "bars", "row": 34, "base": 94, "least": 120, "most": 4000} in plain_map(bars["tags"])
    assert [each["attributes"].get("min_interval") for each in named(bars, "BasicTicker")].count(1) == 1
    chart = fragments(gangs(known)).figures["gantt"]["item"]
    finest = [each["attributes"]["min_interval"] for each in named(chart, "AdaptiveTicker")]
    assert min(finest) == 1000
    assert [each["attributes"].get("visible", True) for each in named(chart, "LegendItem")] == [
        False, True, True, False, False, False, False,
    ]  # fmt: skip


def plain_map(value: Any) -> Any:
    """A value of Bokeh's JSON without its marks of maps."""
    if isinstance(value, dict) and value.get("type") == "map":
        return {key: plain_map(each) for key, each in value["entries"]}
    return [plain_map(each) for each in value] if isinstance(value, list) else value


def named(value: Any, name: str) -> list[dict[str, Any]]:
    """The models of a class in Bokeh's JSON."""
    if isinstance(value, dict):
        own = [value] if value.get("name") == name and "attributes" in value else []
        return own + [each for one in value.values() for each in named(one, name)]
    return [each for one in value for each in named(one, name)] if isinstance(value, list) else []


def test_ids_of_elements_are_unique() -> None:
    views = [busy(), overview(observed(nodes(["n1"])))]
    ids = [attributes["id"] for _, attributes in parsed(page(views, "x")).found if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_json_in_a_script_has_no_characters_of_markup() -> None:
    text = embedded_json({"a": "</script>&\u2028"})
    assert not set("<>&\u2028").intersection(text)
    assert json.loads(text) == {"a": "</script>&\u2028"}


def test_numbers_have_separators_and_missing_ones_are_empty() -> None:
    shown = [number(value) for value in (1234567, 1.5, 2.0, np.float64(3.14159), None, float("nan"), True, "x")]
    assert shown == ["1,234,567", "1.5", "2", "3.14", "", "", "yes", "x"]


def test_a_link_has_its_value_quoted() -> None:
    view = View("v", "V", "", (), (Table("t", "T", (Column("Pod", link="pending?pod={}"),), (("a/b&c=d",),)),))
    assert 'href="pending?pod=a%2Fb%26c%3Dd"' in fragments(view).tables["t"]
