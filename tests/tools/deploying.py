"""Helpers for the tests of deploy/: its files, its chart, and the programs that an administrator uses."""

from __future__ import annotations

import copy
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..controlplane.binaries import find
from .real_programs import made

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "chart" / "fluence"
RESOURCES = DEPLOY / "kustomize" / "base" / "resources" / "resources.yaml"
NAMESPACE = "kube-system"
VERSION = str(yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"])
IMAGE = f"ghcr.io/converged-computing/fluence:{VERSION}"
"""The image in every manifest."""
KUBERNETES = "1.36.3"
_SECONDS = 60
Manifest = dict[str, Any]


def objects(text: str) -> list[Manifest]:
    """The objects of a YAML text, in order."""
    return [document for document in yaml.safe_load_all(text) if document is not None]


def manifests(name: str) -> list[Manifest]:
    """The objects of a file in deploy/; the caller may change them."""
    return copy.deepcopy(_parsed(name))


@cache
def _parsed(name: str) -> list[Manifest]:
    return objects((DEPLOY / name).read_text())


def the(kind: str, name: str = "fluence.yaml", *, called: str | None = None) -> Manifest:
    """The only object of this kind. In the scheduler's file, its name is by default the scheduler's."""
    called = called or ("fluence" if name == "fluence.yaml" else None)
    (found,) = [m for m in manifests(name) if m["kind"] == kind and called in (None, m["metadata"]["name"])]
    return found


def key(manifest: Manifest) -> str:
    """The identity of an object: kind, namespace and name."""
    metadata = manifest["metadata"]
    return f"{manifest['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


def program(name: str) -> str:
    """The path of a program. If it is not built, the test is skipped; in CI it fails."""
    return str(made(lambda: find(name))[name])


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program. Returns its exit status and the output of both streams."""
    command = [program(name), *map(str, arguments)]
    # The environment of the person that runs the tests must not configure the program.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_SECONDS,
                          env=environment, check=False)  # fmt: skip


def said(name: str, *arguments: str | Path) -> str:
    """The output of a program that must succeed."""
    ended = run(name, *arguments)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def chart(*arguments: str | Path, namespace: str = NAMESPACE) -> list[Manifest]:
    """The objects that the chart renders with these arguments of `helm template`, without those of `helm test`."""
    return rendered("--skip-tests", *arguments, namespace=namespace)


def hooks(*arguments: str | Path, namespace: str = NAMESPACE) -> list[Manifest]:
    """The objects that `helm test` creates."""
    return rendered("--show-only", "templates/tests/readyz.yaml", *arguments, namespace=namespace)


def rendered(*arguments: str | Path, namespace: str) -> list[Manifest]:
    """The objects that `helm template` prints."""
    fixed = ("--namespace", namespace, "--kube-version", KUBERNETES)
    return objects(said("helm", "template", "fluence", CHART, *fixed, *arguments))


def without_helm(manifest: Manifest) -> Manifest:
    """The object without helm's own labels and annotations; YAML texts in a ConfigMap are parsed."""
    plain = copy.deepcopy(manifest)
    for label in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
        plain["metadata"].get("labels", {}).pop(label, None)
    if plain["metadata"].get("annotations") == {"helm.sh/resource-policy": "keep"}:
        del plain["metadata"]["annotations"]
    pod = plain.get("spec", {}).get("template", {}).get("metadata", {})
    pod.get("annotations", {}).pop("checksum/config", None)
    if pod.get("annotations") == {}:
        del pod["annotations"]
    if plain["kind"] == "ConfigMap":
        plain["data"] = {name: yaml.safe_load(text) for name, text in plain["data"].items()}
    return plain
