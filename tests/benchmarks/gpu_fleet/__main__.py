"""`make bench-gpus`: the GPUs that policies allocate from Alibaba's `openb` trace, as in the paper's table.

OPENB_DIR names the folder with the trace's CSV files. For each variant and seed, BestFit, FGD and this project with
each configuration place the same pods in the same order on the same nodes. A cell has the means at 100 percent of
arrivals and at the end, in percent of all GPUs. No policy exceeds the bound; the gap is from the last configuration.

`python -m tests.benchmarks.gpu_fleet [--variants default,cpu200] [--seeds 10] [--arrivals 1.3] [--config FILE]
[--json FILE]`; `report.py` draws a plot from the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from session_scheduler.config.settings import SchedulerConfig, load_config

from . import paper, policies, product
from .bound import upper_bound
from .progress import Point, at
from .trace import ARRIVALS, NODES_FILE, Run, Shape, read_nodes, read_pods, run_of, variants_in

_FIRST_SEED: Final = 42
"""The paper's seeds begin with it, too; but its random numbers are others."""
_PAPER: Final = {"BestFit": paper.BEST_FIT, "FGD": paper.FGD}


@dataclass(frozen=True, slots=True)
class Result:
    """What a policy did in one run."""

    policy: str
    seed: int
    points: list[Point]
    seconds: float | None = None
    """The CPU seconds of this project's scheduling."""

    @property
    def allocated(self) -> tuple[float, float]:
        """At 100 percent of arrivals, and at the end."""
        return at(self.points, 100).allocated, self.points[-1].allocated


@dataclass(frozen=True, slots=True)
class Variant:
    """The results of a variant."""

    name: str
    results: list[Result]
    bound: tuple[float, float]
    """The mean over the seeds, at 100 percent of arrivals and at the end."""

    def allocated(self, policy: str) -> tuple[float, float]:
        """The mean over the seeds, at 100 percent of arrivals and at the end."""
        return _means(result.allocated for result in self.results if result.policy == policy)

    def curve(self, policy: str) -> list[dict[str, float]]:
        """The mean points over the seeds."""
        curves = [[asdict(point) for point in result.points] for result in self.results if result.policy == policy]
        return [
            {key: round(mean(point[key] for point in points), 3) for key in points[0]}
            for points in zip(*curves, strict=False)  # a run may end within the last percent
        ]


def measure(
    name: str, pods: Sequence[Shape], runs: Mapping[int, Run], configs: Mapping[str, SchedulerConfig]
) -> Variant:
    """Place a variant's runs, by seed, with every policy."""
    results, bounds = [], []
    for seed, run in runs.items():
        for result in _results(seed, run, pods, configs):
            results.append(result)
            took = "" if result.seconds is None else f", {result.seconds:.1f} CPU s"
            _log(f"{name}, seed {seed}: {result.policy} allocated {_cell(result.allocated)} %{took}")
        bounds.append((upper_bound(run, _arrived(run)), upper_bound(run, run.pods)))
        _log(f"{name}, seed {seed}: no policy allocates more than {_cell(bounds[-1])} %")
    return Variant(name, results, _means(bounds))


def _results(seed: int, run: Run, pods: Sequence[Shape], configs: Mapping[str, SchedulerConfig]) -> Iterator[Result]:
    yield Result("BestFit", seed, policies.place(run, pods, policies.BestFit))
    yield Result("FGD", seed, policies.place(run, pods, policies.Fgd))
    for name, config in configs.items():
        placed = product.place(run, config)
        yield Result(name, seed, product.replay(run, pods, placed.placements), placed.seconds)


def _arrived(run: Run) -> list[Shape]:
    """The pods until they requested 100 percent."""
    pods, requested = [], 0
    for pod in run.pods:
        if requested >= run.capacity:
            break
        pods.append(pod)
        requested += pod.total
    return pods


def table(variants: Sequence[Variant], names: Sequence[str]) -> Table:
    """A row for each variant, and their mean."""
    columns = [column for name in names for column in ([name, f"{name} (paper)"] if name in _PAPER else [name])]
    shown = Table("variant", *columns, "bound", "gap", box=None)
    rows = []
    for variant in variants:
        row: list[tuple[float, float] | None] = []
        for name in names:
            row.append(variant.allocated(name))
            if name in _PAPER:
                row.append(_PAPER[name].get(variant.name))
        last = variant.allocated(names[-1])
        row += [variant.bound, (variant.bound[0] - last[0], variant.bound[1] - last[1])]
        rows.append(row)
        shown.add_row(variant.name, *map(_cell, row))
    if len(rows) > 1:
        shown.add_row("mean", *(_cell(_means(cell for cell in cells if cell)) for cells in zip(*rows, strict=True)))
    return shown


def as_json(variants: Sequence[Variant], names: Sequence[str], arrivals: float) -> dict[str, Any]:
    """The report: amounts in percent of all GPUs."""
    return {
        "arrivals": arrivals,
        "variants": {
            variant.name: {
                "bound": variant.bound,
                "paper": {name: figures.get(variant.name) for name, figures in _PAPER.items()},
                "allocated": {name: variant.allocated(name) for name in names},
                "curves": {name: variant.curve(name) for name in names},
                "runs": [
                    {"policy": one.policy, "seed": one.seed, "allocated": one.allocated, "seconds": one.seconds}
                    for one in variant.results
                ],
            }
            for variant in variants
        },
    }


def _means(pairs: Iterator[tuple[float, float]] | Sequence[tuple[float, float]]) -> tuple[float, float]:
    first, last = zip(*pairs, strict=True)
    return mean(first), mean(last)


def _cell(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{pair[0]:.2f} / {pair[1]:.2f}"


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command. Raises SystemExit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=lambda text: text.split(","), help="default: all in OPENB_DIR")
    parser.add_argument("--seeds", type=int, default=10, help="how many, from %(default)s")
    parser.add_argument("--arrivals", type=float, default=ARRIVALS, help="requested GPUs, as a multiple of all")
    parser.add_argument("--config", type=Path, action="append", default=[], help="a configuration of this project; its "
                        "folder names the column; repeat it for more", metavar="FILE")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(words)
    folder = Path(os.environ.get("OPENB_DIR", ""))
    if not (folder / NODES_FILE).is_file():
        raise SystemExit(
            f"OPENB_DIR must name the folder with the trace's {NODES_FILE}: see docs/how-to/measure-gpu-allocation.md"
        )
    found = variants_in(folder)
    if unknown := sorted({*(options.variants or ())} - {*found}):
        raise SystemExit(f"--variants {','.join(unknown)}: {folder} has {', '.join(found)}")
    configs = {"default": SchedulerConfig(), **{path.parent.name: load_config(path) for path in options.config}}
    nodes, names = read_nodes(folder), [*_PAPER, *configs]
    variants: list[Variant] = []
    for name in options.variants or found:
        pods = read_pods(folder, name)
        seeds = range(_FIRST_SEED, _FIRST_SEED + options.seeds)
        runs = {seed: run_of(nodes, pods, seed, options.arrivals) for seed in seeds}
        variants.append(measure(name, pods, runs, configs))
        if options.json:  # after each one: all of them take hours
            options.json.write_text(json.dumps(as_json(variants, names, options.arrivals)))
    Console(width=160).print(table(variants, names))


if __name__ == "__main__":
    main()
