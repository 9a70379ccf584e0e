"""The TaintToleration plugin: rejects nodes with untolerated taints, and prefers nodes with fewer soft ones."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final

import numpy as np

from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.hookspecs import Normalise, Scope, hookimpl
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.objects import Node, Pod, Taint
from session_scheduler.model.selectors import tolerated, untolerated_taints

_REFUSING: Final = ("NoSchedule", "NoExecute")


class TaintToleration(WithoutArguments):
    """Rejects nodes with untolerated NoSchedule or NoExecute taints; scores the number of PreferNoSchedule taints."""

    name = "TaintToleration"
    ignores_requests = True
    weight = 3
    filter_scope = Scope.STATIC
    score_scope = Scope.STATIC
    normalise = Normalise.MAX_REVERSED

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when a node no longer has untolerated taints, or the pod's tolerations change."""
        return [
            ClusterEventWithHint(Node, ActionType.ADD | ActionType.UPDATE_NODE_TAINT, _is_tolerated_now),
            ClusterEventWithHint(Pod, ActionType.UPDATE_POD_TOLERATION, lambda _, event: event.own),
        ]

    @hookimpl
    def filter(self, cls: TaskClass, nodes: NodeView, mask: BoolColumn) -> None:
        """Clear the nodes with an untolerated taint."""
        for carriers in untolerated_taints(nodes, cls.pod.spec.tolerations, _REFUSING):
            np.greater(mask, carriers, out=mask)

    @hookimpl
    def score(self, cls: TaskClass, nodes: NodeView) -> IntColumn:
        """The number of untolerated PreferNoSchedule taints of each node."""
        count = np.zeros(len(nodes), np.int64)
        for carriers in untolerated_taints(nodes, cls.pod.spec.tolerations, ("PreferNoSchedule",)):
            count += carriers
        return count

    @hookimpl
    def filter_key(self, cls: TaskClass) -> Hashable:
        """The tolerations."""
        return cls.pod.spec.tolerations

    @hookimpl
    def reasons(self) -> str:
        """kube-scheduler's message."""
        return "node(s) had untolerated taint(s)"

    @hookimpl
    def fits_if(self, cls: TaskClass, nodes: NodeView) -> Sequence[Sequence[str]]:
        """Each taint tolerated, or removed from the node."""
        tolerations = cls.pod.spec.tolerations
        return [
            [
                f"the taint {_taint_text(taint)} were tolerated or absent from {node.metadata.name}"
                for taint in node.spec.taints
                if taint.effect in _REFUSING and not tolerated(tolerations, (taint.key, taint.value, taint.effect))
            ]
            for node in map(nodes.node, range(len(nodes)))
        ]


def _taint_text(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _is_tolerated_now(cls: TaskClass, event: ClusterEvent) -> bool:
    return not _is_refused(cls, event.after) and (event.old is None or _is_refused(cls, event.before))


def _is_refused(cls: TaskClass, node: NodeView) -> bool:
    return any(True for _ in untolerated_taints(node, cls.pod.spec.tolerations, _REFUSING))
