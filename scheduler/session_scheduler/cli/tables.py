"""Formats results as tables. The columns follow the JSON's keys; pods that differ only in their names share a row."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from io import StringIO
from typing import Any, Final, Literal

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from session_scheduler.cli.pod_rows import grouped, names
from session_scheduler.model.times import age_text, parsed_time
from session_scheduler.sdk.commands import TableRows

_UNBOUNDED: Final = 100_000
"""The width if the output is not a terminal: each row is one line."""
_CATALOGUE_WIDTH: Final = 80
"""The width of the list of plugins if the output is not a terminal."""
_SENTENCE: Final = 24
"""The minimum width of a column of sentences; if there is less, each sentence is a line below the table."""
_GAP: Final = 2
_MOST_NODE_ROWS: Final = 50
"""With more rows `explain` shows a summary instead of each table of nodes."""
_BEST_NODES: Final = 3
_BUILT_IN: Final = "built-in"
_NUMBERS: Final = ("MIN", "SCHEDULED", "SCORE")
_Thing = Mapping[str, Any]
_Part = str | TableRows


def print_tables(result: _Thing, *, now: datetime | None = None, all_nodes: bool = False) -> None:
    """Write a command's result to standard output.

    Ages count up to `now`, or to the latest time in the result if that is later. `all_nodes` shows every node of
    `explain`.
    """
    width = _CATALOGUE_WIDTH if "plugins" in result else _UNBOUNDED
    _print(lambda columns: tables(result, columns, now=now, all_nodes=all_nodes), width)


def print_parts(parts: Sequence[_Part]) -> None:
    """Write lines and tables to standard output."""
    _print(lambda _: parts, _UNBOUNDED)


def _print(shown: Callable[[int], Iterable[_Part]], piped_width: int) -> None:
    """Print at the terminal's width, or at `piped_width` if there is no terminal."""
    if sys.stdout.isatty():
        _print_on(Console(highlight=False), shown)
        return
    console = Console(file=StringIO(), width=piped_width, highlight=False, force_terminal=False)
    with console.capture() as text:
        _print_on(console, shown)
    sys.stdout.writelines(line.rstrip() + "\n" for line in text.get().splitlines())


def _print_on(console: Console, shown: Callable[[int], Iterable[_Part]]) -> None:
    for part in shown(console.width):
        if isinstance(part, str):
            console.print(Text(_printable(part)))
            continue
        rows = _cells(part.rows)
        widths = _widths(part.columns, rows)
        left = _left_for_last(widths, console.width)
        if left < widths[-1]:
            console.print(_wrapped(part, rows, left))
            continue
        right = [column in part.numbers for column in part.columns]
        console.print(Text(_line(part.columns, widths, right), "bold"))
        if rows:  # rich's layout would need ten times as long
            console.out("\n".join(_line(row, widths, right) for row in rows))


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """A row as one line; `right` are the right-aligned columns."""
    gaps = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
    padded = [gap + cell if after else cell + gap for cell, gap, after in zip(cells, gaps, right, strict=True)]
    return (" " * _GAP).join(padded).rstrip()


def tables(result: _Thing, width: int, *, now: datetime | None = None, all_nodes: bool = False) -> Iterable[_Part]:
    """The parts of a result in order, for an output of `width` columns."""
    if "plugins" in result:
        yield from _plugins(result["plugins"], width)
    elif "held" in result:
        yield from _status(result, width, now)
    elif "queues" in result:
        yield from _queues(result["queues"], width)
    elif "diff" in result and "pods" not in result:
        yield from _different(result["diff"], width)
    elif "summary" in result:
        yield from _simulated(result, width)
        if explained := result.get("explain"):
            yield ""
            yield from _explained(explained["pods"], width, all_nodes)
            yield from _gangs(explained["groups"], width)
    else:
        yield from _explained(result["pods"], width, all_nodes)
        yield from _gangs(result.get("groups", ()), width)
        if seconds := result.get("seconds"):
            longest = sorted(seconds.items(), key=lambda one: (-one[1], one[0]))
            yield ""
            yield "time: " + ", ".join(f"{name} {1000 * spent:.2f} ms" for name, spent in longest)


def _simulated(result: _Thing, width: int) -> Iterable[_Part]:
    groups, preempted, moved = result.get("groups", ()), result.get("preempted", ()), result.get("moved", ())
    yield from _section(("GROUP", "MIN", "SCHEDULED"), _rows(groups, "minCount", "scheduled"), width)
    shown = [{**pod, "devices": ", ".join(pod.get("devices") or ()) or None} for pod in result["pods"]]
    of_plugins = (key for key in ("backend", "devices") if any(pod.get(key) for pod in shown))
    keys = ("group", "node", *of_plugins, "reason")
    pods = _pod_rows(shown, keys, one_row=lambda pod: pod["reason"] is not None)
    yield from _section(("POD", *map(str.upper, keys)), pods, width)
    yield from _section(("PREEMPTED", "NODE"), _rows(preempted, "node"), width)
    yield from _section(("MOVED", "FROM", "TO"), _rows(moved, "node", "to"), width)
    left_out = _pod_rows(result.get("leftOut", ()), ("reason",), one_row=lambda _: True)
    yield from _section(("LEFT OUT", "REASON"), left_out, width)
    yield from _summary(result["summary"])


