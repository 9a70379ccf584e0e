from __future__ import annotations

from typing import Any

from session_scheduler.builtin import BUILTIN
from session_scheduler.hookspecs import Refusal
from session_scheduler.model.class_table import ClassTable

PLUGIN = BUILTIN["SchedulingGates"](None)


def test_a_gated_pod_is_rejected_with_its_gates(world: Any) -> None:
    pod = world.pod(schedulingGates=[{"name": "a.example/quota"}, {"name": "b"}])
    assert world.prepared(PLUGIN, pod) == Refusal("waiting for scheduling gates: [a.example/quota b]")


def test_a_pod_without_gates_passes(world: Any) -> None:
    assert world.prepared(PLUGIN, world.pod()) is None


def test_a_pod_changes_its_class_when_its_gates_are_removed(world: Any) -> None:
    classes = ClassTable(world.table, class_keys=[PLUGIN.class_key])
    assert classes.of(world.pod(schedulingGates=[{"name": "g"}])) is not classes.of(world.pod())
