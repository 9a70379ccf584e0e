"""The NodeUnschedulable plugin: rejects cordoned nodes for pods that do not tolerate them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.hookspecs import SKIP, Scope, Skip, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, NodeView
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.selectors import tolerated

TAINT: Final = ("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint for `spec.unschedulable`: a cordoned node fits a pod that tolerates it."""


class NodeUnschedulable(WithoutArguments):
    """Rejects nodes with `spec.unschedulable`."""

    name = "NodeUnschedulable"
    ignores_requests = True
    filter_scope = Scope.STATIC

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when a node is added or uncordoned, or the pod tolerates the taint now."""
        return [
            ClusterEventWithHint(Node, ActionType.ADD | ActionType.UPDATE_NODE_TAINT, _is_schedulable_now),
            ClusterEventWithHint(Pod, ActionType.UPDATE_POD_TOLERATION, _tolerates_now),
        ]

    @hookimpl
    def prepare(self, cls: TaskClass) -> Skip | None:
        """Skips pods that tolerate the taint."""
        return SKIP if tolerated(cls.pod.spec.tolerations, TAINT) else None

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn) -> None:
        """Clear the cordoned nodes."""
        np.greater(mask, nodes.unschedulable, out=mask)

    @hookimpl
    def filter_key(self) -> bool:
        """One key for all classes that do not tolerate the taint."""
        return True

    @hookimpl
    def reasons(self) -> str:
        """kube-scheduler's message."""
        return "node(s) were unschedulable"

    @hookimpl
    def fits_if(self, nodes: NodeView) -> Sequence[Sequence[str]]:
        """The node uncordoned, or its taint tolerated."""
        or_tolerated = f"or the pod tolerated {TAINT[0]}:{TAINT[2]}"
        return [[f"{nodes.node(index).metadata.name} were uncordoned, {or_tolerated}"] for index in range(len(nodes))]


def _is_schedulable_now(_: TaskClass, event: ClusterEvent) -> bool:
    return not event.new.spec.unschedulable and (event.old is None or event.old.spec.unschedulable)


def _tolerates_now(_: TaskClass, event: ClusterEvent) -> bool:
    return event.own and tolerated(event.new.spec.tolerations, TAINT)
