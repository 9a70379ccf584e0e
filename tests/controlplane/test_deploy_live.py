"""deploy/ on a real API server, applied with kubectl and helm."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from ..tools.deploying import (
    CHART,
    DEPLOY,
    NAMESPACE,
    RESOURCES,
    Manifest,
    chart,
    hooks,
    key,
    manifests,
    objects,
    program,
    the,
)
from .harness import ADMIN, ControlPlane

FLAT = ("queues.yaml", "fluence.yaml", "fluence-resources.yaml", "device-plugin.yaml", "options/annotations.yaml",
        "options/coordination.yaml", "options/fencing.yaml", "options/master-queue.yaml", "options/monitoring.yaml",
        "options/slurm-bridge.yaml", "options/gpu-device-plugin.yaml", "options/reserved-gpus.yaml",
        "options/numa.yaml", "options/dashboard.yaml")  # fmt: skip
EVERYTHING = (
    "--set-file",
    f"resourcesFile={RESOURCES}",
    "--set",
    "coordination.enabled=true,fencing.enabled=true,masterQueue.enabled=true,monitoring.enabled=true,"
    "slurmBridge.enabled=true,reservedGpus.enabled=true,numa.enabled=true,dashboard.enabled=true",
)
DEFINITIONS = Path(__file__).parent / "monitoring_definitions.yaml"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/fluence-webhook"
SECONDS = 90.0
ENFORCE = "pod-security.kubernetes.io/enforce"


class BarePlane(ControlPlane):
    """A control plane without objects of deploy/."""

    def _prepare(self) -> None:
        """Nothing."""


class Shell:
    """An administrator's command line."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane = plane
        self._folder = folder

    def kubectl(self, *arguments: str | Path, text: str | None = None) -> str:
        """Run kubectl, which must succeed; return its output."""
        return self._run("kubectl", "--cache-dir", self._folder / "kubectl", *arguments, text=text)

    def helm(self, *arguments: str | Path) -> str:
        """Run helm, which must succeed; return its output."""
        return self._run("helm", *arguments, "--namespace", NAMESPACE)

    def _run(self, name: str, *arguments: str | Path, text: str | None = None) -> str:
        command = [program(name), "--kubeconfig", self.plane.kubeconfig(ADMIN), *arguments]
        folders = {f"HELM_{each}_HOME": str(self._folder / each) for each in ("CACHE", "CONFIG", "DATA")}
        folders["HOME"] = str(self._folder)  # helm's cache would be in the working directory
        ended = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               timeout=SECONDS, check=False, env=folders)  # fmt: skip
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    def versions(self, text: str) -> dict[str, str]:
        """Return the resourceVersions of these objects, by kind, namespace and name; all must exist."""
        listed = json.loads(self.kubectl("get", "-f", "-", "-o", "json", text=text))
        found = listed["items"] if listed["kind"] == "List" else [listed]
        return {key(each): each["metadata"]["resourceVersion"] for each in found}

    def apply_twice(self, text: str) -> dict[str, str]:
        """Apply objects on the server twice: the second time must change none. Unknown fields are an error."""
        self.kubectl("apply", "--server-side", "-f", "-", text=text)
        for definition in (each for each in objects(text) if each["kind"] == "CustomResourceDefinition"):
            wait_established(self.plane, definition)  # the API server writes its status
        first = self.versions(text)
        self.kubectl("apply", "--server-side", "-f", "-", text=text)
        assert self.versions(text) == first
        return first


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    program("kube-apiserver")  # skip or fail, like other tests with real API servers
    with BarePlane(tmp_path_factory.mktemp("deploy")) as plane:
        for definition in yaml.safe_load_all(DEFINITIONS.read_text()):
            plane.create(definition)
            wait_established(plane, definition)
        yield plane


