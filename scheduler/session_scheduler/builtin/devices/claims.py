"""The claims of a pod for devices, and the reasons why one of them is not usable, in kube-scheduler's words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from session_scheduler.errors import AttemptError
from session_scheduler.hookspecs import Gate, Refusal
from session_scheduler.model.devices import (
    CONSUMERS_LIMIT,
    EXTENDED_CLAIM,
    Allocation,
    Consumer,
    DeviceClass,
    ResourceClaim,
)
from session_scheduler.model.expressions import term_problem
from session_scheduler.model.objects import OwnerReference, Pod, PodGroup

GROUP_API: Final = "scheduling.k8s.io"
"""The API group of Kubernetes' own PodGroups."""


class ClaimName(msgspec.Struct, frozen=True):
    """The claim of an entry of spec.resourceClaims."""

    name: str
    entry: Mapping[str, Any]

    @property
    def generated(self) -> bool:
        """Whether the claim was generated from a template, for the pod or its PodGroup."""
        return self.entry.get("resourceClaimName") is None


def claim_names(pod: Pod) -> list[ClaimName] | Refusal:
    """The name of each claim, without templates that need no claim."""
    found: list[ClaimName] = []
    for entry in pod.spec.resource_claims:
        named = entry.get("resourceClaimName")
        if named is not None:
            found.append(ClaimName(str(named), entry))
            continue
        if entry.get("resourceClaimTemplateName") is None:
            return Refusal(f'pod "{pod.key}", spec.resourceClaim "{entry.get("name", "")}": none of the supported '
                           "fields are set")  # fmt: skip
        statuses = (status for status in pod.status.resource_claim_statuses if status.name == entry.get("name"))
        status = next(statuses, None)
        if status is None:
            return Refusal(f'pod "{pod.key}": ResourceClaim not created yet')
        if status.resource_claim_name is not None:
            found.append(ClaimName(status.resource_claim_name, entry))
    return found


def pod_claims(pod: Pod, known: Mapping[str, ResourceClaim]) -> list[ResourceClaim] | Gate:
    """The pod's claims as watched, or a gate with the claim that the pod must wait for."""
    names = claim_names(pod)
    if isinstance(names, Refusal):
        return Gate(names.reason)
    found = []
    for named in names:
        key = f"{pod.metadata.namespace}/{named.name}"
        claim = known.get(key)
        missing = f'could not find ResourceClaim "{key}"'
        reason = missing if claim is None else _problem(claim, pod, generated=named.generated)
        if claim is None or reason is not None:
            return Gate(reason or "", (ResourceClaim, key))
        found.append(claim)
    return found


def _problem(claim: ResourceClaim, pod: Pod, *, generated: bool) -> str | None:
    """Why the pod cannot use the claim; None if it can. `generated`: it is generated for the pod or its PodGroup."""
    if claim.metadata.deletion_timestamp is not None:
        return f'resourceclaim "{claim.metadata.name}" is being deleted'
    if generated and not any(owner.controller and _is_for(owner, pod) for owner in claim.metadata.owner_references):
        return f"ResourceClaim {claim.key} was not created for Pod {pod.key} (Pod is not owner)"
    return None


def _is_for(owner: OwnerReference, pod: Pod) -> bool:
    """Whether the owner is the pod or its PodGroup. The pod does not contain the PodGroup's uid."""
    if owner.uid == pod.metadata.uid:
        return True
    of_api = owner.kind == "PodGroup" and owner.api_version.startswith(f"{GROUP_API}/")
    return of_api and owner.name == pod_group_name(pod)


def pod_group_name(pod: Pod) -> str | None:
    """The name of Kubernetes' own PodGroup in the pod's spec; None if there is none."""
    return pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group is not None else None


def is_for_group_of(consumer: Consumer, pod: Pod) -> bool:
    """Whether a claim is reserved for the pod's PodGroup. The pod does not contain the PodGroup's uid."""
    of_api = (consumer.api_group, consumer.resource) == (GROUP_API, "podgroups")
    return of_api and consumer.name == pod_group_name(pod)


