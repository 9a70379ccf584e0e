"""An in-memory cluster that implements the port, for `simulate` and for tests.

It keeps objects, resourceVersions and watches, and applies the API server's rules to writes. It has no controllers and
no kubelet: tests and simulations call `put` and `finish_deletions` instead.
Source of the binding rules: pkg/registry/core/pod/storage, BindingREST.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, cast, get_args

from msgspec.structs import replace

from session_scheduler.base.clock import utc_now
from session_scheduler.cluster.errors import AlreadyExists, Invalid, NotFound, TooManyRequests
from session_scheduler.cluster.port import (
    ANY_LABELS,
    EVENT_NOTE_LIMIT,
    Change,
    Cluster,
    Event,
    EventSeries,
    Kube,
    Labels,
    Listing,
    WatchEvent,
    event_name,
    event_namespace,
    has_labels,
)
from session_scheduler.cluster.volume_controller import bound_pair, is_reserved_for, needs_volume, provisioned_volume
from session_scheduler.cluster.watch_history import WatchHistory
from session_scheduler.cluster.write_rules import (
    as_created,
    by_name,
    check_bindable,
    check_binding,
    check_finalizers,
    check_has_version,
    check_new,
    check_no_new_finalizers,
    check_taints,
    check_unchanged,
    described,
    grace_of,
    group_of,
    in_namespace,
    merged_conditions,
    merged_taints,
    merged_texts,
    with_claim_ref,
    with_metadata,
)
from session_scheduler.model.devices import CONSUMERS_LIMIT, FINALIZER, ResourceClaim, ResourceClaimStatus
from session_scheduler.model.field_checks import FieldError, check_annotations, check_labels
from session_scheduler.model.meta import OwnerReference
from session_scheduler.model.objects import (
    ExtendedClaimStatus,
    Lease,
    Node,
    ObjectName,
    Pod,
    PodCondition,
    PodGroup,
    PortObject,
    RequestMapping,
    Taint,
    name_of,
)
from session_scheduler.model.queue_objects import Queue, QueueStatus
from session_scheduler.model.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from session_scheduler.model.times import time_text

_IDENTITY = uuid.UUID("0c6f3c5e-1f0e-5d0c-8f3b-2f9d6a7c4b11")


class _Store(Generic[Kube]):
    """The objects of one kind, by (API group, namespace, name), and their changes."""

    def __init__(self, kind: type[Kube], limit: int) -> None:
        self.kind = kind
        self.objects: dict[ObjectName, Kube] = {}
        self.history: WatchHistory[Kube] = WatchHistory(limit)


class MemoryCluster:
    """A cluster in memory; implements `port.Cluster`.

    `objects` are the initial objects; they get new resourceVersions. `history` is the minimum number of remembered
    changes per kind. `now` returns the time for timestamps. `may_evict` plays the role of disruption budgets.
    With `binds_volumes`, reading a claim binds it first, and provisions its volume if necessary.
    """

    simulated = True

    def __init__(
        self,
        objects: Iterable[PortObject] = (),
        *,
        history: int = 10_000,
        now: Callable[[], datetime] = utc_now,
        may_evict: Callable[[Pod], bool] = lambda _: True,
        binds_volumes: bool = False,
    ) -> None:
        self._stores: dict[type[Any], _Store[Any]] = {kind: _Store(kind, history) for kind in get_args(PortObject)}
        self._version = 0
        self._over: set[str] = set()
        """The uids of deleted objects whose grace period has expired; only finalizers keep them."""
        self._now = now
        self._may_evict = may_evict
        self._binds_volumes = binds_volumes
        self.events: list[Event] = []
        """All recorded events, in order."""
        self.series: dict[tuple[str, str], EventSeries | None] = {}
        """The latest series of each event, by namespace and name, in the order of `events`."""
        for obj in objects:
            self._version += 1
            obj = self._completed(obj, uid=obj.metadata.uid)
            self._store(type(obj)).objects[name_of(obj)] = obj

    # -------------------------------------------------------------- reading

    # more than five parameters: the ways to select objects
    async def list(
        self,
        kind: type[Kube],
        *,
        labels: Labels = ANY_LABELS,
        namespace: str = "",
        node: str = "",
        keep: Callable[[Kube], bool] | None = None,
    ) -> Listing[Kube]:
        """See `port.Cluster`."""
        found = self.objects(kind)
        if labels or namespace or node:
            found = tuple(obj for obj in found if _is_selected(obj, labels, namespace, node))
        return Listing(found if keep is None else tuple(filter(keep, found)), str(self._version))

    def objects(self, kind: type[Kube]) -> tuple[Kube, ...]:
        """Like `list`, for synchronous callers."""
        objects = self._store(kind).objects
        return tuple(objects[name] for name in sorted(objects, key=by_name))

    def watch(
        self, kind: type[Kube], resource_version: str, *, labels: Labels = ANY_LABELS
    ) -> AsyncGenerator[WatchEvent[Kube], None]:
        """See `port.Cluster`."""
        if not resource_version.isdecimal():
            raise Invalid(f"resourceVersion {resource_version!r} is not valid; use one from a list or an event")
        events = self._store(kind).history.since(int(resource_version))
        return _with_labels(events, labels) if labels else events

    async def get(self, kind: type[Kube], namespace: str, name: str, *, api_version: str = "") -> Kube:
        """See `port.Cluster`."""
        group = api_version or kind().api_version
        found = self._get(kind, (group_of(group), namespace, name))
        if self._binds_volumes and isinstance(found, PersistentVolumeClaim) and not found.bound:
            self._bind_volume(found)
        return self._get(kind, (group_of(group), namespace, name))

    # -------------------------------------------------------------- writing

    async def create(self, obj: Kube) -> Kube:
        """See `port.Cluster`."""
        metadata = obj.metadata
        if metadata.resource_version:
            raise Invalid(f"{described(obj)}: metadata.resourceVersion: should not be set on objects to be created")
        if not metadata.name and not metadata.generate_name:
            raise Invalid(f"{described(obj)}: metadata.name: name or generateName is required")
        if not metadata.name:
            obj = with_metadata(obj, name=f"{metadata.generate_name}{self._version + 1:05d}")
        check_new(obj)
        store = self._store(type(obj))
        if name_of(in_namespace(obj)) in store.objects:
            raise AlreadyExists(f"{described(obj)} already exists")
        return self._store_new(as_created(obj))

    async def replace(self, obj: Lease) -> Lease:
        """See `port.Cluster`."""
        check_has_version(obj)
        current = self._current(obj, obj.metadata.resource_version)
        check_unchanged(current, obj.metadata.uid)
        if (obj.spec, obj.metadata.annotations) == (current.spec, current.metadata.annotations):
            return current
        return self._write(current, spec=obj.spec, annotations=obj.metadata.annotations)

    # more than five parameters: the fields of a Binding
    async def bind(
        self,
        namespace: str,
        name: str,
        *,
        node: str,
        uid: str,
        resource_version: str,
        annotations: Mapping[str, str],
    ) -> None:
        """See `port.Cluster`."""
        check_binding(f"{namespace}/{name}", node, uid, resource_version)
        pod = self._get(Pod, ("", namespace, name))
        check_unchanged(pod, uid, resource_version)
        check_bindable(pod)
        scheduled = _scheduled(time_text(self._now()))
        status = replace(
            pod.status, conditions=merged_conditions(pod.status.conditions, (scheduled,)), nominated_node_name=""
        )
        merged = {**pod.metadata.annotations, **annotations} if annotations else pod.metadata.annotations
        self._write(pod, annotations=merged, spec=replace(pod.spec, node_name=node), status=status)

    # more than five parameters: the fields of the metadata
    async def patch_metadata(
        self,
        obj: Kube,
        *,
        annotations: Mapping[str, str | None] | None = None,
        labels: Mapping[str, str | None] | None = None,
        finalizers: Sequence[str] | None = None,
        owner_references: Sequence[OwnerReference] | None = None,
        resource_version: str | None = None,
    ) -> Kube:
        """See `port.Cluster`."""
        check_finalizers(obj, finalizers, resource_version)
        current = self._current(obj, resource_version)
        metadata = current.metadata
        new_annotations = merged_texts(metadata.annotations, annotations or {})
        new_labels = merged_texts(metadata.labels, labels or {})
        held = metadata.finalizers if finalizers is None else tuple(finalizers)
        owners = metadata.owner_references if owner_references is None else tuple(owner_references)
        before = (metadata.annotations, metadata.labels, metadata.finalizers, metadata.owner_references)
        if (new_annotations, new_labels, held, owners) == before:
            return current
        check_no_new_finalizers(current, held)
        try:
            check_annotations(new_annotations, "metadata.annotations")
            check_labels(new_labels, "metadata.labels")
        except FieldError as error:
            raise Invalid(f"{described(obj)}: {error}") from None
        written = self._write(
            current, annotations=new_annotations, labels=new_labels, finalizers=held, owner_references=owners
        )
        if metadata.finalizers and not held and self._is_over(written):
            self._remove(written)
        return written

    async def patch_status(
        self,
        obj: Kube,
        *,
        conditions: Sequence[PodCondition] = (),
        nominated_node_name: str | None = None,
        resource_version: str | None = None,
    ) -> Kube:
        """See `port.Cluster`."""
        current = self._current(obj, resource_version)
        if not isinstance(current, Pod | Node | PodGroup):
            raise Invalid(f"{described(obj)}: this kind has no conditions in its status")
        status: Any = current.status
        changed: dict[str, Any] = {"conditions": merged_conditions(status.conditions, conditions)}
        if nominated_node_name is not None:
            if not isinstance(current, Pod):
                raise Invalid(f"{described(obj)}: status.nominatedNodeName: only pods have this field")
            changed["nominated_node_name"] = nominated_node_name
        new_status = replace(status, **changed)
        return current if new_status == status else self._write(current, status=new_status)

    async def open_gate(self, pod: Pod, gate: str, annotations: Mapping[str, str | None]) -> Pod:
        """See `port.Cluster`."""
        check_has_version(pod)
        current = self._current(pod, pod.metadata.resource_version)
        merged = merged_texts(current.metadata.annotations, annotations)
        try:
            check_annotations(merged, "metadata.annotations")
        except FieldError as error:
            raise Invalid(f"{described(pod)}: {error}") from None
        left = tuple(each for each in current.spec.scheduling_gates if each.name != gate)
        if left == current.spec.scheduling_gates and merged == current.metadata.annotations:
            return current
        return self._write(current, annotations=merged, spec=replace(current.spec, scheduling_gates=left))

    async def set_taints(self, node: Node, taints: Sequence[Taint]) -> Node:
        """See `port.Cluster`."""
        check_taints(node, taints)
        current = self._current(node, node.metadata.resource_version)
        merged = merged_taints(current.spec.taints, taints)
        return (
            current
            if merged == current.spec.taints
            else self._write(current, spec=replace(current.spec, taints=merged))
        )

    async def claim_volume(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> PersistentVolume:
        """See `port.Cluster`."""
        check_has_version(volume)
        kept = with_claim_ref(self._current(volume, volume.metadata.resource_version), claim)
        return self._write(kept, annotations=kept.metadata.annotations)

    async def allocate_claim(self, claim: ResourceClaim, status: ResourceClaimStatus) -> ResourceClaim:
        """See `port.Cluster`."""
        check_has_version(claim)
        if len(status.reserved_for) > CONSUMERS_LIMIT:
            raise Invalid(f"{described(claim)}: status.reservedFor: Too many: {len(status.reserved_for)}: must have at "
                          f"most {CONSUMERS_LIMIT} items")  # fmt: skip
        current = self._current(claim, claim.metadata.resource_version)
        finalizers = current.metadata.finalizers
        if status.allocation is not None and FINALIZER not in finalizers:
            finalizers = (*finalizers, FINALIZER)
        return self._write(current, finalizers=finalizers, status=status)

    async def write_queue_status(self, queue: Queue, status: QueueStatus) -> Queue:
        """See `port.Cluster`."""
        check_has_version(queue)
        return self._write(self._current(queue, queue.metadata.resource_version), status=status)

    async def name_extended_claim(self, pod: Pod, claim: str, mappings: Sequence[RequestMapping]) -> Pod:
        """See `port.Cluster`."""
        current = self._current(pod)
        check_unchanged(current, pod.metadata.uid)
        named = ExtendedClaimStatus(resource_claim_name=claim, request_mappings=tuple(mappings))
        return self._write(current, status=replace(current.status, extended_resource_claim_status=named))

    async def evict(self, pod: Pod, *, grace_seconds: int | None = None) -> None:
        """See `port.Cluster`."""
        current = self._current(pod)
        check_unchanged(current, pod.metadata.uid)
        if not self._may_evict(current):
            raise TooManyRequests(
                f"Cannot evict {described(pod)} as it would violate the pod's disruption budget", 10.0
            )
        await self.delete(pod, grace_seconds=grace_seconds)

    async def delete(self, obj: Kube, *, grace_seconds: int | None = None, resource_version: str | None = None) -> None:
        """See `port.Cluster`."""
        current = self._current(obj, resource_version)
        check_unchanged(current, obj.metadata.uid)
        grace = grace_of(current, grace_seconds)
        if not grace:
            self._over.add(current.metadata.uid)
        if not grace and not current.metadata.finalizers:
            self._remove(current)
        elif current.metadata.deletion_timestamp is None:
            self._write(current, deletion_timestamp=time_text(self._now() + timedelta(seconds=grace)))

    async def record_event(self, event: Event) -> str:
        """See `port.Cluster`."""
        about = f"event about {described(event.regarding)}"
        size = len(event.note.encode())
        if size > EVENT_NOTE_LIMIT:
            raise Invalid(f"{about}: note: has {size} bytes, more than {EVENT_NOTE_LIMIT}; shorten it")
        if not event.action or not event.reason:
            raise Invalid(f"{about}: action and reason are required")
        name = event.name or event_name(event.regarding, f"{len(self.events) + 1:x}")
        key = (event_namespace(event.regarding), name)
        if key in self.series:
            raise AlreadyExists(f"{about}: {name} already exists")
        self.events.append(event)
        self.series[key] = None
        return name

    async def repeat_event(self, namespace: str, name: str, series: EventSeries) -> None:
        """See `port.Cluster`."""
        if (namespace, name) not in self.series:
            raise NotFound(f"Event {namespace}/{name} not found")
        if series.count < 2:
            raise Invalid(f"Event {namespace}/{name}: series.count: is {series.count}: must be at least 2")
        self.series[namespace, name] = series

    # -------------------------------------------------------------- simulation of controllers, kubelets and networks

    def put(self, obj: Kube) -> Kube:
        """Create or replace an object, status included. Return it with its new resourceVersion."""
        obj = in_namespace(obj)
        existing = self._store(type(obj)).objects.get(name_of(obj))
        self._version += 1
        uid = obj.metadata.uid or (existing.metadata.uid if existing is not None else "")
        stored = self._completed(obj, uid=uid)
        self._publish(Change.ADDED if existing is None else Change.MODIFIED, stored)
        return stored

    def finish_deletions(self) -> None:
        """Remove each terminating pod, as its kubelet would; a pod with finalizers stays until it has none."""
        pods = self._store(Pod).objects.values()
        for pod in [p for p in pods if p.metadata.deletion_timestamp]:
            if pod.metadata.finalizers:
                self._over.add(pod.metadata.uid)
            else:
                self._remove(pod)

    def send_bookmarks(self) -> None:
        """Send every watcher a bookmark."""
        for store in self._stores.values():
            store.history.add(self._version, WatchEvent(Change.BOOKMARK, None, str(self._version)))

    def forget_history(self) -> None:
        """Forget all changes so far: a watch from an earlier version raises Gone."""
        for store in self._stores.values():
            store.history.forget()

    def end_watches(self) -> None:
        """End all watches, as broken connections do."""
        for store in self._stores.values():
            store.history.end_watches()

    # -------------------------------------------------------------- inside

    def _bind_volume(self, claim: PersistentVolumeClaim) -> None:
        """Bind a claim to the volume that is reserved for it, or to a new volume for its selected node."""
        volumes = (
            volume for volume in self._store(PersistentVolume).objects.values() if is_reserved_for(volume, claim)
        )
        volume = next(volumes, None)
        if volume is None and needs_volume(claim):
            storage_class = self._get(StorageClass, ("storage.k8s.io", "", claim.storage_class))
            volume = self._store_new(provisioned_volume(claim, storage_class.provisioner))
        if volume is not None:
            volume, claim = bound_pair(volume, claim)
            self._write(claim, annotations=claim.metadata.annotations)
            self._write(volume)

    def _store_new(self, obj: Kube) -> Kube:
        self._version += 1
        created = self._completed(obj, uid="")
        self._publish(Change.ADDED, created)
        return created

    def _store(self, kind: type[Kube]) -> _Store[Kube]:
        return cast("_Store[Kube]", self._stores[kind])

    def _get(self, kind: type[Kube], name: ObjectName) -> Kube:
        found = self._store(kind).objects.get(name)
        if found is None:
            raise NotFound(f"{kind.__name__} {'/'.join(part for part in name[1:] if part)} not found")
        return found

    def _current(self, obj: Kube, resource_version: str | None = None) -> Kube:
        """Return the current object of this name. Raises NotFound, or Conflict for another resourceVersion."""
        current = self._get(type(obj), name_of(obj))
        if resource_version is not None:
            check_unchanged(current, resource_version=resource_version)
        return current

    def _completed(self, obj: Kube, *, uid: str) -> Kube:
        """Return the object with the current resourceVersion, and a uid and creation time if it has none."""
        obj = in_namespace(obj)
        metadata = obj.metadata
        if not uid:
            identity = f"{type(obj).__name__} {metadata.namespace}/{metadata.name} {self._version}"
            uid = str(uuid.uuid5(_IDENTITY, identity))
        created = metadata.creation_timestamp or time_text(self._now())
        return with_metadata(obj, uid=uid, creation_timestamp=created, resource_version=str(self._version))

    def _write(self, current: Kube, *, spec: object = None, status: object = None, **metadata: object) -> Kube:
        """Replace the given parts (fields of the metadata by name) and publish the change."""
        self._version += 1
        given = {name: value for name, value in metadata.items() if value is not None}
        changes = {name: value for name, value in (("spec", spec), ("status", status)) if value is not None}
        changes["metadata"] = replace(current.metadata, resource_version=str(self._version), **given)
        written = replace(current, **changes)
        self._publish(Change.MODIFIED, written)
        return written

    def _publish(self, change: Change, obj: Kube) -> None:
        store = self._store(type(obj))
        store.objects[name_of(obj)] = obj
        store.history.add(self._version, WatchEvent(change, obj, obj.metadata.resource_version))

    def _is_over(self, obj: PortObject) -> bool:
        """Whether the object is being deleted and its grace period has expired."""
        due = obj.metadata.uid in self._over or not grace_of(obj, None)
        return due and obj.metadata.deletion_timestamp is not None

    def _remove(self, obj: Kube) -> None:
        self._version += 1
        self._over.discard(obj.metadata.uid)
        store = self._store(type(obj))
        del store.objects[name_of(obj)]
        last = with_metadata(obj, resource_version=str(self._version))
        store.history.add(self._version, WatchEvent(Change.DELETED, last, str(self._version)))


@lru_cache(maxsize=1)
def _scheduled(time: str) -> PodCondition:
    """The condition of the pods that are bound in one second."""
    return PodCondition(type="PodScheduled", status="True", last_transition_time=time)


def _is_selected(obj: PortObject, labels: Labels, namespace: str, node: str) -> bool:
    here = namespace in ("", obj.metadata.namespace)
    bound = not node or (isinstance(obj, Pod) and obj.spec.node_name == node)
    return here and bound and has_labels(obj, labels)


async def _with_labels(
    events: AsyncGenerator[WatchEvent[Kube], None], labels: Labels
) -> AsyncGenerator[WatchEvent[Kube], None]:
    """The events of the objects with these labels; those of all other objects as deletions."""
    async with aclosing(events):
        async for event in events:
            if event.object is None or has_labels(event.object, labels):
                yield event
            else:
                yield WatchEvent(Change.DELETED, event.object, event.resource_version)


if TYPE_CHECKING:
    _conforms: Callable[[], Cluster] = MemoryCluster
