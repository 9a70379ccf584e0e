"""The port to a live cluster: requests to an API server, with responses decoded to the model's types.

`connect` loads the credentials. `KubernetesCluster` lists in pages, watches with bookmarks, and writes with the
preconditions that the port requires. It caches nothing but the discovered PodGroup APIs.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import structlog
from msgspec.structs import replace

from session_scheduler.base.clock import utc_now
from session_scheduler.cluster.errors import Invalid
from session_scheduler.cluster.group_discovery import GroupDiscovery
from session_scheduler.cluster.kube_access import load_access
from session_scheduler.cluster.kube_bodies import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    binding_body,
    claim_patch,
    claim_status_patch,
    deletion_body,
    event_body,
    eviction_body,
    extended_claim_patch,
    finalizer_patch,
    gate_patch,
    metadata_patch,
    named_for_version,
    object_body,
    queue_status_patch,
    series_patch,
    status_patch,
    taints_patch,
)
from session_scheduler.cluster.kube_kinds import Resource, resource_of
from session_scheduler.cluster.kube_lists import PAGE, list_all, selectors
from session_scheduler.cluster.kube_requests import ApiClient, RequestSettings
from session_scheduler.cluster.kube_watch import joined_versions, merged, split_versions, watch_one
from session_scheduler.cluster.port import (
    ANY_LABELS,
    Cluster,
    Event,
    EventSeries,
    Kube,
    Labels,
    Listing,
    WatchEvent,
    event_name,
    event_namespace,
)
from session_scheduler.cluster.write_rules import (
    by_name,
    check_binding,
    check_finalizers,
    check_has_version,
    check_taints,
    check_unchanged,
    described,
    in_namespace,
)
from session_scheduler.model.devices import FINALIZER, ResourceClaim, ResourceClaimStatus
from session_scheduler.model.meta import OwnerReference
from session_scheduler.model.objects import Lease, Node, Pod, PodCondition, PodGroup, RequestMapping, Taint, name_of
from session_scheduler.model.queue_objects import Queue, QueueStatus
from session_scheduler.model.storage import PersistentVolume, PersistentVolumeClaim

_log = structlog.get_logger(__name__)
_NO_API = "none"
"""The resourceVersion of a kind that the API server does not serve."""


async def connect(
    kubeconfig: str | None = None, context: str | None = None, settings: RequestSettings | None = None
) -> KubernetesCluster:
    """Return the configured cluster: see `kube_access.load_access`. Raises InputError with one line.

    Sends no request to the API server. Call `close` at the end, or use it with `async with`.
    """
    return KubernetesCluster(ApiClient(await load_access(kubeconfig, context), settings))


class KubernetesCluster:
    """A live cluster; implements `port.Cluster`. `now` returns the time for events."""

    simulated = False

    def __init__(
        self,
        client: ApiClient,
        *,
        page_size: int = PAGE,
        now: Callable[[], datetime] = utc_now,
        instance: str | None = None,
    ) -> None:
        self._client = client
        self._page_size = page_size
        self._now = now
        self._instance = instance or socket.gethostname()
        self._events = time.time_ns()
        self.pod_groups = GroupDiscovery(client)

    @property
    def client(self) -> ApiClient:
        """The client that sends the requests, with the fence for writes."""
        return self._client

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    def fence_writes(self, check: Callable[[], None]) -> None:
        """Call `check` directly before each write and retry; it raises to stop the write.

        Writes of a Lease skip the check, because they decide the election.
        """
        self._client.fence_writes(check)

    async def __aenter__(self) -> KubernetesCluster:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        at: TracebackType | None) -> None:  # fmt: skip
        await self.close()

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
        """See `port.Cluster`. If the API server serves no PodGroup API, there are no PodGroups; that is logged once."""
        ask = partial(
            list_all, page_size=self._page_size, namespace=namespace, selected=selectors(labels, node), keep=keep
        )
        resources = await self._resources(kind, again=True)
        parts = await asyncio.gather(*(ask(self._client, resource) for resource in resources))
        items = sorted((item for part in parts for item in part.items), key=lambda item: by_name(name_of(item)))
        if kind is PodGroup:
            self.pod_groups.seen(items)  # type: ignore[arg-type]
        return Listing(tuple(items), joined_versions([part.resource_version for part in parts]) or _NO_API)

    async def watch(
        self, kind: type[Kube], resource_version: str, *, labels: Labels = ANY_LABELS
    ) -> AsyncGenerator[WatchEvent[Kube], None]:
        """See `port.Cluster`. Closing the iterator, or cancelling the task that awaits it, closes the connection."""
        resources = await self._resources(kind)
        if not resources:
            await asyncio.Event().wait()  # no event can come: wait until closed or cancelled
        versions = split_versions(resource_version)
        # API servers use decimal numbers and respond to others with a 500. 0 would mean any moment, and miss changes.
        if len(versions) != len(resources) or not all(part.isdecimal() and int(part) for part in versions):
            raise Invalid(f"resourceVersion {resource_version!r} is not valid; use one from a list or an event")
        pairs = zip(resources, versions, strict=True)
        watches = [watch_one(self._client, resource, version, selectors(labels)) for resource, version in pairs]
        async with aclosing(watches[0] if len(watches) == 1 else merged(watches, versions)) as events:
            async for event in events:
                yield event

    async def get(self, kind: type[Kube], namespace: str, name: str, *, api_version: str = "") -> Kube:
        """See `port.Cluster`."""
        resource = self._resource(kind, api_version)
        what = f"{kind.__name__} {namespace}/{name}" if resource.namespaced else f"{kind.__name__} {name}"
        return resource.object(await self._client.read(resource.path(namespace, name), what=what))

    async def _resources(self, kind: type[Kube], *, again: bool = False) -> tuple[Resource[Kube], ...]:
        """Return the served resources of a kind: for PodGroups none, one or two; `again` discovers again."""
        if kind is not PodGroup:
            return (resource_of(kind),)
        return await self.pod_groups.resources(again=again)  # type: ignore[return-value]

    def _resource(self, kind: type[Kube], api_version: str) -> Resource[Kube]:
        """Return the resource of an object. Raises Invalid for a PodGroup of an unknown API."""
        if kind is not PodGroup:
            return resource_of(kind, api_version)
        return self.pod_groups.place_of(api_version)  # type: ignore[return-value]

    def _place(self, obj: Kube) -> Resource[Kube]:
        return self._resource(type(obj), obj.api_version)

    # -------------------------------------------------------------- writing

    async def create(self, obj: Kube) -> Kube:
        """See `port.Cluster`."""
        if obj.metadata.resource_version:  # the API server responds with a 500
            raise Invalid(f"{described(obj)}: metadata.resourceVersion: should not be set on objects to be created")
        obj = in_namespace(obj)
        resource = self._place(obj)
        if isinstance(obj, PodGroup):
            obj = replace(obj, api_version=resource.api_version)
        path = resource.path(obj.metadata.namespace)
        body, fenced = object_body(obj), not isinstance(obj, Lease)
        return resource.object(await self._client.write("POST", path, body, what=described(obj), fenced=fenced))

    async def replace(self, obj: Lease) -> Lease:
        """See `port.Cluster`."""
        check_has_version(obj)
        resource = self._place(in_namespace(obj))
        path = resource.path_of(in_namespace(obj))
        body = object_body(obj)
        return resource.object(await self._client.write("PUT", path, body, what=described(obj), fenced=False))

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
        path, what = resource_of(Pod).path(namespace, name, "binding"), f"binding of pod {namespace}/{name}"
        body = binding_body(namespace, name, node, uid, resource_version, annotations)
        await self._client.write("POST", path, body, what=what)

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
        """See `port.Cluster`. It patches a pod through its status, which needs no permission to patch pods."""
        check_finalizers(obj, finalizers, resource_version)
        body = metadata_patch(
            annotations or {}, labels or {}, resource_version, finalizers=finalizers, owner_references=owner_references
        )
        return await self._patch(obj, body, MERGE_PATCH, "status" if isinstance(obj, Pod) else "")

    async def patch_status(
        self,
        obj: Kube,
        *,
        conditions: Sequence[PodCondition] = (),
        nominated_node_name: str | None = None,
        resource_version: str | None = None,
    ) -> Kube:
        """See `port.Cluster`. A coscheduling PodGroup has no conditions, so it is only read."""
        if not isinstance(obj, Pod | Node | PodGroup):
            raise Invalid(f"{described(obj)}: this kind has no conditions in its status")
        if nominated_node_name is not None and not isinstance(obj, Pod):
            raise Invalid(f"{described(obj)}: status.nominatedNodeName: only pods have this field")
        if isinstance(obj, PodGroup) and not obj.native:
            return await self.get(type(obj), obj.metadata.namespace, obj.metadata.name, api_version=obj.api_version)
        if isinstance(obj, PodGroup):
            conditions = named_for_version(self._place(obj).api_version, conditions)
        body = status_patch(conditions, nominated_node_name, resource_version)
        return await self._patch(obj, body, STRATEGIC_PATCH, "status")

    async def open_gate(self, pod: Pod, gate: str, annotations: Mapping[str, str | None]) -> Pod:
        """See `port.Cluster`. It needs permission to patch pods: the status subresource ignores gates."""
        check_has_version(pod)
        return await self._patch(pod, gate_patch(pod, gate, annotations), MERGE_PATCH, "")

    async def set_taints(self, node: Node, taints: Sequence[Taint]) -> Node:
        """See `port.Cluster`. It needs permission to patch nodes."""
        check_taints(node, taints)
        return await self._patch(node, taints_patch(node, taints), JSON_PATCH, "")

    async def claim_volume(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> PersistentVolume:
        """See `port.Cluster`."""
        check_has_version(volume)
        return await self._patch(volume, claim_patch(volume, claim), MERGE_PATCH, "")

    async def allocate_claim(self, claim: ResourceClaim, status: ResourceClaimStatus) -> ResourceClaim:
        """See `port.Cluster`. It needs two requests if the finalizer is missing: status updates ignore finalizers."""
        check_has_version(claim)
        if status.allocation is not None and FINALIZER not in claim.metadata.finalizers:
            claim = await self._patch(claim, finalizer_patch(claim, FINALIZER), JSON_PATCH, "")
        return await self._patch(claim, claim_status_patch(claim, status), JSON_PATCH, "status")

    async def write_queue_status(self, queue: Queue, status: QueueStatus) -> Queue:
        """See `port.Cluster`."""
        check_has_version(queue)
        return await self._patch(queue, queue_status_patch(queue, status), JSON_PATCH, "status")

    async def name_extended_claim(self, pod: Pod, claim: str, mappings: Sequence[RequestMapping]) -> Pod:
        """See `port.Cluster`."""
        return await self._patch(pod, extended_claim_patch(pod, claim, mappings), MERGE_PATCH, "status")

    async def _patch(self, obj: Kube, body: bytes, content: str, part: str) -> Kube:
        obj = in_namespace(obj)
        resource = self._place(obj)
        path = resource.path_of(obj, part)
        return resource.object(await self._client.write("PATCH", path, body, what=described(obj), content=content))

    async def evict(self, pod: Pod, *, grace_seconds: int | None = None) -> None:
        """See `port.Cluster`."""
        current = await self.get(Pod, pod.metadata.namespace, pod.metadata.name)
        check_unchanged(current, pod.metadata.uid)  # the API server would retry for 10 s before it reports a conflict
        path = self._place(pod).path_of(pod, "eviction")
        body = eviction_body(pod, grace_seconds)
        # A 429 may come from a disruption budget and last for minutes, so the caller decides about a retry.
        await self._client.write("POST", path, body, what=described(pod), when_busy=False)

    async def delete(self, obj: Kube, *, grace_seconds: int | None = None, resource_version: str | None = None) -> None:
        """See `port.Cluster`."""
        obj = in_namespace(obj)
        body = deletion_body(obj.metadata.uid, resource_version, grace_seconds)
        await self._client.write("DELETE", self._place(obj).path_of(obj), body, what=described(obj))

    async def record_event(self, event: Event) -> str:
        """See `port.Cluster`."""
        self._events += 1
        name = event.name or event_name(event.regarding, f"{self._events:x}")
        namespace = event_namespace(event.regarding)
        path, what = _events_path(namespace), f"event about {described(event.regarding)}"
        body = event_body(event, namespace, name, event.time or self._now(), self._instance)
        await self._client.write("POST", path, body, what=what)
        return name

    async def repeat_event(self, namespace: str, name: str, series: EventSeries) -> None:
        """See `port.Cluster`."""
        path, body = f"{_events_path(namespace)}/{quote(name)}", series_patch(series)
        await self._client.write("PATCH", path, body, what=f"event {namespace}/{name}", content=MERGE_PATCH)


def _events_path(namespace: str) -> str:
    return f"apis/events.k8s.io/v1/namespaces/{namespace}/events"


if TYPE_CHECKING:
    _conforms: Callable[[Any], Cluster] = KubernetesCluster