def wait_established(plane: ControlPlane, definition: Manifest) -> None:
    """Wait until the API server serves a CustomResourceDefinition."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
    plane.wait_for(path, established)


def established(definition: Manifest) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@pytest.fixture
def shell(plane: ControlPlane, tmp_path: Path) -> Shell:
    return Shell(plane, tmp_path)


# ---------------------------------------------------------------------- the flat files


@pytest.mark.parametrize("name", FLAT)
def test_a_flat_file_is_applied_on_the_server_and_changes_nothing_the_second_time(shell: Shell, name: str) -> None:
    text = (DEPLOY / name).read_text()
    assert shell.apply_twice(text).keys() == {key(each) for each in manifests(name)}


@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything"])
def test_what_the_chart_makes_is_applied_on_the_server_too(shell: Shell, values: tuple[str, ...]) -> None:
    made = chart(*values, namespace="default")
    for each in made:  # cluster-scoped objects are the same as in the flat files
        only = "namespace" in each["metadata"] or each["kind"] == "CustomResourceDefinition"  # its name is fixed
        each["metadata"]["name"] += "" if only else "-of-the-chart"
    assert shell.apply_twice(yaml.safe_dump_all(made)).keys() == {key(each) for each in made}


def test_the_commands_of_the_document_end_well_as_often_as_they_are_given(shell: Shell) -> None:
    for _ in range(2):
        for name in ("queues.yaml", "fluence.yaml", "fluence-resources.yaml", "device-plugin.yaml"):
            shell.kubectl("apply", "-f", DEPLOY / name)
    for name in ("fluence", "fluence-webhook"):
        shell.kubectl("rollout", "restart", f"deployment/{name}", "-n", "kube-system")


def test_what_the_webhook_writes_into_its_configuration_stays_when_that_is_applied_again(shell: Shell) -> None:
    text = (DEPLOY / "fluence.yaml").read_text()
    shell.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=text)
    found = shell.plane.request("GET", CONFIGURATION)[1]["webhooks"]
    for webhook in found:
        webhook["clientConfig"]["caBundle"] = bundle(shell)
    assert shell.plane.request("PATCH", CONFIGURATION, {"webhooks": found})[0] == HTTPStatus.OK
    for how in (["--server-side"], []):
        shell.kubectl("apply", *how, "-f", "-", text=text)
        webhooks = shell.plane.request("GET", CONFIGURATION)[1]["webhooks"]
        assert [each["clientConfig"]["caBundle"] for each in webhooks] == [bundle(shell)] * 3, how


def bundle(shell: Shell) -> str:
    """Return a certificate in the format of the field."""
    config = json.loads(shell.kubectl("config", "view", "--flatten", "--raw", "-o", "json"))
    return str(config["clusters"][0]["cluster"]["certificate-authority-data"])


def test_the_records_are_protected_by_what_everybody_applies(shell: Shell) -> None:
    shell.kubectl("apply", "--server-side", "--force-conflicts", "-f", DEPLOY / "fluence.yaml")
    namespace = shell.plane.new_namespace()
    forged = pod("forger", {"containers": [{"name": "main", "image": "example.com/none"}]})
    forged["metadata"]["annotations"] = {"fluence.flux-framework.org/held": "{}"}
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"

    def refused(answer: Any) -> bool:
        return bool(answer.get("code") == HTTPStatus.FORBIDDEN)

    wait_post(shell.plane, path, forged, refused)
    _, answer = shell.plane.request("POST", path, forged)
    assert "only fluence writes these annotations: fluence.flux-framework.org/held" in answer["message"]


def wait_post(plane: ControlPlane, path: str, body: Manifest, accepted: Any) -> None:
    """Retry a request until its response has this status: the API server knows its policies a moment later."""
    plane.wait_for("/version", lambda _: accepted(plane.request("POST", path, body)[1]))


def test_the_commands_that_uninstall_keep_all_queues(shell: Shell) -> None:
    page = (DEPLOY.parent / "docs/how-to/deploy.md").read_text().partition("\n## Uninstall\n")[2]
    commands = re.findall(r"^\$ kubectl (.*?)(?: +#.*)?$", page.partition("\n## ")[0], re.MULTILINE)
    assert "delete -f deploy/fluence.yaml" in commands
    for name in ("queues.yaml", "fluence.yaml", "fluence-resources.yaml", "device-plugin.yaml"):
        shell.kubectl("apply", "--server-side", "--force-conflicts", "-f", DEPLOY / name)
    queue = {"apiVersion": "fluence.flux-framework.org/v1alpha1", "kind": "Queue", "metadata": {"name": "kept"}}
    shell.kubectl("apply", "-f", "-", text=yaml.safe_dump(queue))
    for command in commands:
        shell.kubectl(*(str(DEPLOY.parent / word) if word.startswith("deploy/") else word for word in command.split()))
    assert shell.kubectl("get", "deployment/fluence", "-n", NAMESPACE, "--ignore-not-found") == ""
    assert shell.kubectl("get", "queues", "-o", "name").split() == ["queue.fluence.flux-framework.org/kept"]
    shell.kubectl("delete", "-f", DEPLOY / "queues.yaml")


# ---------------------------------------------------------------------- pod security


def pod(name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def admitted(plane: ControlPlane, level: str, spec: Manifest) -> tuple[int, str]:
    """Return the response of a namespace with this level of pod security to such a pod."""
    namespace = f"{level}-{uuid4().hex}"  # created with the label: admission reads it from a cache
    plane.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {ENFORCE: level}}})
    account = {"name": spec["serviceAccountName"], "namespace": namespace}
    plane.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict"
    status, answer = plane.request("POST", path, pod("one", spec))
    return status, answer.get("message", "")


@pytest.mark.parametrize("name", ["fluence", "fluence-webhook"])
def test_the_deployments_pods_are_taken_where_pods_are_restricted(plane: ControlPlane, name: str) -> None:
    spec = the("Deployment", called=name)["spec"]["template"]["spec"]
    assert admitted(plane, "restricted", spec) == (HTTPStatus.CREATED, "")


def test_the_pod_of_helm_test_is_taken_where_pods_are_restricted(plane: ControlPlane) -> None:
    *_, pod_of_test = hooks()
    spec = {**pod_of_test["spec"], "serviceAccountName": "tester"}
    assert admitted(plane, "restricted", spec) == (HTTPStatus.CREATED, "")


def test_only_the_kubelets_folder_and_its_owner_keep_the_device_plugin_from_being_restricted(
    plane: ControlPlane,
) -> None:
    spec = the("DaemonSet", "device-plugin.yaml")["spec"]["template"]["spec"]
    status, why = admitted(plane, "baseline", spec)
    assert status == HTTPStatus.FORBIDDEN
    assert why.endswith('violates PodSecurity "baseline:latest": hostPath volumes (volume "device-plugins")')
    spec["volumes"] = [each for each in spec["volumes"] if "hostPath" not in each] + [
        {"name": "device-plugins", "emptyDir": {}}
    ]
    assert admitted(plane, "baseline", spec) == (HTTPStatus.CREATED, "")
    _, why = admitted(plane, "restricted", spec)
    assert why.partition('"restricted:latest": ')[2] == (
        'runAsNonRoot != true (pod or container "device-plugin" must set securityContext.runAsNonRoot=true), '
        "runAsUser=0 (pod must not set runAsUser=0)"
    )


# ---------------------------------------------------------------------- helm


def creation(plane: ControlPlane, spec: Manifest) -> tuple[int, str]:
    """Create a pod as a dry run, with all admission; return the response."""
    path = "/api/v1/namespaces/kube-system/pods?dryRun=All"
    status, answer = plane.request("POST", path, pod("one", spec))
    return status, answer.get("message", "")


def test_a_webhook_that_must_answer_and_does_not_hinders_our_schedulers_pods_alone(shell: Shell) -> None:
    plane = shell.plane
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE}}
    shell.kubectl("apply", "-f", "-", text=yaml.safe_dump(account))  # no controller creates it here
    strict = ("--set", "webhook.failurePolicy=Fail,webhook.timeoutSeconds=1")
    shell.helm("install", "fluence", CHART, "--take-ownership", *strict)
    ours = {"schedulerName": "fluence", "containers": [{"name": "main", "image": "example.com/none"}]}
    plane.wait_for("/version", lambda _: creation(plane, ours)[0] != HTTPStatus.CREATED)
    assert 'failed calling webhook "fluxion.fluence.flux-framework.org"' in creation(plane, ours)[1]
    assert creation(plane, ours | {"schedulerName": "default-scheduler"}) == (HTTPStatus.CREATED, "")
    for name in ("fluence", "fluence-webhook"):
        spec = the("Deployment", called=name)["spec"]["template"]["spec"]
        assert creation(plane, spec) == (HTTPStatus.CREATED, "")
    shell.helm("uninstall", "fluence")


def test_helm_test_reports_the_end_of_its_pod_and_deletes_what_it_made(shell: Shell) -> None:
    """No node runs the pod, so the test reports its end."""
    plane = shell.plane
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE}}
    shell.kubectl("apply", "-f", "-", text=yaml.safe_dump(account))  # no controller creates it here
    off = ("--set", "webhook.enabled=false,policies.enabled=false")
    shell.helm("install", "fluence", CHART, "--take-ownership", "--wait=false", *off)
    service, asking = (f"/api/v1/namespaces/{NAMESPACE}/{kind}/fluence-test" for kind in ("services", "pods"))
    with ThreadPoolExecutor(1) as executor:
        testing = executor.submit(shell.helm, "test", "fluence", "--timeout", "60s")
        plane.wait_for(asking, lambda found: found["kind"] == "Pod")
        assert plane.request("GET", service)[0] == HTTPStatus.OK
        assert plane.request("PATCH", f"{asking}/status", {"status": {"phase": "Succeeded"}})[0] == HTTPStatus.OK
        assert re.search(r"TEST SUITE: +fluence-test\n(?:.*\n)+?Phase: +Succeeded", testing.result())
    plane.wait_for(service, lambda found: found.get("code") == HTTPStatus.NOT_FOUND)
    shell.helm("uninstall", "fluence")


def test_the_chart_is_installed_upgraded_and_taken_away_by_helm(shell: Shell) -> None:
    own = ("--take-ownership", "--wait=false")
    notes = shell.helm("install", "fluence", CHART, *own, "--set", "webhook.failurePolicy=Fail")
    assert "rollout status deployment/fluence-webhook" in notes
    assert "The API server rejects pods for fluence while no replica of the webhook answers" in notes
    assert "the Secret fluence-webhook-tls" in notes
    notes = shell.helm("upgrade", "fluence", CHART, *own, *EVERYTHING)
    assert "places pods with schedulerName: slurm-bridge-scheduler" in notes
    made = chart(*EVERYTHING)
    assert shell.versions(yaml.safe_dump_all(made)).keys() == {key(each) for each in made}
    webhooks = shell.plane.request("GET", CONFIGURATION)[1]["webhooks"]
    assert [each["failurePolicy"] for each in webhooks] == ["Fail", "Fail", "Ignore", "Fail", "Fail"]
    queue = {"apiVersion": "fluence.flux-framework.org/v1alpha1", "kind": "Queue", "metadata": {"name": "team"}}
    shell.kubectl("apply", "-f", "-", text=yaml.safe_dump(queue))
    shell.helm("uninstall", "fluence")
    left = shell.kubectl("get", "--ignore-not-found", "-o", "name", "-f", "-", text=yaml.safe_dump_all(made))
    kinds = ("masterqueues.vk.io", "queues.fluence.flux-framework.org")
    assert sorted(left.split()) == [f"customresourcedefinition.apiextensions.k8s.io/{kind}" for kind in kinds]
    shell.helm("install", "fluence", CHART, "--wait=false", *EVERYTHING)
    shell.helm("uninstall", "fluence")
    assert shell.kubectl("get", "queues", "-o", "name").split() == ["queue.fluence.flux-framework.org/team"]
    shell.kubectl("delete", "crd", *kinds)
