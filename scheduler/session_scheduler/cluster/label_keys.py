"""matchLabelKeys and mismatchLabelKeys: adds them to the selectors of affinity terms, as the API server does.

For topology spread constraints, the scheduler itself adds the keys.
Source: mutatePodAffinity in pkg/registry/core/pod, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from session_scheduler.model.meta import PREFERRED_TERMS, REQUIRED_TERMS
from session_scheduler.model.objects import Pod

_Terms = dict[str, Any] | None


def with_label_keys(pod: Pod) -> Pod:
    """Return the pod with complete selectors. The terms must be well-formed (see `object_checks`)."""
    affinity = pod.spec.affinity
    if affinity is None:
        return pod
    near = _completed(affinity.pod_affinity, pod.metadata.labels)
    away = _completed(affinity.pod_anti_affinity, pod.metadata.labels)
    if near is affinity.pod_affinity and away is affinity.pod_anti_affinity:
        return pod
    affinity = msgspec.structs.replace(affinity, pod_affinity=near, pod_anti_affinity=away)
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=affinity))


def _completed(lists: _Terms, labels: Mapping[str, str]) -> _Terms:
    if lists is None:
        return None
    weighted = lists.get(PREFERRED_TERMS, ())
    found = {
        REQUIRED_TERMS: [_term(term, labels) for term in lists.get(REQUIRED_TERMS, ())],
        PREFERRED_TERMS: [{**one, "podAffinityTerm": _term(one["podAffinityTerm"], labels)} for one in weighted],
    }
    new = {**lists, **{name: terms for name, terms in found.items() if terms}}
    return lists if new == lists else new


def _term(term: dict[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    selector = term.get("labelSelector")
    if selector is None:  # it selects no pod
        return term
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in term.get(field) or ()
        if key in labels
    ]
    if not added:
        return term
    return {**term, "labelSelector": {**selector, "matchExpressions": [*selector.get("matchExpressions", ()), *added]}}
