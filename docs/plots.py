"""Draws the plots of the documentation as SVG, from docs/benchmarks.json."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).with_name("benchmarks.json")
_LEFT, _WIDTH, _BAR, _GAP = 150, 720, 13, 12
"""Pixels: where the bars begin, how wide the picture is, how high a bar is, and what is between two pairs."""


_PANEL, _HEIGHT, _MARGIN = 240, 170, 34
"""Pixels: how wide and how high a panel of lines is, with its margin on the left."""
_COLOURS: Final = "#b0bec5 #5c6bc0 #ef6c00 #2e7d32 #8e24aa"
"""Those of the lines outside of the site, which has its own for light and dark."""


def draw(name: str) -> str:
    """One plot as a figure, in the colours of the page: panels of lines, or bars."""
    plot = json.loads(DATA.read_text())[name]
    title = html.escape(plot["title"])
    return f"<figure>{lines(plot) if 'panels' in plot else _bars(plot)}<figcaption>{title}</figcaption></figure>"


def lines(plot: Mapping[str, Any], *, alone: bool = False) -> str:
    """Panels side by side that share the x-axis and the series; with its own colours if it stands `alone`.

    The data: "title", "x" (its title), "series" (their names), and "panels" with "title" and "rows": x, and a value for
    each series.
    """
    parts = []
    for number, series in enumerate(plot["series"]):
        x = _MARGIN + number * 140
        parts += [f'<path class="l{number}" d="M{x} 10h20"/>', _text(x + 26, 14, series)]
    for number, panel in enumerate(plot["panels"]):
        parts.append(f'<g transform="translate({number * _PANEL} 40)">{_panel(panel, plot["x"])}</g>')
    width, title = _PANEL * len(plot["panels"]), html.escape(plot["title"])
    style = ""
    if alone:
        rules = " ".join(f".l{number}{{stroke:{colour}}}" for number, colour in enumerate(_COLOURS.split()))
        style = f"<style>text{{font-family:sans-serif}} path{{fill:none;stroke:#888;stroke-width:2}} {rules}</style>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" aria-label="{title}" '
        f'viewBox="0 0 {width} {_HEIGHT + 80}">{style}{"".join(parts)}</svg>'
    )


def _panel(panel: Mapping[str, Any], x_title: str) -> str:
    rows = panel["rows"]
    left, right = rows[0][0], rows[-1][0]
    low, high = (pick(value for _, *values in rows for value in values) for pick in (min, max))
    x_scale, y_scale = (_PANEL - _MARGIN - 14) / (right - left), _HEIGHT / ((high - low) or 1)

    def at(x: float, y: float) -> str:
        return f"{_MARGIN + (x - left) * x_scale:.1f} {14 + (high - y) * y_scale:.1f}"

    bottom = 14 + _HEIGHT
    parts = [_text(_MARGIN, 6, panel["title"]), f'<path class="axis" d="M{_MARGIN} 14V{bottom}H{_PANEL - 14}"/>']
    parts += [_text(_MARGIN - 5, y, f"{value:,.0f}", "end", 11) for y, value in ((20, high), (bottom, low))]
    parts += [
        _text(_MARGIN, bottom + 15, f"{left:g}", size=11),
        _text(_PANEL - 14, bottom + 15, f"{right:g}", "end", 11),
    ]
    parts.append(_text((_MARGIN + _PANEL) / 2, bottom + 15, x_title, "middle", 11))
    for number in range(len(rows[0]) - 1):
        points = "L".join(at(row[0], row[1 + number]) for row in rows)
        parts.append(f'<path class="l{number}" d="M{points}"/>')
    return "".join(parts)


def _bars(plot: Mapping[str, Any]) -> str:
    """A pair of horizontal bars for each row."""
    most = max(max(values) for _, *values in plot["rows"])
    scale = (_WIDTH - _LEFT - 70) / most
    parts, y = [], 28
    for number, series in enumerate(plot["series"]):
        x = _LEFT + number * 170
        parts += [f'<rect class="s{number}" x="{x}" y="4" width="12" height="12"/>', _text(x + 18, 14, series)]
    for label, *values in plot["rows"]:
        parts.append(_text(_LEFT - 8, y + _BAR + 4, label, "end"))
        for number, value in enumerate(values):
            top = y + number * _BAR
            width = round(value * scale, 1)
            parts.append(f'<rect class="s{number}" x="{_LEFT}" y="{top}" width="{width}" height="{_BAR - 1}"/>')
            parts.append(_text(_LEFT + width + 5, top + 10, f"{value:,}", size=11))
        y += _BAR * len(values) + _GAP
    title = html.escape(plot["title"])
    return f'<svg class="plot" role="img" aria-label="{title}" viewBox="0 0 {_WIDTH} {y}">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}">{html.escape(text)}</text>'
