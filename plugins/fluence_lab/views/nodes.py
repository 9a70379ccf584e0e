"""Nodes and topology: how full nodes, racks and zones are, and which pods hold which GPU.

Levels of detail: with many nodes the map shows blocks (the lowest topology level, or nodes in natural order). The query
names the block whose nodes to show, or has a part of the names of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fluence_lab import drawing
from fluence_lab.panels import Panel, Search
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.words import MOST_ROWS, amount, count, listed, percent, plain, share, table, verb
from session_scheduler.observation.values import Gpu, Nodes, Observed

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model
    from bokeh.plotting import figure

MOST_NODES: Final = 500
"""With more nodes the map shows blocks."""
_BLOCK: Final = 100
"""The size of a block of nodes without topology levels."""
_ROW: Final = 40
"""The number of cells in a row of the map."""
_MOST_MARKS: Final = 12
"""With more cells in a row, a narrow screen has no room for their shares."""
_MOST_GPU_ROWS: Final = 40


class _Cell(msgspec.Struct, frozen=True):
    """One cell of the map: a node or a block."""

    row: str
    """Cells of one row label are beside each other."""
    name: str
    nodes: NDArray[np.int64]
    """The rows of its nodes."""


def nodes(observed: Observed, query: Mapping[str, str] | None = None) -> View:
    """The view.

    `query`: {"resource": what the map shows, "block": the block whose nodes to show, "node": the name of the node to
    show, or a part of several names}.
    """
    query = query or {}
    known = observed.nodes
    blocks = _blocks(known)
    chosen, node = query.get("block", ""), query.get("node", "").strip()
    shown = blocks.get(chosen, np.arange(len(known.names)))
    about = _about_block(chosen, chosen in blocks) if chosen else ""
    if node:
        shown = _named(known, shown, node)
        rows = set(shown.tolist())
        blocks = {name: own for name, own in blocks.items() if not rows.isdisjoint(own.tolist())}
        have, names = ("has", "its name") if len(shown) == 1 else ("have", "their names")
        about += f" {count(len(shown), 'node')} {have} {node!r} in {names}."
    column = known.resources.index(query["resource"]) if query.get("resource") in known.resources else 0
    detailed = len(shown) <= MOST_NODES
    cells = _node_cells(known, shown) if detailed else _block_cells(known, blocks)
    figures = [_map(known, cells, column, detailed=detailed)] if known.resources else []
    inside = set(shown.tolist())
    gpus = [gpu for gpu in known.gpus if gpu.node in inside]
    if gpus:
        figures.append(_gpu_figure(known, gpus))
    tables = [_block_table(known, blocks), _node_table(known, shown)]
    if gpus:
        tables.append(_gpu_table(known, gpus))
    summary = _summary(known, gpus) + about
    return View("nodes", "Nodes and topology", summary, tuple(figures), tuple(tables))


def _named(known: Nodes, rows: NDArray[np.int64], text: str) -> NDArray[np.int64]:
    """The rows whose node has this name; else those with the text in the name."""
    names = [known.names[row] for row in rows.tolist()]
    found = [name == text for name in names]
    return rows[np.array(found if any(found) else [text in name for name in names], np.bool_)]


def _about_block(block: str, known: bool) -> str:
    return f" Shown: {block}." if known else f" These nodes have no block {block}."


def _summary(known: Nodes, gpus: Sequence[Gpu]) -> str:
    total = len(known.names)
    unready = sum(state != "Ready" for state in known.states)
    text = count(total, "node")
    if known.levels:
        text += " in " + listed([f"{number:,} {level} domains" for level, number in _domains(known).items()])
    text += (
        f"; {count(unready, 'node')} {verb(unready, 'is', 'are')} not ready for pods." if unready else ", all ready."
    )
    if gpus:
        held = sum(sum(gpu.holders.values()) for gpu in gpus)
        text += f" Pods hold {plain(round(held, 2))} of {count(len(gpus), 'GPU')}."
    return text


def _domains(known: Nodes) -> dict[str, int]:
    """How many topology domains each level has: racks of equal names in two zones are two."""
    places = [*zip(*known.levels.values(), strict=True)]
    return {
        level: len({place[: depth + 1] for place in places if place[depth] is not None})
        for depth, level in enumerate(known.levels)
    }


# ------------------------------------------------------------------ blocks


def _blocks(known: Nodes) -> dict[str, NDArray[np.int64]]:
    """The rows of each block's nodes, by the block's name: its values of all levels, or its first and last node."""
    total = len(known.names)
    if not known.levels:
        starts = range(0, total, _BLOCK) if total > _BLOCK else ()
        spans = [(start, min(total, start + _BLOCK)) for start in starts]
        return {f"{known.names[first]} to {known.names[last - 1]}": np.arange(first, last) for first, last in spans}
    found: dict[str, list[int]] = {}
    for row, place in enumerate(zip(*known.levels.values(), strict=True)):
        found.setdefault(_place(place), []).append(row)
    return {name: np.array(rows, np.int64) for name, rows in sorted(found.items())}


def _place(values: Sequence[str | None]) -> str:
    return " / ".join(value if value is not None else "(none)" for value in values)


def _node_cells(known: Nodes, rows: NDArray[np.int64]) -> list[_Cell]:
    places = [*zip(*known.levels.values(), strict=True)] if known.levels else None
    cells = [_Cell(_place(places[row]) if places else "", known.names[row], np.array([row])) for row in rows.tolist()]
    return sorted(cells, key=lambda cell: cell.row)  # stable: nodes stay in natural order


def _block_cells(known: Nodes, blocks: Mapping[str, NDArray[np.int64]]) -> list[_Cell]:
    nested = len(known.levels) > 1
    return [_Cell(name.rpartition(" / ")[0] if nested else "", name, rows) for name, rows in blocks.items()]


# ------------------------------------------------------------------ the map


def _map(known: Nodes, cells: Sequence[_Cell], column: int, *, detailed: bool) -> Figure:
    resource = known.resources[column]
    used = _sums(known.allocated[:, column], cells)
    whole = _sums(known.allocatable[:, column], cells)
    fill = np.divide(used, whole, out=np.zeros(len(used)), where=whole > 0)
    xs, ys, labels = _places(cells)
    widest = 1 + max(xs, default=0)
    named = detailed and drawing.fit_narrow([cell.name for cell in cells], widest)
    source: dict[str, Any] = {
        "x": xs,
        "y": ys,
        "name": [cell.name for cell in cells],
        "nodes": [len(cell.nodes) for cell in cells],
        "alpha": drawing.MOST_ALPHA * np.clip(fill, 0, 1),
        "fill": [percent(each) for each in fill.tolist()],
        "mark": [
            "\n".join([*([cell.name] if named else []), *([percent(each)] if widest <= _MOST_MARKS else [])])
            for cell, each in zip(cells, fill.tolist(), strict=True)
        ],
        "amount": [_of(resource, part, total) for part, total in zip(used.tolist(), whole.tolist(), strict=True)],
    }
    what = "nodes" if detailed else "blocks"
    return Figure(
        "map",
        f"Allocated {resource} by {what[:-1]}",
        _fill_in_words(fill, what, resource),
        {"cells": source, "labels": labels},
        _draw_map,
    )


def _of(resource: str, part: float, whole: float) -> str:
    """A part of an amount: "3 of 8 cores", "512 MiB of 64 GiB"."""
    return f"{plain(part) if resource == 'cpu' else amount(resource, part)} of {amount(resource, whole)}"


def _sums(values: NDArray[np.float64], cells: Sequence[_Cell]) -> NDArray[np.float64]:
    if not cells:
        return np.zeros(0)
    rows = np.concatenate([cell.nodes for cell in cells])
    return np.asarray(np.bincount(
        np.repeat(np.arange(len(cells)), [len(cell.nodes) for cell in cells]), values[rows], len(cells)
    ))  # fmt: skip


def _places(cells: Sequence[_Cell]) -> tuple[list[int], list[float], dict[str, list[Any]]]:
    """Where the cells are, and the labels of rows: a row label begins a new row, and long rows are wrapped."""
    xs, ys = list[int](), list[float]()
    labels: dict[str, list[Any]] = {"x": [], "y": [], "label": []}
    x, y, row = 0, 1.0, None
    for cell in cells:
        if cell.row != row:
            label = drawing.wrapped(cell.row)
            y = drawing.below(y, label, 1.0 if row is None else 1.8)
            row, x = cell.row, 0
            labels["x"].append(-0.5)
            labels["y"].append(y)
            labels["label"].append(label)
        elif x == _ROW:
            x, y = 0, y - 1.0
        xs.append(x)
        ys.append(y)
        x += 1
    return xs, ys, labels


def _fill_in_words(fill: NDArray[np.float64], what: str, resource: str) -> str:
    if not len(fill):
        return "There are no nodes."
    full, empty = int((fill >= 0.95).sum()), int((fill <= 0.05).sum())
    return (
        f"Of {count(len(fill), what[:-1])}, {full:,} {verb(full, 'has', 'have')} at least 95 % of {resource} "
        f"allocated, and {empty:,} at most 5 %. The mean is {percent(float(fill.mean()))}."
    )


def _draw_map(sources: Mapping[str, ColumnDataSource]) -> Model:
    from bokeh.models import DataRange1d

    made = drawing.plot(y_range=DataRange1d(end=1.03, range_padding=0.6, range_padding_units="absolute"))
    drawing.fit_height(made, sources["cells"], row=34, base=76, least=100, most=900)
    return _with_cells(
        made, sources, 0.86, drawing.BLUE, ("", "@name"), ("allocated", "@fill, @amount"), ("nodes", "@nodes")
    )


def _with_cells(
    made: figure, sources: Mapping[str, ColumnDataSource], height: float, colour: str, *tips: tuple[str, str]
) -> figure:
    """The plot with a cell for each node or GPU, and the labels of its rows."""
    cells = made.rect(
        "x", "y", 0.94, height, fill_color=colour, fill_alpha="alpha", line_color=drawing.GREY, source=sources["cells"]
    )
    drawing.marks(made, sources["cells"])
    drawing.labels(made, sources["labels"], height)
    drawing.hover(made, [cells], *tips)
    made.axis.visible = False
    made.grid.visible = False
    return made


# ------------------------------------------------------------------ tables


def _fills(known: Nodes, rows: NDArray[np.int64]) -> list[str]:
    used, whole = known.allocated[rows].sum(axis=0).tolist(), known.allocatable[rows].sum(axis=0).tolist()
    return [percent(share(part, total)) if total else "" for part, total in zip(used, whole, strict=True)]


def _block_table(known: Nodes, blocks: Mapping[str, NDArray[np.int64]]) -> Table:
    title = " / ".join(known.levels) or "Nodes"
    columns = [Column(title, link="nodes?block={}"), Column("Nodes", numeric=True), Column("Not ready", numeric=True)]
    columns += [Column(name, numeric=True) for name in known.resources]
    rows = [
        (name, len(rows), sum(known.states[row] != "Ready" for row in rows.tolist()), *_fills(known, rows))
        for name, rows in [*blocks.items()][:MOST_ROWS]
    ]
    return table("blocks", "Blocks: allocated share", columns, rows, of=len(blocks), optional=True)


def _node_table(known: Nodes, shown: NDArray[np.int64]) -> Table:
    columns = [
        Column("Node", link="nodes?node={}"),
        Column("State"),
        Column("Pods", numeric=True),
        *map(Column, known.levels),
    ]
    columns += [Column(name, numeric=True) for name in known.resources]
    rows = []
    for row in shown[:MOST_ROWS].tolist():
        parts = [
            _of(name, used, whole) if whole or used else ""
            for name, used, whole in zip(
                known.resources, known.allocated[row].tolist(), known.allocatable[row].tolist(), strict=True
            )
        ]
        places = [values[row] for values in known.levels.values()]
        rows.append((known.names[row], known.states[row], int(known.pods[row]), *places, *parts))
    return table("nodes", "Nodes: allocated amounts", columns, rows, of=len(shown))


# ------------------------------------------------------------------ GPUs


def _gpu_figure(known: Nodes, gpus: Sequence[Gpu]) -> Figure:
    first = list(dict.fromkeys(gpu.node for gpu in gpus))[:_MOST_GPU_ROWS]
    labels = drawing.rows([known.names[node] for node in first])
    labels["x"] = [-0.5] * len(first)
    rows = dict(zip(first, labels["y"], strict=True))
    shown = [gpu for gpu in gpus if gpu.node in rows]
    held = [min(1.0, sum(gpu.holders.values())) for gpu in shown]
    source: dict[str, Any] = {
        "x": [gpu.index for gpu in shown],
        "y": [rows[gpu.node] for gpu in shown],
        "alpha": [drawing.MOST_ALPHA * part for part in held],
        "mark": [percent(part) if part else "free" for part in held],
        "gpu": [f"{gpu.resource} {gpu.index} of {known.names[gpu.node]}" for gpu in shown],
        "holders": [_holders(gpu) for gpu in shown],
    }
    free = sum(not gpu.holders for gpu in gpus)
    shared = sum(len(gpu.holders) > 1 for gpu in gpus)
    text = f"{free:,} of {count(len(gpus), 'GPU')} {verb(free, 'is', 'are')} free, "
    text += f"and {shared:,} {verb(shared, 'is', 'are')} shared."
    nodes_with = len({gpu.node for gpu in gpus})
    if nodes_with > len(rows):
        text += f" The figure shows the first {len(rows)} of {nodes_with:,} nodes; for others, search or open a block."
    return Figure("gpus", "GPUs by index", text, {"cells": source, "labels": labels}, _draw_gpus)


def _holders(gpu: Gpu) -> str:
    shares = [f"{pod} {percent(part)}" if part < 1 else pod for pod, part in gpu.holders.items()]
    return listed(shares, 6) or "free"


def _draw_gpus(sources: Mapping[str, ColumnDataSource]) -> Model:
    from bokeh.models import DataRange1d

    made = drawing.plot(y_range=DataRange1d(end=0.9, range_padding=0.1))
    drawing.fit_height(made, sources["labels"], row=36, base=96)
    return _with_cells(made, sources, 0.5, drawing.GREEN, ("GPU", "@gpu"), ("held by", "@holders"))


def _gpu_table(known: Nodes, gpus: Sequence[Gpu]) -> Table:
    rows = [
        (known.names[gpu.node], gpu.resource, gpu.index, gpu.model, percent(sum(gpu.holders.values())), _holders(gpu))
        for gpu in gpus[:MOST_ROWS]
    ]
    columns = (
        Column("Node", link="nodes?node={}"),
        Column("Resource"),
        Column("Index", numeric=True),
        Column("Model"),
        Column("Held", numeric=True),
        Column("By"),
    )
    return table("gpus", "GPUs", columns, rows, of=len(gpus))


PANEL: Final = Panel(
    "nodes",
    "Nodes and topology",
    lambda context: nodes(context.observed, context.query),
    search=Search("node", "Find nodes", "a name, or a part of it"),
    order=40,
)
