"""Overview: pods by phase, utilisation by resource, and both over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fluence_lab import drawing
from fluence_lab.history import NO_HISTORY, History
from fluence_lab.panels import Panel
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.words import amount, count, listed, percent, plain, share, table, verb
from session_scheduler.observation.values import Observed, Pods

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model

_PHASES: Final = ("Gated", "Pending", "Bound", "Running", "Terminating")
_MOST_POINTS: Final = 1000
"""The limit for a line: more than a screen shows, and each update sends all of them."""
_WAITING: Final = ("Gated", "Pending")
_LEAST_SAMPLES: Final = 10
"""Lines begin with so many samples: an axis of fewer seconds has no ticks."""


def overview(observed: Observed, history: History = NO_HISTORY) -> View:
    """The view of a cluster and its history."""
    phases = _phase_counts(observed.pods)
    utilised = _utilisation(observed)
    return View(
        "overview",
        "Overview",
        _summary(observed, phases, utilised),
        (
            _utilisation_figure(utilised),
            *((_pods_figure(history), _rates_figure(history)) if len(history.times) else ()),
        ),
        (
            table("pods", "Pods", (Column("Phase"), Column("Pods", numeric=True)), _phase_rows(observed, phases)),
            _resource_table(utilised),
            problem_table(observed.problems),
        ),
    )


def _phase_counts(pods: Pods) -> dict[str, int]:
    """How many pods are in each phase; the phases are in the order of a pod's life."""
    found, numbers = np.unique(np.array(pods.phases, dtype=np.str_), return_counts=True)
    counted = dict(zip(found.tolist(), numbers.tolist(), strict=True))
    return {phase: counted.get(phase, 0) for phase in _PHASES} | counted


def problem_table(problems: Mapping[str, str]) -> Table:
    """The objects that the scheduler cannot use."""
    columns = Column("Object"), Column("Problem")
    return table("problems", "Invalid objects", columns, sorted(problems.items()), optional=True)


def _waiting_count(observed: Observed) -> int:
    """How many pods wait, in all namespaces."""
    phases = _phase_counts(observed.pods)
    return sum(phases[phase] for phase in _WAITING) + observed.hidden.get("pending", 0)


def _phase_rows(observed: Observed, phases: Mapping[str, int]) -> list[tuple[str, int]]:
    rows = list(phases.items())
    hidden = [
        (f"{name.capitalize()}, in other namespaces", number)
        for name, number in observed.hidden.items()
        if name in ("pending", "running") and number
    ]
    return rows + hidden


def _summary(observed: Observed, phases: Mapping[str, int], utilised: list[tuple[str, float, float]]) -> str:
    pending = _waiting_count(observed)
    running = phases["Running"] + observed.hidden.get("running", 0)
    nodes = len(observed.nodes.names)
    bound = phases["Bound"]
    starting = f", {bound:,} {verb(bound, 'is', 'are')} bound" if bound else ""
    text = (
        f"{count(pending, 'pod')} {verb(pending, 'is', 'are')} pending{starting} and {running:,} "
        f"{verb(running, 'runs', 'run')} on {count(nodes, 'node')}."
    )
    if utilised:
        shares = [f"{percent(share(used, whole))} of {name}" for name, used, whole in utilised]
        text += f" Pods request {listed(shares, 4)}."
    if observed.problems:
        wrong = len(observed.problems)
        text += f" {count(wrong, 'object')} {verb(wrong, 'is', 'are')} invalid."
    return text


# ------------------------------------------------------------------ utilisation


def _utilisation(observed: Observed) -> list[tuple[str, float, float]]:
    """Each resource that a node has, with what is allocated and allocatable in all."""
    nodes = observed.nodes
    used, whole = nodes.allocated.sum(axis=0), nodes.allocatable.sum(axis=0)
    found = zip(nodes.resources, used.tolist(), whole.tolist(), strict=True)
    return [(name, part, total) for name, part, total in found if part or total]


def _resource_table(utilised: list[tuple[str, float, float]]) -> Table:
    numeric = [Column(title, numeric=True) for title in ("Allocated", "Allocatable", "Free", "Allocated share")]
    rows = [
        (name, amount(name, used), amount(name, whole), amount(name, whole - used), percent(share(used, whole)))
        for name, used, whole in utilised
    ]
    return table("resources", "Resources", (Column("Resource"), *numeric), rows)