def _rows(things: Iterable[_Thing], *keys: str) -> list[tuple[object, ...]]:
    """A row for each: namespace, name, and the values of these keys."""
    return [(one["namespace"], one["name"], *map(one.get, keys)) for one in things]


def _pod_rows(
    pods: Iterable[_Thing], keys: Sequence[str], *, one_row: Callable[[_Thing], bool]
) -> list[tuple[object, ...]]:
    """Like `_rows`; pods for which `one_row` holds and which differ only in the name are one row."""
    alike = grouped(pods, lambda pod: (*map(pod.get, keys), None if one_row(pod) else pod["name"]))
    return [(some[0]["namespace"], names([pod["name"] for pod in some]), *map(some[0].get, keys)) for some in alike]


def _section(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> Iterable[_Part]:
    """A table of rows with namespace and name, and an empty line; nothing if there are no rows."""
    if rows:
        yield from _with_texts(("NAMESPACE", *columns), rows, [f"{row[0]}/{row[1]}" for row in rows], width)
        yield ""


def _summary(summary: _Thing) -> Iterable[_Part]:
    counts = dict(summary)
    for name, problem in counts.pop("problems", {}).items():
        yield f"{name}: {problem}"
    yield _counted(counts)


def _counted(counts: Mapping[str, int]) -> str:
    """As `2 scheduled, 1 left out`."""
    return ", ".join(f"{count} {re.sub(r'(?<=[a-z])(?=[A-Z])', ' ', key).lower()}" for key, count in counts.items())


# ------------------------------------------------------------------ status


def _status(result: _Thing, width: int, now: datetime | None) -> Iterable[_Part]:
    times = [parsed_time(one["since"]) for one in (*result["held"], *result["waiting"]) if one["since"]]
    latest = max([time for time in (now, *times) if time is not None], default=None)
    columns = ("HELD BY", "GROUP", "QUEUE", "NODE", "JOBID", "AGE", "ENDS IN", "DEVICES")
    held = [{**pod, "age": _age(pod["since"], latest), "left": _left(pod["until"], latest),
             "devices": ", ".join(map(str, pod["devices"]))} for pod in result["held"]]  # fmt: skip
    keys = ("group", "queue", "node", "jobid", "age", "left", "devices")
    yield from _section(columns, _rows(held, *keys), width)
    alike = grouped(result["waiting"], lambda pod: (pod["queue"], pod["nominated"], pod["reason"]))
    waiting = [
        (pods[0]["namespace"], names([pod["name"] for pod in pods]), pods[0]["group"], pods[0]["queue"],
         _age(min((pod["since"] for pod in pods if pod["since"]), default=None), latest),
         pods[0]["nominated"], pods[0]["reason"])
        for pods in alike
    ]  # fmt: skip
    yield from _section(("WAITING", "GROUP", "QUEUE", "AGE", "NOMINATED", "REASON"), waiting, width)
    yield from _queues(result["queues"], width)
    yield ""
    yield from _summary(result["summary"])


def _age(since: str | None, now: datetime | None) -> str | None:
    """The age, as kubectl prints it."""
    time = parsed_time(since) if since else None
    return age_text((now - time).total_seconds()) if time is not None and now is not None else None


def _left(until: str | None, now: datetime | None) -> str | None:
    """The time left, or how long it is overdue."""
    time = parsed_time(until) if until else None
    if time is None or now is None:
        return None
    seconds = (time - now).total_seconds()
    return age_text(seconds) if seconds >= 0 else f"overdue {age_text(-seconds)}"


# ------------------------------------------------------------------ simulate -o diff


def _different(diff: _Thing, width: int) -> Iterable[_Part]:
    pods = [{**pod, "before": _place(pod["before"]), "after": _place(pod["after"])} for pod in diff["pods"]]
    yield from _section(("POD", "GROUP", "BEFORE", "AFTER"), _rows(pods, "group", "before", "after"), width)
    yes = {True: "yes", False: "no"}
    preempted = [{**pod, "before": yes[pod["before"]], "after": yes[pod["after"]]} for pod in diff["preempted"]]
    yield from _section(("PREEMPTED", "NODE", "BEFORE", "AFTER"), _rows(preempted, "node", "before", "after"), width)
    moved = _rows(diff["moved"], "node", "before", "after")
    yield from _section(("MOVED", "FROM", "TO BEFORE", "TO AFTER"), moved, width)
    if not diff["pods"] and not diff["preempted"] and not diff["moved"]:
        yield "no decision changes"
    for when, counts in diff["summary"].items():
        yield f"{when}: {_counted(counts)}"


def _place(decided: _Thing) -> str | None:
    """The node, with the backend if there is one."""
    backend = decided.get("backend")
    return f"{decided['node']} ({backend})" if backend else decided["node"]


# ------------------------------------------------------------------ explain


def _explained(pods: Sequence[_Thing], width: int, all_nodes: bool) -> Iterable[_Part]:
    if not pods:
        yield "no pending pods"
    alike = grouped(pods, lambda pod: msgspec.json.encode([
        pod["reason"], pod.get("fitsIf"), pod.get("schedulerName"), pod["nodes"]
    ]))  # fmt: skip
    short = not all_nodes and sum(len(some[0]["nodes"]) for some in alike) > _MOST_NODE_ROWS
    for index, some in enumerate(alike):
        pod = some[0]
        if index:
            yield ""
        helps = f"; would fit if {', and '.join(pod['fitsIf'])}" if pod.get("fitsIf") else ""
        yield f"{pod['namespace']}/{names([one['name'] for one in some])}: {_outcome(pod)}{helps}"
        rows = [_node_row(name, verdict) for name, verdict in pod["nodes"].items()]
        if short:
            yield from _node_summary(pod)
        elif rows:
            yield from _with_texts(("NODE", "FITS", "SCORE", "PLUGIN", "REASON"), rows, list(pod["nodes"]), width)
    if short:
        yield ""
        yield "To see each node, add --all-nodes."


def _outcome(pod: _Thing) -> str:
    """Why the pod is rejected as a whole, else where it is placed, else why it fits no node."""
    if pod["reason"]:
        return str(pod["reason"])
    if pod.get("node"):
        return f"placed on {pod['node']}"
    fits = any(verdict["fits"] for verdict in pod["nodes"].values())
    return "no plugin rejects the pod as a whole" if fits else str(pod["summary"])


def _node_summary(pod: _Thing) -> Iterable[_Part]:
    """The number of nodes by reason, unless the first line has it, and the nodes with the highest scores."""
    if pod["nodes"] and pod["summary"] != _outcome(pod):
        yield pod["summary"]
    fitting = [(name, verdict["score"]) for name, verdict in pod["nodes"].items() if verdict["fits"]]
    best = sorted(fitting, key=lambda one: -one[1])[:_BEST_NODES]
    if best:
        yield "highest scores: " + ", ".join(f"{name} ({score})" for name, score in best)


def _node_row(name: str, verdict: _Thing) -> Sequence[object]:
    if verdict["fits"]:
        return name, "yes", verdict["score"], None, _parts(verdict.get("scores", ()))
    return name, "no", None, verdict["plugin"], "; ".join(filter(None, (verdict["reason"], _fits_if(verdict))))


def _parts(scores: Iterable[_Thing]) -> str:
    """The parts of a score that are not 0: "NodeResourcesFit 80, ImageLocality 2 × 3"."""
    parts = [
        f"{part['plugin']} {part['score']:g}" + (f" × {part['weight']}" if part["weight"] != 1 else "")
        for part in scores
        if part["score"] and part["weight"]
    ]
    return ", ".join(parts)


def _fits_if(verdict: _Thing) -> str:
    """What must change for the node to fit; empty if no plugin reports it."""
    changes = verdict.get("fitsIf", ())
    known = [text for change in changes for text in change["changes"] or ()]
    if not known:
        return ""
    unknown = [change["plugin"] for change in changes if change["changes"] is None]
    return f"would fit if {', and '.join([*known, *(f'{name} passed' for name in unknown)])}"


def _gangs(groups: Iterable[_Thing], width: int) -> Iterable[_Part]:
    for group in groups:
        yield ""
        reason = f": {group['reason']}" if group["reason"] else ""
        parts = group.get("subGroups", {})
        lacks = sum(max(0, one["minimum"] - one["started"]) for one in parts.values())
        placeable = f"{group['placeable']} pod{'s' * (group['placeable'] != 1)}"
        needed = max(group["minCount"] - group["started"], lacks)
        yield (f"group {group['namespace']}/{group['name']}: {placeable} can be placed now, "
               f"{needed} {'is' if needed == 1 else 'are'} needed{reason}")  # fmt: skip
        for name, one in parts.items():
            missing = one["minimum"] - one["started"] - one["placeable"]
            short = f"; {missing} missing" if missing > 0 else ""
            running = f"{one['started']} {'is' if one['started'] == 1 else 'are'} running"
            yield (f"  sub-group {name}: {one['placeable']} can be placed now, {running} "
                   f"(minimum: {one['minimum']}){short}")  # fmt: skip
        refused: dict[str, list[str]] = {}
        for name, why in group["refused"].items():
            refused.setdefault(why, []).append(name)
        rows = [*((name, node, None) for name, node in group["placement"].items()),
                *((names(pods), None, why) for why, pods in refused.items())]  # fmt: skip
        if rows:
            yield from _with_texts(("POD", "NODE", "REASON"), rows, [str(row[0]) for row in rows], width)


# ------------------------------------------------------------------ plugins and queues


def _plugins(plugins: Sequence[_Thing], width: int) -> Iterable[_Part]:
    """The built-in plugins, then those of other distributions, without the hooks."""
    own = [plugin for plugin in plugins if plugin["origin"] == _BUILT_IN]
    added = [plugin for plugin in plugins if plugin["origin"] != _BUILT_IN]
    own_rows = [(plugin["name"], _about(plugin)) for plugin in own]
    added_rows = [(plugin["name"], f"{plugin['distribution']} {plugin['version']}".strip(), _about(plugin))
                  for plugin in added]  # fmt: skip
    yield from _with_texts(("BUILT-IN", "SUMMARY"), own_rows, [plugin["name"] for plugin in own], width)
    if added:
        yield ""
        yield from _with_texts(
            ("PLUGIN", "DISTRIBUTION", "SUMMARY"), added_rows, [plugin["name"] for plugin in added], width
        )


def _about(plugin: _Thing) -> str:
    return str(plugin["problem"] or plugin["summary"])


def _queues(queues: Sequence[_Thing], width: int) -> Iterable[_Part]:
    """A row for each queue, or if that is too wide for each queue and resource."""
    amounts = ("deserved", "limit", "fairShare", "allocated", "pending")
    rows = [("  " * queue["depth"] + queue["name"], *(_amounts(queue[one]) for one in amounts), queue["reason"])
            for queue in queues]  # fmt: skip
    columns = ("QUEUE", "DESERVED", "LIMIT", "FAIR SHARE", "ALLOCATED", "PENDING", "REASON")
    if sum(_widths(columns, _cells(rows))[:-1]) + _GAP * (len(columns) - 2) <= width:
        yield from _with_texts(columns, rows, [queue["name"] for queue in queues], width)
        return
    by_resource: list[tuple[object, ...]] = []
    for queue, (name, *_) in zip(queues, rows, strict=True):
        resources = sorted({one for key in amounts for one in queue[key]}) or [""]
        by_resource += [(name, one, *(queue[key].get(one) for key in amounts)) for one in resources]
    yield TableRows((columns[0], "RESOURCE", *columns[1:-1]), by_resource)
    yield from (f"{queue['name']}: {queue['reason']}" for queue in queues if queue["reason"])


def _amounts(amounts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())


# ------------------------------------------------------------------ tables


def _with_texts(
    columns: Sequence[str], rows: Sequence[Sequence[object]], heads: Sequence[str], width: int
) -> Iterable[_Part]:
    """A table whose last column is a sentence that wraps; the other columns do not wrap.

    If they leave too little width for it, each sentence is a line below the table, after the row's head.
    """
    widths = _widths(columns, _cells(rows))
    if _left_for_last(widths, width) >= min(widths[-1], _SENTENCE):
        yield TableRows(columns, rows, _NUMBERS)
        return
    yield TableRows(columns[:-1], [row[:-1] for row in rows], _NUMBERS)
    yield from (f"{head}: {row[-1]}" for head, row in zip(heads, rows, strict=True) if row[-1])


def _cells(rows: Iterable[Sequence[object]]) -> list[list[str]]:
    return [[_cell(value) for value in row] for row in rows]


def _cell(value: object) -> str:
    return "-" if value in (None, "") else _printable(str(value))


def _printable(text: str) -> str:
    """The text on one line, without control characters."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)


def _widths(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]


def _left_for_last(widths: Sequence[int], width: int) -> int:
    """The width that the other columns leave for the last one."""
    return width - sum(widths[:-1]) - _GAP * (len(widths) - 1)


def _wrapped(part: TableRows, rows: Iterable[Sequence[str]], last_width: int) -> Table:
    """A table whose cells wrap; it never cuts a cell. If the last column has enough width, only its cells wrap."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for place, column in enumerate(part.columns, 1):
        most = last_width if place == len(part.columns) and last_width >= _SENTENCE else None
        justify: Literal["left", "right"] = "right" if column in part.numbers else "left"
        table.add_column(column, overflow="fold", justify=justify, max_width=most)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
