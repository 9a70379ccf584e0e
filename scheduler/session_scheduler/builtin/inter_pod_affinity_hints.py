"""Which events can help pods that InterPodAffinity refused: pods near them that come, go or change, and new domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from session_scheduler.model.classes import TaskClass
from session_scheduler.model.cluster_view import ClusterView
from session_scheduler.model.events import ActionType, ClusterEvent, ClusterEventWithHint
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.pod_terms import Term, TermKind
from session_scheduler.model.related import Namespace

_POD = ActionType.ADD | ActionType.UPDATE_POD_LABEL | ActionType.DELETE
_NODE = ActionType.ADD | ActionType.DELETE | ActionType.UPDATE_NODE_LABEL


def events() -> list[ClusterEventWithHint]:
    """What is registered."""
    return [
        ClusterEventWithHint(Pod, _POD, _after_pod),
        ClusterEventWithHint(Node, _NODE, _after_node),
        ClusterEventWithHint(Namespace, ActionType.ALL, _after_namespace),
    ]


def _after_pod(cls: TaskClass, event: ClusterEvent) -> bool:
    """A pod comes to be of those that must be near, or ceases to be of those that must not."""
    if event.own:
        return True
    wanted, hated = cls.terms.affinity, cls.terms.anti_affinity
    before, after = (bool(wanted) and _picked(wanted, pod, event.view) for pod in (event.old, event.new))
    if (after and not before) or (before and not after and _matches_itself(cls, event)):
        return True
    if any(_picked((term,), event.old, event.view) and not _picked((term,), event.new, event.view) for term in hated):
        return True
    return event.new is None and _held_against(cls, event)


def _matches_itself(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether one of the class goes anywhere where there is none yet of those that must be near."""
    return bool(cls.terms.affinity) and _picked(cls.terms.affinity, cls.pod, event.view)


def _picked(terms: Sequence[Term], pod: Pod | None, view: ClusterView | None) -> bool:
    """Whether all the terms pick the pod."""
    if pod is None:
        return False
    metadata = pod.metadata
    namespace_labels: Mapping[str, str] = view.namespace_labels(metadata.namespace) if view is not None else {}
    return all(term.picks(metadata.namespace, metadata.labels, namespace_labels) for term in terms)


def _held_against(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether the pod that is gone wanted to be away from the class's pods."""
    gone = event.old_class.terms.anti_affinity if event.old_class is not None else ()
    return any(_picked((term,), cls.pod, event.view) for term in gone)


def _after_node(cls: TaskClass, event: ClusterEvent) -> bool:
    """A node comes into a domain of what must be near; or what is on it leaves the domain of one that must not be, or
    was the first of its kind."""
    before: Mapping[str, str] = event.old.metadata.labels if event.old is not None else {}
    after: Mapping[str, str] = event.new.metadata.labels if event.new is not None else {}
    near = {term.topology_key for term in cls.terms.affinity}
    if event.old is None:
        return not near or any(key in after for key in near)
    if any(key in after and before.get(key) != after[key] for key in near):
        return True
    if any(key in before and before[key] != after.get(key) for key in near) and _matches_itself(cls, event):
        return True
    away = {term.topology_key for term in cls.terms.anti_affinity} | _keys_held_against(cls, event)
    return any(key in before and before[key] != after.get(key) for key in away)


def _keys_held_against(cls: TaskClass, event: ClusterEvent) -> set[str]:
    """By which labels' domains other pods want to be away from the class's."""
    if event.terms is None:
        return set()
    metadata = cls.pod.metadata
    namespace_labels = event.view.namespace_labels(metadata.namespace) if event.view is not None else {}
    concerning = event.terms.concerning(metadata.namespace, metadata.labels, namespace_labels)
    return {held.term.topology_key for held in concerning if held.kind is TermKind.ANTI_AFFINITY}


def _after_namespace(cls: TaskClass, event: ClusterEvent) -> bool:
    """A namespace's labels change, by which its pods are picked, or the class's pods by others."""
    name = (event.new or event.old).metadata.name
    if name == cls.namespace:
        return True
    before: Mapping[str, str] = event.old.metadata.labels if event.old is not None else {}
    after: Mapping[str, str] = event.new.metadata.labels if event.new is not None else {}
    terms = (*cls.terms.affinity, *cls.terms.anti_affinity)
    return any(term.namespace_selector.matches(before) != term.namespace_selector.matches(after) for term in terms)
