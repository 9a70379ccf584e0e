"""Extended resources that device classes map to devices, and the device requests of the claim that a pod gets for them.

If a node offers the resource itself, through a device plugin, the pod uses that; on other nodes DynamicResources
allocates devices of the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

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
    """The device class of each mapped extended resource, cached until the classes change."""

    def __init__(self) -> None:
        self._version: object = None
        self._classes: dict[str, DeviceClass] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a class mapped the resource at the last `refresh`."""
        return name in self._classes and is_extended(name)

    def refresh(self, session: Session) -> None:
        """Read the classes of a session."""
        version = (id(session.snapshot.cache), session.objects_version(DeviceClass))
        if version != self._version:
            self._version, self._classes = version, _by_resource(session.objects(DeviceClass))

    def among(self, requests: Iterable[str]) -> dict[str, DeviceClass]:
        """The device class of each requested resource that has one."""
        if not self._classes:
            return {}
        return {name: self._classes[name] for name in requests if name in self}


def classes_of_resources(classes: Mapping[str, DeviceClass], resources: Iterable[str]) -> dict[str, DeviceClass]:
    """The device class of each of these resources that has one."""
    known = _by_resource(classes)
    return {name: known[name] for name in resources if name in known and is_extended(name)}


def is_extended(name: str) -> bool:
    """Whether a device class can map a resource of this name."""
    return name.startswith(CLASS_PREFIX) or (
        is_scalar(name) and "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")
    )


def _by_resource(classes: Mapping[str, DeviceClass]) -> dict[str, DeviceClass]:
    """The class of each resource; among several the youngest, then the first by name."""
    found: dict[str, DeviceClass] = {f"{CLASS_PREFIX}{name}": one for name, one in classes.items()}
    for one in sorted(classes.values(), key=lambda one: one.metadata.name, reverse=True):
        name = one.spec.extended_resource_name
        if not name:
            continue
        known = found.get(name)
        if known is None or (one.metadata.creation_timestamp or "") >= (known.metadata.creation_timestamp or ""):
            found[name] = one
    return found


class _Part(msgspec.Struct, frozen=True):
    """A container's own request, if it needs one, and the requests that it uses."""

    request: DeviceRequest | None
    mappings: tuple[RequestMapping, ...]


_NOTHING = _Part(None, ())


def requests_for(
    pod: Pod, classes: Mapping[str, DeviceClass]
) -> tuple[tuple[DeviceRequest, ...], tuple[RequestMapping, ...]]:
    """The device requests for these resources of the pod's containers, and the mapping of containers to requests.

    Init containers that are not sidecars reuse the devices of later containers before they get their own.
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
    """A container's part for a resource, given the requests that it can reuse."""
    amounts = container.resources.requests
    amount = thousandths(amounts.get(resource, 0))
    if amount % 1000 or not amount:
        return _NOTHING
    count, reused, mappings = amount // 1000, 0, []
    for one in reusable:
        reused += _count(one)
        mappings.append(RequestMapping(container_name=container.name, resource_name=resource, request_name=one.name))
        if reused >= count:
            return _Part(None, tuple(mappings))
    own = f"container-{number}-request-{sorted(amounts).index(resource)}"
    exactly = ExactRequest(device_class_name=name, count=count - reused)
    mappings.append(RequestMapping(container_name=container.name, resource_name=resource, request_name=own))
    return _Part(DeviceRequest(name=own, exactly=exactly), tuple(mappings))
