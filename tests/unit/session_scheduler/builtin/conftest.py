"""A world of a few nodes to call the hooks of one plugin for one pod."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from session_scheduler.hookspecs import SKIP, Prepared
from session_scheduler.model.class_table import ClassTable
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import NodeTable, NodeView
from session_scheduler.model.objects import Node, Pod


class World:
    """Nodes as columns. It calls the hooks as the core does, with the arguments that they name."""

    def __init__(self) -> None:
        self.table = NodeTable()

    def node(
        self, name: str, *, labels: Any = None, taints: Any = (), cordoned: bool = False, **allocatable: str
    ) -> None:
        amounts = {
            "cpu": "4",
            "memory": "8Gi",
            "pods": "10",
            **{k.replace("__", "/"): v for k, v in allocatable.items()},
        }
        value = {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"unschedulable": cordoned, "taints": list(taints)},
            "status": {"allocatable": amounts},
        }
        self.table.put(msgspec.convert(value, Node))

    def pod(self, requests: Any = None, **spec: Any) -> Pod:
        spec.setdefault("containers", [{"name": "c", "resources": {"requests": requests or {}}}])
        return msgspec.convert({"metadata": {"name": "p", "namespace": "default"}, "spec": spec}, Pod)

    def cls(self, plugin: Any, pod: Pod) -> TaskClass:
        footprint = getattr(plugin, "footprint", None)
        return ClassTable(self.table, footprints=[footprint] if footprint else []).of(pod)

    def run(self, plugin: Any, node: str, pod: Pod, count: int = 1) -> None:
        """Add this many running pods to the node."""
        for _ in range(count):
            self.table.add_usage(self.table.row_of[node], self.cls(plugin, pod), 1)

    def prepared(self, plugin: Any, pod: Pod) -> Any:
        return call(plugin, "prepare", cls=self.cls(plugin, pod))

    def fitting(self, plugin: Any, pod: Pod) -> list[str]:
        """The nodes that pass the plugin's filter, sorted."""
        cls = self.cls(plugin, pod)
        nodes, mask = self.table.all_rows(), self.table.valid()
        state = state_of(call(plugin, "prepare", cls=cls))
        if state is not SKIP:
            call(plugin, "filter", cls=cls, nodes=nodes, mask=mask, state=state)
        found = (self.table.nodes[row] for row in np.flatnonzero(mask))
        return sorted(node.metadata.name for node in found if node)

    def scores(self, plugin: Any, pod: Pod) -> dict[str, int]:
        """Raw scores by node."""
        cls = self.cls(plugin, pod)
        state = state_of(call(plugin, "prepare", cls=cls))
        assert state is not SKIP
        raw = call(plugin, "score", cls=cls, nodes=self.table.all_rows(), mask=self.table.valid(), state=state)
        return {name: int(raw[row]) for name, row in self.table.row_of.items()}

    def reasons(self, plugin: Any, pod: Pod, *names: str) -> list[list[str]]:
        """Why the plugin rejects these nodes."""
        cls = self.cls(plugin, pod)
        rows = np.array([self.table.row_of[name] for name in names])
        state = state_of(call(plugin, "prepare", cls=cls))
        found = call(plugin, "reasons", cls=cls, nodes=NodeView(self.table, rows), state=state)
        if isinstance(found, str):
            return [[found]] * len(names)
        return [[text for text, holds in found.items() if holds[place]] for place in range(len(names))]

    def how_many_more(self, plugin: Any, pod: Pod, node: str, most: int = 8) -> int:
        """How many more such pods fit on the node, by virtual rows."""
        cls = self.cls(plugin, pod)
        rows = np.full(most, self.table.row_of[node])
        nodes, mask = NodeView(self.table, rows, cls, np.arange(most)), np.ones(most, np.bool_)
        state = state_of(call(plugin, "prepare", cls=cls))
        call(plugin, "filter", cls=cls, nodes=nodes, mask=mask, state=state)
        return int(np.argmin(np.append(mask, False)))


def call(plugin: Any, name: str, **given: Any) -> Any:
    """The answer of a hook, called with the arguments that it names; None if the plugin has no such hook."""
    hook = getattr(plugin, name, None)
    if hook is None:
        return None
    wanted = hook.__code__.co_varnames[1 : hook.__code__.co_argcount]
    return hook(*(given[argument] for argument in wanted))


@pytest.fixture
def world() -> World:
    return World()


def state_of(answer: Any) -> Any:
    """What other hooks receive as the state if `prepare` returns this."""
    return answer.state if isinstance(answer, Prepared) else answer
