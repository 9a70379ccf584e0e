"""The report of `make bench-live`: each run, a table of medians, and the goals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Final

from .contenders import FILTERS, FLUENCE, KUBE_SCHEDULER, OTHER, RAW
from .workloads import FREED, WORKLOADS, Workload

EVENTS_WITHIN: Final = 10.0
"""Seconds after the last binding within which all events must exist."""
OF_RAW: Final = 0.8
"""The part of the raw rate that must be reached: of bindings without events; of reports, or else `Workload.goal`."""


@dataclass(slots=True)
class Result:
    """One contender's run of a workload. Times in seconds, memory in MiB."""

    workload: str
    contender: str
    round: int
    pods: int
    failure: str = ""
    """The error of a failed run."""
    first: float = 0.0
    """From the start of the process, or of the node's emptying, to the first sign of its work."""
    seconds: float = 0.0
    """To the last pod bound or reported: from the first sign of work, or from the start of the node's emptying."""
    events: int = 0
    """Number of pods with an event."""
    events_after: float | None = None
    """From the last pod bound or reported to the last of these events."""
    cpu: float = 0.0
    """Processor time of the contender, from its start to its last event; for FREED the same as `cpu_binding`."""
    cpu_binding: float = 0.0
    """The part of it during `seconds`."""
    memory: float = 0.0
    """Its largest resident size."""
    latencies: list[float] = field(default_factory=list)
    """For each group that was added at the end: from its first pod's creation to its last pod bound."""

    @property
    def rate(self) -> float:
        """Pods bound or reported in a second."""
        return (self.pods - 1) / self.seconds if self.seconds else 0.0


Row = dict[str, Any]


def summary(results: Sequence[Result]) -> list[Row]:
    """A row for each workload and contender: medians over its rounds; ratios are medians of those within a round."""
    rows = []
    for workload, contender in dict.fromkeys((result.workload, result.contender) for result in results):
        own = [one for one in results if (one.workload, one.contender) == (workload, contender)]
        worked = [one for one in own if not one.failure]
        row: Row = {"workload": workload, "contender": contender, "pods": own[0].pods,
                    "failures": [one.failure for one in own if one.failure]}  # fmt: skip
        for key in ("rate", "first", "cpu", "cpu_binding", "memory"):
            row[key] = _median([getattr(one, key) for one in worked])
        peers = [one for one in results if (one.workload, one.contender) == (workload, KUBE_SCHEDULER)]
        row["of_peer"] = _ratio(worked, peers, lambda result: result.rate)
        row["memory_of_peer"] = _ratio(worked, peers, lambda result: result.memory)
        raw = [one for one in results if (one.workload, one.contender) == (workload, RAW)]
        row["of_raw"] = _ratio(worked, raw, lambda result: result.rate)
        row["cpu_a_pod"] = _median([1000 * one.cpu_binding / one.pods for one in worked])
        row["events"] = min((one.events for one in worked), default=0)
        row["events_after"] = max((one.events_after for one in worked if one.events_after is not None), default=None)
        waits = [wait for one in worked for wait in one.latencies]
        row["latency"] = _median(waits)
        row["latency_99"] = quantiles(waits, n=100, method="inclusive")[98] if len(waits) > 1 else None
        rows.append(row)
    return rows


def compared(results: Sequence[Result]) -> list[Row]:
    """Compare both checkouts: milliseconds of processor time per pod, a row for each round in which both succeeded.

    The last row of each workload has the medians of the ratios within a round: ours divided by the other's.
    """
    worked = {(one.workload, one.contender, one.round): one for one in results if not one.failure}
    rows: list[Row] = []
    for workload in dict.fromkeys(one.workload for one in results if one.contender == OTHER):
        paired: list[Row] = []
        for number in sorted({one.round for one in results}):
            ours, other = (worked.get((workload, name, number)) for name in (FLUENCE, OTHER))
            if ours and other:
                row: Row = {"workload": workload, "round": str(number)}
                for key in ("cpu", "cpu_binding"):
                    row[key], row[f"other_{key}"] = (1000 * getattr(one, key) / one.pods for one in (ours, other))
                    row[f"ratio_{key}"] = row[key] / row[f"other_{key}"]
                paired.append(row)
        ratios = {key: _median([row[key] for row in paired]) for key in ("ratio_cpu", "ratio_cpu_binding")}
        others = dict.fromkeys(("cpu", "other_cpu", "cpu_binding", "other_cpu_binding"))
        rows += [*paired, {"workload": workload, "round": "median", **others, **ratios}]
    return rows


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _ratio(own: Sequence[Result], others: Sequence[Result], of: Callable[[Result], float]) -> float | None:
    by_round = {one.round: of(one) for one in others if not one.failure}
    return _median([of(one) / by_round[one.round] for one in own if by_round.get(one.round)])


