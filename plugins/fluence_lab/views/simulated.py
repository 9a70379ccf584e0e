"""The result of `fluence simulate`: where pods were placed, which were not and why, and what changes make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fluence_lab import drawing
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.views.overview import problem_table
from fluence_lab.words import MOST_REPORT_ROWS, count, listed, sentence, short, table, verb
from session_scheduler.model.columns import natural

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model

_MOST_BARS: Final = 25


def simulated(result: Mapping[str, Any]) -> View:
    """The view of the command's JSON."""
    pods: Sequence[Mapping[str, Any]] = result["pods"]
    summary: Mapping[str, Any] = result["summary"]
    per_node = Counter(pod["node"] for pod in pods if pod["node"] is not None)
    reasons = Counter(pod["reason"] for pod in pods if pod["node"] is None)
    return View(
        "simulated",
        "Simulation",
        _summary(summary, per_node, reasons, result),
        (_node_figure(per_node), reason_figure(reasons)),
        tuple(_tables(result, reasons)),
    )


def _summary(
    summary: Mapping[str, Any], per_node: Counter[str], reasons: Counter[str], result: Mapping[str, Any]
) -> str:
    placed, not_placed = summary["scheduled"], summary["unschedulable"]
    text = f"{count(placed, 'pod')} {verb(placed, 'was', 'were')} placed on {count(len(per_node), 'node')}"
    text += f", and {count(not_placed, 'pod')} {verb(not_placed, 'is', 'are')} unschedulable."
    if reasons:
        reason, most = reasons.most_common(1)[0]
        text += f" The most frequent reason, for {count(most, 'pod')}: {sentence(str(reason))}"
    preempted = len(result.get("preempted", ()))
    if preempted:
        text += f" {count(preempted, 'pod')} {verb(preempted, 'was', 'were')} preempted."
    return text


# ------------------------------------------------------------------ figures


def _node_figure(per_node: Counter[str]) -> Figure:
    return _bars("pods-by-node", "Placed pods by node", per_node, drawing.BLUE, "No pod was placed.")


def reason_figure(reasons: Counter[str]) -> Figure:
    """Pods by reason, the most frequent ones as bars."""
    shorter = Counter[str]()
    for reason, number in reasons.items():
        shorter[short(str(reason).rstrip("."))] += number
    return _bars("pods-by-reason", "Pending pods by reason", shorter, drawing.VERMILION, "No pod waits.")


def _bars(name: str, title: str, numbers: Counter[str], colour: str, nothing: str) -> Figure:
    ordered = sorted(numbers.items(), key=lambda item: (-item[1], natural(item[0])))
    shown = ordered[:_MOST_BARS]
    bars: dict[str, Any] = {
        **drawing.rows([f"{number:,}: {label}" for label, number in shown]),
        "pods": [number for _, number in shown],
    }
    text = listed([f"{count(number, 'pod')}: {label}" for label, number in ordered], 4)
    if len(ordered) > len(shown):
        title += f" (the first {len(shown)} of {len(ordered):,})"
    return Figure(name, title, sentence(text) or nothing, {"bars": bars}, partial(_draw, colour))


def _draw(colour: str, sources: Mapping[str, ColumnDataSource]) -> Model:
    return drawing.bars(sources["bars"], "pods", colour, drawing.PODS)


# ------------------------------------------------------------------ tables


def _tables(result: Mapping[str, Any], reasons: Counter[str]) -> list[Table]:
    found = [
        table(
            "reasons", "Reasons", (Column("Pods", numeric=True), Column("Reason")),
            [(number, reason) for reason, number in reasons.most_common()], optional=True,
        ),
        _pod_table(result["pods"]),
        table(
            "groups", "Gangs",
            (Column("Gang"), Column("Minimum", numeric=True), Column("Placed", numeric=True)),
            [(_name(group), group["minCount"], group["scheduled"]) for group in result["groups"]], optional=True,
        ),
    ]  # fmt: skip
    if result.get("preempted"):
        rows = [(_name(pod), pod["node"]) for pod in result["preempted"]]
        found.append(table("preempted", "Preempted pods", (Column("Pod"), Column("Node")), rows))
    if result.get("moved"):
        moves = [(_name(pod), pod["node"], pod["to"]) for pod in result["moved"]]
        found.append(table("moved", "Moved pods", (Column("Pod"), Column("From"), Column("To")), moves))
    if result.get("leftOut"):
        left = [(_name(pod), pod["schedulerName"], pod["reason"]) for pod in result["leftOut"]]
        columns = Column("Pod"), Column("schedulerName"), Column("Reason")
        found.append(table("left-out", "Pods that no profile serves", columns, left))
    if "diff" in result:
        found.append(_diff_table(result["diff"]))
    found.append(problem_table(result["summary"].get("problems", {})))
    return found


def _name(one: Mapping[str, Any]) -> str:
    return f"{one['namespace']}/{one['name']}"


def _pod_table(pods: Sequence[Mapping[str, Any]]) -> Table:
    devices = [", ".join(pod.get("devices") or ()) for pod in pods]
    rows = [
        (_name(pod), pod["group"], pod["node"], pod["backend"], *([each] if any(devices) else []), pod["reason"])
        for pod, each in zip(pods, devices, strict=True)
    ]
    columns = [Column("Pod"), Column("Gang"), Column("Node"), Column("Backend")]
    columns += [Column("Devices")] if any(devices) else []
    return table("pods", "Pods", [*columns, Column("Reason")], rows, most=MOST_REPORT_ROWS)


def _diff_table(diff: Mapping[str, Any]) -> Table:
    rows = [(_name(pod), pod["group"], _where(pod["before"]), _where(pod["after"])) for pod in diff["pods"]]
    columns = Column("Pod"), Column("Gang"), Column("Before"), Column("After")
    return table("diff", "Changed placements", columns, rows, most=MOST_REPORT_ROWS)


def _where(decision: Mapping[str, Any] | None) -> str | None:
    if decision is None:
        return None
    return " with ".join(text for text in (decision["node"], decision["backend"]) if text) or "pending"
