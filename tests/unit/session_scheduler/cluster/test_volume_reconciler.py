"""Claims and volumes of manifests, as the API server and the volume controllers would leave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from session_scheduler.cli import main
from session_scheduler.cluster.manifests import load_manifests
from session_scheduler.model.storage import PersistentVolume, PersistentVolumeClaim

DEFAULT = "storageclass.kubernetes.io/is-default-class"
SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "status": {"allocatable": {"cpu": 4, "memory": "8Gi", "pods": 10}}}  # fmt: skip


def storage_class(name: str, mode: str = "Immediate", *, default: bool = False, provisioner: str = "x.io/disk",
                  created: str = "") -> dict[str, Any]:  # fmt: skip
    metadata = {"name": name, "annotations": {DEFAULT: str(default).lower()}}
    if created:
        metadata["creationTimestamp"] = created
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata,
            "provisioner": provisioner, "volumeBindingMode": mode}  # fmt: skip


def claim(name: str = "data", metadata: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, **(metadata or {})},
            "spec": {**SPEC, **spec}}  # fmt: skip


def volume(name: str, size: str = "5Gi", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"},
                     **spec}}  # fmt: skip


def pod(claim_name: str = "data") -> dict[str, Any]:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim_name}}]
    spec = {"schedulerName": "fluence", "containers": [{"name": "c", "image": "i"}], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def stateful_set(*, replicas: int = 1, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "db"}},
                "spec": {"schedulerName": "fluence", "containers": [{"name": "c", "image": "i"}]}}  # fmt: skip
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "db"}}, "template": template,
                     "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": SPEC}], **spec}}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "m.json"


def written(file: Path, *items: dict[str, Any]) -> str:
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(file)


def storage(file: Path, *items: dict[str, Any]) -> tuple[dict[str, str | None], dict[str, tuple[str, str]]]:
    """The StorageClass of each claim; and the phase and claim of each volume."""
    found = load_manifests([written(file, *items)]).storage
    claims = {one.metadata.name: one.spec.storage_class_name for one in found if isinstance(one, PersistentVolumeClaim)}
    volumes = {one.metadata.name: (one.status.phase, one.spec.claim_ref.name if one.spec.claim_ref else "")
               for one in found if isinstance(one, PersistentVolume)}  # fmt: skip
    return claims, volumes


def reasons(file: Path, capsys: pytest.CaptureFixture[str], *items: dict[str, Any]) -> list[str | None]:
    """Why each pod was not placed, without what preemption adds."""
    assert main(["simulate", written(file, NODE, *items), "-o", "json"]) in (0, 1)
    pods = json.loads(capsys.readouterr().out)["pods"]
    return [one["reason"] and one["reason"].partition(" preemption:")[0] for one in pods]


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([claim()], UNBOUND),
        ([claim(), storage_class("other")], UNBOUND),
        ([claim(storageClassName=""), storage_class("std", default=True)], UNBOUND),
        ([claim(storageClassName="missing")], UNBOUND),
        ([claim(storageClassName="l"), storage_class("l", provisioner="kubernetes.io/no-provisioner")], UNBOUND),
        ([claim(), volume("small", "500Mi")], UNBOUND),
        ([claim(), volume("other", storageClassName="other")], UNBOUND),
        ([claim(), volume("taken", claimRef={"namespace": "default", "name": "theirs"})], UNBOUND),
        ([claim(volumeName="missing"), volume("v")], UNBOUND),
        ([claim(), storage_class("std", default=True)], None),
        ([claim(), storage_class("std", "WaitForFirstConsumer", default=True)], None),
        ([claim(storageClassName="std"), storage_class("std")], None),
        ([claim(), volume("v")], None),
        ([claim(), volume("v", claimRef={"namespace": "default", "name": "data"})], None),
        ([claim(volumeName="v"), volume("v")], None),
    ],
)  # fmt: skip
def test_a_pod_waits_for_a_claim_without_class_and_volume_in_kube_schedulers_words(
    file: Path, capsys: pytest.CaptureFixture[str], items: list[dict[str, Any]], reason: str | None
) -> None:
    assert reasons(file, capsys, *items, pod()) == [reason]


def test_the_claims_of_a_stateful_set_are_created(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reasons(file, capsys, stateful_set(replicas=2)) == [UNBOUND, UNBOUND]
    assert reasons(file, capsys, stateful_set(replicas=2), storage_class("std", default=True)) == [None, None]
    assert reasons(file, capsys, stateful_set(replicas=2), volume("v")) == [None, UNBOUND]
    loaded = load_manifests([written(file, claim("data-db-1", volumeName="mine"), stateful_set(replicas=2))])
    claims = {one.key: one.spec.volume_name for one in loaded.storage}  # type: ignore[union-attr]
    assert claims == {"default/data-db-0": "", "default/data-db-1": "mine"}
    assert [volumes[0] for volumes in (one.spec.volumes for one in loaded.pods)] == [
        {"name": "data", "persistentVolumeClaim": {"claimName": f"data-db-{index}"}} for index in range(2)
    ]


def test_a_claim_template_replaces_the_volume_of_its_name(file: Path) -> None:
    found = stateful_set()
    found["spec"]["template"]["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}, {"name": "data", "emptyDir": {}}]
    (one,) = load_manifests([written(file, found)]).pods
    assert one.spec.volumes == (
        {"name": "tmp", "emptyDir": {}}, {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}},
    )  # fmt: skip


def test_the_default_class_is_the_newest_one_then_the_first_by_name(file: Path) -> None:
    old, new = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
    classes = [storage_class(name, default=True, created=time) for name, time in (("a", old), ("c", new), ("b", new))]
    given = claim("given", storageClassName="x")
    noted = claim("noted", {"annotations": {"volume.beta.kubernetes.io/storage-class": "y"}})  # type: ignore[dict-item]
    assert storage(file, *classes, claim(), given, noted)[0] == {"data": "b", "given": "x", "noted": None}


def test_a_claim_gets_the_smallest_volume_that_matches_and_each_volume_has_one_claim(file: Path) -> None:
    volumes = storage(file, volume("v9", "9Gi"), volume("v3", "3Gi"), volume("v2", "2Gi"), claim("a"), claim("b"))[1]
    assert volumes == {"v2": ("Bound", "a"), "v3": ("Bound", "b"), "v9": ("Available", "")}


def test_objects_of_a_cluster_stay_as_its_controllers_left_them(file: Path) -> None:
    theirs = claim("theirs", {"uid": "u"})
    mine = volume("mine") | {"metadata": {"name": "mine", "uid": "w"}, "status": {"phase": "Released"}}
    claims, volumes = storage(file, theirs, claim("new"), mine, storage_class("std", default=True))
    assert claims == {"theirs": None, "new": "std"}
    assert [key for key, (phase, owner) in volumes.items() if owner == "new"] == [
        key for key in volumes if key.startswith("pvc-")
    ]
    assert volumes["mine"] == ("Released", "")


def test_a_snapshot_of_manifests_gives_the_same_decisions(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [NODE, stateful_set(replicas=2), volume("v"), claim(), pod(), storage_class("std")]
    assert main(["simulate", written(file, *items), "-o", "json"]) == 1
    shown = capsys.readouterr().out
    assert main(["snapshot", str(file), "-o", str(tmp_path / "s.json")]) == 0
    assert main(["simulate", str(tmp_path / "s.json"), "-o", "json"]) == 1
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("spec", [{"resources": {"requests": {"storage": "1 GiB"}}},
                                  {"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}])  # fmt: skip
def test_a_claim_that_cannot_be_matched_stays_unbound(
    file: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any]
) -> None:
    assert main(["simulate", written(file, NODE, claim(**spec), volume("v"), pod()), "--validate", "ignore"]) == 1
    assert "unbound immediate" in capsys.readouterr().out