def _utilisation_figure(utilised: list[tuple[str, float, float]]) -> Figure:
    names = [name for name, _, _ in utilised]
    shares = [100 * share(used, whole) for _, used, whole in utilised]
    text = ", ".join(f"{name} {plain(round(part))} %" for name, part in zip(names, shares, strict=True))
    bars: dict[str, Any] = {
        **drawing.rows([f"{name}: {plain(round(part))} %" for name, part in zip(names, shares, strict=True)]),
        "share": shares,
    }
    return Figure(
        "utilisation",
        "Utilisation by resource",
        f"Allocated across all nodes: {text}." if text else "No node has resources.",
        {"bars": bars},
        _draw_utilisation,
    )


def _draw_utilisation(sources: Mapping[str, ColumnDataSource]) -> Model:
    return drawing.bars(sources["bars"], "share", drawing.BLUE, "allocated (%)", 100)


# ------------------------------------------------------------------ over time


def _pods_figure(history: History) -> Figure:
    lines = _lines(history, ("pending", "running"))
    text = _last(lines, "{pending} pending and {running} running pods", "Nothing has been observed yet.")
    return Figure("over-time", "Pods over time", text, {"lines": lines}, _draw_pods, _LEAST_SAMPLES)


def _rates_figure(history: History) -> Figure:
    lines = _lines(history, ("cycles", "binds"))
    nothing = "No information about cycles; set --scheduler-metrics or --prometheus to show them."
    text = _last(lines, "{cycles} cycles and {binds} binds per second", nothing)
    return Figure("rates", "Cycles and binds per second", text, {"lines": lines}, _draw_rates, _LEAST_SAMPLES)


def _lines(history: History, names: tuple[str, ...]) -> dict[str, Any]:
    """The series at the times at which all are known; the last value of each step where there are many."""
    empty = np.full(len(history.times), np.nan)
    columns = {name: history.series.get(name, empty) for name in names}
    known = np.flatnonzero(~np.isnan([*columns.values()]).any(axis=0))
    shown = known[_last_of_steps(history.times[known])]
    return {"time": 1000 * history.times[shown], **{name: column[shown] for name, column in columns.items()}}


def _last_of_steps(times: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which times to draw. A step is a power of two in seconds, so that it seldom changes while time passes."""
    if len(times) <= _MOST_POINTS:
        return np.ones(len(times), np.bool_)
    step = 2.0 ** math.ceil(math.log2((times[-1] - times[0]) / _MOST_POINTS))
    steps = np.floor(times / step)
    return np.append(steps[1:] != steps[:-1], True)  # the last one


def _last(lines: Mapping[str, Any], text: str, nothing: str) -> str:
    """The newest numbers in words. `nothing`: the words if there are none."""
    if not len(lines["time"]):
        return nothing
    last = text.format(**{name: plain(float(column[-1])) for name, column in lines.items() if name != "time"})
    minutes = (lines["time"][-1] - lines["time"][0]) / 60_000
    return f"At the end of {plain(round(minutes, 1))} minutes: {last}." if minutes else f"{last}."


def _draw_pods(sources: Mapping[str, ColumnDataSource]) -> Model:
    return _draw_lines(sources["lines"], ("pending", "running"), drawing.PODS)


def _draw_rates(sources: Mapping[str, ColumnDataSource]) -> Model:
    return _draw_lines(sources["lines"], ("cycles", "binds"), "per second")


def _draw_lines(source: ColumnDataSource, names: tuple[str, str], label: str) -> Model:
    from bokeh.models import DataRange1d

    made = drawing.plot(x_axis_type="datetime", y_range=DataRange1d(start=0))
    for name, colour, dash in zip(names, (drawing.VERMILION, drawing.BLUE), ("solid", "dashed"), strict=True):
        made.line("time", name, color=colour, line_dash=dash, line_width=2, legend_label=name, source=source)
    made.yaxis.axis_label = label
    if label == drawing.PODS:
        drawing.count_pods(made.yaxis[0])
    drawing.times(made)
    drawing.legend(made)
    return made


PANEL: Final = Panel("overview", "Overview", lambda context: overview(context.observed, context.history), order=10)
