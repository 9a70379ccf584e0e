"""The released chart: its image, its metadata on Artifact Hub, its package, and `helm test`."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from ...tools.deploying import CHART, DEPLOY, IMAGE, VERSION, Manifest, chart, hooks, manifests, said

pytestmark = pytest.mark.programs

META = yaml.safe_load((CHART / "Chart.yaml").read_text())
REPOSITORY = IMAGE.partition(":")[0]


def images(made: list[Manifest]) -> set[str]:
    """The images of Deployments, DaemonSets and pods."""
    found = (each["spec"].get("template", each)["spec"] for each in made if "spec" in each)
    return {container["image"] for spec in found for container in spec.get("containers", ())}


@pytest.mark.parametrize(("values", "expected"), [
    ([], IMAGE),
    (["image.tag=1.2.3-rc.1"], f"{REPOSITORY}:1.2.3-rc.1"),
    ([f"image.digest=sha256:{'a' * 64}"], f"{REPOSITORY}@sha256:{'a' * 64}"),
])  # fmt: skip
def test_the_image_is_that_of_the_app_version_unless_values_name_another(values: list[str], expected: str) -> None:
    options = ["--set", "masterQueue.enabled=true", *(word for value in values for word in ("--set", value))]
    assert images(chart(*options)) == {expected}
    assert images(hooks(*options)) == {expected}


def test_no_manifest_runs_an_image_with_a_moving_tag() -> None:
    for path in DEPLOY.rglob("*.yaml"):
        assert "fluence:latest" not in path.read_text(), path


def test_artifact_hub_gets_the_image_the_kinds_and_an_existing_icon() -> None:
    notes = META["annotations"]
    assert [each["image"] for each in yaml.safe_load(notes["artifacthub.io/images"])] == [IMAGE]
    kinds = {each["metadata"]["name"]: each["spec"] for each in chart("--set", "masterQueue.enabled=true")
             if each["kind"] == "CustomResourceDefinition"}  # fmt: skip
    listed = {each["name"]: each for each in yaml.safe_load(notes["artifacthub.io/crds"])}
    assert listed.keys() == kinds.keys()
    for name, spec in kinds.items():
        assert (listed[name]["kind"], listed[name]["version"]) == (spec["names"]["kind"], spec["versions"][0]["name"])
    addresses = [META["icon"], *(each["url"] for each in yaml.safe_load(notes["artifacthub.io/links"]))]
    files = [found[1] for found in (re.search(r"/main/(.+)$", address) for address in addresses) if found]
    assert len(files) == 3
    assert all((DEPLOY.parent / file).is_file() for file in files)


def test_the_package_has_only_the_files_of_the_chart(tmp_path: Path) -> None:
    said("helm", "package", CHART, "--destination", tmp_path)
    with tarfile.open(tmp_path / f"fluence-{VERSION}.tgz") as package:
        names = {Path(name).relative_to("fluence").as_posix() for name in package.getnames()}
    assert {name.partition("/")[0] for name in names} == {
        "Chart.yaml", "values.yaml", "values.schema.json", ".helmignore", "templates", "files"}  # fmt: skip
    assert "templates/tests/readyz.yaml" in names
    assert said("helm", "lint", "--strict", tmp_path / f"fluence-{VERSION}.tgz")


# ------------------------------------------------------------------ helm test


def asking_pod(*options: str, namespace: str = "kube-system") -> tuple[Manifest, Manifest]:
    """The Service and the pod of `helm test`."""
    service, pod = hooks(*options, namespace=namespace)
    return service, pod


def test_helm_test_requests_readyz_through_a_service_of_the_scheduler() -> None:
    service, pod = asking_pod(namespace="elsewhere")
    (scheduler,) = [each for each in manifests("fluence.yaml")
                    if each["kind"] == "Deployment" and each["metadata"]["name"] == "fluence"]  # fmt: skip
    assert service["spec"]["selector"] == scheduler["spec"]["selector"]["matchLabels"]
    (port,) = service["spec"]["ports"]
    (container,) = scheduler["spec"]["template"]["spec"]["containers"]
    assert port["targetPort"] in [each["name"] for each in container["ports"]]
    (asks,) = pod["spec"]["containers"]
    assert asks["args"][-1] == f"http://{service['metadata']['name']}.elsewhere.svc:{port['port']}/readyz"
    assert asks["args"][-1].endswith(container["readinessProbe"]["httpGet"]["path"])


def test_helm_test_recreates_both_and_deletes_them_on_success() -> None:
    weights = []
    for each in asking_pod():
        annotations = each["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
        weights.append(int(annotations["helm.sh/hook-weight"]))
    assert weights == sorted(set(weights))  # the Service first


def test_the_tested_scheduler_places_the_pod_of_helm_test() -> None:
    _, pod = asking_pod("--set", "schedulerNames={batch,fluence},imagePullSecrets[0].name=key")
    assert pod["spec"]["schedulerName"] == "batch"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "key"}]
    assert "priorityClassName" not in pod["spec"]


class Ready(BaseHTTPRequestHandler):
    """Answers first as a replica that is not ready, then as a ready one."""

    statuses: Iterator[int]

    def do_GET(self) -> None:
        status = next(self.statuses)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"ok\n" if status == 200 else f"{self.path} check failed\n".encode())

    def log_message(self, *arguments: object) -> None:
        """Logs nothing."""


def test_the_pod_of_helm_test_waits_until_a_replica_is_ready() -> None:
    Ready.statuses = iter([503, 200])
    (container,) = asking_pod()[1]["spec"]["containers"]
    script = container["args"][0]
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/readyz"
        done = subprocess.run(
            [sys.executable, "-c", script, url], capture_output=True, text=True, timeout=60, check=True
        )
        server.shutdown()
    assert done.stdout == f"{url} ok\n"
    assert list(Ready.statuses) == []
