"""The state of a pod's volume claims: bound, to be bound on a node, or unusable with kube-scheduler's message.

The volume plugins use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from session_scheduler.framework.session import Session
from session_scheduler.hookspecs import Refusal
from session_scheduler.model.objects import Pod
from session_scheduler.model.storage import (
    WAIT_FOR_FIRST_CONSUMER,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from session_scheduler.model.volumes import ClaimUse, claims_of, not_made_for

_RESOURCE: Final[Mapping[type[Any], str]] = {
    PersistentVolumeClaim: "persistentvolumeclaim",
    PersistentVolume: "persistentvolume",
    StorageClass: "storageclass.storage.k8s.io",
}
_NOUN: Final[Mapping[type[Any], str]] = {
    PersistentVolumeClaim: "claim", PersistentVolume: "volume", StorageClass: "storage class",
}  # fmt: skip


def not_found(kind: type[Any], name: str) -> Refusal:
    """The refusal for an object that does not exist, in the API server's words."""
    return Refusal(f'{_RESOURCE[kind]} "{name}" not found', fits_if=(f"{_NOUN[kind]} {name} existed",))


class PodClaims(msgspec.Struct):
    """The claims of a pod, each once, in the order of its volumes."""

    bound: list[PersistentVolumeClaim] = msgspec.field(default_factory=list)
    delayed: list[PersistentVolumeClaim] = msgspec.field(default_factory=list)
    """Unbound, of a class with volumeBindingMode WaitForFirstConsumer."""
    immediate: list[PersistentVolumeClaim] = msgspec.field(default_factory=list)
    """Unbound; the volume controller binds them without a node."""


def pod_claims(session: Session, pod: Pod) -> PodClaims | Refusal:
    """The pod's claims by state, or the refusal if the pod must wait for one of them."""
    claims = []
    for use in claims_of(pod):
        claim = _claim(session, pod, use)
        if isinstance(claim, Refusal):
            return claim
        claims.append(claim)
    found = PodClaims()
    classes = session.objects(StorageClass) if claims else {}
    for claim in {claim.key: claim for claim in claims}.values():
        if claim.bound:
            found.bound.append(claim)
            continue
        storage_class = classes.get(claim.storage_class) if claim.storage_class else None
        if storage_class is not None and storage_class.volume_binding_mode is None:
            return Refusal(f'VolumeBindingMode not set for StorageClass "{claim.storage_class}"')
        delayed = storage_class is not None and storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER
        (found.delayed if delayed and not claim.spec.volume_name else found.immediate).append(claim)
    return found


def misspelt_class(session: Session, claims: Iterable[PersistentVolumeClaim]) -> str:
    """The problem of the first claim whose StorageClass does not exist while one of a similar name does; or empty."""
    classes = session.objects(StorageClass)
    for claim in claims:
        name = claim.storage_class
        near = get_close_matches(name, sorted(classes), 1, 0.6) if name and name not in classes else []
        if near:
            problem = f'claim {claim.metadata.name} names StorageClass "{name}", which does not exist'
            return f"{problem}; did you mean {near[0]}?"
    return ""


def _claim(session: Session, pod: Pod, use: ClaimUse) -> PersistentVolumeClaim | Refusal:
    claim = session.objects(PersistentVolumeClaim).get(f"{pod.metadata.namespace}/{use.name}")
    if claim is None:
        if not use.ephemeral:
            return not_found(PersistentVolumeClaim, use.name)
        return Refusal(f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{use.name}"')
    if claim.status.phase == "Lost":
        volume = claim.spec.volume_name
        return Refusal(f'persistentvolumeclaim "{use.name}" bound to non-existent persistentvolume "{volume}"')
    if claim.metadata.deletion_timestamp is not None:
        return Refusal(f'persistentvolumeclaim "{use.name}" is being deleted')
    problem = not_made_for(pod, claim) if use.ephemeral else None
    return claim if problem is None else Refusal(problem)
