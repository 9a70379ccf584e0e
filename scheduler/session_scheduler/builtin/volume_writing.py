"""The `prebind` of VolumeBinding: writes a pod's assumed volumes and waits until its claims are bound.

It sets a volume's claimRef, or the selected node of a claim to provision. The volume controller and the CSI drivers do
the rest. It raises VolumeError if they decide otherwise or time out.
"""

from __future__ import annotations

from functools import partial

from session_scheduler.builtin.assumed_volumes import PodVolumes
from session_scheduler.builtin.waiting import wait_for_all
from session_scheduler.errors import FluenceError
from session_scheduler.framework.bindings import Binding
from session_scheduler.model.storage import SELECTED_NODE, PersistentVolume, PersistentVolumeClaim


class VolumeError(FluenceError):
    """A claim was bound or provisioned otherwise, or was not bound in time."""


async def bind_volumes(binding: Binding, volumes: PodVolumes, timeout: float) -> None:  # noqa: ASYNC109 (for the message)
    """Write the assumed volumes, then wait until every claim is bound. Raises VolumeError or ClusterError."""
    claims: list[str] = []
    for name, key in volumes.static:
        await _reserve_volume(binding, name, key)
        claims.append(key)
    for key in volumes.provisioned:
        await _select_node(binding, key, volumes.node)
        claims.append(key)
    waiting = {claim.key: claim for claim in [await _claim(binding, key) for key in claims] if not claim.bound}
    late = await wait_for_all(waiting, partial(_is_bound, binding, volumes), timeout)
    if late:
        raise VolumeError(f"binding volumes: not bound within {timeout:g} s: {', '.join(one.key for one in late)}")


async def _claim(binding: Binding, key: str) -> PersistentVolumeClaim:
    namespace, _, name = key.partition("/")
    return await binding.cluster.get(PersistentVolumeClaim, namespace, name)


async def _reserve_volume(binding: Binding, name: str, key: str) -> None:
    """Set the volume's claimRef to the claim, unless it is set."""
    volume = await binding.cluster.get(PersistentVolume, "", name)
    claim = await _claim(binding, key)
    if claim.spec.volume_name not in ("", name):
        raise VolumeError(f"claim {key}: expected volume {name}, but it is bound to {claim.spec.volume_name}")
    ref = volume.spec.claim_ref
    if ref is not None and not volume.is_for(claim):
        raise VolumeError(f"volume {name} is already reserved for claim {ref.namespace}/{ref.name}")
    if ref is None or ref.uid != claim.metadata.uid:
        await binding.cluster.claim_volume(volume, claim)


async def _select_node(binding: Binding, key: str, node: str) -> None:
    """Set the claim's selected node, unless it is set."""
    claim = await _claim(binding, key)
    named = claim.metadata.annotations.get(SELECTED_NODE)
    if named not in (None, node):
        raise VolumeError(f"claim {key}: expected selected node {node}, got {named}")
    if named is None and not claim.bound:
        version = claim.metadata.resource_version
        annotations = {SELECTED_NODE: node}
        await binding.cluster.patch_metadata(claim, annotations=annotations, resource_version=version)


def _is_bound(binding: Binding, volumes: PodVolumes, written: PersistentVolumeClaim) -> bool:
    """Whether a watched claim is bound. Raises VolumeError if it can no longer be bound as decided."""
    key = written.key
    if binding.task.node != volumes.node:  # the cache removed the pod
        raise VolumeError(f"pod {binding.task.key} was deleted or finished before its volumes were bound")
    claim = binding.objects(PersistentVolumeClaim).get(key)
    if claim is None or claim.metadata.uid != written.metadata.uid:
        raise VolumeError(f"claim {key} was deleted")
    if claim.bound:
        return True
    if key in volumes.provisioned and _version(claim) >= _version(written):  # the watch has seen the write
        named = claim.metadata.annotations.get(SELECTED_NODE)
        if named != volumes.node:
            raise VolumeError(f"claim {key}: node {volumes.node} is no longer selected: provisioning failed")
    return False


def _version(claim: PersistentVolumeClaim) -> int:
    """The resourceVersion: for one object they are increasing numbers (Kubernetes 1.35 and later)."""
    text = claim.metadata.resource_version
    return int(text) if text.isdecimal() else 0
