"""The queueing hints of PodTopologySpread: events of matching pods, nodes in the domains, and default selectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from session_scheduler.model.classes import TaskClass
from session_scheduler.model.cluster_view import ClusterView
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.label_selectors import Selector
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.related import ReplicaSet, ReplicationController, Service, StatefulSet
from session_scheduler.model.selectors import required_nodes

Constraints = Callable[[TaskClass, ClusterView], Sequence[tuple[str, Selector, bool]]]
"""For each hard constraint of a class: the topology key, the selector of the pods that count, and whether taints decide
which nodes count.
"""
_TOLERATION: Final = ActionType.UPDATE_POD_TOLERATION
_POD: Final = (
    ActionType.ADD | ActionType.DELETE | ActionType.UPDATE_POD_LABEL | _TOLERATION | ActionType.UPDATE_POD_ENDING
)
_NODE: Final = ActionType.ADD | ActionType.DELETE | ActionType.UPDATE_NODE_LABEL | ActionType.UPDATE_NODE_TAINT
_SELECTING: Final = (Service, ReplicationController, ReplicaSet, StatefulSet)


def events(constraints_of: Constraints) -> list[ClusterEventWithHint]:
    """The events to register."""

    def constraints(cls: TaskClass, event: ClusterEvent) -> Sequence[tuple[str, Selector, bool]]:
        return constraints_of(cls, event.view) if event.view is not None else ()

    def after_pod(cls: TaskClass, event: ClusterEvent) -> bool:
        """Whether a pod of the namespace starts or stops counting, or the pod itself tolerates more taints."""
        if (event.new or event.old).metadata.namespace != cls.namespace:
            return False
        found = constraints(cls, event)
        if event.own and event.action & int(_TOLERATION) and any(by_taints for _, _, by_taints in found):
            return True
        before, after = _labels(event.old), _labels(event.new)
        return any(_counts(selector, before) != _counts(selector, after) for _, selector, _ in found)

    def after_node(cls: TaskClass, event: ClusterEvent) -> bool:
        """Whether a node joins, leaves or changes a domain, or starts or stops counting there."""
        found = constraints(cls, event)
        keys = [key for key, _, _ in found]
        before, after = _domains(event.old, keys), _domains(event.new, keys)
        if before is None or after is None or before != after:
            return before != after
        return event.old.spec.taints != event.new.spec.taints or _changes_selection(cls, event)

    def after_owner(cls: TaskClass, _: ClusterEvent) -> bool:
        """Whether the selector of the default constraints may change."""
        return not cls.pod.spec.topology_spread_constraints

    return [
        ClusterEventWithHint(Pod, _POD, after_pod),
        ClusterEventWithHint(Node, _NODE, after_node),
        *(ClusterEventWithHint(kind, ActionType.ALL, after_owner) for kind in _SELECTING),
    ]


def _changes_selection(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether the pod's node affinity, which decides if a node counts, starts or stops selecting the node."""
    spec = cls.pod.spec
    return bool(required_nodes(event.before, spec).any()) != bool(required_nodes(event.after, spec).any())


def _labels(pod: Pod | None) -> Mapping[str, str] | None:
    """The labels that a pod counts by; None if it does not exist or is terminating."""
    return None if pod is None or pod.metadata.deletion_timestamp is not None else pod.metadata.labels


def _counts(selector: Selector, labels: Mapping[str, str] | None) -> bool:
    return labels is not None and selector.matches(labels)


def _domains(node: Node | None, keys: Sequence[str]) -> list[str] | None:
    """The values of all keys; None if the node lacks one of them and so does not count."""
    if node is None or not all(key in node.metadata.labels for key in keys):
        return None
    return [node.metadata.labels[key] for key in keys]
