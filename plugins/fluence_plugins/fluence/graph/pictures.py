"""The resource graph for people: as DOT text for Graphviz, as an SVG image, and as counts by type.

Equal leaves below one vertex, such as cores, share a box.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Final

import msgspec

from fluence_plugins.fluence.graph.cluster_graph import VirtualNode
from fluence_plugins.fluence.graph.jgf import Vertex

_ROW: Final = 26
"""The height of a row in pixels."""
_LETTER: Final = 7.3
"""The width of a letter in pixels, at 12 pixels of a fixed-width font."""
_GAP: Final = 36
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")
Devices = Mapping[str, VirtualNode]
"""The virtual resources by the paths of their vertices."""
SUMMARY_COLUMNS: Final = ("TYPE", "DEPTH", "VERTICES", "UNITS", "UNIT", "DOWN")
SUMMARY_NUMBERS: Final = ("DEPTH", "VERTICES", "UNITS", "DOWN")


class _Box(msgspec.Struct):
    """One box of a picture: a vertex, or equal leaves."""

    label: str
    down: bool
    children: list[_Box]
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return 16 + _LETTER * len(self.label)


def dot(vertices: Iterable[Vertex], devices: Devices) -> str:
    """DOT text. The boxes of drained devices are dashed."""
    lines = ["digraph resources {", "  rankdir=LR;", '  node [shape=box, fontname="monospace"];']
    for number, (above, box) in enumerate(_walk(_tree(vertices, devices))):
        style = ", style=dashed" if box.down else ""
        lines.append(f'  v{number} [label="{_quoted(box.label)}"{style}];')
        if above is not None:
            lines.append(f"  v{above} -> v{number};")
    return "\n".join([*lines, "}", ""])


def _quoted(label: str) -> str:
    return _plain(label).replace("\\", "\\\\").replace('"', '\\"')


def _plain(label: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", label)


def svg(vertices: Iterable[Vertex], devices: Devices) -> str:
    """An SVG image: the root on the left, each leaf in a row of its own. It has no script and no reference."""
    root = _tree(vertices, devices)
    rows = _place(root)
    boxes = [box for _, box in _walk(root)]
    width = max(box.x + box.width for box in boxes) + 10
    height = rows * _ROW + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="monospace" font-size="12" role="img">',
        "<title>Resource graph</title>",
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for box in boxes:
        middle = box.y + _ROW / 2
        for child in box.children:
            start, end, below = box.x + box.width, child.x, child.y + _ROW / 2
            bend = end - _GAP / 2
            parts.append(
                f'<path d="M{start:.1f} {middle:.1f}H{bend:.1f}V{below:.1f}H{end:.1f}" fill="none" stroke="#757575"/>'
            )
    for box in boxes:
        dashes = ' stroke-dasharray="4 3"' if box.down else ""
        parts.append(
            f'<rect x="{box.x:.1f}" y="{box.y + 3:.1f}" width="{box.width:.1f}" height="{_ROW - 6}" rx="3" '
            f'fill="white" stroke="#0072b2"{dashes}/>'
            f'<text x="{box.x + 8:.1f}" y="{box.y + _ROW / 2 + 4:.1f}">{escape(_plain(box.label))}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def summary(vertices: Iterable[Vertex], devices: Devices) -> list[tuple[object, ...]]:
    """Rows of `SUMMARY_COLUMNS`, by depth and type: how many vertices and units there are, and how many are down."""
    found: Counter[tuple[int, str, str]] = Counter()
    units: Counter[tuple[int, str, str]] = Counter()
    gone: Counter[tuple[int, str, str]] = Counter()
    for vertex in vertices:
        key = vertex.path.count("/") - 1, _type(vertex, devices), vertex.options.unit
        found[key] += 1
        units[key] += vertex.options.size
        gone[key] += _is_down(vertex, devices)
    return [
        (kind, depth, number, units[depth, kind, unit], unit, gone[depth, kind, unit])
        for (depth, kind, unit), number in sorted(found.items())
    ]


# ------------------------------------------------------------------ the tree


def _type(vertex: Vertex, devices: Devices) -> str:
    """The type in resources.yaml of a device, whose vertex may be a `node`."""
    device = devices.get(vertex.path)
    return vertex.type if device is None else device.type


def _is_down(vertex: Vertex, devices: Devices) -> bool:
    device = devices.get(vertex.path)
    return device is not None and device.down


def _tree(vertices: Iterable[Vertex], devices: Devices) -> _Box:
    """The root's box. The vertices come parents first."""
    known = list(vertices)
    parents = {vertex.parent for vertex in known}
    boxes: dict[str, _Box] = {}
    equal: dict[tuple[str | None, str, str, bool], list[Vertex]] = {}
    for vertex in known:
        kind, is_down = _type(vertex, devices), _is_down(vertex, devices)
        if vertex.path not in parents and vertex.name.removeprefix(kind).isdecimal():  # a number instead of a name
            equal.setdefault((vertex.parent, kind, _amount(vertex), is_down), []).append(vertex)
            continue
        boxes[vertex.path] = box = _Box(_label(vertex, kind, is_down), is_down, [])
        if vertex.parent is not None:
            boxes[vertex.parent].children.append(box)
    for (parent, kind, size, is_down), leaves in equal.items():
        label = (
            _label(leaves[0], kind, is_down) if len(leaves) == 1 else f"{len(leaves)} × {kind}{size}{_state(is_down)}"
        )
        box = _Box(label, is_down, [])
        if parent is None:
            return box
        boxes[parent].children.append(box)
    return boxes[known[0].path]


def _label(vertex: Vertex, kind: str, is_down: bool) -> str:
    typed = "" if vertex.name.startswith(kind) else f" ({kind})"
    return f"{vertex.name}{typed}{_amount(vertex)}{_state(is_down)}"


def _amount(vertex: Vertex) -> str:
    options = vertex.options
    return f": {options.size} {options.unit}".rstrip() if options.size != 1 or options.unit else ""


def _state(is_down: bool) -> str:
    return ", down" if is_down else ""


def _walk(root: _Box) -> Iterator[tuple[int | None, _Box]]:
    """Each box after its parent, with the parent's place in this order."""
    stack: list[tuple[int | None, _Box]] = [(None, root)]
    place = 0
    while stack:
        above, box = stack.pop()
        yield above, box
        stack += [(place, child) for child in reversed(box.children)]
        place += 1


def _place(root: _Box) -> int:
    """Set each box's place; a parent is in the middle of its children. Returns the number of rows."""
    order = [box for _, box in _walk(root)]
    level = [root]
    x = 10.0
    while level:
        for box in level:
            box.x = x
        x += max(box.width for box in level) + _GAP
        level = [child for box in level for child in box.children]
    rows = 0
    for box in order:
        if not box.children:
            box.y = 10 + rows * _ROW
            rows += 1
    for box in reversed(order):
        if box.children:
            box.y = (box.children[0].y + box.children[-1].y) / 2
    return rows
