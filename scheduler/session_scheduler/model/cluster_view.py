"""Cluster view: labels of namespaces, and selectors of services and of the controllers of pods.

The cache updates it; affinity and topology spread read it. Source of the default selector: kube-scheduler's
helper.DefaultSelector, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from session_scheduler.model.label_selectors import (
    EVERYTHING,
    Selector,
    SelectorError,
    equal_to,
    selector_of,
)
from session_scheduler.model.objects import OwnerReference, Pod
from session_scheduler.model.related import (
    Namespace,
    RelatedObject,
    ReplicaSet,
    ReplicationController,
    Service,
    StatefulSet,
)

__all__ = ["ClusterView"]

_Owner = ReplicationController | ReplicaSet | StatefulSet
_OWNERS: Final[Mapping[tuple[str, str], type[_Owner]]] = {
    ("v1", "ReplicationController"): ReplicationController,
    ("apps/v1", "ReplicaSet"): ReplicaSet,
    ("apps/v1", "Deployment"): ReplicaSet,  # in manifests it owns its pods and shares its ReplicaSet's name
    ("apps/v1", "StatefulSet"): StatefulSet,
}
_NO_LABELS: Final[Mapping[str, str]] = {}


class ClusterView:
    """Labels of namespaces, and selectors of the services and controllers of pods."""

    def __init__(self) -> None:
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._services: dict[str, dict[str, Mapping[str, str]]] = {}
        """By namespace and name: the selectors of the services that have one."""
        self._owners: dict[tuple[type[_Owner], str, str], Selector] = {}
        self.version = 0
        """Incremented whenever a namespace is added or deleted, or its labels change."""

    # ------------------------------------------------------------------ namespaces

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """The labels of a namespace; empty if it is unknown."""
        return self._namespaces.get(name, _NO_LABELS)

    def namespaces(self, selector: Selector) -> list[str]:
        """The names of the namespaces that the selector matches, sorted."""
        return sorted(name for name, labels in self._namespaces.items() if selector.matches(labels))

    # ------------------------------------------------------------------ services and owners

    def default_selector(self, pod: Pod) -> Selector:
        """The selectors of the pod's services and of its controller, combined; empty if it has neither."""
        metadata = pod.metadata
        merged: dict[str, str] = {}
        for service in self._services.get(metadata.namespace, {}).values():
            if all(metadata.labels.get(key) == value for key, value in service.items()):
                merged.update(service)
        owner = next((owner for owner in metadata.owner_references if owner.controller), None)
        own = self._owner_selector(metadata.namespace, owner) if owner is not None else EVERYTHING
        if owner is not None and owner.kind == "ReplicationController":
            merged.update((key, values[0]) for key, _, values in own.requirements or ())
            return EVERYTHING.also(equal_to(merged))
        return EVERYTHING.also(equal_to(merged)).also(own.requirements or ())

    def _owner_selector(self, namespace: str, owner: OwnerReference) -> Selector:
        kind = _OWNERS.get((owner.api_version, owner.kind))
        return EVERYTHING if kind is None else self._owners.get((kind, namespace, owner.name), EVERYTHING)

    # ------------------------------------------------------------------ events

    def known(self, obj: RelatedObject) -> object:
        """The stored labels or selector of an object; None if there are none."""
        name, namespace = obj.metadata.name, obj.metadata.namespace
        if isinstance(obj, Namespace):
            return self._namespaces.get(name)
        if isinstance(obj, Service):
            return self._services.get(namespace, {}).get(name)
        return self._owners.get((type(obj), namespace, name))

    def put(self, obj: RelatedObject) -> bool:
        """Add or update an object. Returns whether the default selector of some pod may have changed."""
        name, namespace = obj.metadata.name, obj.metadata.namespace
        if isinstance(obj, Namespace):
            if self._namespaces.get(name) != obj.metadata.labels:
                self._namespaces[name] = obj.metadata.labels
                self.version += 1
            return False
        if isinstance(obj, Service):
            services = self._services.setdefault(namespace, {})
            before = services.pop(name, None)
            if obj.spec.selector:
                services[name] = obj.spec.selector
            return before != services.get(name)
        key = (type(obj), namespace, name)
        selector = self._owners.get(key)
        self._owners[key] = _selector(obj)
        return selector != self._owners[key]

    def remove(self, obj: RelatedObject) -> bool:
        """Remove an object. Returns whether the default selector of some pod may have changed."""
        name, namespace = obj.metadata.name, obj.metadata.namespace
        if isinstance(obj, Namespace):
            self.version += self._namespaces.pop(name, None) is not None
            return False
        if isinstance(obj, Service):
            return self._services.get(namespace, {}).pop(name, None) is not None
        return self._owners.pop((type(obj), namespace, name), None) is not None

    @staticmethod
    def may_concern(obj: RelatedObject, pod: Pod) -> bool:
        """Whether a change of the object may change the pod's default selector."""
        metadata = pod.metadata
        if isinstance(obj, Namespace) or metadata.namespace != obj.metadata.namespace:
            return False
        if isinstance(obj, Service):
            return True
        return any(owner.controller and owner.name == obj.metadata.name for owner in metadata.owner_references)


def _selector(obj: _Owner) -> Selector:
    """The controller's selector; an invalid one adds no requirement."""
    if isinstance(obj, ReplicationController):
        return EVERYTHING.also(equal_to(obj.spec.selector))
    try:
        return selector_of(obj.spec.selector)
    except SelectorError:
        return EVERYTHING
