"""Gangs and their members over time: when they waited, started, ran and were evicted, and maintenance windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fluence_lab import drawing
from fluence_lab.history import NO_HISTORY, History, Stay
from fluence_lab.panels import Panel, PanelContext
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.words import MOST_ROWS, count, listed, sentence, span, table, verb
from session_scheduler.observation.values import Gang, Observed

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model

_MOST_GANGS: Final = 25
_MOST_MEMBERS: Final = 60


class Window(msgspec.Struct, frozen=True):
    """A maintenance window; times in seconds since 1970."""

    start: float
    end: float
    text: str


class _Row(msgspec.Struct, frozen=True):
    """A row of the chart: a gang or a member."""

    label: str
    members: tuple[Stay, ...]


def gangs(
    observed: Observed,
    history: History = NO_HISTORY,
    query: Mapping[str, str] | None = None,
    windows: Sequence[Window] = (),
) -> View:
    """The view. `query`: {"gang": the gang (NAMESPACE/NAME) whose members to show}."""
    chosen = (query or {}).get("gang", "")
    known = {_key(gang): gang for gang in observed.gangs}
    names = [chosen] if chosen else _shown(observed, history)
    members = _members(observed, history, set(names))
    if chosen:
        stays = members.get(chosen, [])
        rows = [_Row(stay.key, (stay,)) for stay in stays[:_MOST_MEMBERS]]
    else:
        rows = [_Row(name, tuple(members[name])) for name in names if members.get(name)]
    tables = [_gang_table(observed)]
    if chosen:
        tables.append(_member_table(observed, members.get(chosen, [])))
    summary = _summary(observed)
    if chosen:
        summary += _chosen_in_words(chosen, known.get(chosen), members.get(chosen, []))
    return View("gangs", "Gangs", summary, (_chart(observed, rows, windows),), tuple(tables))


def _key(gang: Gang) -> str:
    return f"{gang.namespace}/{gang.name}"


def _summary(observed: Observed) -> str:
    known = observed.gangs
    waiting = sum(gang.placed < gang.min_count for gang in known)
    partial = sum(gang.pending > 0 and gang.placed >= gang.min_count for gang in known)
    needs = f"{verb(waiting, 'waits', 'wait')} for {verb(waiting, 'its', 'their')} minimum number of pods"
    text = f"{count(len(known), 'gang')}"
    text += f": {waiting:,} {needs}" if known else ""
    text += f", {partial:,} {verb(partial, 'runs', 'run')} with pending pods." if partial else "."
    hidden = observed.hidden.get("gangs", 0)
    if hidden:
        text += f" {hidden:,} more {verb(hidden, 'is', 'are')} in other namespaces."
    return text


def _chosen_in_words(name: str, gang: Gang | None, stays: Sequence[Stay]) -> str:
    if gang is None and not stays:
        return f" Gang {name} was not found."
    text = f" {name} has {count(len(stays), 'member')}"
    if gang is None:
        return f"{text}; all are gone."
    text += f", {gang.placed:,} placed, and needs {gang.min_count:,}."
    return f"{text} Reason for waiting: {gang.reason}" if gang.reason else text


# ------------------------------------------------------------------ members


def _shown(observed: Observed, history: History) -> list[str]:
    """The gangs of the chart: those that wait, the longest waiting first, then the newest."""
    waiting = sorted(
        (gang for gang in observed.gangs if gang.pending), key=lambda gang: (_first(gang.created), gang.name)
    )
    others = [(gang.created, _key(gang)) for gang in observed.gangs if not gang.pending]
    others += [(stay.created, _group(stay)) for stay in history.stays if stay.group is not None]
    newest = sorted(others, key=lambda item: (-_first(item[0], 0.0), item[1]))
    names = dict.fromkeys([*map(_key, waiting), *(name for _, name in newest)])
    return list(names)[:_MOST_GANGS]


def _first(time: float, missing: float = math.inf) -> float:
    return missing if math.isnan(time) else time


def _group(stay: Stay) -> str:
    return f"{stay.key.partition('/')[0]}/{stay.group}"


def _members(observed: Observed, history: History, names: set[str]) -> dict[str, list[Stay]]:
    """The live and gone members of these gangs, in the order of their creation."""
    pods = observed.pods
    wanted = {name.partition("/")[2] for name in names}
    found: dict[str, list[Stay]] = {}
    for row, group in enumerate(pods.groups):
        if group is None or group not in wanted:
            continue
        node = int(pods.nodes[row])
        stay = Stay(
            pods.keys[row],
            group,
            pods.queues[row],
            observed.nodes.names[node] if node >= 0 else None,
            float(pods.created[row]),
            float(pods.bound[row]),
            float(pods.started[row]),
            math.nan,
        )
        if _group(stay) in names:
            found.setdefault(_group(stay), []).append(stay)
    for stay in history.stays:
        if stay.group is not None and _group(stay) in names:
            found.setdefault(_group(stay), []).append(stay)
    return {name: sorted(stays, key=lambda stay: _first(stay.created)) for name, stays in found.items()}


# ------------------------------------------------------------------ chart


def _spans(members: Iterable[Stay], now: float) -> dict[str, tuple[float, float]]:
    """When the members waited, were bound without running, and ran; each from the first to the last."""
    found: dict[str, tuple[float, float]] = {}
    for stay in members:
        end = _first(stay.ended, now)
        starts = {"waits": stay.created, "starts": stay.bound, "runs": stay.started}
        times = [starts["waits"], starts["starts"], starts["runs"], end]
        for place, (kind, start) in enumerate(starts.items()):
            if math.isnan(start):
                continue
            stop = next(time for time in times[place + 1 :] if not math.isnan(time))
            before = found.get(kind, (start, stop))
            found[kind] = min(before[0], start), max(before[1], stop, start)
    return found


def _chart(observed: Observed, rows: Sequence[_Row], windows: Sequence[Window]) -> Figure:
    now = observed.time
    kinds: dict[str, dict[str, list[Any]]] = {
        kind: {"y": [], "from": [], "to": [], "name": []} for kind in ("waits", "starts", "runs")
    }
    ended: dict[str, list[Any]] = {"x": [], "y": [], "name": []}
    evicted: dict[str, list[Any]] = {"x": [], "y": [], "name": []}
    first = now - 60
    labels = drawing.rows([row.label for row in rows])
    ys = labels["y"]
    for y, row in zip(ys, rows, strict=True):
        for kind, (start, stop) in _spans(row.members, now).items():
            for name, value in zip(kinds[kind], (y, 1000 * start, 1000 * stop, row.label), strict=True):
                kinds[kind][name].append(value)
            first = min(first, start)
        for stay in row.members:
            if not math.isnan(stay.ended):
                for name, value in zip(ended, (1000 * stay.ended, y, stay.key), strict=True):
                    (evicted if stay.evicted else ended)[name].append(value)
    latest = now + (now - first)
    near = [window for window in windows if window.end > first and window.start < latest]
    bands = {
        "from": [1000 * max(first, window.start) for window in near],
        "to": [1000 * min(latest, window.end) for window in near],
        "top": [0.9] * len(near),
        "bottom": [min(ys, default=1.0) - 0.6] * len(near),
        "name": [window.text for window in near],
    }
    labels["x"] = [1000 * first] * len(rows)
    text = "No gang was seen."
    if rows:
        text = f"The figure has {count(len(rows), 'row')} and covers the last {span(now - first)}."
    if evicted["x"]:
        text += f" {count(len(evicted['x']), 'pod')} {verb(len(evicted['x']), 'was', 'were')} evicted."
    if near:
        text += f" {sentence(listed([window.text for window in near]))}"
    present = {"x": [1000 * now, 1000 * now], "y": [0.9, ys[-1] - 0.6]} if rows else {"x": [], "y": []}
    sources: dict[str, Any] = {
        **kinds,
        "now": present,
        "ended": ended,
        "evicted": evicted,
        "windows": bands,
        "labels": labels,
    }
    return Figure("gantt", "Gangs over time", text, sources, _draw)


def _draw(sources: Mapping[str, ColumnDataSource]) -> Model:
    made = drawing.timeline(sources["labels"], base=226)
    made.quad(
        left="from", right="to", top="top", bottom="bottom", fill_color=drawing.GREY, fill_alpha=0.25, line_color=None,
        hatch_pattern="cross", hatch_color=drawing.GREY, hatch_alpha=0.5, legend_label="maintenance window",
        source=sources["windows"],
    )  # fmt: skip
    looks: dict[str, dict[str, Any]] = {
        "waits": {"color": drawing.ORANGE, "hatch_pattern": "right_diagonal_line", "hatch_color": "black"},
        "starts": {"color": drawing.YELLOW, "hatch_pattern": "dot", "hatch_color": "black"},
        "runs": {"color": drawing.BLUE},
    }
    drawing.spans(made, sources, looks)
    made.scatter(
        "x", "y", marker="circle", size=9, fill_color=drawing.GREEN, line_color="white", legend_label="ended",
        source=sources["ended"],
    )  # fmt: skip
    made.scatter(
        "x", "y", marker="x", size=12, line_width=3, color=drawing.VERMILION, legend_label="evicted",
        source=sources["evicted"],
    )  # fmt: skip
    drawing.legend(made)
    return made


# ------------------------------------------------------------------ tables


def _gang_table(observed: Observed) -> Table:
    ordered = sorted(
        observed.gangs, key=lambda gang: (not gang.pending, -gang.priority, _first(gang.created), _key(gang))
    )
    rows = [
        (
            _key(gang),
            gang.queue,
            gang.priority,
            gang.min_count,
            gang.placed,
            gang.pending,
            span(observed.time - gang.created),
            gang.reason,
        )
        for gang in ordered[:MOST_ROWS]
    ]
    numbers = [Column(title, numeric=True) for title in ("Priority", "Minimum", "Placed", "Pending", "Age")]
    columns = Column("Gang", link="gangs?gang={}"), Column("Queue"), *numbers, Column("Reason")
    return table("gangs", "Gangs", columns, rows, of=len(ordered), optional=True)


def _member_table(observed: Observed, stays: Sequence[Stay]) -> Table:
    rows = []
    for stay in stays:
        waited = (observed.time if math.isnan(stay.bound) else stay.bound) - stay.created
        ran = _first(stay.ended, observed.time) - stay.started
        state = "evicted" if stay.evicted else "ended" if not math.isnan(stay.ended) else ""
        state = state or ("pending" if stay.node is None else "runs" if not math.isnan(stay.started) else "bound")
        rows.append((stay.key, state, stay.node, span(waited), span(ran)))
    numbers = Column("Waited", numeric=True), Column("Ran", numeric=True)
    return table("members", "Members", (Column("Pod"), Column("State"), Column("Node"), *numbers), rows)


def _panel(context: PanelContext) -> View:
    return gangs(context.observed, context.history, context.query, windows_of(context))


def windows_of(context: PanelContext) -> list[Window]:
    """The maintenance windows of a loaded plugin `fluence`."""
    known = getattr(context.plugin("fluence"), "windows", ())
    return [Window(window.start, window.end, str(window)) for window in known]


PANEL: Final = Panel("gangs", "Gangs", _panel, order=50)
