"""The dashboard's page about Slurm jobs: each job with its pods, their nodes and its state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fluence_lab import drawing
from fluence_lab.panels import Panel, PanelContext
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.words import MOST_ROWS, count, listed, span, table
from fluence_plugins.slurm_bridge.jobs.job_table import label_of
from fluence_plugins.slurm_bridge.plugin import SlurmBridgePlugin
from session_scheduler.model.columns import natural

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model

_STATES: Final = ("running", "placed", "waiting", "without a job")


class _Job(msgspec.Struct, frozen=True):
    """A Slurm job, as the labels of its pods name it; number 0: no job yet."""

    number: int
    pods: tuple[str, ...]
    nodes: tuple[str, ...]
    state: str
    text: str
    """The state of the job in the words of its pods' condition."""
    created: float


def slurm_jobs(context: PanelContext) -> View | None:
    """The view; None if the plugin is not loaded."""
    plugin = context.plugin(SlurmBridgePlugin.name)
    if not isinstance(plugin, SlurmBridgePlugin):
        return None
    jobs = _jobs(plugin.scheduler_name, context)
    states = Counter(job.state for job in jobs if job.number)
    waiting = sum(len(job.pods) for job in jobs if not job.number)
    parts = [f"{states[state]:,} {state}" for state in _STATES[:3] if states[state]]
    summary = f"{count(sum(states.values()), 'Slurm job')}{': ' + listed(parts) if parts else ''}."
    if waiting:
        summary += f" {count(waiting, 'pod')} without a job."
    return View("slurm-jobs", "Slurm jobs", summary, (_figure(jobs),), (_table(context.observed.time, jobs),))


def _jobs(scheduler_name: str, context: PanelContext) -> list[_Job]:
    """The jobs in their order in Slurm, then the pods without one."""
    objects, pods = context.pods(), context.observed.pods
    by_number: dict[int, list[int]] = {}
    for row, key in enumerate(pods.keys):
        pod = objects.get(key)
        if pod is not None and pod.spec.scheduler_name == scheduler_name:
            by_number.setdefault(label_of(pod) or 0, []).append(row)
    names = context.observed.nodes.names
    found = []
    for number, rows in sorted(by_number.items(), key=lambda item: item[0] or math.inf):
        nodes = sorted({names[node] for row in rows if (node := int(pods.nodes[row])) >= 0}, key=natural)
        waiting = [row for row in rows if pods.nodes[row] < 0]
        running = any(pods.phases[row] == "Running" for row in rows)
        state = "waiting" if waiting else "running" if running else "placed"
        reasons = dict.fromkeys(pods.reasons[row] or "" for row in waiting)
        created = [float(pods.created[row]) for row in rows if not math.isnan(pods.created[row])]
        found.append(
            _Job(
                number,
                tuple(pods.keys[row] for row in rows),
                tuple(nodes),
                state if number else _STATES[3],
                "; ".join(filter(None, reasons)),
                min(created, default=math.nan),
            )
        )
    return found


def _table(now: float, jobs: Sequence[_Job]) -> Table:
    rows = [
        (
            job.number or None,
            job.state,
            len(job.pods),
            listed(job.pods),
            listed(job.nodes, 8) or None,
            span(now - job.created),
            job.text or None,
        )
        for job in jobs[:MOST_ROWS]
    ]
    columns = (
        Column("Job", numeric=True),
        Column("State"),
        Column("Pods", numeric=True),
        Column("Such as"),
        Column("Nodes"),
        Column("Age", numeric=True),
        Column("Why it waits"),
    )
    return table("jobs", "Jobs", columns, rows, of=len(jobs))


def _figure(jobs: Sequence[_Job]) -> Figure:
    pods = Counter[str]()
    for job in jobs:
        pods[job.state] += len(job.pods)
    bars: dict[str, Any] = {
        **drawing.rows([f"{state}: {count(pods[state], 'pod')}" for state in _STATES]),
        "pods": [pods[state] for state in _STATES],
    }
    text = listed([f"{count(pods[state], 'pod')} {state}" for state in _STATES], 4)
    return Figure("pods-by-state", "Pods by the state of their job", f"{text}.", {"bars": bars}, _draw)


def _draw(sources: Mapping[str, ColumnDataSource]) -> Model:
    return drawing.bars(sources["bars"], "pods", drawing.BLUE, drawing.PODS)


PANEL: Final = Panel("slurm-jobs", "Slurm jobs", slurm_jobs, order=80)
