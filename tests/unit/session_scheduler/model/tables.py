"""Builders of nodes and classes for tests, and the contents of a node table to compare."""

from __future__ import annotations

from typing import Any

import msgspec

from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import ABSENT, NodeTable
from session_scheduler.model.objects import Node, Pod


def node(name: str, labels: Any = None, taints: Any = (), cordoned: bool = False, **allocatable: str) -> Node:
    taints = [{"key": key, "effect": "NoSchedule"} for key in taints]
    value = {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": taints, "unschedulable": cordoned},
        "status": {"allocatable": {"pods": "10", **allocatable}},
    }
    return msgspec.convert(value, Node)


def task_class(table: NodeTable, footprint: str = "", **requests: str) -> TaskClass:
    value = {"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"requests": requests}}]}}
    return ClassTable(table, footprints=[lambda _: [footprint] if footprint else []]).of(msgspec.convert(value, Pod))


def contents(table: NodeTable) -> dict[str, Any]:
    """By node: everything that a view returns for it, without row numbers."""
    view = table.all_rows()
    return {
        name: {
            "amounts": {r: (int(view.allocatable(r)[row]), int(view.used(r)[row])) for r in table.resources.names},
            "nonzero": [int(view.nonzero_used(r)[row]) for r in ("cpu", "memory")],
            "cordoned": bool(view.unschedulable[row]),
            "labels": {k: view.label_value(i) for k in table._labels if (i := int(view.label(k)[row])) != ABSENT},
            "taints": {key[0] for key, carriers in view.taints() if carriers[row]},
            "counters": {k: int(view.counter(k)[row]) for k in table._counters if view.counter(k)[row]},
            "node": view.node(row).metadata.name,
        }
        for name, row in table.row_of.items()
    }
