"""Allocates a ResourceClaim of the pod with the devices that Slurm chose, before the pod is bound.

A pod requests devices as extended resources of DeviceClasses, `deviceclass.resource.kubernetes.io/<class>`. Slurm sees
them as GRES of that type, and CPUs as cores. The claim's name contains a hash of the pod's uid, so that a retry after a
crash or a failed bind finds the claim. If Slurm has chosen other devices by then, the claim is deallocated and
allocated again. If the pod has a claim with other requests, or from another scheduler, that claim is deallocated; it is
deleted with the pod.
Source: slurm-bridge 1.2.1, internal/scheduler/plugins/slurmbridge/dra.go; kube-scheduler's extended resources.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from fluence_plugins.slurm_bridge.devices.node_devices import (
    CPU_CLASS,
    DeviceId,
    NodeDevice,
    before,
    by_core,
    by_index,
    devices_of,
    devices_on,
)
from session_scheduler.errors import AttemptError, ChangedMeanwhileError
from session_scheduler.model import devices as dra
from session_scheduler.model.meta import (
    LabelSelectorRequirement,
    NodeSelector,
    NodeSelectorTerm,
    ObjectMeta,
    OwnerReference,
)
from session_scheduler.model.objects import Container, ExtendedClaimStatus, Pod, RequestMapping
from session_scheduler.model.quantity import thousandths
from session_scheduler.model.requests import pod_requests
from session_scheduler.model.times import time_text

if TYPE_CHECKING:
    from fluence_plugins.slurm_bridge.slurm.model import NodeShare
    from session_scheduler.sdk.bindings import Binding

_NAME_LIMIT: Final = 253
_TRIES: Final = 5
"""How many times a write is attempted while other clients change the claim."""
_SEEN_SECONDS: Final = 5.0
"""How long the watch may take to show an existing claim, or the change that a write conflicted with."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two checks of the watched claims."""


# ------------------------------------------------------------------ requests of pods


@dataclass(frozen=True, slots=True)
class Need:
    """A pod's request for devices of one class."""

    name: str
    """The class's name."""
    count: int
    request: str
    """The name of the request in the claim, as kube-scheduler would generate it."""
    containers: tuple[str, ...]

    @property
    def resource(self) -> str:
        """The extended resource in the pod's containers."""
        return dra.CLASS_PREFIX + self.name


def refusal(pod: Pod) -> str | None:
    """Why Slurm cannot choose this pod's devices, with the remedy; None if it can, or if the pod
    requests no devices.
    """
    if pod.spec.resource_claims:
        return ("spec.resourceClaims: Slurm chooses devices for extended resources only; "
                f"request {dra.CLASS_PREFIX}<class> or a device plugin's resource instead")  # fmt: skip
    for need in needs(pod):
        if need.name != CPU_CLASS and len(need.containers) > 1:
            names = " and ".join(need.containers)
            return (f"DeviceClass {need.name} is requested by the containers {names}, and only one container "
                    "can use the devices of a class that Slurm chooses; request them in one container")  # fmt: skip
    return None


def needs(pod: Pod) -> tuple[Need, ...]:
    """The pod's requests for each class, ordered by the class's name."""
    total, _ = pod_requests(pod)
    first: dict[str, str] = {}
    containers: dict[str, list[str]] = {}
    for number, container in enumerate((*pod.spec.init_containers, *pod.spec.containers)):
        amounts = _amounts(container)
        for place, resource in enumerate(sorted(amounts)):
            if resource.startswith(dra.CLASS_PREFIX) and thousandths(amounts[resource]) > 0:
                first.setdefault(resource, f"container-{number}-request-{place}")
                containers.setdefault(resource, []).append(container.name)
    return tuple(
        Need(
            resource.removeprefix(dra.CLASS_PREFIX),
            total.get(resource, 0),
            first[resource],
            tuple(containers[resource]),
        )
        for resource in sorted(first)
    )


def _amounts(container: Container) -> Mapping[str, str | int | float]:
    """The container's requests. A resource with only a limit is requested in that amount, as in the API server."""
    return {**container.resources.limits, **container.resources.requests}


# ------------------------------------------------------------------ devices from Slurm


@dataclass(frozen=True, slots=True)
class _Offer:
    """The devices that Slurm allocated for a need, in indivisible groups: the CPUs of a core, or one other device."""

    need: Need
    groups: tuple[tuple[NodeDevice, ...], ...]
    lacking: str
    """Why some devices are missing; empty if none are."""


