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
"""The width where nobody looks at a terminal: nothing is wrapped, so that each row is one line."""

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
    """Write what is shown; it is told whether the terminal is narrow."""
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
    if groups:
        rows = [(group["namespace"], group["name"], group["minCount"], group["scheduled"]) for group in groups]
        yield _table(("NAMESPACE", "GROUP", "MIN", "SCHEDULED"), rows)
        yield ""
    if pods:
        columns = ("NAMESPACE", "POD", "GROUP", "NODE", "BACKEND", "REASON")
        names = [f"{pod['namespace']}/{pod['name']}" for pod in pods]
        yield from _with_texts(columns, [_pod_row(pod) for pod in pods], names, narrow)
        yield ""
    if preempted := result.get("preempted", ()):
        victims = [(pod["namespace"], pod["name"], pod["node"]) for pod in preempted]
        yield _table(("NAMESPACE", "PREEMPTED", "NODE"), victims)
        yield ""
    if moved := result.get("moved", ()):
        yield _table(("NAMESPACE", "MOVED", "FROM", "TO"), [
            (pod["namespace"], pod["name"], pod["node"], pod["to"]) for pod in moved
        ])  # fmt: skip
        yield ""
    summary = dict(result["summary"])
    for name, problem in summary.pop("problems", {}).items():
        yield Text(f"{name}: {problem}")
    yield Text(", ".join(f"{count} {_words(key)}" for key, count in summary.items()))


def _pod_row(pod: Mapping[str, Any]) -> Sequence[object]:
    return (
        pod["namespace"], pod["name"], pod.get("group"), pod["node"], pod.get("backend"), pod.get("reason"),
    )  # fmt: skip


def _status(result: Mapping[str, Any], narrow: bool) -> Iterable[RenderableType]:
    columns = ("NAMESPACE", "HELD BY", "GROUP", "QUEUE", "NODE", "JOBID", "SINCE", "UNTIL", "DEVICES")
    keys = ("namespace", "name", "group", "queue", "node", "jobid", "since", "until")
    held = [(*(pod[key] for key in keys), ", ".join(map(str, pod["devices"]))) for pod in result["held"]]
    waiting = [tuple(pod.values()) for pod in result["waiting"]]
    waits = ("NAMESPACE", "WAITING", "GROUP", "QUEUE", "SINCE", "NOMINATED", "REASON")
    for names, rows in ((columns, held), (waits, waiting)):
        if rows:
            yield from _with_texts(names, rows, [f"{row[0]}/{row[1]}" for row in rows], narrow)
            yield ""
    yield from _queues(result["queues"], narrow)
    yield ""
    summary = dict(result["summary"])
    for name, problem in summary.pop("problems", {}).items():
        yield Text(f"{name}: {problem}")
    yield Text(", ".join(f"{count} {_words(key)}" for key, count in summary.items()))


def _different(diff: Mapping[str, Any]) -> Iterable[RenderableType]:
    if diff["pods"]:
        columns = ("NAMESPACE", "POD", "GROUP", "BEFORE", "AFTER")
        yield _table(columns, [
            (pod["namespace"], pod["name"], pod["group"], _place(pod["before"]), _place(pod["after"]))
            for pod in diff["pods"]
        ])  # fmt: skip
        yield ""
    if diff["preempted"]:
        yield _table(("NAMESPACE", "PREEMPTED", "NODE", "BEFORE", "AFTER"), [
            (pod["namespace"], pod["name"], pod["node"], _yes(pod["before"]), _yes(pod["after"]))
            for pod in diff["preempted"]
        ])  # fmt: skip
        yield ""
    if diff["moved"]:
        yield _table(("NAMESPACE", "MOVED", "FROM", "TO BEFORE", "TO AFTER"), [
            (pod["namespace"], pod["name"], pod["node"], pod["before"], pod["after"]) for pod in diff["moved"]
        ])  # fmt: skip
        yield ""
    if not diff["pods"] and not diff["preempted"] and not diff["moved"]:
        yield Text("no decision changes")
    for when, counts in diff["summary"].items():
        yield Text(f"{when}: " + ", ".join(f"{count} {_words(key)}" for key, count in counts.items()))


def _yes(whether: bool) -> str:
    return "yes" if whether else "no"


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
        told = pod["reason"] or "nothing refuses the pod as a whole"
        other = f" (of the scheduler {pod['schedulerName']})" if "schedulerName" in pod else ""
        yield Text(f"{pod['namespace']}/{pod['name']}{other}: {told}{helps}")
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
        told = f": {group['reason']}" if group["reason"] else ""
        parts = group.get("subGroups", {})
        lacks = sum(max(0, one["minimum"] - one["started"]) for one in parts.values())
        yield Text(f"group {group['namespace']}/{group['name']}: {group['placeable']} could be placed now, "
                   f"{max(group['minCount'] - group['started'], lacks)} must be{told}")  # fmt: skip
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
    rows = [
        (
            plugin["name"], plugin["origin"], plugin["distribution"], plugin["version"], ", ".join(plugin["hooks"]),
            plugin["problem"] or plugin["summary"],
        )
        for plugin in plugins
    ]  # fmt: skip
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


def _words(key: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", key).lower()
