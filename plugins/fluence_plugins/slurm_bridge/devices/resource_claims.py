"""The devices that Slurm chose, as an allocated ResourceClaim of the pod's own, before the pod is bound.

A pod asks for devices as extended resources of DeviceClasses, `deviceclass.resource.kubernetes.io/<class>`; Slurm sees
them as GRES of that type, and CPUs as its cores. The claim is the one of the pod's uid by its name: a try after a crash
or a failed bind meets it again, and where the pod is to have other devices by then, the claim is emptied and given
these. One that asks for something else, or that another scheduler made for the pod, is emptied and ends with the pod.
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
from session_scheduler.model.devices import (
    CLASS_PREFIX,
    EXTENDED_CLAIM,
    RESULTS_LIMIT,
    AllocatedConfig,
    AllocatedDevice,
    AllocatedDevices,
    Allocation,
    Consumer,
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactRequest,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceSlice,
)
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
"""How often a claim is written that somebody else writes at the same time."""
_SEEN_SECONDS: Final = 5.0
"""How long it may take until a claim is seen that is there, or a change that a write has run into."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
"""Seconds between two looks at what was watched."""


# ------------------------------------------------------------------ what pods ask for


@dataclass(frozen=True, slots=True)
class Need:
    """What a pod asks for of one class."""

    name: str
    """The class'."""
    count: int
    request: str
    """The claim's request for it, named as kube-scheduler names them."""
    containers: tuple[str, ...]

    @property
    def resource(self) -> str:
        """What the pod calls it."""
        return CLASS_PREFIX + self.name


def refusal(pod: Pod) -> str | None:
    """Why Slurm cannot choose this pod's devices, with the remedy; None where it can, or there are none."""
    if pod.spec.resource_claims:
        return ("spec.resourceClaims: Slurm chooses devices for extended resources only: "
                f"request {CLASS_PREFIX}<class> or a device plugin's resource instead")  # fmt: skip
    for need in needs(pod):
        if need.name != CPU_CLASS and len(need.containers) > 1:
            names = " and ".join(need.containers)
            return (f"DeviceClass {need.name} is requested by the containers {names}, and one container "
                    "can have the devices that Slurm chooses of a class: request them in one")  # fmt: skip
    return None


def needs(pod: Pod) -> tuple[Need, ...]:
    """What the pod asks for of each class, by the class' name."""
    total, _ = pod_requests(pod)
    first: dict[str, str] = {}
    containers: dict[str, list[str]] = {}
    for number, container in enumerate((*pod.spec.init_containers, *pod.spec.containers)):
        amounts = _amounts(container)
        for place, resource in enumerate(sorted(amounts)):
            if resource.startswith(CLASS_PREFIX) and thousandths(amounts[resource]) > 0:
                first.setdefault(resource, f"container-{number}-request-{place}")
                containers.setdefault(resource, []).append(container.name)
    return tuple(
        Need(resource.removeprefix(CLASS_PREFIX), total.get(resource, 0), first[resource], tuple(containers[resource]))
        for resource in sorted(first)
    )


def _amounts(container: Container) -> Mapping[str, str | int | float]:
    """Its requests; what is only limited is requested, as the API server has it."""
    return {**container.resources.limits, **container.resources.requests}


# ------------------------------------------------------------------ what Slurm gave


@dataclass(frozen=True, slots=True)
class _Offer:
    """What Slurm gave for a need: devices that go together (the CPUs of a core; one of other devices)."""

    need: Need
    groups: tuple[tuple[NodeDevice, ...], ...]
    lacking: str
    """Why it is less than Slurm meant; empty where it is not."""


async def claim(binding: Binding, share: NodeShare, node_gres: str = "") -> None:
    """Give the pod the devices of its node that are in the job's share of it; nothing for pods that ask for none.

    A share may be more than the pod asks for, as that of a job that has its nodes for itself is. `node_gres` is what
    Slurm says that the node has (`gpu:a:2,gpu:b:4`), which tells the indices of its types apart. Raises AttemptError
    where a device is missing or in use, and what the cluster raises.
    """
    pod = binding.pod
    why = refusal(pod)
    if why is not None:
        raise AttemptError(why)
    wanted = needs(pod)
    if not wanted:
        return
    offers = _offers(binding, share, wanted, node_gres)
    known = [one for one in binding.objects(ResourceClaim).values() if _of(pod, one)]
    taken = await _in_use(binding, {device.id for offer in offers for group in offer.groups for device in group})
    had = {id_ for one in known for id_ in _ids(one)}
    chosen = {offer.need: _chosen(offer, binding.node, had, taken) for offer in offers}
    if (many := sum(map(len, chosen.values()))) > RESULTS_LIMIT:
        raise AttemptError(f"a claim has {RESULTS_LIMIT} devices at most, and these would be {many} of node "
                           f"{binding.node}: request fewer, or cpu in place of {CLASS_PREFIX}{CPU_CLASS}")  # fmt: skip
    made = _manifest(pod, chosen)
    for one in known:
        if one.metadata.name != made.metadata.name and one.status.allocation is not None:
            await binding.cluster.allocate_claim(one, ResourceClaimStatus())
    await _allocated(binding, made, _allocation(chosen, binding.node, binding.objects(DeviceClass)))
    mappings = tuple(
        RequestMapping(container_name=container, resource_name=need.resource, request_name=need.request)
        for need in chosen
        for container in need.containers
    )
    named = ExtendedClaimStatus(request_mappings=mappings, resource_claim_name=made.metadata.name)
    if pod.status.extended_resource_claim_status != named:
        await binding.cluster.name_extended_claim(pod, made.metadata.name, mappings)


