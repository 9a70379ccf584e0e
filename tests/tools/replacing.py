"""Controllers for clusters in memory: what ends of a controller's pods comes anew."""

from __future__ import annotations

from msgspec.structs import replace

from session_scheduler.model.objects import OwnerReference, Pod, PodStatus
from session_scheduler.testing.fake_cluster import FakeCluster


def of_controller(one: Pod, controller: str = "", kind: str = "ReplicaSet") -> Pod:
    """The pod as one that this controller made: one of its own, unless it is named."""
    name = controller or f"of-{one.metadata.name}"
    owner = OwnerReference(api_version="apps/v1", kind=kind, name=name, uid=f"uid-{name}", controller=True)
    return replace(one, metadata=replace(one.metadata, owner_references=(owner,)))


def replace_ended(cluster: FakeCluster) -> list[str]:
    """Let the pods end that were asked to, and come anew under other names. Returns who did, by name."""
    ending = [one for one in cluster.memory.objects(Pod) if one.metadata.deletion_timestamp]
    cluster.finish_deletions()
    for one in ending:
        if any(owner.controller for owner in one.metadata.owner_references):
            cluster.add(anew(one))
    return sorted(one.metadata.name for one in ending)


def anew(one: Pod) -> Pod:
    """What a controller makes in a pod's place."""
    before = one.metadata
    metadata = replace(before, name=f"{before.name}+", uid="", resource_version="", creation_timestamp=None,
                       deletion_timestamp=None, annotations={})  # fmt: skip
    return replace(one, metadata=metadata, spec=replace(one.spec, node_name=""), status=PodStatus())
