"""The policy that docs/how-to/share-by-queues.md shows: pods name only the queue of their namespace."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
import yaml

from ..tools.deploying import program
from ..tools.doc_commands import ROOT, blocks
from .harness import ControlPlane
from .webhook_process import until

PAGE = "docs/how-to/share-by-queues.md"
LABEL = "fluence.flux-framework.org/queue"
POLICY = [
    manifest
    for block in blocks((ROOT / PAGE).read_text())
    if any("ValidatingAdmissionPolicy" in line for line in block.lines)
    for manifest in yaml.safe_load_all("\n".join(block.lines))
]


def create(plane: ControlPlane, namespace: str, queue: str | None, name: str = "dry", dry: str = "?dryRun=All") -> int:
    metadata: dict[str, Any] = {"name": name, "labels": {LABEL: queue} if queue else {}}
    spec = {"containers": [{"name": "main", "image": "example.com/none"}], "automountServiceAccountToken": False}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return plane.request("POST", f"/api/v1/namespaces/{namespace}/pods{dry}", pod)[0]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    program("kube-apiserver")  # skip or fail, like other tests with real API servers
    with ControlPlane(tmp_path_factory.mktemp("queues")) as plane:
        for name, labels in (("lab", {LABEL: "physics"}), ("other", {})):
            plane.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
            account = {"name": "default", "namespace": name}  # no controller creates it here
            plane.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        assert create(plane, "other", "biology", "old", dry="") == HTTPStatus.CREATED
        for manifest in POLICY:
            plane.create(manifest)
        until(lambda: create(plane, "lab", "biology") >= HTTPStatus.BAD_REQUEST)
        yield plane


@pytest.mark.parametrize(("namespace", "queue", "allowed"), [
    ("lab", "physics", True), ("lab", None, True), ("lab", "biology", False), ("other", None, True),
    ("other", "physics", False),
])  # fmt: skip
def test_a_pod_names_only_the_queue_of_its_namespace(
    plane: ControlPlane, namespace: str, queue: str | None, *, allowed: bool
) -> None:
    assert (create(plane, namespace, queue) == HTTPStatus.CREATED) is allowed


def test_a_pod_that_exists_keeps_its_queue_and_gets_no_other(plane: ControlPlane) -> None:
    path = "/api/v1/namespaces/other/pods/old"
    status, answer = plane.request("PATCH", path, {"metadata": {"labels": {LABEL: "chemistry"}}})
    assert (status, "expected no queue" in answer["message"]) == (HTTPStatus.UNPROCESSABLE_ENTITY, True)
    for labels in ({"app": "x"}, {LABEL: None}):
        assert plane.request("PATCH", path, {"metadata": {"labels": labels}})[0] == HTTPStatus.OK
