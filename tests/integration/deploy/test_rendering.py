"""The committed files equal the rendering of their sources, and their descriptions are true."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from session_scheduler.config.settings import parse_config

from ...tools.deploying import DEPLOY, Manifest, manifests, objects, program, said

pytestmark = pytest.mark.programs


def test_the_committed_files_equal_the_rendered_sources(tmp_path: Path) -> None:
    command: list[str | Path] = [
        sys.executable,
        DEPLOY / "render.py",
        "--kustomize",
        program("kustomize"),
        "--into",
        tmp_path,
    ]
    subprocess.run(command, check=True, timeout=120)
    rendered = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.yaml")}
    assert len(rendered) == 24
    for name, text in rendered.items():
        assert (DEPLOY / name).read_text() == text, f"deploy/{name}: run `make manifests`"


def test_every_source_is_rendered_into_a_file_or_belongs_to_one_that_is() -> None:
    folders = {path.parent for path in (DEPLOY / "kustomize").rglob("*") if path.is_file()}
    assert all((folder / "kustomization.yaml").exists() for folder in folders)
    for folder in folders:
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        named = set(kustomization.get("resources", []))
        for generator in kustomization.get("configMapGenerator", []):
            named |= {each.partition("=")[2] or each for each in generator["files"]}
        named |= {patch["path"] for patch in kustomization.get("patches", [])}
        beside = {path.name for path in folder.iterdir()} - {"kustomization.yaml"}
        assert {each for each in named if not each.startswith("..")} == beside, folder


def test_kind_has_the_gates_and_apis_of_the_tests_on_real_api_servers() -> None:
    config = yaml.safe_load((DEPLOY / "kind-config.yaml").read_text())
    harness = (DEPLOY.parent / "tests" / "controlplane" / "harness.py").read_text()
    assert all(f'"{gate}"' in harness for gate in config["featureGates"])
    assert all(config["featureGates"].values())
    assert {"GenericWorkload", "GangScheduling"} <= config["featureGates"].keys()
    ((api, on),) = config["runtimeConfig"].items()
    assert f"--runtime-config={api}={on}" in harness


def by_name(listed: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    return {(each["kind"], each["metadata"]["name"]): each for each in listed}


def test_kubectl_renders_the_sources_as_kustomize_does() -> None:
    for name, source in (("fluence.yaml", "fluence"), ("options/monitoring.yaml", "options/monitoring")):
        made = objects(said("kubectl", "kustomize", DEPLOY / "kustomize" / source))
        assert by_name(made) == by_name(manifests(name))


def test_the_kustomization_of_the_how_to_page_replaces_every_image(tmp_path: Path) -> None:
    page = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text()
    (text,) = re.findall(r"```yaml\n(apiVersion: kustomize.*?)```", page, re.DOTALL)
    assert "# - fluence/deploy/kustomize/options/fencing" in text
    text = text.replace("  # - fluence/", "  - fluence/")
    shutil.copytree(DEPLOY / "kustomize", tmp_path / "fluence" / "deploy" / "kustomize")
    (tmp_path / "kustomization.yaml").write_text(text)
    (tmp_path / "resources.yaml").write_text("resources: [{type: fpga}]\n")
    made = by_name(objects(said("kustomize", "build", tmp_path)))
    names = ["queues.yaml", "fluence.yaml", "device-plugin.yaml", "options/fencing.yaml"]
    assert made.keys() == by_name([each for name in names for each in manifests(name)]).keys() | {
        ("ConfigMap", "fluence-resources")
    }
    workloads = [each for each in made.values() if each["kind"] in ("Deployment", "DaemonSet")]
    images = {main["image"] for each in workloads for main in each["spec"]["template"]["spec"]["containers"]}
    assert (len(workloads), images) == (3, {"registry.example.com/fluence:0.1.0"})


def test_the_scheduler_of_a_partition_has_its_own_lease_and_the_account_of_the_first() -> None:
    made = by_name(objects(said("kustomize", "build", DEPLOY / "kustomize" / "partition")))
    assert made.keys() == {
        ("ConfigMap", "fluence-gpu"), ("Deployment", "fluence-gpu"), ("NetworkPolicy", "fluence-gpu"),
        ("PodDisruptionBudget", "fluence-gpu"), ("Role", "fluence-lease-gpu"), ("RoleBinding", "fluence-lease-gpu"),
    }  # fmt: skip
    config = parse_config(made["ConfigMap", "fluence-gpu"]["data"]["config.yaml"], "config.yaml")
    assert config.partition is not None
    assert made["Role", "fluence-lease-gpu"]["rules"][0]["resourceNames"] == [config.leader_election.name]
    spec = made["Deployment", "fluence-gpu"]["spec"]
    assert spec["selector"]["matchLabels"] == {"app.kubernetes.io/name": "fluence-gpu"}
    pod = spec["template"]["spec"]
    assert pod["serviceAccountName"] == "fluence"
    assert pod["containers"][0]["env"] == [{"name": "FLUENCE_RESOURCES", "value": "/etc/fluence/resources/gpu.yaml"}]
    assert pod["volumes"][0]["configMap"]["name"] == "fluence-gpu"