def _is_reserved(claim: ResourceClaim, pod: Pod) -> bool:
    """Whether a claim is reserved for the pod or its PodGroup."""
    return any(one.uid == pod.metadata.uid or is_for_group_of(one, pod) for one in claim.status.reserved_for)


def consumer_of(named: ClaimName, pod: Pod, group: PodGroup | None) -> Consumer:
    """The object for which the claim is reserved: the pod's PodGroup if it has an equal entry, else the pod."""
    own = group is not None and group.native and group.metadata.name == pod_group_name(pod)
    if group is not None and own and any(_same_entry(named.entry, one) for one in group.spec.resource_claims):
        return Consumer(api_group=GROUP_API, resource="podgroups", name=group.metadata.name, uid=group.metadata.uid)
    return Consumer(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)


def _same_entry(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    fields = ("name", "resourceClaimName", "resourceClaimTemplateName")
    return all(one.get(name) == other.get(name) for name in fields)


def unknown_class(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> Refusal | None:
    """Why a claim's requests cannot be allocated on any node; None if they may. Raises AttemptError."""
    for request in claim.spec.devices.requests:
        asks: list[tuple[str, Any]] = [(f"{request.name}/{one.name}", one) for one in request.first_available]
        if request.exactly is not None:
            asks = [(request.name, request.exactly)]
        if not asks:
            return Refusal(f"resource claim {claim.key}, request {request.name}: unknown request type")
        for name, ask in asks:
            if not ask.device_class_name:
                raise AttemptError(f"request {name}: unsupported request type")
            if ask.device_class_name not in classes:
                return Refusal(f"request {name}: device class {ask.device_class_name} does not exist",
                               fits_if=(f"device class {ask.device_class_name} existed",))  # fmt: skip
    return None


def unusable(claim: ResourceClaim, allocation: Allocation, pod: Pod) -> Refusal | None:
    """Why a pod cannot use an allocated claim on any node; None if it may. Raises AttemptError."""
    if len(claim.status.reserved_for) >= CONSUMERS_LIMIT and not _is_reserved(claim, pod):
        return Refusal("resourceclaim in use")
    for number, term in enumerate(allocation.node_selector.node_selector_terms if allocation.node_selector else ()):
        problem = term_problem(term)
        if problem is not None:
            where = f"status.allocation.nodeSelector.nodeSelectorTerms[{number}]"
            raise AttemptError(f"resource claim {claim.key}: {where}.{problem}")
    return None


def ready(claim: ResourceClaim, allocation: Allocation) -> bool | str:
    """Whether the binding conditions of all devices are met; the reason if the binding of one failed."""
    for result in allocation.devices.results:
        if not result.binding_conditions:
            continue
        id_ = (result.driver, result.pool, result.device)
        states = (state for state in claim.status.devices if (state.driver, state.pool, state.device) == id_)
        state = next(states, None)
        if state is None:
            return False
        conditions = {condition.type: condition for condition in state.conditions or ()}
        for name in result.binding_failure_conditions:
            failed = conditions.get(name)
            if failed is not None and failed.status == "True":
                return (f"device binding failed: claim={claim.metadata.name}, reason={failed.reason}, "
                        f'message="{failed.message}"')  # fmt: skip
        if not all(name in conditions and conditions[name].status == "True" for name in result.binding_conditions):
            return False
    return True


def made_by_owner(claims: Iterable[ResourceClaim]) -> dict[str, list[ResourceClaim]]:
    """The allocated claims that a scheduler created for pods' extended resources, by the pod's uid."""
    found: dict[str, list[ResourceClaim]] = {}
    for claim in claims:
        if EXTENDED_CLAIM in claim.metadata.annotations and claim.status.allocation is not None:
            for uid in {owner.uid for owner in claim.metadata.owner_references}:
                found.setdefault(uid, []).append(claim)
    return found


def waits_for_conditions(allocation: Allocation) -> bool:
    """Whether a device has binding conditions."""
    return any(result.binding_conditions for result in allocation.devices.results)
