"""Writes gang plans to PodGroups by compare-and-swap before the first bind, and removes them after the last.

If two replicas write a plan, one wins; after a crash another replica recovers the plan. A plan that is too large for an
annotation goes to a ConfigMap in the scheduler's namespace, which is written first. Owner references cannot cross
namespaces, so the store deletes the ConfigMap together with the plan. If the PodGroup disappears before that, the
store deletes the ConfigMap when it next writes such a plan.

Before a plan is replaced or aborted, no request of that plan may bind a pod any more. So its state becomes "abort"
first, then every unbound pod of it is touched (`touch`). If one of them is bound by then, the old plan stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, Literal

import msgspec
import structlog

from session_scheduler.cluster.errors import AlreadyExists, ClusterError, Conflict, Invalid, NotFound, Unavailable
from session_scheduler.cluster.port import Cluster
from session_scheduler.model.gang_plan import (
    ANNOTATION_LIMIT,
    ATTEMPT_ANNOTATION,
    PLAN_ANNOTATION,
    GangPlan,
    PlanError,
    PlannedPod,
    WrittenPlan,
    config_map_in,
    config_map_name,
    new_attempt,
    packed_pods,
    parsed_plan,
    plan_here,
    uid_in,
    unpacked_plan,
    written_plan,
)
from session_scheduler.model.objects import ConfigMap, ObjectMeta, Pod, PodGroup

_log = structlog.get_logger(__name__)
_TRIES = 5
_LABELS = {"app.kubernetes.io/managed-by": "fluence"}
_KEY, _GROUP, _API = "pods", "podGroup", "apiVersion"
"""Keys of a plan's ConfigMap: the packed pods, and the PodGroup as namespace/name with the version of its API."""


class PlanSwap(msgspec.Struct):
    """The replacement of a PodGroup's plan by the plan of a start in flight."""

    pod_group: PodGroup
    previous: GangPlan | None = None
    """The PodGroup's current plan."""
    resumed: bool = False
    """Whether to resume `previous` instead of replacing it."""
    bound: Mapping[str, PlannedPod] = msgspec.field(default_factory=dict)
    """By uid: the members of this start that are bound."""
    others: Sequence[Pod] = ()
    """The pods of `previous` that are neither bound nor in this start."""
    attempt: str = msgspec.field(default_factory=new_attempt)
    written: PodGroup | None = None
    """The PodGroup with the written plan."""
    error: ClusterError | None = None
    """Why the write failed."""
    in_force: bool = False
    """Whether the plan is written, and no request of the previous plan can bind a pod any more."""


async def touch(cluster: Cluster, pod: Pod) -> Pod:
    """Ensure that no request guarded by this or an older resourceVersion can bind the pod any more.

    Returns the current pod, which such a request may have bound. Raises NotFound or ClusterError.
    """
    metadata, annotations = pod.metadata, {ATTEMPT_ANNOTATION: new_attempt()}
    try:
        return await cluster.patch_metadata(pod, annotations=annotations, resource_version=metadata.resource_version)
    except Conflict:
        pass  # its resourceVersion has already changed
    return await cluster.get(Pod, metadata.namespace, metadata.name)