async def claim(binding: Binding, share: NodeShare, node_gres: str = "") -> None:
    """Allocate the pod's devices from the job's share of its node. Does nothing for a pod that requests no devices.

    A share may be larger than the pod's request, for example if the job has its nodes exclusively. `node_gres` is
    Slurm's description of the node's GRES (`gpu:a:2,gpu:b:4`); it shows at which index each type starts. Raises
    AttemptError if a device is missing or in use, and the cluster's errors.
    """
    pod = binding.pod
    why = refusal(pod)
    if why is not None:
        raise AttemptError(why)
    wanted = needs(pod)
    if not wanted:
        return
    offers = _offers(binding, share, wanted, node_gres)
    known = [one for one in binding.objects(dra.ResourceClaim).values() if _of(pod, one)]
    in_use = await _in_use(binding, {device.id for offer in offers for group in offer.groups for device in group})
    had = {id_ for one in known for id_ in _ids(one)}
    chosen = {offer.need: _chosen(offer, binding.node, had, in_use) for offer in offers}
    if (many := sum(map(len, chosen.values()))) > dra.RESULTS_LIMIT:
        cpu = dra.CLASS_PREFIX + CPU_CLASS
        raise AttemptError(f"a claim can have at most {dra.RESULTS_LIMIT} devices, but the pod needs {many} of node "
                           f"{binding.node}; request fewer, or request cpu instead of {cpu}")  # fmt: skip
    desired = _manifest(pod, chosen)
    for one in known:
        if one.metadata.name != desired.metadata.name and one.status.allocation is not None:
            await binding.cluster.allocate_claim(one, dra.ResourceClaimStatus())
    await _allocate(binding, desired, _allocation(chosen, binding.node, binding.objects(dra.DeviceClass)))
    mappings = tuple(
        RequestMapping(container_name=container, resource_name=need.resource, request_name=need.request)
        for need in chosen
        for container in need.containers
    )
    named = ExtendedClaimStatus(request_mappings=mappings, resource_claim_name=desired.metadata.name)
    if pod.status.extended_resource_claim_status != named:
        await binding.cluster.name_extended_claim(pod, desired.metadata.name, mappings)


def _offers(binding: Binding, share: NodeShare, wanted: Sequence[Need], node_gres: str) -> list[_Offer]:
    classes = binding.objects(dra.DeviceClass)
    devices = devices_on(binding.objects(dra.ResourceSlice).values(), binding.node)
    found = []
    for need in wanted:
        cls = classes.get(need.name)
        if cls is None:
            raise AttemptError(f"DeviceClass {need.name} does not exist; create it, or install its driver")
        own = devices_of(cls, devices)
        if need.name == CPU_CLASS:
            found.append(_offer(need, "core", share.cores, by_core(own), together=True))
            continue
        kinds = [one for one in share.gres if one.type == need.name]
        if not kinds:
            raise AttemptError(
                f"Slurm allocated no GRES of type {need.name} on node {binding.node}; "
                f"add it to the node's Gres= (gpu:{need.name}:<count>)"
            )
        indices = [index - before(node_gres, one.name, one.type) for one in kinds for index in one.indices]
        found.append(_offer(need, "index", indices, by_index(own), together=False))
    return found


def _offer(
    need: Need, word: str, indices: Sequence[int], devices: Mapping[int, Sequence[NodeDevice]], *, together: bool
) -> _Offer:
    if not indices:
        return _Offer(
            need, (), f"Slurm does not report which {word} it allocated; set File= for the devices in gres.conf"
        )
    groups, lacking = [], []
    for index in dict.fromkeys(indices):
        found = devices.get(index, ())
        if not found:
            lacking.append(f"no device has {word} {index}")
        elif len(found) > 1 and not together:
            lacking.append(f"{word} {index} belongs to {' and '.join(one.device.name for one in found)}")
        else:
            groups.append(tuple(found))
    remedy = "; make the node's ResourceSlices and its GRES in Slurm agree"
    return _Offer(need, tuple(groups), ", ".join(lacking) + remedy if lacking else "")


async def _in_use(binding: Binding, wanted: set[DeviceId]) -> dict[DeviceId, dra.ResourceClaim]:
    """The wanted devices that claims of other pods have.

    The claims of other unbound pods of this scheduler do not count: Slurm's current answer is newer than those claims.
    """
    in_use: dict[DeviceId, dra.ResourceClaim] = {}
    for one in binding.objects(dra.ResourceClaim).values():
        if not _of(binding.pod, one) and not wanted.isdisjoint(_ids(one)) and not await _abandoned(binding, one):
            in_use.update(dict.fromkeys(_ids(one), one))
    return in_use


async def _abandoned(binding: Binding, claim: dra.ResourceClaim) -> bool:
    """Whether the claim is for the extended resources of a pod of this scheduler that has no node."""
    owners = claim.metadata.owner_references
    if dra.EXTENDED_CLAIM not in claim.metadata.annotations or not owners:
        return False
    for owner in owners:
        pod = await binding.cluster.get(Pod, claim.metadata.namespace, owner.name)
        ours = pod.spec.scheduler_name == binding.pod.spec.scheduler_name
        if pod.metadata.uid == owner.uid and (pod.spec.node_name or not ours):
            return False
    return True


