"""The NodeDeclaredFeatures plugin: rejects nodes that do not declare the features a pod needs.

Source: k8s.io/component-helpers/nodedeclaredfeatures. Of the features registered there in 1.36, two affect scheduling;
the others concern updates of running pods.
"""

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

_RESTART_ALL: Final = "RestartAllContainersOnContainerExits"
_USERS_ON_HOST_NETWORK: Final = "UserNamespacesHostNetworkSupport"


def needed_features(pod: Pod) -> frozenset[str]:
    """The features that a node must declare for the pod."""
    spec = pod.spec
    found = set()
    if any(rule.action == "RestartAllContainers" for c in (*spec.containers, *spec.init_containers)
           for rule in c.restart_policy_rules):  # fmt: skip
        found.add(_RESTART_ALL)
    if spec.host_network and spec.host_users is False:
        found.add(_USERS_ON_HOST_NETWORK)
    return frozenset(found)


class NodeDeclaredFeatures(WithoutArguments):
    """Rejects nodes whose `status.declaredFeatures` lack a feature that the pod needs."""

    name = "NodeDeclaredFeatures"
    ignores_requests = True
    filter_scope = Scope.STATIC

    @hookimpl
    def events_to_register(self) -> Iterable[ClusterEventWithHint]:
        """Requeue when a node declares all features that the pod needs now, or the pod needs other features."""
        actions = ActionType.ADD | ActionType.UPDATE_NODE_DECLARED_FEATURE
        return [
            ClusterEventWithHint(Node, actions, _declares_now),
            ClusterEventWithHint(Pod, ActionType.UPDATE, _needs_others_now),
        ]

    @hookimpl
    def prepare(self, cls: TaskClass) -> Skip | frozenset[str]:
        """The features that the class needs. Skips classes that need none."""
        return needed_features(cls.pod) or SKIP

    @hookimpl
    def filter(self, nodes: NodeView, mask: BoolColumn, state: frozenset[str]) -> None:
        """Clear the nodes that do not declare all features."""
        for index in np.flatnonzero(mask).tolist():
            if not state.issubset(nodes.node(index).status.declared_features):
                mask[index] = False

    @hookimpl
    def reasons(self) -> str:
        """kube-scheduler's message."""
        return "node(s) didn't match Pod's required features"

    @hookimpl
    def fits_if(self, nodes: NodeView, state: frozenset[str]) -> Sequence[Sequence[str]]:
        """The features that each node does not declare."""
        return [
            [f"{node.metadata.name} declared the feature {name}"
             for name in sorted(state.difference(node.status.declared_features))]
            for node in map(nodes.node, range(len(nodes)))
        ]  # fmt: skip


def _declares_now(cls: TaskClass, event: ClusterEvent) -> bool:
    needed = needed_features(cls.pod)
    had = event.old is not None and needed.issubset(event.old.status.declared_features)
    return not had and needed.issubset(event.new.status.declared_features)


def _needs_others_now(_: TaskClass, event: ClusterEvent) -> bool:
    return event.own and needed_features(event.old) != needed_features(event.new)
