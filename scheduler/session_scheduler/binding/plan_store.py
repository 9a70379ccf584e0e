"""Writes gang plans to PodGroups by compare-and-swap, before the first bind, and removes them after the last.

Of two replicas that write a plan one wins; a replica that finds one after a crash knows what its writer wanted. A plan
that is too large for an annotation goes to a ConfigMap, which is written first.

Before a plan replaces another or is aborted, the old one must not bind a pod any more. So its state becomes "abort"
first; then every unbound pod of it is touched (`touch`); and if one of them turns out to be bound, the old plan stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
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
    unpacked_plan,
    written_plan,
)
from session_scheduler.model.objects import ConfigMap, ObjectMeta, OwnerReference, Pod, PodGroup

_log = structlog.get_logger(__name__)
_TRIES = 5
_KEY = "pods"


@dataclass(slots=True)
class PlanSwap:
    """The plan that the binds of a start which is in flight follow, to be put in the place of the one there is."""

    pod_group: PodGroup
    previous: GangPlan | None = None
    """The plan that the PodGroup shows."""
    resumed: bool = False
    """Whether `previous` itself is carried out, instead of being replaced."""
    bound: Mapping[str, PlannedPod] = field(default_factory=dict)
    """By uid: the members of this start that are bound already."""
    others: Sequence[Pod] = ()
    """The pods of `previous` that are neither bound nor to be bound now."""
    attempt: str = field(default_factory=new_attempt)
    written: PodGroup | None = None
    """The PodGroup with the plan, once it is written."""
    error: ClusterError | None = None
    """Why it could not be written."""
    in_force: bool = False
    """Whether the plan is written, and nothing can be bound by the one before it any more."""


async def touch(cluster: Cluster, pod: Pod) -> Pod:
    """Make sure that no request that was guarded by this or an older resourceVersion can bind the pod any more.

    Returns the pod as it is then: bound, perhaps, by one that came before. Raises NotFound, ClusterError.
    """
    metadata, annotations = pod.metadata, {ATTEMPT_ANNOTATION: new_attempt()}
    try:
        return await cluster.patch_metadata(pod, annotations=annotations, resource_version=metadata.resource_version)
    except Conflict:
        pass  # its resourceVersion has moved already
    return await cluster.get(Pod, metadata.namespace, metadata.name)


class PlanStore:
    """Reads and swaps plans through a cluster port; `holder` names this replica in those that it writes."""

    def __init__(
        self, cluster: Cluster, holder: str = "", slots: AbstractAsyncContextManager[Any] | None = None
    ) -> None:
        """`slots` bounds how many are read and swapped at once."""
        self._cluster = cluster
        self._slots = slots or nullcontext()
        self.holder = holder

    async def read(self, pod_group: PodGroup) -> GangPlan | None:
        """The plan that a PodGroup shows. Raises PlanError, ClusterError."""
        written = written_plan(pod_group)
        if written is None or not written.config_map:
            return plan_here(pod_group)
        namespace = pod_group.metadata.namespace
        try:
            found = await self._cluster.get(ConfigMap, namespace, written.config_map)
        except NotFound:
            raise PlanError(
                f"PodGroup {pod_group.key}: its plan's ConfigMap {written.config_map} does not exist"
            ) from None
        return unpacked_plan(pod_group, written, found.data.get(_KEY, ""))

    async def fresh(self, pod_group: PodGroup) -> PodGroup:
        """The same PodGroup as it is now. Raises NotFound, also where another has its name; ClusterError."""
        metadata = pod_group.metadata
        found = await self._cluster.get(PodGroup, metadata.namespace, metadata.name, api_version=pod_group.api_version)
        if found.metadata.uid != metadata.uid:
            raise NotFound(f"PodGroup {pod_group.key} was deleted and created again")
        return found

    async def swap(self, pod_group: PodGroup, plan: GangPlan | None) -> PodGroup:
        """Put a plan (None: none) in place of the one that `pod_group` shows. Returns the PodGroup with it.

        Raises Conflict where it shows another one by now, Unavailable where the outcome is unknown, ClusterError.
        """
        async with self._slots:
            before = pod_group.metadata.annotations.get(PLAN_ANNOTATION)
            text = await self._text(pod_group, plan) if plan is not None else None
            try:
                swapped = await self._exchange(pod_group, before, text)
            except Unavailable:
                raise  # it may be there
            except ClusterError:
                await self._clear(pod_group, text, before)
                raise
            await self._clear(pod_group, before, text)
            return swapped

    async def restate(
        self, pod_group: PodGroup, *, state: Literal["active", "abort"] | None = None, holder: str | None = None
    ) -> PodGroup:
        """Give the plan that `pod_group` shows another state or holder; its pods stay as they are written.

        Returns and raises as `swap`; Conflict, too, where it shows none.
        """
        before = pod_group.metadata.annotations.get(PLAN_ANNOTATION, "")
        try:
            written = parsed_plan(before)
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
        """Put one annotation in place of the other, whatever else is written to the PodGroup meanwhile."""
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
                    raise Conflict(f"PodGroup {pod_group.key} has another plan by now") from None
                if not left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    async def _text(self, pod_group: PodGroup, plan: GangPlan) -> str:
        try:
            packed = packed_pods(plan)
        except PlanError as error:
            raise Invalid(str(error)) from None
        written = WrittenPlan(plan.attempt, plan.holder, plan.state, packed)
        others = {key: value for key, value in pod_group.metadata.annotations.items() if key != PLAN_ANNOTATION}
        if len(packed) > ANNOTATION_LIMIT - sum(len(key) + len(value.encode()) for key, value in others.items()):
            written = WrittenPlan(plan.attempt, plan.holder, plan.state, config_map=config_map_name(plan.attempt))
            await self._create(pod_group, written.config_map, packed)
        return msgspec.json.encode(written).decode()

    async def _create(self, pod_group: PodGroup, name: str, packed: str) -> None:
        """Write a plan's ConfigMap; it goes with its PodGroup at the latest."""
        metadata = pod_group.metadata
        owner = OwnerReference(api_version=pod_group.api_version, kind="PodGroup", name=metadata.name, uid=metadata.uid)
        labels = {"app.kubernetes.io/managed-by": "fluence"}
        own = ObjectMeta(name=name, namespace=metadata.namespace, labels=labels, owner_references=(owner,))
        try:
            await self._cluster.create(ConfigMap(metadata=own, data={_KEY: packed}))
        except AlreadyExists:
            return  # of the same attempt: an earlier try, or the same plan in another state

    async def _clear(self, pod_group: PodGroup, gone: str | None, now: str | None) -> None:
        """Delete the ConfigMap of a plan that is no more, or never was."""
        old, new = (config_map_in(text) for text in (gone, now))
        if not old or old == new:
            return
        metadata = ObjectMeta(name=old, namespace=pod_group.metadata.namespace)
        try:
            await self._cluster.delete(ConfigMap(metadata=metadata))
        except NotFound:
            return
        except ClusterError as error:
            _log.warning("a plan's ConfigMap is left behind", name=old, namespace=metadata.namespace, error=str(error))

    # ------------------------------------------------------------------ replacing a plan

    async def put_in_force(
        self, swap: PlanSwap, planned: Mapping[str, PlannedPod], pods: Sequence[Pod]
    ) -> tuple[PodGroup, dict[str, Pod]]:
        """Write a plan for these `pods`, each `planned` by uid. Raises ClusterError: then nothing must be bound.

        Returns the PodGroup with it, and the pods that had to be touched as they are now, by uid.
        """
        touched: dict[str, Pod] = {}
        if swap.resumed:  # recovered: what its writer may still send is void
            swap.written = await self.restate(swap.pod_group, holder=self.holder)
        else:
            touched = await self._void_previous(swap, pods)
            plan = GangPlan(swap.attempt, self.holder, {**swap.bound, **planned})
            swap.written = await self.swap(swap.written or swap.pod_group, plan)
        swap.in_force = True
        return swap.written, touched

    async def _void_previous(self, swap: PlanSwap, pods: Sequence[Pod]) -> dict[str, Pod]:
        """Make sure that nothing can be bound by the plan before this one any more. Returns its pods as they are then.

        As for `abort`: a request of that plan that is still in flight must not come between. Raises ClusterError.
        """
        previous = swap.previous
        if previous is None:  # a PodGroup that is younger than its pods: the plan of the one before went with that
            created = swap.pod_group.metadata.creation_timestamp or ""
            older = [pod for pod in pods if (pod.metadata.creation_timestamp or "") < created]
            return {pod.metadata.uid: pod for pod in await self._touch_all(older)}
        tied = [pod for pod in (*pods, *swap.others) if pod.metadata.uid in previous.pods]
        if not tied:
            return {}
        swap.written = await self.restate(swap.pod_group, state="abort")
        touched = await self._touch_all(tied)
        for pod in touched:
            if pod.spec.node_name:
                swap.written = await self.restate(swap.written, state="active")
                raise Conflict(f"pod {pod.key} was bound by the plan before this one")
        return {pod.metadata.uid: pod for pod in touched}

    async def strike(self, swap: PlanSwap) -> PodGroup:
        """Take the pods that are not bound out of a plan, its `others`. Returns the PodGroup. Raises ClusterError.

        Conflict where one of them was bound by it after all: then the plan stays.
        """
        pod_group, _ = await self.put_in_force(swap, {}, ())
        return pod_group

    async def abort(self, pod_group: PodGroup, plan: GangPlan, pods: Sequence[Pod]) -> PodGroup:
        """Remove a plan by which nothing was bound yet; where one of its `pods` was after all it is active again.

        Returns the PodGroup as it is then. Raises ClusterError: try again.
        """
        if plan.state == "active":
            pod_group = await self.restate(pod_group, state="abort")
        bound = any(pod.spec.node_name for pod in pods)
        if not bound:  # as far as was known: only now nothing can be bound by it any more
            bound = any(pod.spec.node_name for pod in await self._touch_all(pods))
        if bound:
            return await self.restate(pod_group, state="active")
        return await self.swap(pod_group, None)

    async def _touch_all(self, pods: Sequence[Pod]) -> list[Pod]:
        """The pods that are still there, each as it finally is. Raises ClusterError."""
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
        """As the function `touch`, as one of the requests whose number is bounded."""
        async with self._slots:
            return await touch(self._cluster, pod)
