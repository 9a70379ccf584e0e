"""What a pod needs of the graph: what it takes of a host, and devices by type with what is required of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from fluence_plugins.fluence.graph.accounting import Accounting, PodShape
from fluence_plugins.resources import names
from session_scheduler.model.objects import Pod


@dataclass(frozen=True, slots=True)
class Needs:
    """One class of pods: the shape on a host, devices by type, and the `require-…` and `prefer-…` annotations."""

    shape: PodShape
    devices: Mapping[str, int]
    require: Mapping[str, str]
    backend: str | None
    prefer: Mapping[str, str]
    """What is preferred, by key; `backend` names the backend. It refuses nothing."""


def needs_of(pod: Pod, requests: Mapping[str, int], accounting: Accounting) -> Needs:
    """What the pod needs; `requests` in millicores, bytes and counts."""
    require, backend = names.requirements(pod.metadata.annotations)
    devices = {
        kind: amount
        for name, amount in sorted(requests.items())
        if (kind := names.requested_type(name)) is not None and amount > 0
    }
    prefer = names.preferences(pod.metadata.annotations)
    shape = accounting.shape_of(requests)
    return Needs(shape=shape, devices=devices, require=require, backend=backend, prefer=prefer)


def class_key(pod: Pod) -> str | None:
    """The part of the class key that the pod's annotations make: what it requires and what it prefers."""
    require, backend = names.requirements(pod.metadata.annotations)
    prefer = names.preferences(pod.metadata.annotations)
    return json.dumps([require, backend, prefer], sort_keys=True) if require or backend or prefer else None
