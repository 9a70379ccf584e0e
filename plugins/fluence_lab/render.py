"""Renders a view: as parts of a page, as an update of a page, and as HTML that needs no other file.

Every text is escaped. Figures are drawn by Bokeh; equal views give equal output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from fluence_lab.view import Column, Figure, Source, Table, View

__all__ = [
    "FIGURE_SCRIPT",
    "FIGURE_STYLE",
    "Fragments",
    "bokeh_script",
    "element_id",
    "embedded_json",
    "fragments",
    "notebook",
    "number",
    "plain",
    "plain_columns",
    "table_html",
    "update",
]

_ID: Final = re.compile(r"p\d+")
_COLOURS: Final = """
  --bk-text-color: {text};
  --bk-axis-label-text-color: {text};
  --bk-major-label-text-color: {text};
  --bk-label-text-color: {text};
  --bk-axis-line-color: {line};
  --bk-major-tick-line-color: {line};
  --bk-minor-tick-line-color: {line};
  --fluence-ground: {ground};
"""
FIGURE_STYLE: Final = (
    ":root { color-scheme: light dark; }\n"
    f".fluence-figure {{{_COLOURS.format(text='#1a1a1a', line='#595959', ground='#ffffff')}}}\n"
    "@media (prefers-color-scheme: dark) {\n"
    f".fluence-figure {{{_COLOURS.format(text='#eeeeee', line='#a6a6a6', ground='#161616')}}}\n"
    "}\n"
)
"""CSS of the colours of axes, labels and grids, light and dark, for the elements that contain figures."""


FIGURE_SCRIPT: Final = """
async function fluenceFigure(element, item) {
  await Bokeh.embed.embed_item(item, element);
  const plot = Bokeh.documents.at(-1).roots()[0];
  const colour = () => {
    const style = getComputedStyle(element);
    const [text, ground] = [style.color, style.getPropertyValue("--fluence-ground").trim()];
    for (const {name, glyph} of plot.renderers) {
      if (name === "ink" || name === "ink-label") glyph.text_color = {value: text};
      if (name === "ink-label") glyph.background_fill_color = {value: ground};
    }
    for (const each of plot.above.filter((one) => one.type === "Legend")) each.label_text_color = text;
  };
  colour();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colour);
  return plot;
}
"""
"""JavaScript: `fluenceFigure(element, item)` embeds a figure in the colours of its page, and returns its model."""


class Fragments(msgspec.Struct, frozen=True):
    """A view's parts for a page."""

    summary: str
    """HTML."""
    tables: Mapping[str, str]
    """HTML by name: each is a <section> with a heading, the table, and how many rows are left out; or it is empty."""
    figures: Mapping[str, Mapping[str, Any]]
    """By name: {"title", "text", "item"}; `item` is what BokehJS's `embed_item` takes, None without data."""


def fragments(view: View, *, links: bool = True) -> Fragments:
    """The parts of a page that shows the view. `links`: whether the page is one of the dashboard."""
    return Fragments(
        summary=str(Markup.escape(view.summary)),
        tables={table.name: table_html(table, view.name, links=links) for table in view.tables},
        figures={
            figure.name: {
                "title": figure.title,
                "text": figure.text,
                "item": figure_item(figure, view.name) if figure.has_data else None,
            }
            for figure in view.figures
        },
    )


def update(view: View) -> dict[str, Any]:
    """What changes on a page that shows an earlier view of the same subject, as plain values."""
    return {
        "summary": str(Markup.escape(view.summary)),
        "parts": [*(f"table {table.name}" for table in view.tables), *(f"figure {each.name}" for each in view.figures)],
        "tables": {table.name: table_html(table, view.name) for table in view.tables},
        "figures": {
            figure.name: {
                "title": figure.title,
                "text": figure.text,
                "drawn": figure.has_data,
                "sources": {name: plain_columns(source) for name, source in figure.sources.items()},
            }
            for figure in view.figures
        },
    }


