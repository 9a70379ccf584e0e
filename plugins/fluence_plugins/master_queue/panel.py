"""The dashboard's page about MasterQueues: their pools with quota, used and lent amounts, and their queues."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fluence_lab import drawing
from fluence_lab.panels import Panel, PanelContext
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.words import count, listed, share, span, table, verb
from fluence_plugins.master_queue.plugin import MasterQueuePlugin
from session_scheduler.model.quantity import QuantityError, parse_quantity

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model

_MOST_BARS: Final = 30
_Report = Mapping[str, Any]


async def fetch(api: Any) -> _Report:
    """The JSON of `fluence pool list`."""
    from fluence_plugins.master_queue.pool.report import read

    return await read(api, time.time())


def pools(context: PanelContext) -> View | None:
    """The view; None if the plugin is not loaded, or nothing was read yet."""
    if not isinstance(context.plugin(MasterQueuePlugin.name), MasterQueuePlugin):
        return None
    if not isinstance(context.fetched, Mapping):
        return None
    return view_of(context.fetched, problems=context.namespaces is None)


def view_of(report: _Report, *, problems: bool = True) -> View:
    """The view of the JSON of `fluence pool list`. `problems`: with their texts, which may name other objects."""
    masters = report["masterQueues"]
    rows: list[tuple[Any, ...]] = [
        (master["name"], pool["flavor"], pool["pool"], pool["state"], _age(pool["ageSeconds"]), resource, amounts)
        for master in masters
        for pool in master["pools"]
        for resource, amounts in pool["resources"].items() or (("", {}),)
    ]
    known = [pool for master in masters for pool in master["pools"]]
    active = sum(pool["state"] == "Active" for pool in known)
    summary = f"{count(len(masters), 'MasterQueue')} with {count(len(known), 'pool')}; "
    summary += f"{active:,} {verb(active, 'is', 'are')} active."
    lines = [(master["name"], line) for master in masters for line in master["problems"]] if problems else []
    tables = [_pool_table(rows), _queue_table(masters)]
    if lines:
        tables.append(table("problems", "Problems", (Column("MasterQueue"), Column("Problem")), lines))
    return View("master-queue", "MasterQueue pools", summary, (_figure(rows),), tuple(tables))


def _age(seconds: float | None) -> str | None:
    return None if seconds is None else span(seconds)


def _pool_table(rows: list[tuple[Any, ...]]) -> Table:
    columns = [*map(Column, ("MasterQueue", "Flavor", "Pool", "State")), Column("Last heard", numeric=True)]
    columns += [Column("Resource"), *(Column(title, numeric=True) for title in ("Quota", "Used", "Lent"))]
    shown = [(*row[:6], *(row[6].get(kind) for kind in ("quota", "used", "lent"))) for row in rows]
    return table("pools", "Pools", columns, shown)


def _queue_table(masters: list[_Report]) -> Table:
    columns = [*map(Column, ("MasterQueue", "Queue", "Cohort", "Stop policy"))]
    columns += [Column(title, numeric=True) for title in ("Pending workloads", "Admitted workloads")]
    keys = ("name", "cohort", "stopPolicy", "pendingWorkloads", "admittedWorkloads")
    rows = [(master["name"], *(queue[key] for key in keys)) for master in masters for queue in master["queues"]]
    return table("queues", "Queues", columns, rows)


def _figure(rows: list[tuple[Any, ...]]) -> Figure:
    """The used share of the quota, of each resource of each pool."""
    bars: dict[str, list[Any]] = {"share": [], "label": []}
    texts = []
    for row in rows:
        quota, used = _number(row[6].get("quota")), _number(row[6].get("used"))
        if quota:
            part = round(100 * share(used, quota))
            texts.append(f"{row[2]} {row[5]} {part} %")
            bars["share"].append(part)
            bars["label"].append(f"{row[2]}, {row[5]}: {row[6].get('used')} of {row[6].get('quota')} ({row[3]})")
    shown = {name: column[:_MOST_BARS] for name, column in bars.items()}
    text = f"Used: {listed(texts, 4)}." if texts else "No pool has a quota."
    sources = {"bars": {**shown, **drawing.rows(shown["label"])}}
    return Figure("used", "Used share of the pools' quotas", text, sources, _draw)


def _number(text: object) -> float:
    try:
        return float(parse_quantity(str(text), milli=True)) if text is not None else 0.0
    except QuantityError:
        return 0.0


def _draw(sources: Mapping[str, ColumnDataSource]) -> Model:
    return drawing.bars(sources["bars"], "share", drawing.BLUE, "used (%)", 100)


PANEL: Final = Panel("master-queue", "MasterQueue pools", pools, fetch=fetch, plugin=MasterQueuePlugin.name, order=90)
