"""The policy of deploy/options/coordination.yaml: the scheduler's account opens a gate and changes nothing else.

The account has every right here, so only the policy can reject a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, ClassVar

import pytest
import yaml

from ..tools.deploying import program
from .harness import DEPLOY, ControlPlane
from .webhook_process import until

ACCOUNT = "system:serviceaccount:kube-system:fluence"
POLICY = "fluence-opens-gates"
PREFIX = "fluence.flux-framework.org/"
GATE, OTHER = {"name": "quantum.braket/ready"}, {"name": "example.com/other"}
ANSWERS = {PREFIX + "backend": "qpu", PREFIX + "quantum-job-id": "7", PREFIX + "attr-region": "here"}
PODS = "/api/v1/namespaces/default/pods"
Manifest = dict[str, Any]


class Plane(ControlPlane):
    """Under the policy; the account is a user with every right."""

    USERS: ClassVar[dict[str, str]] = {ACCOUNT: "system:masters"}

    def _prepare(self) -> None:
        for manifest in yaml.safe_load_all((DEPLOY / "options" / "coordination.yaml").read_text()):
            if manifest["metadata"]["name"] == POLICY:
                self.create(manifest)
        account = {"name": "default", "namespace": "default"}  # no controller creates it here
        self.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})


def change(plane: ControlPlane, name: str, body: Manifest) -> tuple[int, str]:
    status, answer = plane.request("PATCH", f"{PODS}/{name}", body, user=ACCOUNT)
    return status, answer.get("message", "")


def new_pod(plane: ControlPlane, name: str, *gates: Manifest) -> None:
    containers = [{"name": "main", "image": "example.com/none"}]
    spec = {"containers": containers, "initContainers": [containers[0] | {"name": "first"}],
            "schedulingGates": list(gates), "automountServiceAccountToken": False}  # fmt: skip
    metadata = {"name": name, "namespace": "default", "annotations": {PREFIX + "attr-old": "1", "example.com/a": "1"},
                "labels": {"app": "x"}}  # fmt: skip
    plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    program("kube-apiserver")  # skip or fail, like other tests with real API servers
    with Plane(tmp_path_factory.mktemp("gates")) as plane:
        new_pod(plane, "probe")
        until(lambda: change(plane, "probe", {"metadata": {"labels": {"a": "b"}}})[0] == HTTPStatus.FORBIDDEN)
        yield plane


def test_the_account_opens_the_gate_and_writes_the_producers_results(plane: ControlPlane) -> None:
    new_pod(plane, "consumer", GATE, OTHER)
    annotations = ANSWERS | {PREFIX + "attr-old": None}
    body = {"metadata": {"annotations": annotations}, "spec": {"schedulingGates": [OTHER]}}
    assert change(plane, "consumer", body) == (HTTPStatus.OK, "")
    found = plane.request("GET", f"{PODS}/consumer")[1]
    assert found["spec"]["schedulingGates"] == [OTHER]
    assert found["metadata"]["annotations"] == {**ANSWERS, "example.com/a": "1"}


IMAGE = [{"name": "main", "image": "example.com/forged"}]
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
    {"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}}  # fmt: skip
TOLERATIONS = [{"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": 300} for what in ("not-ready", "unreachable")]  # fmt: skip
"""The tolerations that the API server adds to every pod. It allows further ones."""
FORBIDDEN: dict[str, Manifest] = {
    "image": {"spec": {"containers": IMAGE}},
    "init image": {"spec": {"initContainers": [IMAGE[0] | {"name": "first"}]}},
    "toleration": {"spec": {"tolerations": [*TOLERATIONS, {"key": "forged", "operator": "Exists"}]}},
    "node selector": {"spec": {"nodeSelector": {"a": "b"}}},
    "affinity": {"spec": {"affinity": AFFINITY}},
    "deadline": {"spec": {"activeDeadlineSeconds": 1}},
    "label": {"metadata": {"labels": {"app": "y"}}},
    "no labels": {"metadata": {"labels": None}},
    "finalizer": {"metadata": {"finalizers": ["example.com/f"]}},
    "owner": {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}},
    "annotation": {"metadata": {"annotations": {"example.com/b": "1"}}},
    "own annotation": {"metadata": {"annotations": {PREFIX + "gpu": "1"}}},
    "changed annotation": {"metadata": {"annotations": {"example.com/a": "2"}}},
    "no annotation": {"metadata": {"annotations": {"example.com/a": None}}},
    "other gate": {"spec": {"schedulingGates": None}},
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_it_changes_nothing_else_with_the_gate_or_without(plane: ControlPlane, what: str) -> None:
    new_pod(plane, "consumer", GATE, OTHER)
    body = FORBIDDEN[what]
    opening = {**body, "spec": {"schedulingGates": [OTHER], **body.get("spec", {})}}
    for asked in (body, opening) if what != "other gate" else (body,):
        status, why = change(plane, "consumer", asked)
        assert (status, POLICY in why) == (HTTPStatus.FORBIDDEN, True), (asked, why)
    plain = plane.request("PATCH", f"{PODS}/consumer?dryRun=All", opening)
    assert plain[0] == HTTPStatus.OK, plain  # the API server itself allows it


@pytest.mark.parametrize("gates", [(), (OTHER,)], ids=["none", "other"])
def test_it_changes_no_pod_without_its_gate(plane: ControlPlane, gates: tuple[Manifest, ...]) -> None:
    new_pod(plane, "ordinary", *gates)
    for body in ({"metadata": {"annotations": ANSWERS}}, {"spec": {"schedulingGates": None}}):
        status, why = change(plane, "ordinary", body)
        assert (status, POLICY in why) == (HTTPStatus.FORBIDDEN, True), (body, why)
