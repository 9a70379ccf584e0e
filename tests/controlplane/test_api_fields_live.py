"""The table of fields that strict manifests may have, compared with the API server that it was generated from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest

from session_scheduler.cluster.api_fields import FILE, api_fields

from ..tools.api_fields import generated
from .harness import ControlPlane

TABLE = json.loads(FILE.read_text())
PLURALS = {"PriorityClass": "priorityclasses", "StorageClass": "storageclasses", "DeviceClass": "deviceclasses",
           "CSIStorageCapacity": "csistoragecapacities"}  # fmt: skip
CLUSTER_SCOPED = {"Node", "PriorityClass", "Namespace", "PersistentVolume", "StorageClass", "CSINode", "CSIDriver",
                  "VolumeAttachment", "ResourceSlice", "DeviceClass", "DeviceTaintRule"}  # fmt: skip
VALUES = ("text", "7", 7, 1.5, 2**31, 2**63, True, [], {}, ["text"], [7], {"x": "text"}, {"x": 7})
SHAPES = ("text", 7, [], {}, ["text"])
"""Values for fields of a type with fields of its own."""
PER_TYPE = 3
"""How many fields of each other type are tried."""
Path = tuple[str, ...]


def fields() -> Iterator[tuple[str, str, Path, str]]:
    """(apiVersion, kind, path, type) of every field, once each. A step of a path is a key, "[]" or "{}"."""
    seen = set()
    for api_version, kinds in TABLE["kinds"].items():
        for kind, type_ in kinds.items():
            if "." not in type_:  # not read, or a custom resource of deploy/
                continue
            waiting: list[tuple[str, Path]] = [(type_, ())]
            while waiting:
                name, path = waiting.pop(0)
                if name in seen:
                    continue
                seen.add(name)
                for field, inner in TABLE["types"][name].items():
                    yield api_version, kind, (*path, field), inner
                    step = (*path, field)
                    while inner[:2] in ("[]", "{}"):
                        step, inner = (*step, inner[:2]), inner[2:]
                    if inner in TABLE["types"]:
                        waiting.append((inner, step))


def tried() -> Iterator[tuple[str, str, Path, Any]]:
    """(apiVersion, kind, path, value): some fields of each type. The request's path depends on the others."""
    counts: Counter[str] = Counter()
    for api_version, kind, path, type_ in fields():
        if path in (("apiVersion",), ("kind",), ("metadata", "namespace")):
            continue
        counts[type_] += 1
        has_fields = type_.replace("[]", "").replace("{}", "") in TABLE["types"]
        if counts[type_] <= (1 if has_fields else PER_TYPE):
            for value in SHAPES if has_fields else VALUES:
                yield api_version, kind, path, value


def manifest(api_version: str, kind: str, path: Path, value: Any) -> dict[str, Any]:
    for step in reversed(path):
        value = [value] if step == "[]" else {"x": value} if step == "{}" else {step: value}
    found = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, **value}
    if path[0] == "metadata" and len(path) > 1:
        found["metadata"] = {"name": "x", **found["metadata"]}
    return found


def rejected(plane: ControlPlane, obj: dict[str, Any]) -> bool:
    """Whether the API server cannot decode an object."""
    api_version, kind = obj["apiVersion"], obj["kind"]
    group = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    namespace = "" if kind in CLUSTER_SCOPED else "/namespaces/default"
    status, answer = plane.request("POST", f"{group}{namespace}/{plural}?fieldValidation=Strict&dryRun=All", obj)
    assert status != HTTPStatus.NOT_FOUND, (obj, answer)
    return status == HTTPStatus.BAD_REQUEST


def test_the_table_is_what_this_api_server_and_deploy_describe(control_plane: ControlPlane) -> None:
    assert generated(control_plane) == FILE.read_text(), "run `python -m tests.tools.api_fields`"


def test_the_api_server_rejects_the_same_types(control_plane: ControlPlane) -> None:
    differ = []
    for api_version, kind, path, value in tried():
        obj = manifest(api_version, kind, path, value)
        problems = list(api_fields().problems(api_version, kind, obj))
        if bool(problems) is not rejected(control_plane, obj):
            differ.append((kind, ".".join(path), value, problems))
    assert differ == []


@pytest.mark.parametrize("path", [("spec", "nodeselector"), ("spec", "containers", "[]", "resources", "request"),
                                  ("metadata", "labes"), ("nodeSelector",), ("status", "phases")])  # fmt: skip
def test_the_api_server_rejects_the_same_unknown_fields(control_plane: ControlPlane, path: Path) -> None:
    obj = manifest("v1", "Pod", path, {})
    assert rejected(control_plane, obj)
    assert list(api_fields().problems("v1", "Pod", obj))
