"""`fits_if` of the volume plugins and DynamicResources: after the reported change the plugin accepts the node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from session_scheduler.engine.explain import explain_pending
from session_scheduler.model.devices import DeviceClass, ResourceClaim, ResourceSlice
from session_scheduler.model.storage import SELECTED_NODE, CSIDriver, CSIStorageCapacity
from session_scheduler.testing import FakeCluster, node, pod

from ....tools.volumes import claim, csi_node, storage_class, using, volume

ZONE = "topology.kubernetes.io/zone"
LOCAL = storage_class("local")
CAPACITY_DRIVER = msgspec.convert(
    {"kind": "CSIDriver", "metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": True}}, CSIDriver
)


def verdicts(*objects: Any) -> Any:
    cluster = FakeCluster()
    cluster.add(*objects)
    return explain_pending(cluster.start())["pods"]


def changes(*objects: Any, on: str = "n1") -> dict[str, Any]:
    """By plugin that rejects the node: the changes that would help."""
    (reported,) = verdicts(*objects)
    assert reported["reason"] is None
    return {one["plugin"]: one["changes"] for one in reported["nodes"][on].get("fitsIf", ())}


P = pod("p", volumes=using("data"))
N1, N2 = node("n1"), node("n2", labels={"disk": "ssd"})


# ---------------------------------------------------------------------- volumes


def test_a_volume_of_other_nodes_is_reported_with_its_node_affinity() -> None:
    there = (claim("data", volume="v"), volume("v", on=("n2", "n3")), P)
    assert changes(N1, *there) == {
        "VolumeBinding": ["n1 matched kubernetes.io/hostname In (n2, n3), as volume v of claim data requires"]
    }
    assert changes(node("n1", labels={"kubernetes.io/hostname": "n3"}), *there) == {}


def test_a_missing_volume_is_reported_by_name() -> None:
    (reported,) = verdicts(N1, claim("data", volume="v"), P)
    assert (reported["reason"], reported["fitsIf"]) == ('persistentvolume "v" not found', ["volume v existed"])
    assert reported["nodes"]["n1"]["fitsIf"] == [
        {"plugin": "VolumeBinding", "changes": [
            "volume v of claim data existed and were reachable from n1"]}
    ]  # fmt: skip


def test_a_claim_that_waits_for_a_node_needs_a_volume_there() -> None:
    waits = (LOCAL, claim("data", "5Gi"), P)
    assert changes(N1, *waits) == {
        "VolumeBinding": ["a volume of class local with 5Gi were available to claim data on n1"]
    }
    ref = {"namespace": "default", "name": "data"}
    assert changes(N1, *waits, volume("new", "5Gi", on="n1", claimRef=ref)) == {}


def test_each_of_several_claims_needs_a_volume_of_its_own() -> None:
    both = pod("p", volumes=using("small", "large"))
    waits = (LOCAL, claim("small", "1Gi"), claim("large", "5Gi"), volume("v", "3Gi", on="n1"), both)
    assert changes(N1, *waits) == {
        "VolumeBinding": ["a volume of class local with 5Gi were available to claim large on n1"]
    }
    ref = {"namespace": "default", "name": "large"}
    assert changes(N1, *waits, volume("new", "5Gi", on="n1", claimRef=ref)) == {}


def test_a_volume_reserved_for_the_claim_on_another_node_is_reported() -> None:
    ref = {"namespace": "default", "name": "data"}
    waits = (LOCAL, claim("data"), volume("v", on="n2", claimRef=ref), volume("free", on="n1"), P)
    assert changes(N1, *waits) == {
        "VolumeBinding": ["n1 matched kubernetes.io/hostname In (n2), as volume v, reserved for claim data, requires"]
    }


def test_a_claim_with_another_selected_node_is_reported() -> None:
    waits = (storage_class("made", "csi.example.com"), P)
    assert changes(N1, *waits, claim("data", of="made", annotations={SELECTED_NODE: "n2"})) == {
        "VolumeBinding": ["claim data had the selected node n1 instead of n2"]
    }
    assert changes(N1, *waits, claim("data", of="made", annotations={SELECTED_NODE: "n1"})) == {}


def test_missing_storage_capacity_is_reported() -> None:
    capacity = {"kind": "CSIStorageCapacity", "metadata": {"name": "c", "namespace": "default"}, "nodeTopology": {},
                "storageClassName": "made"}  # fmt: skip
    waits = (storage_class("made", "csi.example.com"), CAPACITY_DRIVER, claim("data", "5Gi", of="made"), P)
    little, enough = (msgspec.convert({**capacity, "capacity": size}, CSIStorageCapacity) for size in ("4Gi", "5Gi"))
    assert changes(N1, *waits, little) == {"VolumeBinding": ["a CSIStorageCapacity of class made had 5Gi for n1"]}
    assert changes(N1, *waits, enough) == {}


def test_a_node_outside_the_volumes_zones_is_reported_with_the_zones() -> None:
    there = (claim("data", volume="v"), volume("v", labels={ZONE: "a__b"}), P)
    assert changes(node("n1", labels={ZONE: "c"}), *there) == {
        "VolumeZone": [f"n1 had the label {ZONE}=a or b, which a volume of the pod has"]
    }
    assert changes(node("n1", labels={ZONE: "b"}), *there) == {}


def test_no_change_is_known_for_volumes_in_different_zones() -> None:
    both = pod("p", volumes=using("data", "more"))
    there = (claim("data", volume="v"), volume("v", labels={ZONE: "a"}), claim("more", volume="w"),
             volume("w", labels={ZONE: "b"}), both)  # fmt: skip
    assert changes(node("n1", labels={ZONE: "a"}), *there) == {"VolumeZone": None}


def test_an_exclusive_claim_in_use_is_reported() -> None:
    there = (claim("data", volume="v", accessModes=["ReadWriteOncePod"]), volume("v"))
    used = pod("r", volumes=using("data"), bound_to="n2")
    assert changes(N1, N2, *there, used, P) == {"VolumeRestrictions": ["no other pod used claim data"]}
    assert changes(N1, N2, *there, P) == {}


def test_a_disk_that_another_pod_on_the_node_uses_is_reported() -> None:
    disk = ({"name": "d", "gcePersistentDisk": {"pdName": "data"}},)
    assert changes(N1, N2, pod("r", volumes=disk, bound_to="n1"), pod("p", volumes=disk)) == {
        "VolumeRestrictions": ["no other pod on n1 had gcePersistentDisk data"]
    }
    assert changes(N1, N2, pod("r", volumes=disk, bound_to="n2"), pod("p", volumes=disk)) == {}


@pytest.mark.parametrize(("limit", "wanted"), [
    (0, {"NodeVolumeLimits": ["n1 allowed 1 volumes of csi.example.com (0 now)"]}), (1, {}),
])  # fmt: skip
def test_the_volume_limit_that_a_node_needs_is_reported(limit: int, wanted: Any) -> None:
    csi = {"driver": "csi.example.com", "volumeHandle": "h"}
    there = (claim("data", volume="v"), volume("v", csi=csi), csi_node("n1", **{"csi.example.com": limit}), P)
    assert changes(N1, *there) == wanted


# ---------------------------------------------------------------------- the pod as a whole


def whole(*objects: Any) -> tuple[str | None, list[str]]:
    """Why the pod is rejected on all nodes, and the changes that would help."""
    (reported,) = verdicts(N1, *objects)
    return reported["reason"], reported.get("fitsIf", [])


def test_a_missing_claim_is_reported_for_the_whole_pod() -> None:
    assert whole(P) == (
        'persistentvolumeclaim "data" not found', ["claim data existed"]
    )  # fmt: skip


def test_an_unbound_immediate_claim_must_be_bound() -> None:
    now = storage_class("now", waits=False)
    assert whole(now, claim("data", of="now"), P) == (
        "pod has unbound immediate PersistentVolumeClaims", ["claim data were bound"]
    )  # fmt: skip
    assert whole(now, claim("data", of="now", volume="v"), volume("v"), P) == (None, [])


def test_a_missing_resource_claim_is_reported_for_the_whole_pod() -> None:
    waits = pod("p", resource_claims=({"name": "e", "resourceClaimName": "g"},))
    reason, said = whole(waits)
    assert reason == 'could not find ResourceClaim "default/g"'
    assert said == ["ResourceClaim default/g existed and could be used"]


# ---------------------------------------------------------------------- devices


def made(kind: Any, name: str, namespace: str = "", **fields: Any) -> Any:
    return msgspec.convert({"kind": kind.__name__, "metadata": {"name": name, "namespace": namespace}, **fields}, kind)


def devices(*names: str, on: str = "n1") -> Any:
    pool = {"name": on, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.example.com", "nodeName": on, "devices": [{"name": name} for name in names], "pool": pool}
    return made(ResourceSlice, f"{on}-devices", spec=spec)


def asks(count: int, *, requests: int = 1, constraints: Any = (), **exactly: Any) -> Any:
    exact = {"deviceClassName": "gpu", "count": count, **exactly}
    wanted = [{"name": f"r{number}", "exactly": exact} for number in range(requests)]
    return made(ResourceClaim, "g", "default", spec={"devices": {"requests": wanted, "constraints": constraints}})


GPU = made(DeviceClass, "gpu", spec={})
USER = pod("p", resource_claims=({"name": "e", "resourceClaimName": "g"},))


def test_missing_devices_are_reported_by_number_class_and_request() -> None:
    assert changes(N1, GPU, devices("a"), asks(2), USER) == {
        "DynamicResources": ["2 devices of class gpu for request r0 of claim g were free on n1"]
    }
    assert changes(N1, GPU, devices("a", "b"), asks(2), USER) == {}


def test_each_request_needs_its_own_devices() -> None:
    assert changes(N1, GPU, devices("a"), asks(1, requests=2), USER) == {
        "DynamicResources": [
            f"1 device of class gpu for request {request} of claim g were free on n1, "
            "in addition to the other requests' devices"
            for request in ("r0", "r1")
        ]
    }
    assert changes(N1, GPU, devices("a", "b"), asks(1, requests=2), USER) == {}


@pytest.mark.parametrize("odd", [
    {"count": 1, "allocationMode": "All"},
    {"count": 2, "constraints": [{"matchAttribute": "d.example.com/model"}]},
], ids=str)  # fmt: skip
def test_no_change_is_known_if_more_free_devices_may_not_help(odd: Any) -> None:
    assert changes(N1, GPU, asks(**odd), USER) == {"DynamicResources": None}


def test_devices_on_other_nodes_are_reported_with_their_node_selector() -> None:
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    result = {"request": "r0", "driver": "d.example.com", "pool": "n2", "device": "a"}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    has = msgspec.structs.replace(asks(1), status=msgspec.convert({"allocation": allocation}, type(asks(1).status)))
    assert changes(N1, N2, GPU, devices("a", on="n2"), has, USER) == {
        "DynamicResources": ["n1 matched disk In (ssd), as the devices of claim g require"]
    }
    assert changes(N1, N2, GPU, devices("a", on="n2"), has, USER, on="n2") == {}


def test_an_extended_resource_of_a_device_class_is_reported_by_name() -> None:
    named = made(DeviceClass, "gpu", spec={"extendedResourceName": "example.com/gpu"})
    wants = pod("p", requests={"example.com/gpu": 2})
    assert changes(N1, named, devices("a"), wants)["DynamicResources"] == [
        "2 devices of class gpu for the resource example.com/gpu were free on n1"
    ]
    assert changes(N1, named, devices("a", "b"), wants) == {}
