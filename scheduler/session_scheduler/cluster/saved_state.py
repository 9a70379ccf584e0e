"""A cluster's state as one document: what `fluence snapshot` writes, and what is read back without admitting it again.

    {"apiVersion": "fluence.flux-framework.org/v1alpha1", "kind": "Snapshot", "configuration": {...}, "items": [...]}

Items are what the scheduler knows of objects, no more: no managed fields, no values of environment variables. They
are as they were, what the API server or `fluence` adds to new objects included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import yaml as yaml_

from session_scheduler.cluster.documents import SNAPSHOT, Document
from session_scheduler.config.settings import CONFIG_API_VERSION
from session_scheduler.model.columns import natural
from session_scheduler.model.devices import DEVICE_KINDS
from session_scheduler.model.objects import ConfigMap, Node, Pod, PodGroup, PortObject, PriorityClass
from session_scheduler.model.policy import PodDisruptionBudget
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.related import RELATED_KINDS
from session_scheduler.model.storage import STORAGE_KINDS

_IN_ORDER: Final[tuple[type[PortObject], ...]] = (
    PriorityClass, Node, ConfigMap, PodGroup, *RELATED_KINDS, *STORAGE_KINDS, *DEVICE_KINDS,
    PodDisruptionBudget, Queue, Pod,
)  # fmt: skip
_KINDS: Final[Mapping[str, type[PortObject]]] = {kind.__name__: kind for kind in _IN_ORDER}
_NOT_KEPT: Final = ("kubectl.kubernetes.io/last-applied-configuration",)
"""Annotations that repeat the whole object, with what is left out of it elsewhere."""


def snapshot_text(objects: Iterable[PortObject], configuration: Mapping[str, Any], *, yaml: bool) -> str:
    """The document: the same text for the same objects, in whatever order they come. JSON has one object a line."""
    items = [_plain(obj) for obj in sorted(objects, key=place_of)]
    head = {"apiVersion": CONFIG_API_VERSION, "kind": SNAPSHOT, "configuration": dict(configuration)}
    if yaml:
        whole = {**head, "items": items}
        return yaml_.dump(whole, Dumper=yaml_.CSafeDumper, sort_keys=False, allow_unicode=True, width=120)
    begin = msgspec.json.encode(head).decode().removesuffix("}")
    lines = ",\n".join(msgspec.json.encode(item).decode() for item in items)
    return f'{begin},"items":[\n{lines}\n]}}\n'


def place_of(obj: PortObject) -> tuple[Any, ...]:
    """What orders objects: a pod comes after all that it may name."""
    metadata = obj.metadata
    return _IN_ORDER.index(type(obj)), metadata.namespace, natural(metadata.name), metadata.name, obj.api_version


def _plain(obj: PortObject) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(obj, order="deterministic"))
    annotations = values.get("metadata", {}).get("annotations", {})
    for name in _NOT_KEPT:
        annotations.pop(name, None)
    return {"apiVersion": obj.api_version, **values}


def saved_object(document: Document) -> PortObject:
    """An item of a snapshot, as it was. Raises ManifestError."""
    kind = _KINDS.get(document.kind)
    if kind is None:
        raise document.error("kind", f"{document.kind!r} is nothing that a snapshot holds: remove the item")
    obj = document.typed(kind)
    if not obj.metadata.name or not obj.metadata.uid:
        field = "metadata.uid" if obj.metadata.name else "metadata.name"
        raise document.error(field, "is missing: a snapshot's objects have it; give new objects in a file of their own")
    return obj
