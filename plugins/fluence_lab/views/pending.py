"""Why pending: the pods that wait, by reason, with what would help; and one pod's verdicts, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from fluence_lab import drawing
from fluence_lab.panels import Panel, PanelContext
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.views.explained import changes_of, pod_figure, pod_tables
from fluence_lab.words import MOST_ROWS, count, listed, sentence, short, span, table, verb
from session_scheduler.observation.values import Observed

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model

_MOST_BARS: Final = 12
_MOST_HELP: Final = 5
"""For so many reasons, a pod is evaluated to say what would help."""
Verdicts = Callable[[str], Mapping[str, Any] | None]


class Reason(msgspec.Struct, frozen=True):
    """Pods that wait for one reason."""

    text: str
    rows: tuple[int, ...]
    """The pods' rows in `Observed.pods`; the longest waiting first."""


def pending(observed: Observed, query: Mapping[str, str] | None = None, verdicts: Verdicts = lambda _: None) -> View:
    """The view. `query`: {"search": a part of pods' names, "pod": the pod to explain}."""
    query = query or {}
    search, chosen = query.get("search", "").strip(), query.get("pod", "")
    waiting = [row for row, node in enumerate(observed.pods.nodes.tolist()) if node < 0]
    found = [row for row in waiting if search in observed.pods.keys[row]] if search else waiting
    reasons = by_reason(observed, found)
    answer = (verdicts(chosen) or None) if chosen else None
    figures: list[Figure] = [_figure(reasons)]
    tables = [_reason_table(observed, reasons, verdicts), _pod_table(observed, found)]
    if answer is not None:
        figures.append(pod_figure(answer))
        tables += pod_tables(answer)
    summary = _summary(observed, waiting, found, search, reasons)
    if chosen:
        reason = str((answer or {}).get("reason") or (answer or {}).get("summary") or "")
        summary += f" {chosen}: {sentence(reason)}" if answer is not None else f" Pending pod {chosen} was not found."
    return View("pending", "Why pending", summary, tuple(figures), tuple(tables))


def by_reason(observed: Observed, rows: Sequence[int]) -> list[Reason]:
    """The reasons of pending pods, the most frequent first."""
    groups: dict[str, list[int]] = {}
    for row in rows:
        groups.setdefault(observed.pods.reasons[row] or "not attempted yet", []).append(row)
    created = observed.pods.created
    found = [
        Reason(text, tuple(sorted(members, key=lambda row: _early(float(created[row])))))
        for text, members in groups.items()
    ]
    return sorted(found, key=lambda reason: (-len(reason.rows), reason.text))


def _early(time: float) -> float:
    return float("inf") if np.isnan(time) else float(time)


def _summary(
    observed: Observed, waiting: Sequence[int], found: Sequence[int], search: str, reasons: Sequence[Reason]
) -> str:
    hidden = observed.hidden.get("pending", 0)
    if search:
        names = f"{verb(len(found), 'has', 'have')} {search!r} in {verb(len(found), 'its name', 'their names')}"
        text = f"{count(len(found), 'pending pod')} of {len(waiting):,} {names}"
    else:
        text = f"{count(len(waiting), 'pod')} {verb(len(waiting), 'waits', 'wait')}"
    text += f", for {count(len(reasons), 'reason')}." if reasons else "."
    if reasons:
        text += f" The most frequent one, with {count(len(reasons[0].rows), 'pod')}: {sentence(reasons[0].text)}"
    if hidden:
        text += f" {hidden:,} more {verb(hidden, 'waits', 'wait')} in other namespaces."
    return text


# ------------------------------------------------------------------ tables


def _reason_table(observed: Observed, reasons: Sequence[Reason], verdicts: Verdicts) -> Table:
    rows = []
    for place, reason in enumerate(reasons):
        first = observed.pods.keys[reason.rows[0]]
        answer = verdicts(first) if place < _MOST_HELP else None
        rows.append((len(reason.rows), reason.text, changes_of(answer) if answer else "", first))
    columns = (
        Column("Pods", numeric=True),
        Column("Reason"),
        Column("Would fit if"),
        Column("Longest waiting", link="pending?pod={}"),
    )
    return table("reasons", "Reasons", columns, rows, optional=True)


def _pod_table(observed: Observed, found: Sequence[int]) -> Table:
    pods = observed.pods
    first = sorted(found, key=lambda row: (-int(pods.priorities[row]), _early(float(pods.created[row]))))
    rows = [
        (
            pods.keys[row],
            pods.groups[row],
            pods.queues[row],
            int(pods.priorities[row]),
            pods.phases[row],
            span(observed.time - float(pods.created[row])),
            pods.reasons[row],
        )
        for row in first[:MOST_ROWS]
    ]
    columns = (
        Column("Pod", link="pending?pod={}"),
        Column("Group"),
        Column("Queue"),
        Column("Priority", numeric=True),
        Column("Phase"),
        Column("Waiting for", numeric=True),
        Column("Reason"),
    )
    return table("pods", "Pending pods", columns, rows, of=len(found), optional=True)


# ------------------------------------------------------------------ figure


def _figure(reasons: Sequence[Reason]) -> Figure:
    shown = reasons[:_MOST_BARS]
    rest = sum(len(reason.rows) for reason in reasons[_MOST_BARS:])
    bars = [(len(reason.rows), short(reason.text.rstrip("."))) for reason in shown]
    if rest:
        bars.append((rest, f"{len(reasons) - len(shown):,} other reasons"))
    text = listed([f"{count(number, 'pod')}: {label}" for number, label in bars], 4)
    source: dict[str, Any] = {
        **drawing.rows([f"{number:,}: {label}" for number, label in bars]),
        "pods": [number for number, _ in bars],
    }
    return Figure("reasons", "Pods by reason", sentence(text) or "No pod waits.", {"bars": source}, _draw)


def _draw(sources: Mapping[str, ColumnDataSource]) -> Model:
    return drawing.bars(sources["bars"], "pods", drawing.VERMILION, drawing.PODS)


def _panel(context: PanelContext) -> View:
    return pending(context.observed, context.query, context.verdicts)


PANEL: Final = Panel("pending", "Why pending", _panel, order=20)
