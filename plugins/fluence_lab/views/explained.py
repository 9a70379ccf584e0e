"""What `fluence explain` answers: one pod's verdicts as a heat map of plugins and nodes, and all pods as a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from fluence_lab import drawing
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.views.plugin_timings import seconds_figure, seconds_table
from fluence_lab.words import MOST_REPORT_ROWS, count, listed, percent, sentence, table, verb

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model

_MOST_COLUMNS: Final = 60
"""With more nodes, a column has all nodes with equal verdicts."""
_Pod = Mapping[str, Any]


def explained(result: Mapping[str, Any]) -> View:
    """The JSON of `fluence explain`: {"pods": […], "groups": […], "seconds": {…}}."""
    pods: Sequence[_Pod] = result["pods"]
    reasons = Counter(str(pod["reason"] or pod["summary"]) for pod in pods)
    summary = f"{count(len(pods), 'pod')} {verb(len(pods), 'waits', 'wait')}."
    if reasons:
        text, most = reasons.most_common(1)[0]
        summary += f" The most frequent reason, for {count(most, 'pod')}: {sentence(text)}"
    seconds: Mapping[str, float] = result.get("seconds", {})
    return View(
        "explain",
        "Why pods are pending",
        summary,
        (heat_map("verdicts", "Rejections by plugin and node", pods), *([seconds_figure(seconds)] if seconds else [])),
        (
            _pods_table(pods),
            _groups_table(result.get("groups", ())),
            _verdicts_table(pods),
            seconds_table(seconds),
        ),
    )


def changes_of(pod: _Pod, most: int = 3) -> str:
    """What would help a pod: the changes for the pod itself, or for the node that needs the fewest.

    For a pod that fits on a node, the text is empty unless the pod is in a gang: more room may help a gang.
    """
    own = pod.get("fitsIf")
    if own:
        return listed(list(own), most)
    in_gang = pod.get("group", pod["reason"]) is not None  # without the group, a pod's own reason is that of its gang
    if not in_gang and any(verdict["fits"] for verdict in pod["nodes"].values()):
        return ""
    needed = [
        texts for verdict in pod["nodes"].values() if not verdict["fits"] and (texts := _changes(verdict)) is not None
    ]
    return listed(min(needed, key=len), most) if needed else ""


def _changes(verdict: Mapping[str, Any]) -> list[str] | None:
    """What must change for a node to fit; None if a plugin does not know it."""
    found: list[str] = []
    for rejection in verdict.get("fitsIf", ()):
        if rejection["changes"] is None:
            return None
        found += rejection["changes"]
    return found or None


# ------------------------------------------------------------------ tables


def pod_tables(pod: _Pod) -> list[Table]:
    """One pod's verdicts: nodes by verdict, and the scores of nodes that fit."""
    rejected: dict[tuple[str, str], list[str]] = {}
    for node, verdict in pod["nodes"].items():
        if not verdict["fits"]:
            rejected.setdefault((verdict["plugin"], verdict["reason"]), []).append(node)
    rows = [
        (len(nodes), plugin, reason, listed(nodes), listed(_changes(pod["nodes"][nodes[0]]) or [], 3))
        for (plugin, reason), nodes in sorted(rejected.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    columns = (
        Column("Nodes", numeric=True),
        Column("Plugin"),
        Column("Reason"),
        Column("Such as"),
        Column("Would fit if"),
    )
    fitting = sorted(
        ((node, verdict) for node, verdict in pod["nodes"].items() if verdict["fits"]),
        key=lambda item: -item[1]["score"],
    )
    plugins = list(dict.fromkeys(part["plugin"] for _, verdict in fitting for part in verdict["scores"]))
    scores = [(node, verdict["score"], *_scores_of(verdict, plugins)) for node, verdict in fitting]
    tables = [table("rejected", "Nodes that do not fit", columns, rows, optional=True)]
    if fitting:
        numbers = [Column(name, numeric=True) for name in ("Score", *plugins)]
        tables.append(table("fitting", "Nodes that fit, by score", (Column("Node"), *numbers), scores))
    return tables


def _scores_of(verdict: Mapping[str, Any], plugins: Iterable[str]) -> list[float | None]:
    by_plugin = {part["plugin"]: part["score"] for part in verdict["scores"]}
    return [by_plugin.get(plugin) for plugin in plugins]


def _pods_table(pods: Sequence[_Pod]) -> Table:
    rows = [
        (f"{pod['namespace']}/{pod['name']}", pod["reason"], pod["summary"], _fitting(pod), changes_of(pod))
        for pod in pods
    ]
    columns = (
        Column("Pod"),
        Column("Reason"),
        Column("Nodes"),
        Column("Nodes that fit", numeric=True),
        Column("Would fit if"),
    )
    return table("pods", "Pending pods", columns, rows, most=MOST_REPORT_ROWS, optional=True)


def _fitting(pod: _Pod) -> int:
    return sum(verdict["fits"] for verdict in pod["nodes"].values())


def _groups_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (f"{one['namespace']}/{one['name']}", one["minCount"], one["started"], one["placeable"], one["reason"])
        for one in groups
    ]
    numbers = [Column(title, numeric=True) for title in ("Minimum", "Started", "Placeable")]
    return table("groups", "Gangs", (Column("Gang"), *numbers, Column("Reason")), rows, optional=True)


def _verdicts_table(pods: Sequence[_Pod]) -> Table:
    rows = [
        (
            f"{pod['namespace']}/{pod['name']}",
            node,
            verdict["plugin"],
            verdict["reason"],
            listed(_changes(verdict) or [], 3),
        )
        for pod in pods
        for node, verdict in pod["nodes"].items()
        if not verdict["fits"]
    ]
    columns = Column("Pod"), Column("Node"), Column("Plugin"), Column("Reason"), Column("Would fit if")
    return table("verdicts", "Rejections, node by node", columns, rows, optional=True)


# ------------------------------------------------------------------ heat map


def pod_figure(pod: _Pod) -> Figure:
    """The heat map of one pod. If nodes are left out, its text has the numbers of all nodes."""
    drawn = heat_map("verdicts", f"Plugins and nodes for {pod['namespace']}/{pod['name']}", [pod])
    left_out = pod.get("leftOut", 0)
    if not left_out:
        return drawn
    counts = sorted(pod.get("refusals", {}).items(), key=lambda item: (-item[1], item[0]))
    rejections = listed([f"{plugin} is the first to reject {count(number, 'node')}" for plugin, number in counts], 5)
    text = f"{count(left_out, 'node')} {verb(left_out, 'is', 'are')} not shown. Among all nodes, {rejections}."
    return replace(drawn, text=f"{drawn.text} {text}")


def heat_map(name: str, title: str, pods: Sequence[_Pod]) -> Figure:
    """Plugins as rows, nodes as columns: for how many of the pods a plugin rejects a node, and which nodes fit.

    If there are many nodes, those with equal verdicts share a column.
    """
    rejections: dict[str, Counter[str]] = {}
    fits = Counter[str]()
    for pod in pods:
        for node, verdict in pod["nodes"].items():
            counted = rejections.setdefault(node, Counter())
            if verdict["fits"]:
                fits[node] += 1
            else:
                counted.update({verdict["plugin"], *(each["plugin"] for each in verdict.get("fitsIf", ()))})
    totals = Counter[str]()
    for counted in rejections.values():
        totals.update(counted)
    plugins = [plugin for plugin, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0]))]
    columns = _columns(rejections, fits)
    return Figure(
        name,
        title,
        _in_words(plugins, rejections, fits),
        {
            **_cells(plugins, columns, len(pods)),
            "rows": _row_labels(plugins) if columns else {},
            "columns": _column_marks([name for name, _, _ in columns]),
        },
        _draw,
    )


