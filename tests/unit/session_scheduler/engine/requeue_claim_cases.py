"""Cases of requeueing by claims, for volumes and for devices, and by the objects that provide them."""

from __future__ import annotations

from typing import Any

import msgspec

from session_scheduler.model.devices import DeviceClass, DeviceTaintRule, ResourceClaim
from session_scheduler.model.objects import ClaimStatus, OwnerReference, Pod
from session_scheduler.model.storage import MIGRATED_PLUGINS, CSINode, VolumeAttachment
from session_scheduler.testing import node, pod

from ....tools.volumes import claim, csi_node, storage_class, using, volume
from .requeue_world import (
    ALONE,
    DEDICATED,
    ENDS,
    LABELS,
    LOCAL,
    MADE,
    NOW,
    ZONE,
    ZONED,
    Case,
    attachment,
    capacity,
    devices,
    driver,
    gpu_claim,
    gpus,
    handle,
    running,
    tainted,
)

REGION = "topology.kubernetes.io/region"
EPHEMERAL = ({"name": "e", "ephemeral": {"volumeClaimTemplate": {}}},)
DISKS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("gcePersistentDisk", {"pdName": "a"}, {"pdName": "b"}),
    ("awsElasticBlockStore", {"volumeID": "a"}, {"volumeID": "b"}),
    ("rbd", {"monitors": ["a", "b"], "pool": "p", "image": "i"}, {"monitors": ["c", "d"], "pool": "p", "image": "i"}),
    ("iscsi", {"targetPortal": "x", "iqn": "a", "lun": 0}, {"targetPortal": "x", "iqn": "b", "lun": 0}),
)
"""A kind of disk that pods cannot share, and two disks."""


def disk(kind: str, **which: Any) -> tuple[dict[str, Any], ...]:
    return ({"name": "d", kind: which},)


def migrated(name: str, plugins: str, **limits: int) -> CSINode:
    plain = csi_node(name, **limits)
    return msgspec.structs.replace(
        plain, metadata=msgspec.structs.replace(plain.metadata, annotations={MIGRATED_PLUGINS: plugins})
    )


def taint_rule(name: str, effect: str = "NoSchedule") -> DeviceTaintRule:
    taint = {"key": "broken", "effect": effect}
    found: DeviceTaintRule = devices(DeviceTaintRule, name, deviceSelector={}, taint=taint)
    return found


def allocated(one: ResourceClaim) -> ResourceClaim:
    """The claim with some allocated devices, which no pod uses."""
    status = msgspec.convert({"allocation": {"devices": {"results": []}}}, type(one.status))
    return msgspec.structs.replace(one, status=status)


def held(one: ResourceClaim) -> ResourceClaim:
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, finalizers=("x",)))


def made_for(owner: str, name: str) -> ResourceClaim:
    reference = OwnerReference(api_version="v1", kind="Pod", name=owner, uid=owner, controller=True)
    one = gpu_claim(name)
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, owner_references=(reference,)))


def with_uid(one: Pod) -> Pod:
    """An object whose uid is its name."""
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, uid=one.metadata.name))


def naming(name: str, *claims: str) -> Pod:
    return pod(name, resource_claims=tuple({"name": one, "resourceClaimName": one} for one in claims))


def from_templates(name: str, *made: str, **options: Any) -> Pod:
    """A pod with the claims `one` and `two` from templates, and the names of those that exist already."""
    entries = tuple({"name": one, "resourceClaimTemplateName": "t"} for one in ("one", "two"))
    plain = with_uid(pod(name, resource_claims=entries, **options))
    statuses = tuple(ClaimStatus(name=one, resource_claim_name=one) for one in made)
    return msgspec.structs.replace(
        plain,
        status=msgspec.structs.replace(plain.status, resource_claim_statuses=statuses),
    )


ITS_CLAIMS = [made_for("waits", name) for name in ("one", "two")]

