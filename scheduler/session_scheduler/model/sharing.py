"""Sharing of equal parts: pods of one template and nodes of one pool have equal parts, which are kept once.

The functions are called on objects that were just decoded, before anything else sees them. A shared part must not be
changed, like any part of an object.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import force_setattr

from session_scheduler.model.objects import Node, Pod

_Object = TypeVar("_Object")
_MOST_KNOWN: Final = 4096
"""The parts to remember. Then all are forgotten, so that parts without an equal one cost little."""
_LARGEST: Final = 4096
"""The size in bytes, encoded, of the largest part to remember."""
_METADATA: Final = ("labels", "annotations", "owner_references", "finalizers")
_POD_SPEC: Final = (
    "containers", "init_containers", "overhead", "node_selector", "affinity", "tolerations",
    "topology_spread_constraints", "scheduling_gates", "resource_claims",
)  # fmt: skip
_POD_STATUS: Final = ("container_statuses", "init_container_statuses", "allocated_resources")
_NODE_STATUS: Final = ("allocatable", "capacity", "declared_features")
_NO_ENTRIES: Final[dict[str, Any]] = {}

_encode = msgspec.json.Encoder().encode
_known: dict[tuple[str, bytes], Any] = {}


def shared(obj: _Object) -> _Object:
    """The object, with each part that equals one of an earlier object replaced by that one."""
    if isinstance(obj, Pod):
        _share(obj.metadata, _METADATA)
        spec = obj.spec
        if not spec.node_name and not spec.volumes:  # a service account's volume has a random name
            spec = _once("spec", spec)
        if spec is obj.spec:
            _share(spec, _POD_SPEC)
        else:
            force_setattr(obj, "spec", spec)
        _share(obj.status, _POD_STATUS)
        _share_each(obj.status, "conditions")
    elif isinstance(obj, Node):
        _share(obj.metadata, _METADATA)
        _share(obj.status, _NODE_STATUS)
        _share_each(obj.status, "conditions")
        _share_each(obj.status, "images")
    return obj


def _share(part: msgspec.Struct, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(part, name)
        if value:
            force_setattr(part, name, _once(name, value))
        elif type(value) is dict:
            force_setattr(part, name, _NO_ENTRIES)


def _share_each(part: msgspec.Struct, name: str) -> None:
    values = getattr(part, name)
    if values:
        force_setattr(part, name, tuple(_once(name, value) for value in values))


def _once(name: str, value: Any) -> Any:
    """The first value that was seen with this name and encoding; the value itself if it is large."""
    try:
        text = _encode(value)
    except (ValueError, OverflowError, RecursionError):  # it is valid YAML, but not JSON: a check rejects it later
        return value
    if len(text) > _LARGEST:
        return value
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    return _known.setdefault((name, text), value)
