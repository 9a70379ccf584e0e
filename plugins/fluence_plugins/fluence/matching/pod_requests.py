"""The requests of a pod in the graph: amounts of a host, and devices by type with required attributes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import msgspec

from fluence_plugins.fluence.graph.accounting import Accounting, PodShape
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.resources import label_groups, names
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.objects import Pod


class PodRequests(msgspec.Struct, frozen=True):
    """One class of pods: the shape on a host, devices by type, and the `require-…` and `prefer-…` annotations."""

    shape: PodShape
    devices: Mapping[str, int]
    require: Mapping[str, str]
    backend: str | None
    prefer: Mapping[str, str]
    """Preferred attributes, and `backend`; they never refuse a pod."""


class RequestsByClass(dict[TaskClass, PodRequests]):
    """The requests of each class, computed at its first use."""

    def __init__(self, accounting: Accounting) -> None:
        super().__init__()
        self._accounting = accounting

    def __missing__(self, cls: TaskClass) -> PodRequests:
        found = self[cls] = requests_of(cls, self._accounting)
        return found


def shape_of(cls: TaskClass, accounting: Accounting) -> PodShape:
    """What each pod of a class takes of its host."""
    return accounting.shape_of(cls.requests, in_group=label_groups.in_group(cls.pod))


def requests_of(cls: TaskClass, accounting: Accounting) -> PodRequests:
    """The requests of a class."""
    pod, requests = cls.pod, cls.requests
    require, backend = names.requirements(pod.metadata.annotations)
    devices = {
        kind: amount
        for name, amount in sorted(requests.items())
        if (kind := names.requested_type(name)) is not None and amount > 0
    }
    prefer = names.preferences(pod.metadata.annotations)
    return PodRequests(shape_of(cls, accounting), devices, require, backend, prefer)


def has_devices(cls: TaskClass) -> bool:
    """Whether the pods of a class request devices of the graph."""
    return any(names.requested_type(name) is not None for name in cls.requests)


def class_key(pod: Pod) -> str | None:
    """The part of the class key for the pod's annotations: required and preferred attributes."""
    require, backend = names.requirements(pod.metadata.annotations)
    prefer = names.preferences(pod.metadata.annotations)
    return json.dumps([require, backend, prefer], sort_keys=True) if require or backend or prefer else None


def unsatisfiable(requests: PodRequests, live: LiveGraph, types: Collection[str]) -> str | None:
    """Why no graph with these types of devices can have what a pod requests; None if one may."""
    beyond = live.accounting.excess(requests.shape, requests.devices.values())
    if beyond is not None:
        return beyond
    wanted = set(requests.devices)
    waiting = {tree.parent for tree in live.graph.waiting_trees() if wanted & tree.classes()}
    if waiting and not wanted <= {node.type for node in live.graph.virtual.values()}:
        return f"the requested resource is below node {min(waiting)!r}, which the cluster does not have"
    unknown = sorted(wanted.difference(types))
    if not unknown:
        return None
    problem = f"no resource tree has type {unknown[0]!r} ({names.resource_name(unknown[0])})"
    if types:
        return f"{problem}; known types: {', '.join(sorted(types))}"
    remedy = "pass resources.yaml with --resources, or as the cluster's ConfigMap fluence-resources"
    return f"{problem}: there are no resource trees; {remedy}"
