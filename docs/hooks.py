"""Hooks of the documentation site (`mkdocs.yml`): generated pages, links to the repository, diagrams drawn at build.

A page of docs/ reads the same on GitHub and on the site. A link to a file that the site does not have becomes a link to
GitHub; a file that does not exist is a warning, which ends a strict build. Mermaid diagrams and plots become SVG in the
page, so that no reader's browser asks another host.
"""

from __future__ import annotations

import html
import logging
import os
import re
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

DOCS: Final = Path(__file__).parent
ROOT: Final = DOCS.parent
sys.path[:0] = [str(ROOT)]  # MkDocs loads this file by its path

from docs import diagrams, generated, plots  # noqa: E402

GITHUB: Final = "https://github.com/converged-computing/fluence"
REF: Final = os.environ.get("FLUENCE_DOCS_REF", "main")
"""The branch or tag that links to files outside of docs/ lead to."""

_drawings: dict[str, Future[str]] = {}
"""By the text in Mermaid."""
_log = logging.getLogger("mkdocs.hooks.fluence")
_FENCE = re.compile(r"^(?P<fence>```+)[^\n]*\n.*?^(?P=fence)\s*$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"(`+).+?\1(?!`)")
"""In a table GitHub wants `\\|` for a pipe, in code, too; Python-Markdown wants a pipe there."""
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)
_DIAGRAM = re.compile(r'<pre class="diagram"><code>(.*?)</code></pre>', re.DOTALL)
_PLOT = re.compile(r"<!-- plot: (\w+) -->")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_PUBLIC = re.compile(r"^## `(?P<module>[\w.]+)`$|^\| `(?P<name>\w+)` \|", re.MULTILINE)


SEE_ALSO: Final = {
    "reference/command.md": "[Commands and options](options.md) lists all, from the code.",
    "reference/configuration.md": "[Configuration fields](fields.md) lists all with types and bounds, from the code.",
    "reference/metrics.md": "[All metrics](all-metrics.md) lists those of all programs, from the code.",
    "how-to/write-a-plugin.md": "The [Python API](../reference/api/hookspecs.md) has every hook and class.",
}
"""What stands below the title of a page, on the site alone: GitHub does not have the generated pages."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List each decision in the navigation, behind their index."""
    decisions = [f"adr/{path.name}" for path in sorted((DOCS / "adr").glob("[0-9]*.md"))]
    config.nav = _with_decisions(config.nav, ["adr/index.md", *decisions])
    return config


def _with_decisions(nav: Any, pages: list[str]) -> Any:
    if isinstance(nav, list):
        return [_with_decisions(each, pages) for each in nav]
    if isinstance(nav, dict):
        return {title: _with_decisions(each, pages) for title, each in nav.items()}
    return pages if nav == "adr/" else nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and begin to draw."""
    for path, text in generated.pages().items():
        files.append(File.generated(config, path, content=text))
    _begin_to_draw(files)
    return files


# ------------------------------------------------------------------ links


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Lead links to what the site does not have to GitHub, and public names to the API; insert plots."""
    path = page.file.src_uri
    if path == "index.md":
        page.meta["hide"] = ["navigation"]
    if path == "reference/public-names.md":
        markdown = _with_api_links(markdown)
    if path in SEE_ALSO:
        markdown = markdown.replace("\n", f"\n\n{SEE_ALSO[path]}\n", 1)
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_led(markdown[end : fence.start()], path, files), fence[0]]
        end = fence.end()
    text = "".join([*parts, _led(markdown[end:], path, files)])
    return _PLOT.sub(lambda match: plots.draw(match[1]), text)


def _led(text: str, path: str, files: Files) -> str:
    text = _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text)
    return _LINK.sub(lambda match: f"]({_target(match['target'], path, files)})", text)


def _target(target: str, path: str, files: Files) -> str:
    name, _, anchor = target.partition("#")
    if not name or ":" in name or name.startswith("/"):
        return target
    there = (DOCS / path).parent / name
    found = Path(os.path.normpath(there))
    inside = found.relative_to(DOCS).as_posix() if found.is_relative_to(DOCS) else None
    known = files.get_file_from_path(inside) if inside is not None else None
    if known is not None and known.inclusion is not InclusionLevel.EXCLUDED:
        return target
    if inside is not None and files.get_file_from_path(f"{inside}/index.md"):
        return f"{name.rstrip('/')}/index.md" + (f"#{anchor}" if anchor else "")
    if inside is not None and not found.exists():
        return target  # MkDocs says that it is not there
    if not found.exists():
        _log.warning("%s: link to %s, which does not exist", path, target)
    elif anchor and found.suffix == ".md" and anchor not in _anchors(found):
        _log.warning("%s: link to %s, which has no such heading", path, target)
    kind = "tree" if found.is_dir() else "blob"
    return f"{GITHUB}/{kind}/{REF}/{found.relative_to(ROOT).as_posix()}" + (f"#{anchor}" if anchor else "")


def _anchors(path: Path) -> set[str]:
    """The names of a page's sections, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in _HEADING.findall(path.read_text())}


def _with_api_links(markdown: str) -> str:
    module = ""

    def linked(match: re.Match[str]) -> str:
        nonlocal module
        module = match["module"] or module
        return match[0] if match["module"] else f"| [`{match['name']}`][{module}.{match['name']}] |"

    return _PUBLIC.sub(linked, markdown)


# ------------------------------------------------------------------ diagrams


def _begin_to_draw(files: Files) -> None:
    """Draw all diagrams in another process, while this one writes the pages: each takes a second or two."""
    pool = ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"))
    for file in files.documentation_pages():
        for source in _MERMAID.findall(file.content_string):
            _drawings[source.strip()] = pool.submit(diagrams.draw, source.strip())
    pool.shutdown(wait=False)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Put the diagrams in. Here, so that the search index does not have their text."""

    def drawing(match: re.Match[str]) -> str:
        try:
            return f'<div class="diagram">{_drawings[html.unescape(match[1]).strip()].result()}</div>'
        except RuntimeError as error:
            _log.warning("%s: a diagram cannot be drawn: %s", page.file.src_uri, str(error).partition("\n")[0])
            return match[0]

    return _DIAGRAM.sub(drawing, output)
