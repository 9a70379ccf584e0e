"""The workflows of .github/, checked by actionlint and by their permissions. They run only on GitHub."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from ...tools.deploying import DEPLOY, IMAGE, VERSION, said

pytestmark = pytest.mark.programs

ROOT = DEPLOY.parent
FOLDER = ROOT / ".github" / "workflows"
NAMES = ("ci.yaml", "release.yaml")
EVERY = pytest.mark.parametrize("name", NAMES)


def workflow(name: str) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    return list(job["steps"])


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in steps(job))


def test_every_workflow_is_tested_here() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(NAMES)


@EVERY
def test_actionlint_accepts_the_workflow(name: str) -> None:
    assert said("actionlint", "-no-color", "-shellcheck=", "-pyflakes=", FOLDER / name) == ""


def test_actionlint_finds_a_fault(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((FOLDER / "ci.yaml").read_text().replace("runs-on: ubuntu-24.04\n", "runs-on: nowhere\n"))
    with pytest.raises(AssertionError, match='label "nowhere" is unknown'):
        said("actionlint", "-no-color", "-shellcheck=", "-pyflakes=", wrong)


@EVERY
def test_each_action_is_pinned_by_its_commit_and_names_its_version(name: str) -> None:
    used = re.findall(r"uses: (.+)$", (FOLDER / name).read_text(), re.MULTILINE)
    assert used
    for each in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", each), each


def test_an_action_has_one_version_in_all_workflows() -> None:
    used = {each for name in NAMES for each in re.findall(r"uses: (\S+)@(\S+)", (FOLDER / name).read_text())}
    assert len({action for action, _ in used}) == len(used)


@EVERY
def test_jobs_may_only_read_unless_they_declare_more(name: str) -> None:
    found = workflow(name)
    assert found["permissions"] == {"contents": "read"}
    granted = {job: each["permissions"] for job, each in found["jobs"].items() if "permissions" in each}
    packages = {"contents": "read", "packages": "write"}
    expected = {"release.yaml": {"pypi": {"id-token": "write"}, "image": packages, "chart": packages,
                                 "docs": {"contents": "write"}}}  # fmt: skip
    assert granted == expected.get(name, {})


@EVERY
def test_each_job_has_a_time_limit_and_leaves_no_credentials(name: str) -> None:
    for job in workflow(name)["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 120
        for step in steps(job):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_pull_requests_run_the_required_checks_without_secrets() -> None:
    text = (FOLDER / "ci.yaml").read_text()
    found = workflow("ci.yaml")
    assert "bash .ci/run" in commands(found["jobs"]["all"])
    assert "pull_request_target" not in text
    assert "secrets." not in text


def test_a_release_is_of_the_version_that_the_tag_names() -> None:
    found = workflow("release.yaml")
    assert found[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    assert "version" in found["jobs"]
    for name, job in found["jobs"].items():
        needed = job.get("needs", [])
        assert name == "version" or set([needed] if isinstance(needed, str) else needed) & {"version", "wheels"}


def test_wheels_are_built_on_each_platform_that_fluxion_cy_names() -> None:
    job = workflow("release.yaml")["jobs"]["wheels"]
    assert job["strategy"]["matrix"]["os"] == ["ubuntu-24.04", "ubuntu-24.04-arm", "macos-15"]
    assert "cibuildwheel==" in commands(job)
    assert "--archs native" in commands(job)
    settings = tomllib.loads((ROOT / "fluxion_cy" / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert settings["linux"]["archs"] == ["x86_64", "aarch64"]


def test_images_are_for_two_architectures_with_sbom_and_provenance() -> None:
    found = workflow("release.yaml")
    build = steps(found["jobs"]["image"])[-1]["with"]
    assert build["platforms"] == "linux/amd64,linux/arm64"
    assert (build["sbom"], build["provenance"], build["push"]) == (True, "mode=max", True)
    assert build["file"] == "deploy/Dockerfile"
    assert f"{found['env']['IMAGE']}:{VERSION}" == IMAGE
    arguments = set(re.findall(r"^(\w+)=", build["build-args"], re.MULTILINE))
    declared = set(re.findall(r"^ARG (\w+)=", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))
    assert arguments <= declared
    bases = [each["base"] for each in found["jobs"]["image"]["strategy"]["matrix"]["include"]]
    assert bases == ["slim", "flux-sched"]


def test_the_documentation_of_a_release_is_built_strictly_and_then_added_to_the_other_versions() -> None:
    job = workflow("release.yaml")["jobs"]["docs"]
    words = commands(job)
    assert words.index("make docs") < words.index("mike deploy") < words.index("git push")
    assert job["env"] == {"FLUENCE_DOCS_REF": "${{ github.ref_name }}"}


def test_dependabot_follows_actions_and_base_images() -> None:
    found = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())
    assert {each["package-ecosystem"]: each["directory"] for each in found["updates"]} == {
        "github-actions": "/", "docker": "/deploy"}  # fmt: skip