_Verdict = tuple[tuple[tuple[str, int], ...], int]


def _columns(rejections: Mapping[str, Counter[str]], fits: Counter[str]) -> list[tuple[str, Mapping[str, int], int]]:
    """Each column's label, its rejections by plugin, and the number of pods that fit there."""
    if len(rejections) <= _MOST_COLUMNS:
        return [(node, counted, fits[node]) for node, counted in rejections.items()]
    equal: dict[_Verdict, list[str]] = {}
    for node, counted in rejections.items():
        equal.setdefault((tuple(sorted(counted.items())), fits[node]), []).append(node)
    ordered = sorted(equal.items(), key=lambda item: -len(item[1]))
    return [
        (nodes[0] if len(nodes) == 1 else f"{len(nodes):,} nodes such as {nodes[0]}", dict(counted), fitting)
        for (counted, fitting), nodes in ordered[:_MOST_COLUMNS]
    ]


_FITS: Final = "fits"


def _cells(
    plugins: Sequence[str], columns: Sequence[tuple[str, Mapping[str, int], int]], pods: int
) -> dict[str, dict[str, list[Any]]]:
    rejected: dict[str, list[Any]] = {key: [] for key in ("x", "y", "node", "plugin", "pods", "alpha", "mark")}
    passed: dict[str, list[Any]] = {key: [] for key in ("x", "y", "node", "plugin", "pods", "mark")}
    few = len(columns) <= 24
    for x, (node, counted, fitting) in enumerate(columns):
        for row, plugin in enumerate(plugins):
            number = counted.get(plugin, 0)
            if number:
                values = (
                    x,
                    -row,
                    node,
                    plugin,
                    number,
                    0.2 + (drawing.MOST_ALPHA - 0.2) * number / pods,
                    _mark(number, pods) if few else "",
                )
                for key, value in zip(rejected, values, strict=True):
                    rejected[key].append(value)
        if fitting:
            here = (x, -len(plugins), node, _FITS, fitting, _mark(fitting, pods, "✓") if few else "")
            for key, value in zip(passed, here, strict=True):
                passed[key].append(value)
    return {"rejected": rejected, "fits": passed}


