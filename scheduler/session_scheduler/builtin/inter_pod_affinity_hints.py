"""The queueing hints of InterPodAffinity: events of pods that match its terms, and of nodes and namespaces."""

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
    """The events to register."""
    return [
        ClusterEventWithHint(Pod, _POD, _after_pod),
        ClusterEventWithHint(Node, _NODE, _after_node),
        ClusterEventWithHint(Namespace, ActionType.ALL, _after_namespace),
    ]


def _after_pod(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether a pod starts to match the affinity, or stops matching the anti-affinity."""
    if event.own:
        return True
    affinity, anti_affinity = cls.terms.affinity, cls.terms.anti_affinity
    before, after = (bool(affinity) and _matches(affinity, pod, event.view) for pod in (event.old, event.new))
    if (after and not before) or (before and not after and _matches_itself(cls, event)):
        return True
    stops = (
        _matches((term,), event.old, event.view) and not _matches((term,), event.new, event.view)
        for term in anti_affinity
    )
    return any(stops) or (event.new is None and _had_anti_affinity_to(cls, event))


def _matches_itself(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether a pod of the class matches its own affinity, so that the first one may go to any node."""
    return bool(cls.terms.affinity) and _matches(cls.terms.affinity, cls.pod, event.view)


def _matches(terms: Sequence[Term], pod: Pod | None, view: ClusterView | None) -> bool:
    """Whether the pod matches all of the terms."""
    if pod is None:
        return False
    metadata = pod.metadata
    namespace_labels: Mapping[str, str] = view.namespace_labels(metadata.namespace) if view is not None else {}
    return all(term.picks(metadata.namespace, metadata.labels, namespace_labels) for term in terms)


def _had_anti_affinity_to(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether the deleted pod had anti-affinity to the class's pods."""
    terms = event.old_class.terms.anti_affinity if event.old_class is not None else ()
    return any(_matches((term,), cls.pod, event.view) for term in terms)


def _after_node(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether a node joins a domain of an affinity term, or leaves a domain of an anti-affinity term."""
    before: Mapping[str, str] = event.old.metadata.labels if event.old is not None else {}
    after: Mapping[str, str] = event.new.metadata.labels if event.new is not None else {}
    near = {term.topology_key for term in cls.terms.affinity}
    if event.old is None:
        return not near or any(key in after for key in near)
    if any(key in after and before.get(key) != after[key] for key in near):
        return True
    if any(key in before and before[key] != after.get(key) for key in near) and _matches_itself(cls, event):
        return True
    away = {term.topology_key for term in cls.terms.anti_affinity} | _keys_of_others(cls, event)
    return any(key in before and before[key] != after.get(key) for key in away)


def _keys_of_others(cls: TaskClass, event: ClusterEvent) -> set[str]:
    """The topology keys of other pods' anti-affinity to the class's pods."""
    if event.terms is None:
        return set()
    metadata = cls.pod.metadata
    namespace_labels = event.view.namespace_labels(metadata.namespace) if event.view is not None else {}
    concerning = event.terms.concerning(metadata.namespace, metadata.labels, namespace_labels)
    return {held.term.topology_key for held in concerning if held.kind is TermKind.ANTI_AFFINITY}


def _after_namespace(cls: TaskClass, event: ClusterEvent) -> bool:
    """Whether a namespace's labels change so that a term matches other pods."""
    name = (event.new or event.old).metadata.name
    if name == cls.namespace:
        return True
    before: Mapping[str, str] = event.old.metadata.labels if event.old is not None else {}
    after: Mapping[str, str] = event.new.metadata.labels if event.new is not None else {}
    terms = (*cls.terms.affinity, *cls.terms.anti_affinity)
    return any(term.namespace_selector.matches(before) != term.namespace_selector.matches(after) for term in terms)