class PlanStore:
    """Reads and swaps plans through a cluster port; `holder` names this replica in its plans."""

    def __init__(
        self,
        cluster: Cluster,
        holder: str = "",
        slots: AbstractAsyncContextManager[Any] | None = None,
        namespace: str = "kube-system",
    ) -> None:
        """`slots` limits the concurrent requests. Large plans are in ConfigMaps of `namespace`."""
        self._cluster = cluster
        self._namespace = namespace
        self._slots = slots or nullcontext()
        self._orphans_deleted = False
        self.holder = holder

    async def read(self, pod_group: PodGroup) -> GangPlan | None:
        """A PodGroup's plan. Raises PlanError or ClusterError."""
        written = written_plan(pod_group)
        if written is None or not written.config_map:
            return plan_here(pod_group)
        try:
            found = await self._cluster.get(ConfigMap, self._namespace, written.config_map)
        except NotFound:
            raise PlanError(
                f"PodGroup {pod_group.key}: its plan's ConfigMap {self._namespace}/{written.config_map} does not exist"
            ) from None
        return unpacked_plan(pod_group, written, found.data.get(_KEY, ""))

    async def fresh(self, pod_group: PodGroup) -> PodGroup:
        """The current PodGroup. Raises NotFound if it is gone or was recreated, or another ClusterError."""
        metadata = pod_group.metadata
        found = await self._cluster.get(PodGroup, metadata.namespace, metadata.name, api_version=pod_group.api_version)
        if found.metadata.uid != metadata.uid:
            raise NotFound(f"PodGroup {pod_group.key} was recreated")
        return found

    async def swap(self, pod_group: PodGroup, plan: GangPlan | None) -> PodGroup:
        """Replace the plan of `pod_group` by another, or by None. Returns the updated PodGroup.

        Raises Conflict if the plan has changed, Unavailable if the outcome is unknown, or another ClusterError.
        """
        async with self._slots:
            before = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
            text = await self._text(pod_group, plan) if plan is not None else None
            try:
                swapped = await self._exchange(pod_group, before, text)
            except Unavailable:
                raise  # the plan may be written
            except ClusterError as error:
                await self._clear(pod_group, text, before)
                if isinstance(error, NotFound):  # the PodGroup is gone, and its plan with it
                    await self._clear(pod_group, before, None)
                raise
            await self._clear(pod_group, before, text)
            return swapped

    async def restate(
        self, pod_group: PodGroup, *, state: Literal["active", "abort"] | None = None, holder: str | None = None
    ) -> PodGroup:
        """Change the state or the holder of the plan of `pod_group`, not its pods.

        The result and the errors are those of `swap`. It also raises Conflict if the PodGroup has no plan.
        """
        before = pod_group.metadata.annotations.get(PLAN_ANNOTATION, "")
        try:
            written = parsed_plan(before, pod_group.metadata.uid)
        except ValueError:
            raise Conflict(f"PodGroup {pod_group.key} has no plan") from None
        written = msgspec.structs.replace(
            written,
            state=written.state if state is None else state,
            holder=written.holder if holder is None else holder,
        )
        async with self._slots:
            return await self._exchange(pod_group, before, msgspec.json.encode(written).decode())

    async def _exchange(self, pod_group: PodGroup, before: str | None, text: str | None) -> PodGroup:
        """Replace the annotation, whatever else other clients write to the PodGroup meanwhile."""
        for left in reversed(range(_TRIES)):
            version = pod_group.metadata.resource_version
            try:
                return await self._cluster.patch_metadata(
                    pod_group, annotations={PLAN_ANNOTATION: text}, resource_version=version
                )
            except (Conflict, Unavailable):
                pod_group = await self.fresh(pod_group)
                shown = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
                if shown == text:
                    return pod_group
                if shown != before:
                    raise Conflict(f"PodGroup {pod_group.key} has a different plan") from None
                if not left:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _text(self, pod_group: PodGroup, plan: GangPlan) -> str:
        try:
            packed = packed_pods(plan)
        except PlanError as error:
            raise Invalid(str(error)) from None
        written = WrittenPlan(plan.attempt, plan.holder, plan.state, packed)
        others = {key: value for key, value in pod_group.metadata.annotations.items() if key != PLAN_ANNOTATION}
        if len(packed) > ANNOTATION_LIMIT - sum(len(key) + len(value.encode()) for key, value in others.items()):
            name = config_map_name(pod_group.metadata.uid, plan.attempt)
            written = WrittenPlan(plan.attempt, plan.holder, plan.state, config_map=name)
            await self._delete_orphans(pod_group.api_version)
            await self._create(pod_group, name, packed)
        return msgspec.json.encode(written).decode()

    async def _create(self, pod_group: PodGroup, name: str, packed: str) -> None:
        """Create a plan's ConfigMap."""
        metadata = ObjectMeta(name=name, namespace=self._namespace, labels=dict(_LABELS))
        data = {_KEY: packed, _GROUP: pod_group.key, _API: pod_group.api_version}
        with suppress(AlreadyExists):  # of the same plan: an earlier try, or another state
            await self._cluster.create(ConfigMap(metadata=metadata, data=data))

    async def _delete_orphans(self, served: str) -> None:
        """Delete, once, the ConfigMaps of plans whose PodGroups were deleted while no scheduler ran.

        It checks PodGroups of the `served` version of the API only: others may exist but not be found.
        """
        if self._orphans_deleted:
            return
        try:
            for one in (await self._cluster.list(ConfigMap, namespace=self._namespace, labels=_LABELS)).items:
                if uid_in(one.metadata.name) and one.data.get(_API) == served and await self._is_orphan(one):
                    await self._delete(one.metadata.name)
            self._orphans_deleted = True
        except ClusterError as error:
            _log.warning(
                "failed to look for ConfigMaps of plans whose PodGroup is gone",
                namespace=self._namespace,
                error=str(error),
            )

    async def _is_orphan(self, config_map: ConfigMap) -> bool:
        namespace, slash, name = config_map.data.get(_GROUP, "").partition("/")
        if not slash:
            return False
        try:
            found = await self._cluster.get(PodGroup, namespace, name, api_version=config_map.data[_API])
        except NotFound:
            return True
        return found.metadata.uid != uid_in(config_map.metadata.name)

    async def _clear(self, pod_group: PodGroup, gone: str | None, now: str | None) -> None:
        """Delete the ConfigMap of a plan that was removed or never written."""
        old, new = (config_map_in(text, pod_group.metadata.uid) for text in (gone, now))
        if old and old != new:
            await self._delete(old)

    async def _delete(self, name: str) -> None:
        """Delete a plan's ConfigMap; logs an error."""
        try:
            await self._cluster.delete(ConfigMap(metadata=ObjectMeta(name=name, namespace=self._namespace)))
        except NotFound:
            return
        except ClusterError as error:
            _log.warning("deleting a plan's ConfigMap failed", name=name, namespace=self._namespace, error=str(error))

    # ------------------------------------------------------------------ replace a plan

    async def put_in_force(
        self, swap: PlanSwap, planned: Mapping[str, PlannedPod], pods: Sequence[Pod]
    ) -> tuple[PodGroup, dict[str, Pod]]:
        """Write a plan for these `pods`, `planned` by uid. Raises ClusterError: then bind no pod.

        Returns the updated PodGroup, and the touched pods by uid.
        """
        touched: dict[str, Pod] = {}
        if swap.resumed:  # voids requests of its writer
            swap.written = await self.restate(swap.pod_group, holder=self.holder)
        else:
            touched = await self._void_previous(swap, pods)
            plan = GangPlan(swap.attempt, self.holder, {**swap.bound, **planned})
            swap.written = await self.swap(swap.written or swap.pod_group, plan)
        swap.in_force = True
        return swap.written, touched

    async def _void_previous(self, swap: PlanSwap, pods: Sequence[Pod]) -> dict[str, Pod]:
        """Ensure that no request of the previous plan, even one in flight, can bind a pod any more.

        Returns its touched pods. Raises ClusterError.
        """
        previous = swap.previous
        if previous is None:  # a plan that cannot be read, or a recreated PodGroup whose predecessor may have had one
            metadata = swap.pod_group.metadata
            unreadable, created = PLAN_ANNOTATION in metadata.annotations, metadata.creation_timestamp or ""
            tied = [pod for pod in pods if unreadable or (pod.metadata.creation_timestamp or "") < created]
            return {pod.metadata.uid: pod for pod in await self._touch_all(tied)}
        tied = [pod for pod in (*pods, *swap.others) if pod.metadata.uid in previous.pods]
        if not tied:
            return {}
        swap.written = await self.restate(swap.pod_group, state="abort")
        touched = await self._touch_all(tied)
        for pod in touched:
            if pod.spec.node_name:
                swap.written = await self.restate(swap.written, state="active")
                raise Conflict(f"pod {pod.key} was bound by the previous plan")
        return {pod.metadata.uid: pod for pod in touched}

    async def strike(self, swap: PlanSwap) -> PodGroup:
        """Remove the unbound pods (`others`) from a plan. Returns the PodGroup. Raises ClusterError.

        Raises Conflict if one of them was bound meanwhile: then the plan stays.
        """
        pod_group, _ = await self.put_in_force(swap, {}, ())
        return pod_group

    async def abort(self, pod_group: PodGroup, plan: GangPlan, pods: Sequence[Pod]) -> PodGroup:
        """Remove a plan that has bound no pod; reactivate it if one of its `pods` was bound meanwhile.

        Returns the updated PodGroup. Raises ClusterError: then retry.
        """
        if plan.state == "active":
            pod_group = await self.restate(pod_group, state="abort")
        bound = any(pod.spec.node_name for pod in pods)
        if not bound:  # a request may be in flight until the touch
            bound = any(pod.spec.node_name for pod in await self._touch_all(pods))
        if bound:
            return await self.restate(pod_group, state="active")
        return await self.swap(pod_group, None)

    async def _touch_all(self, pods: Sequence[Pod]) -> list[Pod]:
        """Touch the pods. Returns those that still exist. Raises ClusterError."""
        answers = await asyncio.gather(*map(self.touch, pods), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NotFound):
                raise answer
        return [
            answer
            for pod, answer in zip(pods, answers, strict=True)
            if not isinstance(answer, BaseException) and answer.metadata.uid == pod.metadata.uid
        ]

    async def touch(self, pod: Pod) -> Pod:
        """Like the function `touch`, within the limit of concurrent requests."""
        async with self._slots:
            return await touch(self._cluster, pod)