_COLUMNS: Final = (
    ("workload", "workload", "s"), ("contender", "contender", "s"), ("pods", "pods", "d"), ("pods/s", "rate", ".0f"),
    ("x kube-sch.", "of_peer", ".2f"), ("x raw", "of_raw", ".2f"), ("first s", "first", ".1f"),
    ("events after s", "events_after", ".1f"), ("cpu s", "cpu", ".1f"), ("binding", "cpu_binding", ".1f"),
    ("ms/pod", "cpu_a_pod", ".2f"),
    ("MiB", "memory", ".0f"), ("x kube-sch.", "memory_of_peer", ".2f"),
    ("gang s", "latency", ".2f"), ("99 %", "latency_99", ".2f"),
)  # fmt: skip


COMPARED: Final = (
    ("workload", "workload", "s"), ("round", "round", "s"),
    ("cpu ms/pod", "cpu", ".3f"), ("other", "other_cpu", ".3f"), ("ratio", "ratio_cpu", ".3f"),
    ("binding", "cpu_binding", ".3f"), ("other", "other_cpu_binding", ".3f"), ("ratio", "ratio_cpu_binding", ".3f"),
)  # fmt: skip
"""The columns of `compared`: from the process's start to its last event, and the part while pods were bound.

The first is more stable: how much is decided before the first binding is seen differs from run to run.
"""


def table(rows: Sequence[Row], columns: Sequence[tuple[str, str, str]] = _COLUMNS) -> str:
    """Format the rows."""
    lines = [[title for title, _, _ in columns]]
    lines += [["-" if row[key] is None else format(row[key], form) for _, key, form in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) if form == "s" else cell.rjust(width)
                  for cell, width, (_, _, form) in zip(line, widths, columns, strict=True)).rstrip()
        for line in lines
    )  # fmt: skip


def goals(rows: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    """Return each goal, and whether it was met; only for workloads that were run."""
    found = {(row["workload"], row["contender"]): row for row in rows}
    for row in rows:
        for failure in row["failures"]:
            yield f"{row['workload']}, {row['contender']}: {failure.splitlines()[0]}", False
    for workload in WORKLOADS:
        ours = found.get((workload.name, FLUENCE))
        if ours is None or ours["rate"] is None:
            continue
        if workload.full:
            yield from _reports(workload, ours)
        elif ours["of_peer"] is not None:
            yield (f"{workload.name}: {ours['of_peer']:.2f} times kube-scheduler's pods/s (goal: {workload.goal:g})",
                   ours["of_peer"] >= workload.goal)  # fmt: skip
        if ours["memory_of_peer"] is not None:
            memory = ours["memory_of_peer"]
            yield (f"{workload.name}: {memory:.2f} times its memory (goal: at most {workload.memory:g})",
                   memory <= workload.memory)  # fmt: skip
        yield _events(workload, ours)
    freed = found.get((FREED, FLUENCE))
    if freed is not None and freed["of_peer"] is not None:
        yield f"{FREED}: {freed['of_peer']:.2f} times kube-scheduler's pods/s (goal: 1)", freed["of_peer"] >= 1
    for workload in WORKLOADS:
        bare = found.get((workload.name, FILTERS))
        if bare is not None and bare["of_raw"] is not None:
            yield (f"{workload.name}: {bare['of_raw']:.2f} of the raw rate with the default filters (goal: {OF_RAW:g})",
                   bare["of_raw"] >= OF_RAW)  # fmt: skip


def _reports(workload: Workload, row: Row) -> Iterator[tuple[str, bool]]:
    """Return the goal of the reports, if there is another contender to compare with: one of two ratios suffices."""
    ratios = {f"{{:.2f}} times kube-scheduler's (goal: {workload.goal:g})": (row["of_peer"], workload.goal),
              f"{{:.2f}} of the raw rate (goal: {OF_RAW:g})": (row["of_raw"], OF_RAW)}  # fmt: skip
    known = {text.format(ratio): ratio >= goal for text, (ratio, goal) in ratios.items() if ratio is not None}
    if known:
        yield f"{workload.name}: reports/s {' or '.join(known)}", any(known.values())


def _events(workload: Workload, row: Row) -> tuple[str, bool]:
    if row["events"] < row["pods"]:
        return f"{workload.name}: events of {row['events']} of {row['pods']} pods (goal: all)", False
    late, last = row["events_after"], "report" if workload.full else "bind"
    text = f"{workload.name}: all events {late:.1f} s after the last {last} (goal: {EVENTS_WITHIN:g})"
    return text, late <= EVENTS_WITHIN
