"""Draws Mermaid diagrams as SVG, without a browser. What was drawn once is kept in .cache/diagrams."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Final

KEPT: Final = Path(__file__).parents[1] / ".cache" / "diagrams"
SETTINGS: Final = {
    "theme": "base",
    "themeVariables": {"fontFamily": "Verdana, DejaVu Sans, sans-serif", "fontSize": "13px"},
    "flowchart": {"padding": 10},
    "sequence": {"mirrorActors": False},
}
"""The fonts have equal widths, those by which the text is measured. The site's style sheet has the colours."""


def draw(source: str) -> str:
    """A diagram. Raises RuntimeError where Mermaid does not understand it."""
    import mermaidx

    what = f"{mermaidx.__version__}{json.dumps(SETTINGS)}{source}"
    name = "d" + hashlib.sha256(what.encode()).hexdigest()[:12]
    kept = KEPT / f"{name}.svg"
    if not kept.exists():
        svg = mermaidx.render(source, config=SETTINGS).svg()
        KEPT.mkdir(parents=True, exist_ok=True)
        written = KEPT / f"{name}.{os.getpid()}.tmp"  # renamed when complete: another build may read the cache
        written.write_text(svg.replace("my-svg", name))  # several diagrams of one page have names of their own
        written.replace(kept)
    return kept.read_text()
