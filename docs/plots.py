"""Draws the plots of the documentation as SVG, from docs/benchmarks.json."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).with_name("benchmarks.json")
_LEFT, _WIDTH, _BAR, _GAP = 150, 720, 13, 12
"""Pixels: where the bars begin, how wide the picture is, how high a bar is, and what is between two pairs."""


def draw(name: str) -> str:
    """One plot: a pair of horizontal bars for each row, in the colours of the page."""
    plot = json.loads(DATA.read_text())[name]
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
    return (
        f'<figure><svg class="plot" role="img" aria-label="{title}" viewBox="0 0 {_WIDTH} {y}">{"".join(parts)}</svg>'
        f"<figcaption>{title}</figcaption></figure>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}">{html.escape(text)}</text>'
