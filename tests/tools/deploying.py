"""What the tests of deploy/ share: its files, its chart, and the programs that an administrator would use."""

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
"""What every manifest runs."""
KUBERNETES = "1.36.3"
_SECONDS = 60
Manifest = dict[str, Any]


def objects(text: str) -> list[Manifest]:
    """The objects of a file's text, in its order."""
    return [document for document in yaml.safe_load_all(text) if document is not None]


def manifests(name: str) -> list[Manifest]:
    """The objects of a file in deploy/, which the caller may change."""
    return copy.deepcopy(_parsed(name))


@cache
def _parsed(name: str) -> list[Manifest]:
    return objects((DEPLOY / name).read_text())


def the(kind: str, name: str = "fluence.yaml", *, called: str | None = None) -> Manifest:
    """The object of this kind; of the scheduler's file, the one with the scheduler's name unless another is called."""
    called = called or ("fluence" if name == "fluence.yaml" else None)
    (found,) = [m for m in manifests(name) if m["kind"] == kind and called in (None, m["metadata"]["name"])]
    return found


def key(manifest: Manifest) -> str:
    """What tells objects apart: kind, namespace and name."""
    metadata = manifest["metadata"]
    return f"{manifest['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


def program(name: str) -> str:
    """The path of a program. Where it is not built, the test is skipped; under CI it fails."""
    return str(made(lambda: find(name))[name])


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A program's end, with what it said on both streams together."""
    command = [program(name), *map(str, arguments)]
    # What the person who runs the tests has set up for the program must not count.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_SECONDS,
                          env=environment, check=False)  # fmt: skip


def said(name: str, *arguments: str | Path) -> str:
    """What a program says, which must succeed."""
    ended = run(name, *arguments)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def chart(*arguments: str | Path, namespace: str = NAMESPACE) -> list[Manifest]:
    """The objects that the chart makes with these arguments of `helm template`: those of `helm test` are left out."""
    return rendered("--skip-tests", *arguments, namespace=namespace)


def hooks(*arguments: str | Path, namespace: str = NAMESPACE) -> list[Manifest]:
    """The objects that `helm test` makes."""
    return rendered("--show-only", "templates/tests/readyz.yaml", *arguments, namespace=namespace)


def rendered(*arguments: str | Path, namespace: str) -> list[Manifest]:
    """What `helm template` prints."""
    fixed = ("--namespace", namespace, "--kube-version", KUBERNETES)
    return objects(said("helm", "template", "fluence", CHART, *fixed, *arguments))


def without_helm(manifest: Manifest) -> Manifest:
    """The object without what helm's habits add to it; texts that are YAML themselves as what they mean."""
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
