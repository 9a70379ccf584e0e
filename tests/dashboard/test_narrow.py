"""At 390 px, no text is cut: neither in the pages' own markup, nor a label of a figure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from .browsing import Visitor
from .world import World

LONG = "a-gang-whose-name-is-nearly-as-long-as-a-label-can-be-0"


@pytest.fixture(scope="module")
def narrow(the_world: World, browser: Browser) -> Iterator[list[str]]:
    """The pages, with texts as long as names allow."""
    the_world.create_gang("science", LONG, 2, cpu="64")
    with Visitor(browser, the_world.address) as visitor:
        visitor.sign_in(the_world.plane.token())
        pages = visitor.pages
    yield [*pages, "pending?pod=science/huge-0", f"gangs?gang=science/{LONG}"]
    the_world.delete_gang("science", LONG, 2)


@pytest.mark.parametrize("width", [390, 320])
def test_no_text_is_cut(world: World, browser: Browser, narrow: list[str], width: int) -> None:
    with Visitor(browser, world.address, width=width) as visitor:
        visitor.sign_in(world.plane.token())
        cut = {}
        for path in narrow:
            visitor.open(path)
            cut[path] = visitor.cut_texts + (visitor.cut_labels if width == 390 else [])
        assert {path: texts for path, texts in cut.items() if texts} == {}


def test_a_row_is_a_card_with_the_titles_of_its_columns(world: World, browser: Browser) -> None:
    with Visitor(browser, world.address, width=390) as visitor:
        visitor.sign_in(world.plane.token())
        visitor.open("gangs")
        cell = visitor.page.locator('[data-table="gangs"] tbody td').first
        assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"Queue"'
        assert visitor.page.get_by_role("columnheader", name="Queue").count() == 1  # for screen readers, too
        assert visitor.page.get_by_role("rowheader", name="science/too-large").count() == 1
