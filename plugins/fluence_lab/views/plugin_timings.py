"""Plugin timings: how long each plugin took, in `explain`, or by the scheduler's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fluence_lab import drawing
from fluence_lab.history import History
from fluence_lab.panels import Panel
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.words import count, listed, percent, plain, share, table

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model

_MOST_BARS: Final = 15


def plugin_timings(history: History) -> View | None:
    """The view of the scheduler's metrics; None if there are none."""
    if not history.timings:
        return None
    seconds = {name: timing["seconds"] for name, timing in history.timings.items()}
    total = sum(seconds.values())
    first = _slowest(seconds)[0]
    return View(
        "plugin-timings",
        "Plugin timings",
        f"{count(len(seconds), 'plugin')} took {_time(total)} in all. {first[0]} took the most: {_time(first[1])}, "
        f"{percent(share(first[1], total))}.",
        (seconds_figure(seconds),),
        (_timing_table(history.timings, total),),
    )


def seconds_figure(seconds: Mapping[str, float]) -> Figure:
    """The slowest plugins as bars, from {PLUGIN: seconds}."""
    shown = _slowest(seconds)[:_MOST_BARS]
    text = listed([f"{name} took {_time(spent)}" for name, spent in shown], 3)
    bars: dict[str, Any] = {
        **drawing.rows([f"{name}: {_time(spent)}" for name, spent in shown]),
        "milliseconds": [1000 * spent for _, spent in shown],
    }
    return Figure(
        "plugin-seconds", "Time by plugin", f"{text}." if text else "No plugin was called.", {"bars": bars}, _draw
    )


def seconds_table(seconds: Mapping[str, float]) -> Table:
    """All plugins with their times, the slowest first."""
    total = sum(seconds.values())
    rows = [(name, round(1000 * spent, 3), percent(share(spent, total))) for name, spent in _slowest(seconds)]
    columns = Column("Plugin"), Column("Milliseconds", numeric=True), Column("Share", numeric=True)
    return table("plugin-seconds", "Time by plugin", columns, rows, optional=True)


def _timing_table(timings: Mapping[str, Mapping[str, float]], total: float) -> Table:
    rows = []
    for name, spent in _slowest({name: timing["seconds"] for name, timing in timings.items()}):
        calls = timings[name].get("calls", 0)
        each = round(1e6 * spent / calls, 1) if calls else None
        rows.append((name, int(calls), round(spent, 3), each, percent(share(spent, total))))
    numbers = [Column(title, numeric=True) for title in ("Calls", "Seconds", "Microseconds each", "Share")]
    return table("plugins", "Plugins", (Column("Plugin"), *numbers), rows)


def _slowest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: (-item[1], item[0]))


def _time(seconds: float) -> str:
    return f"{plain(1000 * seconds)} ms" if seconds < 1 else f"{plain(seconds)} s"


def _draw(sources: Mapping[str, ColumnDataSource]) -> Model:
    return drawing.bars(sources["bars"], "milliseconds", drawing.PURPLE, "milliseconds")


PANEL: Final = Panel("plugin-timings", "Plugin timings", lambda context: plugin_timings(context.history), order=70)