def _offers(binding: Binding, share: NodeShare, wanted: Sequence[Need], node_gres: str) -> list[_Offer]:
    classes = binding.objects(DeviceClass)
    devices = devices_on(binding.objects(ResourceSlice).values(), binding.node)
    found = []
    for need in wanted:
        cls = classes.get(need.name)
        if cls is None:
            raise AttemptError(f"DeviceClass {need.name} does not exist: create it, or install its driver")
        own = devices_of(cls, devices)
        if need.name == CPU_CLASS:
            found.append(_offer(need, "core", share.cores, by_core(own), together=True))
            continue
        kinds = [one for one in share.gres if one.type == need.name]
        if not kinds:
            raise AttemptError(f"Slurm gave no GRES of type {need.name} on node {binding.node}: name it in the node's "
                               f"Gres= (gpu:{need.name}:<count>)")  # fmt: skip
        indices = [index - before(node_gres, one.name, one.type) for one in kinds for index in one.indices]
        found.append(_offer(need, "index", indices, by_index(own), together=False))
    return found


def _offer(
    need: Need, word: str, indices: Sequence[int], devices: Mapping[int, Sequence[NodeDevice]], *, together: bool
) -> _Offer:
    if not indices:
        return _Offer(need, (), f"Slurm does not say which {word} it gave: name the devices' files in its gres.conf")
    groups, lacking = [], []
    for index in dict.fromkeys(indices):
        found = devices.get(index, ())
        if not found:
            lacking.append(f"no device has {word} {index}")
        elif len(found) > 1 and not together:
            lacking.append(f"{word} {index} is that of {' and '.join(one.device.name for one in found)}")
        else:
            groups.append(tuple(found))
    remedy = ": let its ResourceSlices and its GRES in Slurm agree"
    return _Offer(need, tuple(groups), ", ".join(lacking) + remedy if lacking else "")


async def _in_use(binding: Binding, wanted: set[DeviceId]) -> dict[DeviceId, ResourceClaim]:
    """Those of the devices that others' claims have.

    Not those of a pod that Slurm gave devices before, and that is on no node yet: what Slurm says now is newer.
    """
    taken: dict[DeviceId, ResourceClaim] = {}
    for one in binding.objects(ResourceClaim).values():
        if not _of(binding.pod, one) and not wanted.isdisjoint(_ids(one)) and not await _abandoned(binding, one):
            taken.update(dict.fromkeys(_ids(one), one))
    return taken


async def _abandoned(binding: Binding, claim: ResourceClaim) -> bool:
    """Whether it is for the extended resources of a pod that this scheduler is to place, and that is on no node."""
    owners = claim.metadata.owner_references
    if EXTENDED_CLAIM not in claim.metadata.annotations or not owners:
        return False
    for owner in owners:
        pod = await binding.cluster.get(Pod, claim.metadata.namespace, owner.name)
        ours = pod.spec.scheduler_name == binding.pod.spec.scheduler_name
        if pod.metadata.uid == owner.uid and (pod.spec.node_name or not ours):
            return False
    return True


def _chosen(
    offer: _Offer, node: str, had: set[DeviceId], taken: Mapping[DeviceId, ResourceClaim]
) -> tuple[NodeDevice, ...]:
    """As many as the pod asks for, those first that it has; whole groups, the last of which may be more."""
    need = offer.need
    found: list[NodeDevice] = []
    for group in sorted(offer.groups, key=lambda group: any(one.id not in had for one in group)):
        if len(found) < need.count and not any(one.id in taken for one in group):
            found += group
    if len(found) >= need.count:
        return tuple(found)
    users = [f"{one.device.name} is allocated to ResourceClaim {taken[one.id].key}, which must end before"
             for group in offer.groups for one in group if one.id in taken]  # fmt: skip
    why = "; ".join([*users, *([offer.lacking] if offer.lacking else [])])
    raise AttemptError(f"{len(found)} of {need.count} devices of class {need.name} can be had on node {node} of those "
                       f"that Slurm gave: {why or 'cancel the job, and another one is submitted'}")  # fmt: skip


