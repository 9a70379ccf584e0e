"""The dashboard's page about the resource graph: virtual devices, their backends and holders on a time axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fluence_lab import drawing
from fluence_lab.panels import Panel, PanelContext
from fluence_lab.view import Column, Figure, Table, View
from fluence_lab.words import MOST_ROWS, count, listed, table
from fluence_plugins.fluence.graph.cluster_graph import VirtualNode
from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.resources import names
from fluence_plugins.resources.maintenance_windows import Window
from session_scheduler.model.columns import natural
from session_scheduler.model.times import parsed_time

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, Model

_MOST_DRAWN: Final = 40
_MOST_GANGS: Final = 3
"""For so many waiting gangs the page shows the reservation."""
_DAY: Final = 24 * 3600.0
_HIDDEN: Final = "(another namespace)"


class _Holding(msgspec.Struct, frozen=True):
    """A pod that holds a device, or a part of it; times in seconds since 1970."""

    pod: str
    since: float
    until: float
    """NaN if the pod's duration is unknown."""


class _Device(msgspec.Struct, frozen=True):
    path: str
    node: VirtualNode
    holdings: tuple[_Holding, ...]
    windows: tuple[Window, ...]

    @property
    def state(self) -> str:
        if self.node.down:
            return "drained"
        return "closed" if self.node.closed else "up"


def resource_graph(context: PanelContext) -> View | None:
    """The view; None if the plugin is not loaded, or no virtual resource is configured."""
    plugin = context.plugin(FluencePlugin.name)
    if not isinstance(plugin, FluencePlugin) or not plugin.live.graph.virtual:
        return None
    devices = _devices(plugin, context)
    reservations = _reservations(context)
    return View(
        "resource-graph",
        "Resource graph",
        _summary(plugin, devices),
        (_figure(context.observed.time, devices, reservations),),
        (_device_table(devices), _reservation_table(reservations), _window_table(plugin.windows)),
    )


# ------------------------------------------------------------------ devices


def _devices(plugin: FluencePlugin, context: PanelContext) -> list[_Device]:
    """Every device, in natural order of paths; the places of a shared one count as that device."""
    held: dict[str, list[_Holding]] = {}
    pods = context.observed.pods
    row_of = {key: row for row, key in enumerate(pods.keys)}
    key_of = {pod.metadata.uid: key for key, pod in context.pods().items()}
    for uid, share in plugin.live.holdings.shares.items():
        key = key_of.get(uid)
        row = row_of.get(key) if key is not None else None
        for part in share.values():
            for device in part.devices:
                times = (math.nan, math.nan) if row is None else (float(pods.bound[row]), float(pods.until[row]))
                held.setdefault(names.without_places(device.path), []).append(_Holding(key or _HIDDEN, *times))
    found: dict[str, VirtualNode] = {}
    for node in plugin.live.graph.virtual.values():
        found.setdefault(names.without_places(node.path), node)  # a shared device comes before its places
    return [
        _Device(path, node, tuple(held.get(path, ())), tuple(_windows(node, plugin.windows)))
        for path, node in sorted(found.items(), key=lambda item: natural(item[0]))
    ]


def _windows(node: VirtualNode, windows: Iterable[Window]) -> Iterable[Window]:
    """The windows that close a device: of its backend, and of nodes that contain it."""
    above = {path.rpartition("/")[2] for path in node.above}
    return (window for window in windows if node.backend in window.backends or above.intersection(window.nodes))


def _summary(plugin: FluencePlugin, devices: Sequence[_Device]) -> str:
    backends = {device.node.backend for device in devices}
    drained = sorted({device.node.backend for device in devices if device.node.down and not device.node.level})
    held = sum(bool(device.holdings) for device in devices)
    hosts = len(plugin.live.loaded.hosts)
    text = (
        f"{count(len(devices), 'virtual resource')} of {count(len(backends), 'backend')}, and {count(hosts, 'node')}."
    )
    text += f" Pods hold {held:,}."
    return f"{text} Drained: {listed(drained)}." if drained else text


def _device_table(devices: Sequence[_Device]) -> Table:
    columns = map(Column, ("Resource", "Type", "Backend", "State", "Held by", "Attributes"))
    rows = [
        (
            "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}" * device.node.level + device.path,
            device.node.type,
            device.node.backend,
            device.state,
            ", ".join(dict.fromkeys(holding.pod for holding in device.holdings)) or None,
            ", ".join(f"{name}={value}" for name, value in sorted(device.node.attributes.items())) or None,
        )
        for device in devices[:MOST_ROWS]
    ]
    return table("resources", "Virtual resources", columns, rows, of=len(devices))


def _window_table(windows: Sequence[Window]) -> Table:
    rows = [(str(window), ", ".join(window.nodes) or None, ", ".join(window.backends) or None) for window in windows]
    return table("windows", "Maintenance windows", map(Column, ("Window", "Nodes", "Backends")), rows, optional=True)


