"""The plot of a report: allocated and fragmented GPUs and refused pods against arrivals.

`python -m tests.benchmarks.gpu_fleet.report RESULT.json VARIANT FILE.svg` draws it; with docs/benchmarks.json instead
of FILE.svg, its data is stored there as `gpu_fleet`, and the documentation draws it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from docs.plots import lines

_FROM, _STEP = 80, 2
"""The first percent of arrivals shown, and the distance of points: before, all that arrives is allocated."""
_PANELS: Final = {
    "allocated": "GPUs allocated, %",
    "fragmented": "GPUs fragmented, %",
    "refused": "pods refused",
}


def plot_of(report: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """The data of a plot for `docs.plots.lines`."""
    curves = report["variants"][variant]["curves"]
    seeds = len({run["seed"] for run in report["variants"][variant]["runs"]})
    by_arrivals = [
        points
        for points in zip(*curves.values(), strict=False)
        if points[0]["arrived"] >= _FROM and points[0]["arrived"] % _STEP == 0
    ]
    return {
        "title": f"Placing the trace openb, variant {variant}: mean of {seeds} seed{'s' * (seeds > 1)}",
        "source": "how-to/measure-gpu-allocation.md",
        "x": "requested GPUs, %",
        "series": [{"default": "Fluence, by default"}.get(name, name) for name in curves],
        "panels": [
            {
                "title": title,
                "rows": [[points[0]["arrived"], *(point[key] for point in points)] for points in by_arrivals],
            }
            for key, title in _PANELS.items()
        ],
    }


def main(words: Sequence[str]) -> None:
    """Run the command."""
    result, variant, target = words
    plot, file = plot_of(json.loads(Path(result).read_text()), variant), Path(target)
    if file.suffix == ".svg":
        file.write_text(lines(plot, alone=True))
        return
    text = json.dumps({**json.loads(file.read_text()), "gpu_fleet": plot}, indent=2)
    rows = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")  # one line each
    file.write_text(rows.sub(lambda row: f"[{' '.join(row[1].split())}]", text) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
