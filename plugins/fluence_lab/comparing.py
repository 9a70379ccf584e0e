"""Two runs side by side: the pods for which they differ, and their totals, as DataFrames and as a view."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fluence_lab import drawing, frames
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.words import count, percent, sentence, share, table

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.models import ColumnDataSource, Model

    from session_scheduler.observation.values import Observed

__all__ = ["Comparison", "comparison"]

_Key = tuple[str, str]
_Decision = tuple[str | None, str | None]
"""A pod's node, and the reason why it waits."""


class Comparison:
    """What changes from a first run to a second one."""

    def __init__(
        self, names: tuple[str, str], pods: Mapping[_Key, tuple[_Decision | None, _Decision | None]],
        sums: Mapping[str, tuple[float, float]], shares: Mapping[str, tuple[float, float]],
    ) -> None:  # fmt: skip
        self._names = names
        self._pods = pods
        self._sums = sums
        self._shares = shares

    @cached_property
    def pods(self) -> pd.DataFrame:
        """Indexed by namespace and name of the pods that differ: the node in each run, and the second run's reason."""
        first, second = self._names
        rows = list(self._pods.items())
        columns = {
            "namespace": [key[0] for key, _ in rows],
            "name": [key[1] for key, _ in rows],
            f"node: {first}": [_node(one) for _, (one, _) in rows],
            f"node: {second}": [_node(other) for _, (_, other) in rows],
            "reason": [other[1] if other else None for _, (_, other) in rows],
        }
        return frames.frame(columns, ["namespace", "name"])

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Indexed by figure: its value in each run. Utilisation is the allocated share of all nodes, 0 to 1."""
        both = {**self._sums, **{f"{name} utilisation": values for name, values in self._shares.items()}}
        columns: dict[str, list[Any]] = {"measure": list(both)}
        columns |= {name: [values[at] for values in both.values()] for at, name in enumerate(self._names)}
        return frames.frame(columns, "measure")

    def view(self) -> View:
        """The comparison with a figure."""
        return View("comparison", f"Comparison: {self._names[0]} and {self._names[1]}", self._in_words(),
                    (self._figure(),), tuple(self._tables()))  # fmt: skip

    def __repr__(self) -> str:
        return repr(self.view())

    def _repr_html_(self) -> str:
        return self.view()._repr_html_()

    def _in_words(self) -> str:
        first, second = self._sums["scheduled"]
        text = f"{self._names[0]}: {first:g} placed; {self._names[1]}: {second:g} placed."
        number = len(self._pods)
        return f"{text} The decisions differ for {count(number, 'pod')}."

    def _tables(self) -> list[Table]:
        first, second = self._names
        rows = [(f"{key[0]}/{key[1]}", _node(one) or "-", _node(other) or "-", (other or (None, None))[1] or "-")
                for key, (one, other) in self._pods.items()]  # fmt: skip
        columns = (Column("Pod"), Column(first), Column(second), Column(f"Reason: {second}"))
        numbers = [(what, *values) for what, values in self._sums.items()]
        numeric = (Column("Pods"), Column(first, numeric=True), Column(second, numeric=True))
        return [table("sums", "Sums", numeric, numbers), table("pods", "Pods that differ", columns, rows)]

    def _figure(self) -> Figure:
        bars = [(f"{name}, {run}: {percent(values[at])}", 100 * values[at])
                for name, values in self._shares.items() for at, run in enumerate(self._names)]  # fmt: skip
        source: dict[str, list[Any]] = {**drawing.rows([text for text, _ in bars]), "share": [part for _, part in bars]}
        text = sentence("; ".join(text for text, _ in bars)) or "No node has resources."
        return Figure("utilisation", "Utilisation by resource", text, {"bars": source}, _draw)


def _draw(sources: Mapping[str, ColumnDataSource]) -> Model:
    return drawing.bars(sources["bars"], "share", drawing.BLUE, "allocated (%)", 100)


def _node(decision: _Decision | None) -> str | None:
    return decision[0] if decision is not None else None


def comparison(
    names: tuple[str, str], results: tuple[Mapping[str, Any], Mapping[str, Any]], after: tuple[Observed, Observed]
) -> Comparison:
    """The comparison of two results of `fluence simulate`, and the clusters after them."""
    first, second = (_decisions(result) for result in results)
    keys = [*first, *(key for key in second if key not in first)]
    pods = {key: (first.get(key), second.get(key)) for key in keys if _node(first.get(key)) != _node(second.get(key))}
    sums = {
        what: (float(results[0]["summary"][what]), float(results[1]["summary"][what]))
        for what in ("scheduled", "unschedulable")
    }
    sums["preempted"] = (float(len(results[0].get("preempted", ()))), float(len(results[1].get("preempted", ()))))
    shares = tuple(_shares(observed) for observed in after)
    both = {name: (shares[0].get(name, 0.0), shares[1].get(name, 0.0)) for name in {**shares[0], **shares[1]}}
    return Comparison(names, pods, sums, both)


def _decisions(result: Mapping[str, Any]) -> dict[_Key, _Decision]:
    return {(pod["namespace"], pod["name"]): (pod["node"], pod["reason"]) for pod in result["pods"]}


def _shares(observed: Observed) -> dict[str, float]:
    nodes = observed.nodes
    used, whole = nodes.allocated.sum(axis=0).tolist(), nodes.allocatable.sum(axis=0).tolist()
    return {name: share(used[at], whole[at]) for at, name in enumerate(nodes.resources)}
