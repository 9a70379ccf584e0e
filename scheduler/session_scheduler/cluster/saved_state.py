"""The format of a saved cluster: `fluence snapshot` writes it, and commands read it without admission.

    {"apiVersion": "fluence.flux-framework.org/v1alpha1", "kind": "Snapshot", "configuration": {...}, "items": [...]}

Items contain only the fields that the scheduler reads: no managed fields, no values of environment variables. They
include the defaults that the API server or `fluence` set.
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
from session_scheduler.model.node_topology import NodeResourceTopology
from session_scheduler.model.objects import ConfigMap, Node, Pod, PodGroup, PortObject, PriorityClass
from session_scheduler.model.policy import PodDisruptionBudget
from session_scheduler.model.queue_objects import Queue
from session_scheduler.model.related import RELATED_KINDS
from session_scheduler.model.storage import STORAGE_KINDS

_IN_ORDER: Final[tuple[type[PortObject], ...]] = (
    PriorityClass, Node, ConfigMap, PodGroup, *RELATED_KINDS, *STORAGE_KINDS, *DEVICE_KINDS,
    PodDisruptionBudget, Queue, NodeResourceTopology, Pod,
)  # fmt: skip
_KINDS: Final[Mapping[str, type[PortObject]]] = {kind.__name__: kind for kind in _IN_ORDER}
_NOT_KEPT: Final = ("kubectl.kubernetes.io/last-applied-configuration",)
"""Annotations that repeat the whole object, including fields that a snapshot leaves out."""


def snapshot_text(objects: Iterable[PortObject], configuration: Mapping[str, Any], *, yaml: bool) -> str:
    """Return the document. It does not depend on the order of the objects. In JSON each object is one line."""
    items = [_plain(obj) for obj in sorted(objects, key=place_of)]
    head = {"apiVersion": CONFIG_API_VERSION, "kind": SNAPSHOT, "configuration": dict(configuration)}
    if yaml:
        whole = {**head, "items": items}
        return yaml_.dump(whole, Dumper=yaml_.CSafeDumper, sort_keys=False, allow_unicode=True, width=120)
    begin = msgspec.json.encode(head).decode().removesuffix("}")
    lines = ",\n".join(msgspec.json.encode(item).decode() for item in items)
    return f'{begin},"items":[\n{lines}\n]}}\n'


def place_of(obj: PortObject) -> tuple[Any, ...]:
    """Return a sort key: a pod comes after all objects that it may name."""
    metadata = obj.metadata
    return _IN_ORDER.index(type(obj)), metadata.namespace, natural(metadata.name), metadata.name, obj.api_version


def _plain(obj: PortObject) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(obj, order="deterministic"))
    annotations = values.get("metadata", {}).get("annotations", {})
    for name in _NOT_KEPT:
        annotations.pop(name, None)
    return {"apiVersion": obj.api_version, **values}


def saved_object(document: Document) -> PortObject:
    """Decode an item of a snapshot. Raises ManifestError."""
    kind = _KINDS.get(document.kind)
    if kind is None:
        raise document.error("kind", f"a snapshot cannot contain {document.kind!r}; remove the item")
    obj = document.typed(kind)
    if not obj.metadata.name or not obj.metadata.uid:
        field = "metadata.uid" if obj.metadata.name else "metadata.name"
        raise document.error(field, "is missing: every object in a snapshot has it; put new objects in another file")
    return obj
