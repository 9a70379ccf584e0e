"""Label keys that selectors of pods read. Only these labels are part of a pod's class key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from session_scheduler.model.meta import PREFERRED_TERMS, REQUIRED_TERMS
from session_scheduler.model.objects import Pod

_EVERYWHERE: Final = "*"
"""Stands for all namespaces."""


class LabelReads:
    """By namespace: the label keys that selectors have read. It never drops a key."""

    def __init__(self) -> None:
        self._keys: dict[str, set[str]] = {_EVERYWHERE: set()}

    def note(self, pod: Pod) -> list[tuple[str, str]]:
        """Add the keys that the pod's selectors read. Returns new ones as (namespace, key); "*" is any namespace."""
        spec = pod.spec
        if not spec.topology_spread_constraints and spec.affinity is None:
            return []
        new = []
        for namespace, key in _read_by(pod):
            known = self._keys.setdefault(namespace, set())
            if key not in known:
                known.add(key)
                new.append((namespace, key))
        return new

    def of(self, namespace: str, labels: Mapping[str, str]) -> list[tuple[str, str]] | None:
        """The labels of a pod that selectors read, in order."""
        everywhere, here = self._keys[_EVERYWHERE], self._keys.get(namespace)
        if not labels or not (everywhere or here):
            return None
        return sorted((k, v) for k, v in labels.items() if k in everywhere or (here is not None and k in here))


def concerns(new: Iterable[tuple[str, str]], pod: Pod) -> bool:
    """Whether the pod has one of the label keys that `LabelReads.note` returned as new."""
    metadata = pod.metadata
    return any(key in metadata.labels and namespace in (_EVERYWHERE, metadata.namespace) for namespace, key in new)


def _read_by(pod: Pod) -> Iterator[tuple[str, str]]:
    """(namespace, label key) of the pod's selectors. Skips what is malformed: the filters reject it."""
    own = pod.metadata.namespace
    for constraint in pod.spec.topology_spread_constraints:
        for key in _selector_keys(constraint.get("labelSelector")):
            yield own, key
        for key in _listed(constraint.get("matchLabelKeys")):
            yield own, str(key)
    for term in _terms(pod):
        namespaces = [str(name) for name in _listed(term.get("namespaces"))]
        if term.get("namespaceSelector") is not None:
            namespaces = [_EVERYWHERE]
        for key in _selector_keys(term.get("labelSelector")):
            for namespace in namespaces or [own]:
                yield namespace, key


def _terms(pod: Pod) -> Iterator[dict[str, Any]]:
    affinity = pod.spec.affinity
    for lists in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ():
        for name in (REQUIRED_TERMS, PREFERRED_TERMS):
            for item in _listed((lists or {}).get(name)):
                term = item.get("podAffinityTerm", item) if isinstance(item, dict) else None
                if isinstance(term, dict):
                    yield term


def _selector_keys(selector: object) -> Iterator[str]:
    if isinstance(selector, dict):
        labels = selector.get("matchLabels")
        yield from map(str, labels if isinstance(labels, dict) else ())
        for expression in _listed(selector.get("matchExpressions")):
            if isinstance(expression, dict):
                yield str(expression.get("key"))


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
