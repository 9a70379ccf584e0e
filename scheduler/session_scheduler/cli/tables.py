"""Results as tables for people. The columns follow the JSON's keys."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from io import StringIO
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from session_scheduler.sdk.commands import TableRows

_UNBOUNDED: Final = 100_000
"""The width if the output is not a terminal. Nothing wraps, so each row stays on one line."""

_NARROW: Final = 80
"""Columns of a terminal below which a sentence beside five other columns would be a word wide."""


def print_tables(result: Mapping[str, Any]) -> None:
    """Write the result of `simulate`, `explain` or `plugins` to standard output."""
    _print(lambda narrow: tables(result, narrow=narrow))


def print_parts(parts: Sequence[str | TableRows]) -> None:
    """Write lines and tables to standard output."""
    _print(lambda _: [
        Text(part) if isinstance(part, str) else _table(part.columns, part.rows, part.numbers) for part in parts
    ])  # fmt: skip


def _print(shown: Callable[[bool], Iterable[RenderableType]]) -> None:
    """Write what is shown, which depends on whether the terminal is narrow."""
    if sys.stdout.isatty():
        terminal = Console(highlight=False)
        terminal.print(*shown(terminal.width < _NARROW), sep="\n")
        return
    console = Console(file=StringIO(), width=_UNBOUNDED, highlight=False, force_terminal=False)
    with console.capture() as text:
        console.print(*shown(False), sep="\n")
    sys.stdout.writelines(line.rstrip() + "\n" for line in text.get().splitlines())


def tables(result: Mapping[str, Any], *, narrow: bool = False) -> Iterable[RenderableType]:
    """The parts of a result, in the order in which they are shown; `narrow` puts reasons below their table."""
    if "plugins" in result:
        yield from _plugins(result["plugins"], narrow)
    elif "held" in result:
        yield from _status(result, narrow)
    elif "queues" in result:
        yield from _queues(result["queues"], narrow)
    elif "diff" in result and "pods" not in result:
        yield from _different(result["diff"])
    elif "summary" in result:
        yield from _simulated(result, narrow)
    else:
        yield from _explained(result["pods"], narrow)
        yield from _gangs(result.get("groups", ()), narrow)
        if seconds := result.get("seconds"):
            longest = sorted(seconds.items(), key=lambda one: (-one[1], one[0]))
            yield ""
            yield Text("time: " + ", ".join(f"{name} {1000 * spent:.2f} ms" for name, spent in longest))


def _simulated(result: Mapping[str, Any], narrow: bool) -> Iterable[RenderableType]:
    groups, pods = result.get("groups", ()), result["pods"]
    preempted, moved = result.get("preempted", ()), result.get("moved", ())
    yield from _section(("GROUP", "MIN", "SCHEDULED"), _rows(groups, "minCount", "scheduled"))
    columns = ("POD", "GROUP", "NODE", "BACKEND", "REASON")
    yield from _section(columns, _rows(pods, "group", "node", "backend", "reason"), narrow=narrow)
    yield from _section(("PREEMPTED", "NODE"), _rows(preempted, "node"))
    yield from _section(("MOVED", "FROM", "TO"), _rows(moved, "node", "to"))
    yield from _summary(result["summary"])


def _rows(things: Iterable[Mapping[str, Any]], *keys: str) -> list[tuple[object, ...]]:
    """A row for each thing: its namespace, its name, and what it has of these keys."""
    return [(one["namespace"], one["name"], *map(one.get, keys)) for one in things]


def _section(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, narrow: bool = False
) -> Iterable[RenderableType]:
    """A table of things that have a namespace and a name, and an empty line; nothing where there are none."""
    if rows:
        yield from _with_texts(("NAMESPACE", *columns), rows, [f"{row[0]}/{row[1]}" for row in rows], narrow)
        yield ""


def _summary(summary: Mapping[str, Any]) -> Iterable[RenderableType]:
    counts = dict(summary)
    for name, problem in counts.pop("problems", {}).items():
        yield Text(f"{name}: {problem}")
    yield Text(_counted(counts))


def _counted(counts: Mapping[str, int]) -> str:
    """As `2 scheduled, 1 left out`."""
    return ", ".join(f"{count} {re.sub(r'(?<=[a-z])(?=[A-Z])', ' ', key).lower()}" for key, count in counts.items())


def _status(result: Mapping[str, Any], narrow: bool) -> Iterable[RenderableType]:
    columns = ("HELD BY", "GROUP", "QUEUE", "NODE", "JOBID", "SINCE", "UNTIL", "DEVICES")
    held = [{**pod, "devices": ", ".join(map(str, pod["devices"]))} for pod in result["held"]]
    keys = ("group", "queue", "node", "jobid", "since", "until", "devices")
    yield from _section(columns, _rows(held, *keys), narrow=narrow)
    waiting = _rows(result["waiting"], "group", "queue", "since", "nominated", "reason")
    yield from _section(("WAITING", "GROUP", "QUEUE", "SINCE", "NOMINATED", "REASON"), waiting, narrow=narrow)
    yield from _queues(result["queues"], narrow)
    yield ""
    yield from _summary(result["summary"])


def _different(diff: Mapping[str, Any]) -> Iterable[RenderableType]:
    pods = [{**pod, "before": _place(pod["before"]), "after": _place(pod["after"])} for pod in diff["pods"]]
    yield from _section(("POD", "GROUP", "BEFORE", "AFTER"), _rows(pods, "group", "before", "after"))
    yes = {True: "yes", False: "no"}
    preempted = [{**pod, "before": yes[pod["before"]], "after": yes[pod["after"]]} for pod in diff["preempted"]]
    yield from _section(("PREEMPTED", "NODE", "BEFORE", "AFTER"), _rows(preempted, "node", "before", "after"))
    moved = _rows(diff["moved"], "node", "before", "after")
    yield from _section(("MOVED", "FROM", "TO BEFORE", "TO AFTER"), moved)
    if not diff["pods"] and not diff["preempted"] and not diff["moved"]:
        yield Text("no decision changes")
    for when, counts in diff["summary"].items():
        yield Text(f"{when}: {_counted(counts)}")


def _place(decided: Mapping[str, Any]) -> str | None:
    """The node, and the backend where there is one."""
    backend = decided.get("backend")
    return f"{decided['node']} ({backend})" if backend else decided["node"]


def _explained(pods: Sequence[Mapping[str, Any]], narrow: bool) -> Iterable[RenderableType]:
    if not pods:
        yield Text("no pending pods")
    for index, pod in enumerate(pods):
        if index:
            yield ""
        helps = f"; fits if {', and '.join(pod['fitsIf'])}" if pod.get("fitsIf") else ""
        reason = pod["reason"] or "nothing refuses the pod as a whole"
        other = f" (of the scheduler {pod['schedulerName']})" if "schedulerName" in pod else ""
        yield Text(f"{pod['namespace']}/{pod['name']}{other}: {reason}{helps}")
        rows = [_node_row(name, verdict) for name, verdict in pod["nodes"].items()]
        if rows:
            yield from _with_texts(("NODE", "FITS", "SCORE", "PLUGIN", "REASON"), rows, list(pod["nodes"]), narrow)


def _node_row(name: str, verdict: Mapping[str, Any]) -> Sequence[object]:
    if verdict["fits"]:
        return name, "yes", verdict["score"], None, _parts(verdict.get("scores", ()))
    return name, "no", None, verdict["plugin"], "; ".join(filter(None, (verdict["reason"], _fits_if(verdict))))


def _parts(scores: Iterable[Mapping[str, Any]]) -> str:
    """Of what a score is made, without what adds nothing: "NodeResourcesFit 80, ImageLocality 2 × 3"."""
    parts = [
        f"{part['plugin']} {part['score']:g}" + (f" × {part['weight']}" if part["weight"] != 1 else "")
        for part in scores
        if part["score"] and part["weight"]
    ]
    return ", ".join(parts)


def _fits_if(verdict: Mapping[str, Any]) -> str:
    """What would help; nothing where no plugin says it."""
    changes = verdict.get("fitsIf", ())
    said = [text for change in changes for text in change["changes"] or ()]
    if not said:
        return ""
    silent = [change["plugin"] for change in changes if change["changes"] is None]
    return f"fits if {', and '.join([*said, *(f'{name} let it in' for name in silent)])}"


def _gangs(groups: Iterable[Mapping[str, Any]], narrow: bool) -> Iterable[RenderableType]:
    for group in groups:
        yield ""
        reason = f": {group['reason']}" if group["reason"] else ""
        parts = group.get("subGroups", {})
        lacks = sum(max(0, one["minimum"] - one["started"]) for one in parts.values())
        yield Text(f"group {group['namespace']}/{group['name']}: {group['placeable']} could be placed now, "
                   f"{max(group['minCount'] - group['started'], lacks)} must be{reason}")  # fmt: skip
        for name, one in parts.items():
            missing = one["minimum"] - one["started"] - one["placeable"]
            short = f"; {missing} too few" if missing > 0 else ""
            yield Text(f"  sub-group {name}: {one['placeable']} could be placed now, {one['started']} of at least "
                       f"{one['minimum']} run{short}")  # fmt: skip
        placed = [(name, node, None) for name, node in group["placement"].items()]
        rows = [*placed, *((name, None, reason) for name, reason in group["refused"].items())]
        if rows:
            yield from _with_texts(("POD", "NODE", "REASON"), rows, [str(row[0]) for row in rows], narrow)


def _plugins(plugins: Sequence[Mapping[str, Any]], narrow: bool) -> Iterable[RenderableType]:
    keys = ("name", "origin", "distribution", "version")
    rows = [
        (*(plugin[key] for key in keys), ", ".join(plugin["hooks"]), plugin["problem"] or plugin["summary"])
        for plugin in plugins
    ]
    names = [plugin["name"] for plugin in plugins]
    yield from _with_texts(("NAME", "ORIGIN", "DISTRIBUTION", "VERSION", "HOOKS", "SUMMARY"), rows, names, narrow)


def _queues(queues: Sequence[Mapping[str, Any]], narrow: bool) -> Iterable[RenderableType]:
    amounts = ("deserved", "limit", "fairShare", "allocated", "pending")
    rows = [("  " * queue["depth"] + queue["name"], *(_amounts(queue[one]) for one in amounts), queue["reason"])
            for queue in queues]  # fmt: skip
    columns = ("QUEUE", "DESERVED", "LIMIT", "FAIR SHARE", "ALLOCATED", "PENDING", "REASON")
    yield from _with_texts(columns, rows, [queue["name"] for queue in queues], narrow)


def _amounts(amounts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())


def _with_texts(
    columns: Sequence[str], rows: Sequence[Sequence[object]], names: Sequence[str], narrow: bool
) -> Iterable[RenderableType]:
    """A table whose last column is a sentence; on a narrow terminal each sentence is a line of its own below."""
    if not narrow:
        yield _table(columns, rows)
        return
    yield _table(columns[:-1], [row[:-1] for row in rows])
    yield from (Text(f"{name}: {row[-1]}") for name, row in zip(names, rows, strict=True) if row[-1])


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Collection[str] = ("MIN", "SCHEDULED", "SCORE")
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in numbers else "left")
    for row in rows:
        table.add_row(*(Text("-" if value in (None, "") else str(value)) for value in row))
    return table
