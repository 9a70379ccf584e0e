"""The policies about pods: the scheduler's account opens a gate, or reports a pod's status, and changes nothing else.

The first is in deploy/options/coordination.yaml, the second in deploy/fluence.yaml. The account has every right here,
so only the policies can reject a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, ClassVar

import pytest
import yaml

from ..tools.deploying import program
from .harness import DEPLOY, POD_STATUS, ControlPlane
from .webhook_process import until

ACCOUNT = "system:serviceaccount:kube-system:fluence"
POLICY = "fluence-opens-gates"
PREFIX = "fluence.flux-framework.org/"
GATE, OTHER = {"name": "quantum.braket/ready"}, {"name": "example.com/other"}
ANSWERS = {PREFIX + "backend": "qpu", PREFIX + "quantum-job-id": "7", PREFIX + "attr-region": "here"}
PODS = "/api/v1/namespaces/default/pods"
Manifest = dict[str, Any]


class Plane(ControlPlane):
    """Under the policies; the account is a user with every right."""

    USERS: ClassVar[dict[str, str]] = {ACCOUNT: "system:masters"}

    def _prepare(self) -> None:
        for file in ("options/coordination.yaml", "fluence.yaml"):
            for manifest in yaml.safe_load_all((DEPLOY / file).read_text()):
                if manifest["metadata"]["name"] in (POLICY, POD_STATUS):
                    self.create(manifest)
        account = {"name": "default", "namespace": "default"}  # no controller creates it here
        self.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})


def change(plane: ControlPlane, name: str, body: Manifest) -> tuple[int, str]:
    status, answer = plane.request("PATCH", f"{PODS}/{name}", body, user=ACCOUNT)
    return status, answer.get("message", "")


def new_pod(plane: ControlPlane, name: str, *gates: Manifest, **main: Any) -> None:
    """Create a pod with these gates, and fields of its container `main`."""
    container = {"name": "main", "image": "example.com/none"}
    claim = {"name": "c", "resourceClaimTemplateName": "t"}
    spec = {"containers": [container | main], "initContainers": [container | {"name": "first"}],
            "resourceClaims": [claim], "schedulingGates": list(gates),
            "automountServiceAccountToken": False}  # fmt: skip
    metadata = {"name": name, "namespace": "default", "annotations": {PREFIX + "attr-old": "1", "example.com/a": "1"},
                "labels": {"app": "x"}}  # fmt: skip
    plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    plane.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    program("kube-apiserver")  # skip or fail, like other tests with real API servers
    with Plane(tmp_path_factory.mktemp("gates")) as plane:
        new_pod(plane, "probe")
        label = {"metadata": {"labels": {"a": "b"}}}
        probes = ("probe?dryRun=All", "probe/status?dryRun=All")
        until(lambda: all(change(plane, probe, label)[0] == HTTPStatus.FORBIDDEN for probe in probes))
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


# ---------------------------------------------------------------------- pods/status

RUNNING: Manifest = {
    "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "hostIP": "10.1.0.1",
    "startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": True, "restartCount": 0}],
}  # fmt: skip
JOBID, FINALIZER = "scheduler.slinky.slurm.net/slurm-jobid", "scheduler.slinky.slurm.net/finalizer"


def running_pod(plane: ControlPlane) -> None:
    """A pod with a status as a kubelet writes it, and with a finalizer."""
    plane.request("PATCH", f"{PODS}/running", {"metadata": {"finalizers": None}})
    new_pod(plane, "running", resources={"limits": {"example.com/gpu": "1"}})
    body = {"metadata": {"finalizers": ["example.com/f"]}, "status": RUNNING}
    status, answer = plane.request("PATCH", f"{PODS}/running/status", body)
    assert status == HTTPStatus.OK, answer


def test_the_account_reports_conditions_and_a_node_and_writes_annotations_and_the_bridges_marks(
    plane: ControlPlane,
) -> None:
    running_pod(plane)
    conditions = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "False", "reason": "R"},
                  {"type": "DisruptionTarget", "status": "True"}]  # fmt: skip
    mappings = [{"containerName": "main", "resourceName": "example.com/gpu", "requestName": "r"}]
    written = {
        "conditions": conditions,
        "nominatedNodeName": "n1",
        "extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": mappings},
    }
    finalizers = ["example.com/f", FINALIZER]
    metadata = {"annotations": {"example.com/plugin": "1"}, "labels": {JOBID: "7"}, "finalizers": finalizers}
    assert change(plane, "running/status", {"metadata": metadata, "status": written}) == (HTTPStatus.OK, "")
    found = plane.request("GET", f"{PODS}/running")[1]
    assert found["metadata"]["labels"] == {"app": "x", JOBID: "7"}
    assert found["metadata"]["finalizers"] == finalizers
    assert found["status"]["nominatedNodeName"] == "n1"
    without = {"metadata": {"labels": {JOBID: None}, "finalizers": ["example.com/f"]}}
    assert change(plane, "running/status", without) == (HTTPStatus.OK, "")


FORGED: dict[str, Manifest] = {
    "label": {"metadata": {"labels": {"app": "y"}}},
    "new label": {"metadata": {"labels": {"b": "c"}}},
    "no labels": {"metadata": {"labels": None}},
    "no finalizers": {"metadata": {"finalizers": None}},
    "phase": {"status": {"phase": "Failed"}},
    "address": {"status": {"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]}},
    "host": {"status": {"hostIP": "10.1.0.2", "hostIPs": [{"ip": "10.1.0.2"}]}},
    "start": {"status": {"startTime": "2026-01-01T00:00:01Z"}},
    "containers": {"status": {"containerStatuses": [RUNNING["containerStatuses"][0] | {"ready": False}]}},
    "readiness": {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    "claims": {"status": {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "d"}]}},
}


@pytest.mark.parametrize("what", FORGED)
def test_it_changes_nothing_of_a_pods_labels_finalizers_and_what_a_kubelet_reports(
    plane: ControlPlane, what: str
) -> None:
    running_pod(plane)
    status, why = change(plane, "running/status", FORGED[what])
    assert (status, POD_STATUS in why) == (HTTPStatus.FORBIDDEN, True), why
    plain = plane.request("PATCH", f"{PODS}/running/status?dryRun=All", FORGED[what])
    assert plain[0] == HTTPStatus.OK, plain  # the API server itself allows it
