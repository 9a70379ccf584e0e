"""Pictures of the graph: escaped DOT, SVG without references, and counts."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from fluence_plugins.fluence.graph import pictures
from fluence_plugins.fluence.graph.cluster_graph import HostResources, build_graph
from fluence_plugins.fluence.graph.jgf import JGFBuilder, Options
from fluence_plugins.resources.config import load_resources

SVG = "{http://www.w3.org/2000/svg}"
RESOURCES = """
resources:
  - name: aurora
    type: qpu
    status: down
    with: [{type: license}]
  - name: borealis
    type: qpu
"""


def graph(resources: str = RESOURCES) -> tuple[JGFBuilder, pictures.Devices]:
    found = build_graph(
        [HostResources("n1", 4, 1024), HostResources("n2", 4, 1024)], load_resources(resources, "r.yaml")
    )
    return found.builder, {found.vertex_path(path): device for path, device in found.virtual.items()}


def named(name: str) -> JGFBuilder:
    builder = JGFBuilder()
    root = builder.add_root("cluster")
    builder.add_child(root, "node", options=Options(name=name, rank=0))
    return builder


def test_the_summary_counts_vertices_units_and_drained_devices() -> None:
    rows = {(kind, depth): rest for kind, depth, *rest in pictures.summary(*graph())}
    assert rows["node", 1] == [2, 2, "", 0]
    assert rows["core", 2] == [8, 8, "", 0]
    assert rows["memory", 2][1:] == [2048, "MiB", 0]
    assert rows["qpu", 1] == [2, 2, "", 1]


def test_equal_leaves_share_a_box_and_drained_ones_are_dashed() -> None:
    text = pictures.dot(*graph())
    assert text.count('label="4 × core"') == 2
    assert 'label="aurora (qpu), down", style=dashed' in text
    assert 'label="borealis (qpu)"]' in text
    image = ElementTree.fromstring(pictures.svg(*graph()))
    labels = [element.text for element in image.iter(f"{SVG}text")]
    assert labels.count("4 × core") == 2
    assert sum("stroke-dasharray" in element.attrib for element in image.iter(f"{SVG}rect")) >= 1


def test_devices_keep_a_name_that_begins_with_their_type() -> None:
    drawn = pictures.dot(*graph("resources: [{type: qpu, name: qpu-east}, {type: qpu, name: qpu-west}]"))
    assert 'label="qpu-east"' in drawn
    assert 'label="qpu-west"' in drawn


@pytest.mark.parametrize("name", ['a"];evil', "a\\", "<script>", "a\nb", "a\x00b", "]]>&amp;"])
def test_names_cannot_leave_their_label(name: str) -> None:
    text = pictures.dot(named(name), {})
    line = next(line for line in text.splitlines() if line.startswith("  v1 [label="))
    quoted = line.removeprefix('  v1 [label="').removesuffix('"];')
    assert '"' not in quoted.replace("\\\\", "").replace('\\"', "")
    assert len(text.splitlines()) == 7
    image = ElementTree.fromstring(pictures.svg(named(name), {}))
    assert {element.tag for element in image.iter()} == {
        f"{SVG}{tag}" for tag in ("svg", "title", "rect", "path", "text")
    }


def test_each_leaf_has_a_row_and_no_boxes_overlap() -> None:
    image = ElementTree.fromstring(pictures.svg(*graph()))
    boxes = [
        tuple(float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        for box in image.iter(f"{SVG}rect")
        if "rx" in box.attrib
    ]
    for place, (x, y, width, height) in enumerate(boxes):
        for x2, y2, width2, height2 in boxes[place + 1 :]:
            assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y


def test_equal_graphs_give_equal_pictures() -> None:
    assert pictures.svg(*graph()) == pictures.svg(*graph())
    assert pictures.dot(*graph()) == pictures.dot(*graph())
