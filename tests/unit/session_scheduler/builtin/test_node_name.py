from __future__ import annotations

from typing import Any

import numpy as np

from session_scheduler.builtin import BUILTIN
from session_scheduler.hookspecs import SKIP
from session_scheduler.model.columns import NodeView

PLUGIN = BUILTIN["NodeName"](None)


def test_a_pod_that_names_its_node_fits_there_only(world: Any) -> None:
    world.node("a")
    world.node("b")
    assert world.fitting(PLUGIN, world.pod(nodeName="b")) == ["b"]
    assert world.fitting(PLUGIN, world.pod(nodeName="gone")) == []
    assert world.reasons(PLUGIN, world.pod(nodeName="b"), "a") == [["node(s) didn't match the requested node name"]]


def test_every_virtual_row_of_the_named_node_fits(world: Any) -> None:
    world.node("a")
    world.node("b")
    cls = world.cls(PLUGIN, world.pod(nodeName="b"))
    nodes = NodeView(world.table, np.array([1, 0, 1]), cls, np.array([0, 0, 1]))
    mask = np.ones(3, np.bool_)
    PLUGIN.filter(cls, nodes, mask)
    assert mask.tolist() == [True, False, True]


def test_pods_that_name_no_node_are_skipped(world: Any) -> None:
    assert world.prepared(PLUGIN, world.pod()) is SKIP