def _chosen(
    offer: _Offer, node: str, had: set[DeviceId], in_use: Mapping[DeviceId, dra.ResourceClaim]
) -> tuple[NodeDevice, ...]:
    """As many devices as the pod requests, first those that it already has. The last group may contain more devices."""
    need = offer.need
    found: list[NodeDevice] = []
    for group in sorted(offer.groups, key=lambda group: any(one.id not in had for one in group)):
        if len(found) < need.count and not any(one.id in in_use for one in group):
            found += group
    if len(found) >= need.count:
        return tuple(found)
    users = [f"{one.device.name} is still allocated to ResourceClaim {in_use[one.id].key}"
             for group in offer.groups for one in group if one.id in in_use]  # fmt: skip
    why = "; ".join([*users, *([offer.lacking] if offer.lacking else [])])
    ending = f": {why}" if why else "; cancel the Slurm job; the scheduler then submits another one"
    raise AttemptError(
        f"only {len(found)} of {need.count} devices of class {need.name} that Slurm allocated on node {node} "
        f"are available{ending}"
    )


# ------------------------------------------------------------------ the claim


def _of(pod: Pod, claim: dra.ResourceClaim) -> bool:
    """Whether the claim is for the extended resources of this pod."""
    return dra.EXTENDED_CLAIM in claim.metadata.annotations and any(
        owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references
    )


def _ids(claim: dra.ResourceClaim) -> set[DeviceId]:
    allocation = claim.status.allocation
    return {(one.driver, one.pool, one.device) for one in allocation.devices.results} if allocation else set()


def _manifest(pod: Pod, chosen: Mapping[Need, Sequence[NodeDevice]]) -> dra.ResourceClaim:
    """The claim without an allocation. It depends on the numbers of devices, not on which devices they are."""
    requests = tuple(
        dra.DeviceRequest(name=need.request, exactly=dra.ExactRequest(device_class_name=need.name, count=len(devices)))
        for need, devices in chosen.items()
    )
    amounts = ",".join(f"{need.name}={len(devices)}" for need, devices in chosen.items())
    suffix = "-extended-resources-" + hashlib.sha256(f"{pod.metadata.uid} {amounts}".encode()).hexdigest()[:10]
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid, controller=True)
    metadata = ObjectMeta(
        name=pod.metadata.name[: _NAME_LIMIT - len(suffix)].rstrip(".-") + suffix,
        namespace=pod.metadata.namespace,
        annotations={dra.EXTENDED_CLAIM: "true"},
        owner_references=(owner,),
    )
    return dra.ResourceClaim(metadata=metadata, spec=dra.ResourceClaimSpec(devices=dra.DeviceClaim(requests=requests)))


def _allocation(
    chosen: Mapping[Need, Sequence[NodeDevice]], node: str, classes: Mapping[str, dra.DeviceClass]
) -> dra.Allocation:
    results = tuple(
        dra.AllocatedDevice(request=need.request, driver=one.driver, pool=one.pool, device=one.device.name)
        for need, devices in chosen.items()
        for one in sorted(devices, key=lambda one: one.id)
    )
    config = tuple(
        dra.AllocatedConfig(source="FromClass", requests=(need.request,), opaque=one.opaque)
        for need in chosen
        for one in classes[need.name].spec.config
    )
    only = LabelSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    return dra.Allocation(
        devices=dra.AllocatedDevices(results=results, config=config),
        node_selector=NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(only,)),)),
    )


async def _allocate(binding: Binding, desired: dra.ResourceClaim, wanted: dra.Allocation) -> None:
    """Create the claim unless it exists, and allocate these devices in it to the pod."""
    pod = binding.pod
    consumer = dra.Consumer(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
    found = binding.objects(dra.ResourceClaim).get(desired.key)
    if found is None:
        try:
            found = await binding.cluster.create(desired)
        except ChangedMeanwhileError:
            found = await _changed(binding, desired, None)
    for _ in range(_TRIES):
        if not _of(pod, found):
            raise AttemptError(f"ResourceClaim {desired.key} belongs to another object; delete it")
        if found.metadata.deletion_timestamp is not None:
            raise AttemptError(
                f"ResourceClaim {desired.key} is being deleted: the scheduler creates it again once it is gone"
            )
        try:
            had = found.status.allocation
            if had is not None and replace(had, allocation_timestamp=None) != wanted:
                found, had = await binding.cluster.allocate_claim(found, dra.ResourceClaimStatus()), None
            if had is None:
                had = replace(wanted, allocation_timestamp=time_text(datetime.now(UTC)))
            status = replace(found.status, allocation=had, reserved_for=(consumer,))
            await binding.cluster.allocate_claim(found, status)  # even if nothing changes: the write checks the version
        except ChangedMeanwhileError:
            found = await _changed(binding, desired, found)
        else:
            return
    raise AttemptError(f"other clients keep changing ResourceClaim {desired.key}")


async def _changed(binding: Binding, desired: dra.ResourceClaim, was: dra.ResourceClaim | None) -> dra.ResourceClaim:
    """Wait until the watch shows a version of the claim other than `was`."""
    pause, version = _FIRST_PAUSE, was.metadata.resource_version if was is not None else ""
    try:
        async with asyncio.timeout(_SEEN_SECONDS):
            while (
                found := binding.objects(dra.ResourceClaim).get(desired.key)
            ) is None or found.metadata.resource_version == version:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
    except TimeoutError:
        raise AttemptError(
            f"another client changed ResourceClaim {desired.key}, and the watch does not show the change yet"
        ) from None
    return found
