"""The result of `fluence status`: what pods hold, and which wait and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fluence_lab.view import Column, Table, View
from fluence_lab.views.overview import problem_table
from fluence_lab.views.simulated import reason_figure
from fluence_lab.words import MOST_REPORT_ROWS, count, listed, sentence, table, verb


def status(result: Mapping[str, Any]) -> View:
    """The view of the command's JSON; its queues have a view of their own."""
    held, waiting = result["held"], result["waiting"]
    reasons = Counter(pod["reason"] for pod in waiting)
    summary = f"{count(len(held), 'pod')} {verb(len(held), 'is', 'are')} on nodes, and {len(waiting):,} "
    summary += f"{verb(len(waiting), 'waits', 'wait')}."
    if reasons:
        reason, most = reasons.most_common(1)[0]
        summary += f" The most frequent reason, for {count(most, 'pod')}: {sentence(str(reason))}"
    tables = _waiting(waiting), _held(held), problem_table(result["summary"].get("problems", {}))
    return View("status", "Pods", summary, (reason_figure(reasons),), tables)


def _waiting(pods: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (f"{pod['namespace']}/{pod['name']}", pod["group"], pod["queue"], pod["since"], pod["nominated"], pod["reason"])
        for pod in pods
    ]
    columns = map(Column, ("Pod", "Gang", "Queue", "Since", "Nominated node", "Reason"))
    return table("waiting", "Pending pods", columns, rows, most=MOST_REPORT_ROWS, optional=True)


def _held(pods: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            f"{pod['namespace']}/{pod['name']}",
            pod["group"],
            pod["queue"],
            pod["node"],
            pod["jobid"],
            listed(pod["devices"], 8),
            pod["since"],
            pod["until"],
        )
        for pod in pods
    ]
    columns = map(Column, ("Pod", "Gang", "Queue", "Node", "jobid", "Devices", "Since", "Until"))
    return table("held", "Pods on nodes", columns, rows, most=MOST_REPORT_ROWS, optional=True)