# ------------------------------------------------------------------ reservations


def _reservations(context: PanelContext) -> list[tuple[str, str, str]]:
    """The gang, the expected start and the nodes of the reservations of some gangs that wait."""
    gangs = sorted((gang for gang in context.observed.gangs if gang.pending), key=lambda gang: -gang.priority)
    pods, found = context.observed.pods, []
    for gang in gangs[:_MOST_GANGS]:
        member = next(
            (
                key
                for key, group, node in zip(pods.keys, pods.groups, pods.nodes.tolist(), strict=True)
                if group == gang.name and node < 0 and key.startswith(f"{gang.namespace}/")
            ),
            None,
        )
        answer = context.verdicts(member) if member is not None else None
        reservation = ((answer or {}).get("gang") or {}).get("reservation")
        if reservation:
            nodes = sorted(set(reservation["nodes"].values()), key=natural)
            found.append((f"{gang.namespace}/{gang.name}", str(reservation["start"]), ", ".join(nodes)))
    return found


def _reservation_table(reservations: Sequence[tuple[str, str, str]]) -> Table:
    return table("reservations", "Reservations", map(Column, ("Gang", "Starts", "Nodes")), reservations, optional=True)


# ------------------------------------------------------------------ figure


def _figure(now: float, devices: Sequence[_Device], reservations: Sequence[tuple[str, str, str]]) -> Figure:
    """The devices that are held, drained or in a window, and the gangs with reserved nodes.

    From the first holding to a day ahead at most. The end of a reservation is unknown.
    """
    busy = [device for device in devices if device.holdings or device.windows or device.node.down]
    shown = (busy or list(devices))[:_MOST_DRAWN]
    known = [holding.since for device in shown for holding in device.holdings if not math.isnan(holding.since)]
    first = min([now - 600, *known])
    starts = {gang: time.timestamp() for gang, start, _ in reservations if (time := parsed_time(start)) is not None}
    last = now + min(_DAY, max(600.0, now - first, *(start - now + 600.0 for start in starts.values())))
    bars: dict[str, dict[str, list[Any]]] = {
        kind: {"y": [], "from": [], "to": [], "name": []} for kind in ("held", "windows", "drained", "reserved")
    }

    rows = [*map(_label, shown), *(f"{gang}, reserved" for gang, _, _ in reservations)]
    labels = drawing.rows(rows)

    def add(kind: str, place: int, start: float, end: float, name: str) -> None:
        if start < last and end > first:
            values = (labels["y"][place], 1000 * max(first, start), 1000 * min(last, end), name)
            for column, value in zip(bars[kind].values(), values, strict=True):
                column.append(value)

    for place, device in enumerate(shown):
        for holding in device.holdings:
            since = first if math.isnan(holding.since) else holding.since
            add("held", place, since, math.inf if math.isnan(holding.until) else holding.until, holding.pod)
        for window in device.windows:
            add("windows", place, window.start, window.end, str(window))
        if device.node.down:
            add("drained", place, now, math.inf, "drained")
    for place, (gang, _, nodes) in enumerate(reservations, len(shown)):
        if gang in starts:
            add("reserved", place, starts[gang], math.inf, f"{gang}: {nodes}")
    labels["x"] = [1000 * first] * len(rows)
    present = {"x": [1000 * now] * 2, "y": [0.9, min(labels["y"], default=0.0) - 0.6]}
    held, drained = sum(bool(device.holdings) for device in devices), sum(device.node.down for device in devices)
    text = f"Held resources: {held:,} of {len(devices):,}; drained: {drained:,}."
    if len(busy) > len(shown):
        text += f" The figure shows the first {len(shown)} of {len(busy):,} that are held, drained or in maintenance "
        text += "windows."
    if reservations:
        text += f" Nodes are reserved for {listed([f'{gang} from {start}' for gang, start, _ in reservations])}."
    sources: dict[str, Any] = {**bars, "labels": labels, "now": present}
    return Figure("timeline", "Holdings, reservations, drains and maintenance windows", text, sources, _draw)


def _label(device: _Device) -> str:
    label = f"{device.path.rpartition('/')[2]} ({device.node.type})"
    return label if device.state == "up" else f"{label}, {device.state}"


def _draw(sources: Mapping[str, ColumnDataSource]) -> Model:
    made = drawing.timeline(sources["labels"], base=206)
    looks: dict[str, dict[str, Any]] = {
        "held": {"color": drawing.BLUE},
        "windows": {"color": drawing.GREY, "hatch_pattern": "cross", "hatch_color": "black"},
        "drained": {"color": drawing.VERMILION, "hatch_pattern": "right_diagonal_line", "hatch_color": "black"},
        "reserved": {"color": drawing.YELLOW, "hatch_pattern": "dot", "hatch_color": "black"},
    }
    drawing.spans(made, sources, looks)
    drawing.legend(made)
    return made


PANEL: Final = Panel("resource-graph", "Resource graph", resource_graph, order=60)
