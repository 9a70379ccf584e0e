from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.hookspecs import SKIP

PLUGIN = BUILTIN["NodeUnschedulable"](None)
KEY = "node.kubernetes.io/unschedulable"


def test_cordoned_nodes_are_rejected(world: Any) -> None:
    world.node("open")
    world.node("cordoned", cordoned=True)
    assert world.fitting(PLUGIN, world.pod()) == ["open"]
    assert world.reasons(PLUGIN, world.pod(), "cordoned") == [["node(s) were unschedulable"]]


@pytest.mark.parametrize(
    ("toleration", "skipped"),
    [
        ({"key": KEY, "operator": "Exists"}, True),
        ({"key": KEY, "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": KEY}, True),
        ({"operator": "Exists"}, True),
        ({"key": KEY, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": KEY, "value": "x"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_pods_that_tolerate_the_taint_are_skipped(world: Any, toleration: Any, skipped: bool) -> None:
    assert (world.prepared(PLUGIN, world.pod(tolerations=[toleration])) is SKIP) == skipped
