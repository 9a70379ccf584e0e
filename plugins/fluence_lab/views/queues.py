"""Queues as a tree: deserved, allocated and fair share by resource, and what pending pods request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fluence_lab import drawing
from fluence_lab.panels import Panel
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.words import amount, count, listed, table, verb
from session_scheduler.model.quantity import parse_quantity

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model

_MOST_FIGURES: Final = 3
_MOST_BARS: Final = 40
_FIRST: Final = ("cpu", "memory")
_LAST: Final = ("pods", "ephemeral-storage")
_KINDS: Final = ("deserved", "allocated", "fairShare", "limit", "pending")
_Queue = Mapping[str, Any]


def queues(known: Sequence[_Queue]) -> View:
    """The view of the queues in the JSON of `fluence queues`: parents before children."""
    resources = _resources(known)
    figures = [_figure(known, resource) for resource in resources[:_MOST_FIGURES]]
    return View("queues", "Queues", _summary(known, resources), tuple(figures), (_table(known, resources),))


def of_queue(queue: _Queue, kind: str, resource: str) -> float | None:
    """An amount of a queue in people's units; None if the queue has none of that kind."""
    text = queue[kind].get(resource)
    if text is None:
        return None
    try:
        return parse_quantity(text, milli=True) / 1000
    except ValueError:  # such as "unlimited"
        return None


def _resources(known: Sequence[_Queue]) -> list[str]:
    """CPU and memory first, and the number of pods last."""
    found = {resource for queue in known for kind in _KINDS for resource in queue[kind]}
    rank = {name: place for place, name in enumerate(_FIRST)} | dict.fromkeys(_LAST, len(_FIRST) + 1)
    return sorted(found, key=lambda name: (rank.get(name, len(_FIRST)), name))


def _summary(known: Sequence[_Queue], resources: Sequence[str]) -> str:
    over = [queue["name"] for queue in known if _is_over(queue, resources)]
    waiting = [queue["name"] for queue in known if any(queue["pending"].values())]
    text = f"{count(len(known), 'queue')}."
    if waiting:
        text += f" Pods wait in {listed(waiting)}."
    if over:
        text += (
            f" {listed(over)} {verb(len(over), 'has', 'have')} more than {verb(len(over), 'its', 'their')} fair share."
        )
    wrong = [queue["name"] for queue in known if not queue["ready"]]
    if wrong:
        text += f" {listed(wrong)} cannot be used."
    return text


def _is_over(queue: _Queue, resources: Sequence[str]) -> bool:
    for resource in resources:
        has, fair = of_queue(queue, "allocated", resource), of_queue(queue, "fairShare", resource)
        if has is not None and fair is not None and has > fair:
            return True
    return False


def _table(known: Sequence[_Queue], resources: Sequence[str]) -> Table:
    """One row for each queue and resource; a queue's name is indented by its depth."""
    rows: list[tuple[Any, ...]] = []
    for queue in known:
        name = _indented(queue["name"], queue["depth"])
        used = [resource for resource in resources if any(resource in queue[kind] for kind in _KINDS)]
        head = name, queue["priority"], queue["overQuotaWeight"]
        for resource in used:
            amounts = [of_queue(queue, kind, resource) for kind in _KINDS]
            shown = [None if value is None else amount(resource, value) for value in amounts]
            rows.append((*head, resource, *shown, queue["reason"]))
        if not used:
            rows.append((*head, None, *[None] * len(_KINDS), queue["reason"]))
    titles = "Priority", "Weight"
    amounts_titles = "Deserved", "Allocated", "Fair share", "Limit", "Requested by pending pods"
    columns = [Column("Queue"), *(Column(title, numeric=True) for title in titles), Column("Resource")]
    columns += [Column(title, numeric=True) for title in amounts_titles]
    return table("queues", "Queues by resource", [*columns, Column("Problem")], rows)


def _figure(known: Sequence[_Queue], resource: str) -> Figure:
    shown = known[:_MOST_BARS]
    scale, unit = (1024.0**3, "GiB") if resource == "memory" else (1.0, "cores" if resource == "cpu" else "amount")

    def column(kind: str, missing: float = 0.0) -> list[float]:
        amounts = [of_queue(queue, kind, resource) for queue in shown]
        return [missing if each is None else each / scale for each in amounts]

    texts = []
    for queue in shown:
        has, fair = of_queue(queue, "allocated", resource) or 0.0, of_queue(queue, "fairShare", resource)
        share = "" if fair is None else f" of a fair share of {amount(resource, fair)}"
        texts.append(f"{queue['name']}: {amount(resource, has)}{share}")
    rows = drawing.rows([_indented(text, queue["depth"]) for queue, text in zip(shown, texts, strict=True)])
    bars = {
        **rows,
        "lower": [y - 0.28 for y in rows["y"]],
        "allocated": column("allocated"),
        "deserved": column("deserved"),
        "fair": column("fairShare", math.nan),
    }
    text = f"Allocated {resource}: {listed(texts, 5)}." if texts else "There are no queues."
    return Figure(f"queue-{_slug(resource)}", f"Queues: {resource} ({unit})", text, {"bars": bars}, _draw)


def _indented(text: str, depth: int) -> str:
    return "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}" * depth + text


def _slug(resource: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in resource.lower())


def _draw(sources: Mapping[str, ColumnDataSource]) -> Model:
    from bokeh.models import DataRange1d

    source = sources["bars"]
    made = drawing.plot(x_range=DataRange1d(start=0), y_range=DataRange1d(end=0.9))
    drawing.fit_height(made, source, row=52, base=142)
    made.hbar(y="y", right="allocated", height=0.28, color=drawing.BLUE, legend_label="allocated", source=source)
    made.hbar(
        y="lower", right="deserved", height=0.16, fill_color=None, line_color=drawing.ORANGE,
        hatch_color=drawing.ORANGE, hatch_pattern="right_diagonal_line", legend_label="deserved", source=source,
    )  # fmt: skip
    made.scatter(
        "fair", "y", marker="diamond", size=12, fill_color=drawing.GREEN, line_color="white", legend_label="fair share",
        source=source,
    )  # fmt: skip
    drawing.labels(made, source, 0.28)
    made.yaxis.visible = False
    made.ygrid.visible = False
    drawing.legend(made)
    return made


PANEL: Final = Panel("queues", "Queues", lambda context: queues(context.observed.queues), order=30)
