"""The built site asks no other host, its diagrams are drawn, and search finds its pages: `make docs` runs this."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

SITE = Path(__file__).parents[2] / "build/site"
LOADED = {
    (tag, name)
    for name, tags in {
        "src": ("script", "img", "source", "iframe", "embed", "video", "audio"),
        "srcset": ("img", "source"), "href": ("link", "use", "image"), "xlink:href": ("use", "image"),
        "data": ("object",), "poster": ("video",),
    }.items()
    for tag in tags
}  # fmt: skip
"""The attributes whose addresses a browser loads."""
NAMES_ONLY = {"canonical", "prev", "next", "alternate"}
"""Relations of links that a browser does not load."""
_STYLE_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Loads(HTMLParser):
    """What a browser loads for a page, and the classes and components that its scripts look for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.marks: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.marks |= set(values.get("class", "").split()) | {values.get("data-md-component", "")}
        if tag == "link" and values.get("rel") in NAMES_ONLY:
            return
        self.urls += [values[name] for name in values if (tag, name) in LOADED]
        self.urls += [found for pair in _STYLE_URL.findall(values.get("style", "")) for found in pair if found]


def is_foreign(url: str) -> bool:
    return bool(urlsplit(url).netloc)


@cache
def pages() -> dict[str, str]:
    return {path.relative_to(SITE).as_posix(): path.read_text() for path in sorted(SITE.rglob("*.html"))}


def test_there_are_pages() -> None:
    assert len(pages()) > 100
    assert {"index.html", "concepts/gangs.html", "reference/api/hookspecs.html", "adr/index.html"} <= pages().keys()


def test_no_page_loads_anything_of_another_host() -> None:
    loaded = {(page, url) for page, text in pages().items() for url in Loads(text).urls if is_foreign(url)}
    assert loaded == set()


def test_no_style_loads_anything_of_another_host() -> None:
    sheets = [path.read_text() for path in SITE.rglob("*.css")]
    sheets += [
        style for text in pages().values() for style in re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL)
    ]
    urls = {url for sheet in sheets for pair in _STYLE_URL.findall(sheet) for url in pair if url}
    assert {url for url in urls if is_foreign(url)} == set()


def test_no_page_has_what_makes_the_theme_s_script_ask_another_host() -> None:
    """It loads Mermaid for the class `mermaid`, and asks GitHub about the repository for the component `source`."""
    assert {page for page, text in pages().items() if Loads(text).marks & {"mermaid", "source"}} == set()


def test_every_diagram_and_plot_is_drawn() -> None:
    drawn = {page for page, text in pages().items() if '<div class="diagram"><svg' in text}
    assert {"index.html", "concepts/architecture.html", "explanation/design.html"} <= drawn
    assert {page for page, text in pages().items() if 'class="diagram"><code>' in text or "<!-- plot" in text} == set()
    assert '<svg class="plot"' in pages()["index.html"]


@pytest.mark.parametrize("words", ["Gangs and crash safety", "bindingsInFlight", "fluence_cycles_total", "--add-nodes"])
def test_search_finds(words: str) -> None:
    index = json.loads((SITE / "search/search_index.json").read_text())
    assert any(words in entry["title"] + entry["text"] for entry in index["docs"])


def test_the_api_s_pages_have_docstrings() -> None:
    assert "Specifications of all plugin hooks" in pages()["reference/api/hookspecs.html"]
    assert 'id="session_scheduler.hookspecs.filter"' in pages()["reference/api/hookspecs.html"]
    assert 'href="api/hookspecs.html#session_scheduler.hookspecs.filter"' in pages()["reference/public-names.html"]


def test_code_in_a_table_has_no_backslash_before_a_pipe() -> None:
    cells = [cell for text in pages().values() for cell in re.findall(r"<td><code>(.*?)</code>", text)]
    assert "action &lt;drain|resume&gt;" in cells
    assert [cell for cell in cells if "\\|" in cell] == []


def test_a_link_to_a_file_of_the_repository_leads_to_github() -> None:
    ref = os.environ.get("FLUENCE_DOCS_REF", "main")
    link = f"https://github.com/converged-computing/fluence/blob/{ref}/scheduler/session_scheduler/hookspecs.py"
    assert f'href="{link}"' in pages()["how-to/write-a-plugin.html"]


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ('<script src="https://unpkg.com/x.js">', True),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', True),
        ('<img src="assets/x.png">', False),
        ('<a href="https://example.com">', False),
        ('<link rel="canonical" href="https://example.com/">', False),
        ('<p style="background: url(https://example.com/x.png)">', True),
    ],
)
def test_what_is_loaded_is_seen(text: str, foreign: bool) -> None:
    assert any(map(is_foreign, Loads(text).urls)) is foreign
