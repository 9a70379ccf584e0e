"""Writes desired objects by server-side apply, and only if the observed object differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fluence_plugins.master_queue.api.informer_store import Observed, Store
from fluence_plugins.master_queue.metrics import MasterQueueMetrics
from session_scheduler.sdk.backoff import backoff
from session_scheduler.sdk.dynamic_client import ClusterError, Conflict, KubeApi, NotFound
from session_scheduler.sdk.dynamic_informer import Change, Resource

MANAGER: Final = "fluence-master-queue"
_WHOLE: Final = frozenset({"namespaceSelector", "nodeLabels"})
"""Mappings that the API server treats as atomic."""


_AT_ONCE: Final = 2
"""How many times a change by another client is reverted immediately; after that, reverts back off."""
_LONGEST_PAUSE: Final = 60.0
_FORGOTTEN_SECONDS: Final = 600.0


class _Applied(msgspec.Struct, frozen=True):
    body: bytes
    at: float
    times: int
    """How many times in a row."""


@dataclass(eq=False)
class Applier:
    """Writes single objects. The store gets each response immediately."""

    api: KubeApi
    store: Store
    meter: MasterQueueMetrics
    now: Callable[[], float]

    def __post_init__(self) -> None:
        self._last: dict[tuple[str, str], _Applied] = {}
        """The last write of each object, in order, within `_FORGOTTEN_SECONDS`."""

    async def apply(self, resource: Resource[Any], wanted: msgspec.Struct) -> bool:
        """Write an object if it differs; returns whether it did. Raises ClusterError: Conflict if the object has
        another owner, or if another client reverts it each time.
        """
        body: dict[str, Any] = plain(wanted)
        meta = body["metadata"]
        key = f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else meta["name"]
        known: Observed | None = self.store.get(resource.kind, key)
        if known is not None and known.owner != next(one["uid"] for one in meta["ownerReferences"]):
            raise Conflict(f"{resource.plural} {key}: has another owner; rename the MasterQueue, or that object")
        if known is not None and not differs(body, known):
            return False
        applied = self._next(resource, key, body)
        if known is not None:
            meta["uid"] = known.metadata.uid
        kind = str(body["kind"])
        path = resource.path(meta.get("namespace", ""), meta["name"])
        try:
            # An unknown object may exist by now with another owner: its fields are not taken over.
            answer = await self.api.apply(path, body, manager=MANAGER, force=known is not None)
        except ClusterError as error:
            self.meter.applied(kind, "conflict" if isinstance(error, Conflict) else "error")
            raise
        self.meter.applied(kind, "created" if known is None else "changed")
        self._remember((resource.plural, key), applied)
        self.store.observe(Change.MODIFIED, msgspec.convert(answer, resource.kind))
        return True

    def _remember(self, place: tuple[str, str], applied: _Applied) -> None:
        self._last.pop(place, None)
        self._last[place] = applied
        while applied.at - self._last[oldest := next(iter(self._last))].at > _FORGOTTEN_SECONDS:
            del self._last[oldest]

    def _next(self, resource: Resource[Any], key: str, body: dict[str, Any]) -> _Applied:
        """The record of this write. Raises Conflict if it is too early to repeat the same write."""
        now, last = self.now(), self._last.get((resource.plural, key))
        text = msgspec.json.encode(body)
        if last is None or last.body != text or now - last.at > _FORGOTTEN_SECONDS:
            return _Applied(text, now, 1)
        if last.times > _AT_ONCE and now - last.at < backoff(2.0, last.times - _AT_ONCE - 1, _LONGEST_PAUSE):
            raise Conflict(f"{resource.plural} {key}: another client (see managedFields) keeps reverting this object")
        return _Applied(text, now, last.times + 1)

    async def delete(self, resource: Resource[Any], known: Observed) -> None:
        """Delete exactly this object (by uid). Raises ClusterError, except if it is gone."""
        meta = known.metadata
        self._last.pop((resource.plural, known.key), None)
        try:
            await self.api.delete(resource.path(meta.namespace, meta.name), meta.uid)
        except NotFound:
            pass
        except ClusterError as error:
            self.meter.applied(kind_of(known), "conflict" if isinstance(error, Conflict) else "error")
            raise
        self.meter.applied(kind_of(known), "deleted")


def plain(value: msgspec.Struct) -> Any:
    """The value as JSON types: with lists, because the tuples of to_builtins are not equal to lists."""
    return msgspec.json.decode(msgspec.json.encode(value))


def kind_of(known: Observed) -> str:
    """The object's kind, such as `ClusterQueue`."""
    return str(type(known).__struct_config__.tag)


def differs(wanted: Mapping[str, Any], known: Observed) -> bool:
    """Whether the object must be written: a value differs, or a field of ours is no longer desired."""
    meta: Mapping[str, Any] = wanted["metadata"]
    owners = [plain(one) for one in known.metadata.owner_references]
    if not (
        _within(wanted.get("spec", {}), known.spec)
        and _within(meta.get("labels", {}), known.metadata.labels)
        and all(any(_within(one, other) for other in owners) for one in meta.get("ownerReferences", ()))
    ):
        return True
    ours = [
        one.fields_v1
        for one in known.metadata.managed_fields
        if (one.manager, one.operation, one.subresource) == (MANAGER, "Apply", "")
    ]
    return not ours or any(_gone(fields, wanted) for fields in ours)


def _within(wanted: Any, known: Any) -> bool:
    """Whether `known` contains all that is wanted. Others may have added fields; a list is compared as a whole."""
    if not isinstance(wanted, Mapping) or not isinstance(known, Mapping):
        return bool(wanted == known)
    return all(
        name in known and (value == known[name] if name in _WHOLE else _within(value, known[name]))
        for name, value in wanted.items()
    )


def _gone(fields: Mapping[str, Any], wanted: Any) -> bool:
    """Whether a field of ours is no longer wanted. `fields`: metadata.managedFields[].fieldsV1, or a part of it."""
    for name, inner in fields.items():
        if not name.startswith("f:"):
            continue
        field = name.removeprefix("f:")
        if not isinstance(wanted, Mapping) or field not in wanted:
            return True
        if inner and isinstance(wanted[field], Mapping) and _gone(inner, wanted[field]):
            return True
    return False
