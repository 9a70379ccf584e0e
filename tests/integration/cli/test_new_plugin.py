"""The distribution that `new-plugin` writes builds, installs beside a built core, passes its tests and is listed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
CLOSED = "example.com/rack-label"
NODES = f"""
apiVersion: v1
kind: List
items:
  - {{apiVersion: v1, kind: Node, metadata: {{name: n1, labels: {{{CLOSED}: closed}}}}, status: {{allocatable: {{cpu: 4, pods: 9}}}}}}
  - {{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{schedulerName: fluence, containers: [{{name: c, image: i}}]}}}}
"""  # noqa: E501


def run(command: list[object], folder: Path, path: Path | None = None) -> str:
    """The output of a command that must succeed, without this repository's sources on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    words = list(map(str, command))
    done = subprocess.run(words, cwd=folder, env=environment, text=True, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fluence(*words: object) -> list[object]:
    return [sys.executable, "-m", "session_scheduler.cli", *words]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, scheduler_wheel: Path) -> tuple[Path, Path]:
    """The written folder, and a path with the wheels of the core and of the plugin; no network."""
    dist, target = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("installed")
    made = tmp_path_factory.mktemp("made")
    build = [*PIP, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", dist]
    install = [*PIP, "install", "--no-deps", "--no-index", "--target", target]
    run([*install, scheduler_wheel], dist)
    written = json.loads(run(fluence("plugins", "new", "Rack_Label", "--directory", made, "-o", "json"), made, target))
    folder = Path(written["directory"])
    run([*build, folder], dist)
    run([*install, *dist.glob("rack_label-0.1.0-*.whl")], dist)
    return folder, target


def test_its_own_tests_pass(installed: tuple[Path, Path]) -> None:
    folder, target = installed
    assert "7 passed" in run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider"], folder, target)


def test_its_own_tests_fail_if_the_rule_is_broken(installed: tuple[Path, Path], tmp_path: Path) -> None:
    folder, target = installed
    package = tmp_path / "rack_label"
    package.mkdir()
    for file in (folder / "src" / "rack_label").glob("*.py"):
        text = file.read_text()
        (package / file.name).write_text(text.replace("mask &= ~self", "mask & ~self"))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{target}", "COLUMNS": "300"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "test_a_closed_node_is_rejected - AssertionError: pod default/p is bound to n1" in done.stdout


def test_it_is_listed_with_its_distribution_and_hooks(installed: tuple[Path, Path], tmp_path: Path) -> None:
    _, target = installed
    expected = {
        "name": "rack-label",
        "distribution": "rack-label",
        "version": "0.1.0",
        "origin": "entry point",
        "hooks": ["events_to_register", "filter", "score", "reasons"],
        "summary": "Rejects nodes with the label value closed; prefers nodes with the value preferred.",
        "problem": "",
    }
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        listed = read(run(fluence("plugins", "-o", form), tmp_path, target))["plugins"]
        assert [one for one in listed if one["name"] == "rack-label"] == [expected]


def test_it_takes_effect_in_the_configuration_of_its_readme(installed: tuple[Path, Path], tmp_path: Path) -> None:
    folder, target = installed
    readme = (folder / "README.md").read_text()
    config = readme.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "config.yaml").write_text(config + "      - {name: fluence, enabled: false}\n")
    (tmp_path / "cluster.yaml").write_text(NODES)
    words = fluence("explain", "cluster.yaml", "--config", "config.yaml", "-o", "json")
    (pod,) = json.loads(run(words, tmp_path, target))["pods"]
    verdict = pod["nodes"]["n1"]
    assert (verdict["fits"], verdict["plugin"], verdict["reason"]) == (False, "rack-label", "node(s) were closed")


def test_its_readme_installs_and_tests_it_with_two_commands(installed: tuple[Path, Path], tmp_path: Path) -> None:
    """The commands run as written, except that the environment is a folder. An editable wheel is listed there, too."""
    folder, core = installed
    commands = (folder / "README.md").read_text().partition("```\n")[2].partition("```")[0].splitlines()
    assert len(commands) == 2
    (install, test) = ([sys.executable, *command.split()[1:]] for command in commands)
    assert install[1:4] == ["-m", "pip", "install"]
    run([*install, "--no-index", "--target", tmp_path], folder, core)
    assert (tmp_path / "_rack_label.pth").read_text() == str(folder / "src")  # a path: hatchling needs no `editables`
    path = f"{folder / 'src'}{os.pathsep}{tmp_path}{os.pathsep}{core}"
    assert "7 passed" in run([*test, "-p", "no:cacheprovider"], folder, Path(path))


def test_it_passes_its_own_linters(installed: tuple[Path, Path], tmp_path: Path) -> None:
    folder, target = installed
    run([sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache"], folder, target)
    for name in ("x", "rack-label-2", "a" * 40):
        run(fluence("plugins", "new", name), tmp_path, target)
    for words in (["ruff", "check", "--no-cache"], ["ruff", "format", "--no-cache", "--check"]):
        run([sys.executable, "-m", *words], tmp_path)