CLAIMS: dict[str, Case] = {
    "DynamicResources": Case(
        there=[node("n1"), devices(DeviceClass, "gpu"), gpu_claim("own"),
               pod("waits", resource_claims=({"name": "e", "resourceClaimName": "own"},))],
        refused_by={"DynamicResources"},
        helpful={
            "a slice": [gpus("s")],
            "a class": [devices(DeviceClass, "other")],
            "a node": [node("n2")],
            "its claim is allocated": [allocated(gpu_claim("own"))],
            "another claim loses its devices": [allocated(gpu_claim("another")), gpu_claim("another")],
        },
        unrelated={
            "another claim": [gpu_claim("another")],
            "another claim is allocated": [allocated(gpu_claim("another"))],
            "a claim loses its devices while its own is gone": [
                (ResourceClaim, "own"), allocated(gpu_claim("another")), gpu_claim("another")],
            "its claim is held": [held(gpu_claim("own"))],
            "its claim goes": [(ResourceClaim, "own")],
            "a pod": [running("x")],
        },
    ),
    "DynamicResources, with a taint rule": Case(
        [node("n1"), devices(DeviceClass, "gpu"), gpus("s"), taint_rule("r"), gpu_claim("own"), naming("waits", "own")],
        {"DynamicResources"},
        {
            "the rule goes": [(DeviceTaintRule, "r")],
            "its effect changes": [taint_rule("r", "None")],
        },
        {"another rule": [taint_rule("s")], "nothing changes": [taint_rule("r")]},
    ),
    "DynamicResources, without a claim": Case(
        [node("n1"), devices(DeviceClass, "gpu"), gpus("s"), gpu_claim("one"), naming("waits", "one", "two")],
        {"DynamicResources"},
        {"it comes": [gpu_claim("two")]},
        {"another claim comes": [gpu_claim("another")], "the other one is allocated": [allocated(gpu_claim("one"))]},
        gated=True,
    ),
    "DynamicResources, before its claims are made": Case(
        [node("n1"), devices(DeviceClass, "gpu"), gpus("s"), from_templates("waits"),
         from_templates("other", gates=["later"])],
        {"DynamicResources"},
        {
            "they are made": [*ITS_CLAIMS, from_templates("waits", "one", "two")],
            "they are made, and are seen later": [from_templates("waits", "one", "two"), *ITS_CLAIMS],
        },
        {
            "one of them is made": [*ITS_CLAIMS, from_templates("waits", "one")],
            "they are made, and one is not seen yet": [ITS_CLAIMS[0], from_templates("waits", "one", "two")],
            "one of the name is another pod's": [
                ITS_CLAIMS[0], gpu_claim("two"), from_templates("waits", "one", "two")],
            "another pod's are made": [*ITS_CLAIMS, from_templates("other", "one", "two", gates=["later"])],
        },
        gated=True,
    ),
    "VolumeRestrictions": Case(
        [node("n1"), LOCAL, volume("v", phase="Bound"), claim("c", volume="v", **ALONE), running("plain"),
         running("runs", volumes=using("c")), pod("waits", volumes=using("c"))],
        {"VolumeRestrictions"},
        {"the pod that has it ends": [ENDS], "a node comes": [node("n2")]},
        {
            "another pod ends": [(Pod, "plain")],
            "another claim comes": [claim("d")],
            "a node's labels change": [node("n1", labels=LABELS)],
        },
    ),
    "NodeVolumeLimits": Case(
        [node("n1"), csi_node("n1", d=1), MADE, attachment("a"), running("plain"),
         running("disk", volumes=disk("awsElasticBlockStore", volumeID="x")),
         pod("gated", volumes=using("c1"), gates=["later"]),
         *(volume(f"v{i}", of="made", phase="Bound", **handle(str(i))) for i in (1, 2)),
         *(claim(f"c{i}", of="made", volume=f"v{i}") for i in (1, 2)),
         running("runs", volumes=using("c1")), pod("waits", volumes=using("c2"))],
        {"NodeVolumeLimits"},
        {
            "a pod with volumes ends": [ENDS],
            "the node takes more": [csi_node("n1", d=2)],
            "the node has no limit any more": [csi_node("n1", e=1)],
            "a node comes": [node("n2")],
            "a volume is detached": [(VolumeAttachment, "a")],
            "the claim changes": [claim("c2", of="made", volume="v2", annotations={"a": "b"})],
            "a pod with a disk that a driver serves ends": [(Pod, "disk")],
        },
        {
            "a pod without volumes ends": [(Pod, "plain")],
            "a pod that waits goes again": [(Pod, "gated")],
            "the node takes as many": [csi_node("n1", d=1, e=0)],
            "the node takes fewer": [csi_node("n1", d=0)],
            "another claim comes": [claim("d")],
            "a node's labels change": [node("n1", labels=LABELS)],
        },
    ),
    "NodeVolumeLimits, of an ephemeral claim": Case(
        [node("n1"), csi_node("n1", d=1), MADE, running("runs", volumes=using("c1")),
         *(volume(f"v{i}", of="made", phase="Bound", **handle(str(i))) for i in (1, 2)),
         claim("c1", of="made", volume="v1"), claim("waits-e", of="made", volume="v2", owner="waits"),
         with_uid(pod("waits", volumes=EPHEMERAL))],
        {"NodeVolumeLimits"},
        {"it changes": [claim("waits-e", of="made", volume="v2", owner="waits", annotations={"a": "b"})]},
        {"another one comes": [claim("waits-f", of="made", owner="waits")]},
    ),
    "NodeVolumeLimits, of a disk that a driver serves": Case(
        [node("n1"), csi_node("n1", **{"ebs.csi.aws.com": 0}), attachment("a", "ebs.csi.aws.com"), attachment("b"),
         pod("waits", volumes=disk("awsElasticBlockStore", volumeID="x"))],
        {"NodeVolumeLimits"},
        {"one of the driver is detached": [(VolumeAttachment, "a")]},
        {"one of another driver is detached": [(VolumeAttachment, "b")], "a claim comes": [claim("c")]},
    ),
    "VolumeRestrictions, without claims": Case(
        [node("n1"), LOCAL, running("runs"), pod("waits", volumes=using("c", "d"))],
        {"VolumeRestrictions"},
        {"one of them comes": [claim("c")], "the other one comes": [claim("d")]},
        {"another claim comes": [claim("e")], "one of another namespace comes": [claim("c", namespace="far")]},
    ),
    **{
        f"VolumeRestrictions, {kind}": Case(
            [node("n1"), running("runs", volumes=disk(kind, **same)), running("other", volumes=disk(kind, **another)),
             pod("waits", volumes=disk(kind, **same))],
            {"VolumeRestrictions"},
            {"the pod that has it ends": [ENDS]},
            {"a pod with another one ends": [(Pod, "other")]},
        )
        for kind, same, another in DISKS
    },
    "VolumeRestrictions, without a claim": Case(
        [node("n1"), LOCAL, running("runs"), pod("waits", volumes=using("c"))],
        {"VolumeRestrictions"},
        {"the claim comes": [claim("c")]},
        {"another claim comes": [claim("d")], "a pod ends": [ENDS], "a node offers more": [node("n1", cpu=9)]},
    ),
    "VolumeBinding, to be bound": Case(
        [node("n1"), NOW, claim("c", of="now"), running("runs"), running("user", volumes=using("d")),
         pod("waits", volumes=using("c"))],
        {"VolumeBinding"},
        {
            "it is bound": [volume("v", of="now", phase="Bound"), claim("c", of="now", volume="v")],
            "a class comes": [storage_class("late")],
            "a class gets other topologies": [
                storage_class("now", waits=False, allowedTopologies=[{"matchLabelExpressions": []}])
            ],
        },
        {
            "another claim changes": [claim("d")],
            "one of another namespace comes": [claim("c", namespace="far")],
            "a pod ends": [ENDS],
            "a node is tainted": [tainted("n1", DEDICATED)],
            "a node offers more": [node("n1", cpu=9)],
        },
    ),
    "VolumeBinding, for a node": Case(
        [node("n1"), LOCAL, claim("c", "2Gi"), claim("d"), migrated("n1", "a"), volume("small"), running("runs"),
         running("user", volumes=using("e")), pod("waits", volumes=using("c"))],
        {"VolumeBinding"},
        {
            "a volume comes": [volume("v", "2Gi")],
            "a node comes": [node("n2")],
            "a node's labels change": [node("n1", labels=LABELS)],
            "a pod with claims ends": [(Pod, "user")],
            "a CSINode comes": [csi_node("n2")],
            "disks are served by another driver": [migrated("n1", "a,b")],
            "its claim changes": [claim("c", "2Gi", annotations={"a": "b"})],
        },
        {
            "another claim changes": [claim("d", annotations={"a": "b"})],
            "a CSINode changes otherwise": [migrated("n1", "a", d=1)],
            "a class changes otherwise": [storage_class("local", parameters={"a": "b"})],
            "a pod without claims ends": [ENDS],
            "a node is tainted": [tainted("n1", DEDICATED)],
        },
    ),
    "VolumeBinding, by capacity": Case(
        [node("n1"), MADE, driver(asks=True), capacity("here", "1Gi"), claim("c", "2Gi", of="made"), running("runs"),
         pod("waits", volumes=using("c"))],
        {"VolumeBinding"},
        {
            "there is more": [capacity("here", "3Gi")],
            "there is some elsewhere": [capacity("there", "1Gi")],
            "it is asked for no more": [driver(asks=False)],
        },
        {"there is less": [capacity("here", "1Mi")], "a pod ends": [ENDS]},
    ),
    "VolumeBinding, by the size of one volume": Case(
        [node("n1"), MADE, driver(asks=True), capacity("here", "3Gi", "1Gi"), claim("c", "2Gi", of="made"),
         pod("waits", volumes=using("c"))],
        {"VolumeBinding"},
        {
            "one may be larger": [capacity("here", "3Gi", "2Gi")],
            "one may be as large as there is room": [capacity("here", "3Gi")],
        },
        {
            "there is more, but not for one": [capacity("here", "4Gi", "1Gi")],
            "there is as much for one": [capacity("here", "1Gi")],
            "one may be less": [capacity("here", "3Gi", "1Mi")],
        },
    ),
    "VolumeBinding, of an ephemeral claim": Case(
        [node("n1"), LOCAL, claim("waits-e", "2Gi", owner="waits"), with_uid(pod("waits", volumes=EPHEMERAL))],
        {"VolumeBinding"},
        {"it changes": [claim("waits-e", "2Gi", owner="waits", annotations={"a": "b"})]},
        {"another one changes": [claim("waits-f", "2Gi", owner="waits")]},
    ),
    "VolumeZone": Case(
        [node("n1", labels={ZONE: "a"}), LOCAL, ZONED, claim("c", volume="v"), running("runs"),
         pod("waits", volumes=using("c"))],
        {"VolumeZone"},
        {
            "a node comes into the zone": [node("n1", labels={ZONE: "b"})],
            "a node comes": [node("n2", labels={ZONE: "b"})],
            "the volume comes into another zone": [volume("v", labels={ZONE: "a"})],
            "the volume comes into a region, too": [volume("v", labels={ZONE: "b", REGION: "r"})],
            "another volume comes": [volume("w", labels={ZONE: "a"})],
            "the claim changes": [claim("c", volume="v", annotations={"a": "b"})],
            "a class comes that waits": [storage_class("late")],
        },
        {
            "something else of the volume changes": [volume("v", labels={ZONE: "b"}, phase="Bound")],
            "the volume gets another label": [volume("v", labels={ZONE: "b"} | LABELS)],
            "one of another namespace comes": [claim("c", volume="v", namespace="far")],
            "a class comes that does not wait": [storage_class("late", waits=False)],
            "another claim comes": [claim("d")],
            "a pod ends": [ENDS],
            "a node is tainted": [tainted("n1", DEDICATED, labels={ZONE: "a"})],
        },
    ),
}  # fmt: skip