def _mark(number: int, pods: int, of_all: str = "×") -> str:
    return of_all if pods == 1 else str(number)


def _row_labels(plugins: Sequence[str]) -> dict[str, list[Any]]:
    return {
        "y": [-row for row in range(len(plugins) + 1)],
        "x": [-0.5] * (len(plugins) + 1),
        "label": [*(f"{plugin} rejects" for plugin in plugins), "fits"],
    }


def _column_marks(names: Sequence[str]) -> dict[str, list[Any]]:
    """The nodes' names above the rows, if they have room."""
    shown = names if drawing.fit_narrow(names) else ()
    return {"x": [*range(len(shown))], "y": [0.8] * len(shown), "mark": [*shown]}


def _in_words(plugins: Sequence[str], rejections: Mapping[str, Counter[str]], fits: Counter[str]) -> str:
    nodes = len(rejections)
    if not nodes:
        return "No node was evaluated."
    fitting = sum(bool(fits[node]) for node in rejections)
    shares = []
    for plugin in plugins:
        number = sum(plugin in counted for counted in rejections.values())
        shares.append(f"{plugin} rejects {number:,} of {count(nodes, 'node')} ({percent(number / nodes)})")
    return sentence(listed([*shares, f"{count(fitting, 'node')} {verb(fitting, 'fits', 'fit')}"], 5))


def _draw(sources: Mapping[str, ColumnDataSource]) -> Model:
    from bokeh.models import DataRange1d

    made = drawing.plot(y_range=DataRange1d(end=1.1))
    drawing.fit_height(made, sources["rows"], row=48, base=98, least=140)
    rejected = made.rect(
        "x", "y", 1, 0.5, fill_color=drawing.VERMILION, fill_alpha="alpha", line_color=drawing.INK, line_width=0.5,
        hatch_pattern="right_diagonal_line", hatch_color="black", hatch_alpha=0.25, source=sources["rejected"],
    )  # fmt: skip
    passed = made.rect(
        "x",
        "y",
        1,
        0.5,
        fill_color=drawing.SKY,
        fill_alpha=0.6,
        line_color=drawing.INK,
        line_width=0.5,
        source=sources["fits"],
    )
    for name in ("rejected", "fits", "columns"):
        drawing.marks(made, sources[name])
    drawing.labels(made, sources["rows"], 0.5)
    drawing.hover(made, [rejected, passed], ("node", "@node"), ("plugin", "@plugin"), ("pods", "@pods"))
    made.axis.visible = False
    made.grid.visible = False
    return made
