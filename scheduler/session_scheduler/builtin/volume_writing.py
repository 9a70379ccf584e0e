"""Before a pod is bound: its claims are given their volumes, or the node for which one is made, and become bound.

The volume controller and the drivers do the rest; what they did is seen as it is watched. Raises VolumeError where they
do something else, or nothing in time.
"""

from __future__ import annotations

from functools import partial

from session_scheduler.builtin.assumed_volumes import PodVolumes
from session_scheduler.builtin.waiting import wait_for_all
from session_scheduler.errors import FluenceError
from session_scheduler.framework.bindings import Binding
from session_scheduler.model.storage import SELECTED_NODE, PersistentVolume, PersistentVolumeClaim


class VolumeError(FluenceError):
    """A volume is not what was decided, or was not bound in time."""


async def bind_volumes(binding: Binding, volumes: PodVolumes, timeout: float) -> None:  # noqa: ASYNC109 (tells the time)
    """Write what was decided, then wait until every claim is bound. Raises VolumeError, ClusterError."""
    claims: list[str] = []
    for name, key in volumes.kept:
        await _keep(binding, name, key)
        claims.append(key)
    for key in volumes.made:
        await _select(binding, key, volumes.node)
        claims.append(key)
    waiting = {claim.key: claim for claim in [await _claim(binding, key) for key in claims] if not claim.bound}
    late = await wait_for_all(waiting, partial(_seen_bound, binding, volumes), timeout)
    if late:
        raise VolumeError(f"binding volumes: not bound within {timeout:g} s: {', '.join(one.key for one in late)}")


async def _claim(binding: Binding, key: str) -> PersistentVolumeClaim:
    namespace, _, name = key.partition("/")
    return await binding.cluster.get(PersistentVolumeClaim, namespace, name)


async def _keep(binding: Binding, name: str, key: str) -> None:
    """Let a volume's claimRef name the claim, unless it does."""
    volume = await binding.cluster.get(PersistentVolume, "", name)
    claim = await _claim(binding, key)
    if claim.spec.volume_name not in ("", name):
        raise VolumeError(f"claim {key} was bound to volume {claim.spec.volume_name} meanwhile, not to {name}")
    ref = volume.spec.claim_ref
    if ref is not None and not volume.is_for(claim):
        raise VolumeError(f"volume {name} was taken by claim {ref.namespace}/{ref.name} meanwhile")
    if ref is None or ref.uid != claim.metadata.uid:
        await binding.cluster.claim_volume(volume, claim)


async def _select(binding: Binding, key: str, node: str) -> None:
    """Let the claim name the node, unless it does."""
    claim = await _claim(binding, key)
    named = claim.metadata.annotations.get(SELECTED_NODE)
    if named not in (None, node):
        raise VolumeError(f"claim {key}: a volume is made for node {named}, not for {node}")
    if named is None and not claim.bound:
        version = claim.metadata.resource_version
        annotations = {SELECTED_NODE: node}
        await binding.cluster.patch_metadata(claim, annotations=annotations, resource_version=version)


def _seen_bound(binding: Binding, volumes: PodVolumes, written: PersistentVolumeClaim) -> bool:
    """Whether a claim was seen bound. Raises VolumeError where it cannot become so any more."""
    key = written.key
    if binding.task.node != volumes.node:  # the cache has let go of it
        raise VolumeError(f"pod {binding.task.key} has ended meanwhile")
    claim = binding.objects(PersistentVolumeClaim).get(key)
    if claim is None or claim.metadata.uid != written.metadata.uid:
        raise VolumeError(f"claim {key} is gone")
    if claim.bound:
        return True
    if key in volumes.made and _version(claim) >= _version(written):  # else what was seen is older than the write
        named = claim.metadata.annotations.get(SELECTED_NODE)
        if named != volumes.node:
            raise VolumeError(f"claim {key}: no volume is made for node {volumes.node} any more: provisioning failed")
    return False


def _version(claim: PersistentVolumeClaim) -> int:
    """The resourceVersion: of one object they are numbers that grow (Kubernetes 1.35 and later)."""
    text = claim.metadata.resource_version
    return int(text) if text.isdecimal() else 0
