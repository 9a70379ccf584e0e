"""Taints keep pods away, or make their nodes the last choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from session_scheduler.builtin.without_arguments import WithoutArguments
from session_scheduler.hookspecs import Normalise, Scope, hookimpl
from session_scheduler.model.selectors import untolerated_taints

if TYPE_CHECKING:
    from session_scheduler.model.classes import TaskClass
    from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView


class TaintToleration(WithoutArguments):
    """Refuses nodes with untolerated NoSchedule and NoExecute taints; the fewer PreferNoSchedule ones, the better."""

    name = "TaintToleration"
    weight = 3
    filter_scope = Scope.STATIC
    score_scope = Scope.STATIC
    normalise = Normalise.MAX_REVERSED

    @hookimpl
    def filter(self, cls: TaskClass, nodes: NodeView, mask: BoolColumn) -> None:
        """Clear the nodes that carry an untolerated taint."""
        for carriers in untolerated_taints(nodes, cls.pod.spec.tolerations, ("NoSchedule", "NoExecute")):
            np.greater(mask, carriers, out=mask)

    @hookimpl
    def score(self, cls: TaskClass, nodes: NodeView) -> IntColumn:
        """How many untolerated PreferNoSchedule taints each node carries."""
        count = np.zeros(len(nodes), np.int64)
        for carriers in untolerated_taints(nodes, cls.pod.spec.tolerations, ("PreferNoSchedule",)):
            count += carriers
        return count

    @hookimpl
    def why(self, nodes: NodeView) -> Sequence[Sequence[str]]:
        """kube-scheduler's text."""
        return [["node(s) had untolerated taint(s)"]] * len(nodes)
