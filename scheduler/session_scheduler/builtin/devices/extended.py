"""Extended resources that device classes stand for: the requests of a claim that a pod gets for them.

A node that offers the resource itself, by a device plugin, keeps doing so; elsewhere devices of the class are
allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from session_scheduler.framework.session import Session
from session_scheduler.model.devices import (
    CLASS_PREFIX,
    DeviceClass,
    DeviceRequest,
    ExactRequest,
)
from session_scheduler.model.objects import Container, Pod, RequestMapping
from session_scheduler.model.quantity import thousandths
from session_scheduler.model.requests import is_scalar


class ExtendedResources:
    """Which extended resources device classes stand for; kept while the classes stay as they are."""

    def __init__(self) -> None:
        self._version: object = None
        self._classes: dict[str, DeviceClass] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a class stood for the resource when they were last looked at."""
        return name in self._classes and is_extended(name)

    def refresh(self, session: Session) -> None:
        """See the classes as they are in a session."""
        version = (id(session.snapshot.cache), session.objects_version(DeviceClass))
        if version != self._version:
            self._version, self._classes = version, _by_resource(session.objects(DeviceClass))

    def among(self, requests: Iterable[str]) -> dict[str, DeviceClass]:
        """The class for each of the requested resources that one stands for."""
        if not self._classes:
            return {}
        return {name: self._classes[name] for name in requests if name in self}


def is_extended(name: str) -> bool:
    """Whether devices could be allocated for a resource of this name."""
    return name.startswith(CLASS_PREFIX) or (
        is_scalar(name) and "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")
    )


def _by_resource(classes: Mapping[str, DeviceClass]) -> dict[str, DeviceClass]:
    """By resource; where several classes name one, the youngest has it, and of equal ones the first by name."""
    found: dict[str, DeviceClass] = {f"{CLASS_PREFIX}{name}": one for name, one in classes.items()}
    for one in sorted(classes.values(), key=lambda one: one.metadata.name, reverse=True):
        name = one.spec.extended_resource_name
        if not name:
            continue
        known = found.get(name)
        if known is None or (one.metadata.creation_timestamp or "") >= (known.metadata.creation_timestamp or ""):
            found[name] = one
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """What one container needs: a request of its own, and which requests it uses."""

    request: DeviceRequest | None
    mappings: tuple[RequestMapping, ...]


_NOTHING = _Part(None, ())


def requests_for(
    pod: Pod, classes: Mapping[str, DeviceClass]
) -> tuple[tuple[DeviceRequest, ...], tuple[RequestMapping, ...]]:
    """The requests for these resources of the pod's containers, and which container uses which of them.

    Init containers that end use the devices of the containers after them before they get any of their own.
    """
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    firsts = len(pod.spec.init_containers)
    short = [n for n, c in enumerate(containers) if n < firsts and c.restart_policy != "Always"]
    requests: list[DeviceRequest] = []
    mappings: list[RequestMapping] = []
    for resource in sorted(classes):
        name = classes[resource].metadata.name
        long = {n: _part(n, c, resource, name, ()) for n, c in enumerate(containers) if n not in short}
        after = [long.get(n, _NOTHING).request for n in range(len(containers))]
        brief = [_part(n, containers[n], resource, name, [one for one in after[n:] if one is not None]) for n in short]
        own = [part.request for part in brief if part.request is not None]
        largest = max(own, key=_count, default=None)
        requests += [one for one in (largest, *after) if one is not None]
        mappings += [one for part in long.values() for one in part.mappings]
        others = {one.name for one in own}
        for one in (one for part in brief for one in part.mappings):
            shared = largest is not None and one.request_name in others
            mappings.append(RequestMapping(
                container_name=one.container_name, resource_name=one.resource_name,
                request_name=largest.name if shared and largest is not None else one.request_name))  # fmt: skip
    return tuple(sorted(requests, key=lambda one: one.name)), tuple(mappings)


def _count(request: DeviceRequest) -> int:
    return request.exactly.count if request.exactly is not None else 0


def _part(number: int, container: Container, resource: str, name: str, reusable: Iterable[DeviceRequest]) -> _Part:
    """What a container needs of a resource, beside the requests that it may use."""
    asked = container.resources.requests
    amount = thousandths(asked.get(resource, 0))
    if amount % 1000 or not amount:
        return _NOTHING
    count, had, mappings = amount // 1000, 0, []
    for one in reusable:
        had += _count(one)
        mappings.append(RequestMapping(container_name=container.name, resource_name=resource, request_name=one.name))
        if had >= count:
            return _Part(None, tuple(mappings))
    own = f"container-{number}-request-{sorted(asked).index(resource)}"
    exactly = ExactRequest(device_class_name=name, count=count - had)
    mappings.append(RequestMapping(container_name=container.name, resource_name=resource, request_name=own))
    return _Part(DeviceRequest(name=own, exactly=exactly), tuple(mappings))
