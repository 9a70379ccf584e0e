"""The NodeName plugin: restricts a pod to the node in its `spec.nodeName`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.hookspecs import SKIP, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.events import ActionType, ClusterEventWithHint
from session_scheduler.model.objects import Node


class NodeName(WithoutArguments):
    """Rejects nodes other than `spec.nodeName`."""

    name = "NodeName"
    ignores_requests = True
    filter_scope = Scope.STATIC

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when a node is added."""
        return [ClusterEventWithHint(Node, ActionType.ADD)]

    @hookimpl
    def prepare(self, cls: TaskClass) -> Skip | None:
        """Skips pods that name no node."""
        return None if cls.pod.spec.node_name else SKIP

    @hookimpl
    def filter(self, cls: TaskClass, nodes: NodeView, mask: BoolColumn) -> None:
        """Clear all other nodes."""
        np.logical_and(mask, nodes.named(cls.pod.spec.node_name), out=mask)

    @hookimpl
    def reasons(self) -> str:
        """kube-scheduler's message."""
        return "node(s) didn't match the requested node name"

    @hookimpl
    def fits_if(self, nodes: NodeView) -> Sequence[Sequence[str]]:
        """The `spec.nodeName` that each node needs."""
        return [[f"spec.nodeName were {nodes.node(index).metadata.name} or empty"] for index in range(len(nodes))]
