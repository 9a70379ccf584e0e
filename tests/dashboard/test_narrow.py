"""At 390 px, no text is cut: neither in the pages' own markup, nor a label of a figure."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from .browsing import Visitor
from .world import World

CUT = """() => {
  const found = [];
  const hidden = "script, style, .fluence-figure, .hidden, .skip, thead";
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    if (!node.data.trim() || node.parentElement.closest(hidden)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    for (let each = node.parentElement; each && box.width; each = each.parentElement) {
      const clips = each === document.documentElement || getComputedStyle(each).overflowX !== "visible";
      const {left, right} = each.getBoundingClientRect();
      if (clips && (box.left < left - 1 || box.right > right + 1)) found.push(node.data.trim());
    }
  }
  return found;
}"""
"""The texts that pass the sides of the window, or of an element that cuts or scrolls."""
CUT_LABELS = """() => {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "12px helvetica";
  const plots = (window.Bokeh?.documents ?? []).flatMap((each) => each.roots());
  return plots.flatMap((plot) => plot.renderers.filter((each) => each.name === "ink-label").flatMap((each) =>
    each.data_source.data.label.flatMap((label) => label.split("\\n")).filter(
      (line) => pen.measureText(line).width > 0.95 * plot.inner_width)));
}"""
"""The lines of labels that are longer than their plot, which begin near its left side."""
LONG = "a-gang-with-a-name-as-long-as-a-label-of-kubernetes-allows-it-0"


@pytest.fixture(scope="module")
def narrow(the_world: World, browser: Browser) -> list[str]:
    """The pages, with texts as long as names allow."""
    the_world.create_gang("science", LONG[:55], 2, cpu="64")
    with Visitor(browser, the_world.address) as visitor:
        visitor.sign_in(the_world.plane.token())
        return [*visitor.pages, "pending?pod=science/huge-0", f"gangs?gang=science/{LONG[:55]}"]


@pytest.mark.parametrize("width", [390, 320])
def test_no_text_is_cut(world: World, browser: Browser, narrow: list[str], width: int) -> None:
    with Visitor(browser, world.address, width=width) as visitor:
        visitor.sign_in(world.plane.token())
        cut = {}
        for path in narrow:
            visitor.open(path)
            visitor.page.wait_for_timeout(300)  # until Bokeh has measured its plots
            cut[path] = visitor.page.evaluate(CUT)
            if width == 390:
                cut[path] += visitor.page.evaluate(CUT_LABELS)
        assert {path: texts for path, texts in cut.items() if texts} == {}


def test_a_row_is_a_card_with_the_titles_of_its_columns(world: World, browser: Browser) -> None:
    with Visitor(browser, world.address, width=390) as visitor:
        visitor.sign_in(world.plane.token())
        visitor.open("gangs")
        cell = visitor.page.locator('[data-table="gangs"] tbody td').first
        assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"Queue"'
        assert visitor.page.get_by_role("columnheader", name="Queue").count() == 1  # for screen readers, too
        assert visitor.page.get_by_role("rowheader", name="science/too-large").count() == 1
