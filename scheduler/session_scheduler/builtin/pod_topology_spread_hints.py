"""Which events can help pods that PodTopologySpread refused: pods that count, and the nodes of the domains."""

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

Counted = Callable[[TaskClass, ClusterView], Sequence[tuple[str, Selector, bool]]]
"""Of each hard constraint of a class: the topology key, which pods count, whether taints decide which nodes do."""
_TOLERATION: Final = ActionType.UPDATE_POD_TOLERATION
_POD: Final = (
    ActionType.ADD | ActionType.DELETE | ActionType.UPDATE_POD_LABEL | _TOLERATION | ActionType.UPDATE_POD_ENDING
)
_NODE: Final = ActionType.ADD | ActionType.DELETE | ActionType.UPDATE_NODE_LABEL | ActionType.UPDATE_NODE_TAINT
_SELECTING: Final = (Service, ReplicationController, ReplicaSet, StatefulSet)


def events(counted: Counted) -> list[ClusterEventWithHint]:
    """What is registered."""

    def constraints(cls: TaskClass, event: ClusterEvent) -> Sequence[tuple[str, Selector, bool]]:
        return counted(cls, event.view) if event.view is not None else ()

    def after_pod(cls: TaskClass, event: ClusterEvent) -> bool:
        """A pod of the namespace comes to count or counts no more; the pod itself changes, or tolerates more."""
        if (event.new or event.old).metadata.namespace != cls.namespace:
            return False
        found = constraints(cls, event)
        if event.own and event.action & int(_TOLERATION) and any(by_taints for _, _, by_taints in found):
            return True
        before, after = _labels(event.old), _labels(event.new)
        return any(_counts(selector, before) != _counts(selector, after) for _, selector, _ in found)

    def after_node(cls: TaskClass, event: ClusterEvent) -> bool:
        """A node comes into, leaves or changes a domain, or may count otherwise there."""
        found = constraints(cls, event)
        keys = [key for key, _, _ in found]
        before, after = _domains(event.old, keys), _domains(event.new, keys)
        if before is None or after is None or before != after:
            return before != after
        return event.old.spec.taints != event.new.spec.taints or _selected_otherwise(cls, event)

    def after_owner(cls: TaskClass, _: ClusterEvent) -> bool:
        """What the default constraints select by may be another."""
        return not cls.pod.spec.topology_spread_constraints

    return [
        ClusterEventWithHint(Pod, _POD, after_pod),
        ClusterEventWithHint(Node, _NODE, after_node),
        *(ClusterEventWithHint(kind, ActionType.ALL, after_owner) for kind in _SELECTING),
    ]


def _selected_otherwise(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether the pod's node affinity, by which a node counts, picked the node and does no more, or now does."""
    spec = cls.pod.spec
    return bool(required_nodes(event.before, spec).any()) != bool(required_nodes(event.after, spec).any())


def _labels(pod: Pod | None) -> Mapping[str, str] | None:
    """The labels by which a pod counts; None where it is not there, or ends."""
    return None if pod is None or pod.metadata.deletion_timestamp is not None else pod.metadata.labels


def _counts(selector: Selector, labels: Mapping[str, str] | None) -> bool:
    return labels is not None and selector.matches(labels)


def _domains(node: Node | None, keys: Sequence[str]) -> list[str] | None:
    """The values of all the keys; None where the node lacks one of them, and so counts for nothing."""
    if node is None or not all(key in node.metadata.labels for key in keys):
        return None
    return [node.metadata.labels[key] for key in keys]