# ------------------------------------------------------------------ the claim


def _of(pod: Pod, claim: ResourceClaim) -> bool:
    """Whether it is for the extended resources of this pod."""
    return EXTENDED_CLAIM in claim.metadata.annotations and any(
        owner.uid == pod.metadata.uid for owner in claim.metadata.owner_references
    )


def _ids(claim: ResourceClaim) -> set[DeviceId]:
    allocation = claim.status.allocation
    return {(one.driver, one.pool, one.device) for one in allocation.devices.results} if allocation else set()


def _manifest(pod: Pod, chosen: Mapping[Need, Sequence[NodeDevice]]) -> ResourceClaim:
    """The claim before it has devices. Equal for equal numbers of devices, whichever they are."""
    requests = tuple(
        DeviceRequest(name=need.request, exactly=ExactRequest(device_class_name=need.name, count=len(devices)))
        for need, devices in chosen.items()
    )
    asked = ",".join(f"{need.name}={len(devices)}" for need, devices in chosen.items())
    suffix = "-extended-resources-" + hashlib.sha256(f"{pod.metadata.uid} {asked}".encode()).hexdigest()[:10]
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid, controller=True)
    metadata = ObjectMeta(
        name=pod.metadata.name[: _NAME_LIMIT - len(suffix)].rstrip(".-") + suffix,
        namespace=pod.metadata.namespace,
        annotations={EXTENDED_CLAIM: "true"},
        owner_references=(owner,),
    )
    return ResourceClaim(metadata=metadata, spec=ResourceClaimSpec(devices=DeviceClaim(requests=requests)))


def _allocation(
    chosen: Mapping[Need, Sequence[NodeDevice]], node: str, classes: Mapping[str, DeviceClass]
) -> Allocation:
    results = tuple(
        AllocatedDevice(request=need.request, driver=one.driver, pool=one.pool, device=one.device.name)
        for need, devices in chosen.items()
        for one in sorted(devices, key=lambda one: one.id)
    )
    config = tuple(
        AllocatedConfig(source="FromClass", requests=(need.request,), opaque=one.opaque)
        for need in chosen
        for one in classes[need.name].spec.config
    )
    only = LabelSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    return Allocation(
        devices=AllocatedDevices(results=results, config=config),
        node_selector=NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(only,)),)),
    )


async def _allocated(binding: Binding, made: ResourceClaim, wanted: Allocation) -> None:
    """Have the claim there, with these devices, for the pod."""
    pod = binding.pod
    consumer = Consumer(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
    found = binding.objects(ResourceClaim).get(made.key)
    if found is None:
        try:
            found = await binding.cluster.create(made)
        except ChangedMeanwhileError:
            found = await _seen(binding, made, None)
    for _ in range(_TRIES):
        if not _of(pod, found):
            raise AttemptError(f"ResourceClaim {made.key} is not of this pod: delete it")
        if found.metadata.deletion_timestamp is not None:
            raise AttemptError(f"ResourceClaim {made.key} is being deleted: it is made anew once it is gone")
        try:
            had = found.status.allocation
            if had is not None and replace(had, allocation_timestamp=None) != wanted:
                found, had = await binding.cluster.allocate_claim(found, ResourceClaimStatus()), None
            if had is None:
                had = replace(wanted, allocation_timestamp=time_text(datetime.now(UTC)))
            status = replace(found.status, allocation=had, reserved_for=(consumer,))
            await binding.cluster.allocate_claim(found, status)  # what is so already is so as it was seen
        except ChangedMeanwhileError:
            found = await _seen(binding, made, found)
        else:
            return
    raise AttemptError(f"ResourceClaim {made.key} is written by others all the time")


async def _seen(binding: Binding, made: ResourceClaim, was: ResourceClaim | None) -> ResourceClaim:
    """The claim once it is seen otherwise than it was."""
    pause, version = _FIRST_PAUSE, was.metadata.resource_version if was is not None else ""
    try:
        async with asyncio.timeout(_SEEN_SECONDS):
            while (
                found := binding.objects(ResourceClaim).get(made.key)
            ) is None or found.metadata.resource_version == version:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
    except TimeoutError:
        raise AttemptError(f"ResourceClaim {made.key} is written by somebody else, and not seen yet") from None
    return found
