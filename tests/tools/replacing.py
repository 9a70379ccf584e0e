"""Controllers for clusters in memory: they replace deleted pods."""

from __future__ import annotations

from msgspec.structs import replace

from session_scheduler.model.objects import OwnerReference, Pod, PodStatus
from session_scheduler.testing.fake_cluster import FakeCluster


def of_controller(one: Pod, controller: str = "", kind: str = "ReplicaSet") -> Pod:
    """The pod as if this controller had created it; by default, a controller of its own."""
    name = controller or f"of-{one.metadata.name}"
    owner = OwnerReference(api_version="apps/v1", kind=kind, name=name, uid=f"uid-{name}", controller=True)
    return replace(one, metadata=replace(one.metadata, owner_references=(owner,)))


def replace_ended(cluster: FakeCluster) -> list[str]:
    """Finish the deletions, and replace the pods with a controller. Returns the names of the deleted pods."""
    ending = [one for one in cluster.memory.objects(Pod) if one.metadata.deletion_timestamp]
    cluster.finish_deletions()
    for one in ending:
        if any(owner.controller for owner in one.metadata.owner_references):
            cluster.add(replacement(one))
    return sorted(one.metadata.name for one in ending)


def replacement(one: Pod) -> Pod:
    """The pod that a controller creates as a replacement."""
    before = one.metadata
    metadata = replace(before, name=f"{before.name}+", uid="", resource_version="", creation_timestamp=None,
                       deletion_timestamp=None, annotations={})  # fmt: skip
    return replace(one, metadata=metadata, spec=replace(one.spec, node_name=""), status=PodStatus())