def notebook(view: View) -> str:
    """HTML for the output of a notebook's cell: the page in a frame, apart from other outputs and their scripts."""
    return _environment().get_template("notebook.html").render(page=page([view], view.title), title=view.title)


def page(views: Sequence[View], title: str, download: str = "") -> str:
    """A page that needs no other file and asks no server. `download`: the address of the result as JSON."""
    parts = [(view, fragments(view, links=False)) for view in views]
    items = [
        (element_id(view, name), figure["item"])
        for view, part in parts
        for name, figure in part.figures.items()
        if figure["item"] is not None
    ]
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            download=download,
            views=parts,
            element_id=element_id,
            items=embedded_json(items),
            bokeh=bokeh_script() if items else "",
            script=FIGURE_SCRIPT,
            style=FIGURE_STYLE,
        )
    )


def element_id(view: View, figure: str) -> str:
    """The id of the element that contains a figure."""
    return f"figure-{view.name}-{figure}"


def embedded_json(value: Any) -> str:
    """A value as JSON that is inert inside of a <script> element."""
    text = msgspec.json.encode(value).decode()
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


@lru_cache(1)
def bokeh_script() -> str:
    """BokehJS, from Bokeh's wheel, with what the views need."""
    from bokeh.resources import Resources

    return "\n".join(Resources(mode="inline", components=["bokeh"], minified=True).js_raw)


@lru_cache(1)
def _environment() -> Environment:
    return Environment(loader=PackageLoader("fluence_lab"), autoescape=True, trim_blocks=True, lstrip_blocks=True)


# ------------------------------------------------------------------ figures


def figure_item(figure: Figure, view: str = "") -> dict[str, Any]:
    """A drawn figure, as BokehJS's `embed_item` takes it. Its sources have their names, so that updates find them."""
    from bokeh.embed import json_item
    from bokeh.models import ColumnDataSource

    sources = {name: ColumnDataSource(dict(data), name=name) for name, data in figure.sources.items()}
    item = json_item(figure.draw(sources))
    return _with_fixed_ids(item, f"{view}-{figure.name}-")


def _with_fixed_ids(item: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Replace the ids, which count all models of this process, by numbers in the item's order."""
    ids: dict[str, str] = {}

    def fixed(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: renamed(each) if key == "id" and isinstance(each, str) else fixed(each)
                for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [fixed(each) for each in value]
        return value

    def renamed(name: str) -> str:
        return ids.setdefault(name, f"{prefix}{len(ids)}") if _ID.fullmatch(name) else name

    document = fixed(item["doc"])
    return {**item, "doc": document, "root_id": renamed(item["root_id"])}


def plain_columns(source: Source) -> dict[str, list[Any]]:
    """Columns as lists for JSON."""
    return {name: [plain(value) for value in np.asarray(column, dtype=object)] for name, column in source.items()}


def plain(value: Any) -> Any:
    """A cell as a value for JSON, which has no NaN."""
    if isinstance(value, np.generic):
        value = value.item()
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


# ------------------------------------------------------------------ tables


def table_html(table: Table, view: str = "", *, links: bool = True) -> str:
    """A table of a view with its heading, inside of a region that scrolls and can be focused.

    An optional table without rows is an empty text.
    """
    if table.optional and not table.rows:
        return ""
    rows = [
        [
            (column, number(value), _address(column, value) if links else "")
            for column, value in zip(table.columns, row, strict=True)
        ]
        for row in table.rows
    ]
    return (
        _environment()
        .get_template("table.html")
        .render(table=table, id=f"{view}-{table.name}", rows=rows, left_out=number(table.left_out))
    )


def _address(column: Column, value: Any) -> str:
    """A cell's address, or an empty text."""
    from urllib.parse import quote

    return column.link.replace("{}", quote(str(value), safe="")) if column.link and value is not None else ""


def number(value: Any) -> str:
    """A cell's text: numbers with a separator of thousands and at most two decimals, an empty text for None and NaN."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}".rstrip("0").rstrip(".")
    return str(value)
