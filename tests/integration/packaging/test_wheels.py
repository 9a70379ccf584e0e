"""Both wheels in an environment without a compiler: `pip install fluence-scheduler` suffices to simulate."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from ...tools.packages import ENVIRONMENT, PIP, ROOT, Built, once

QUICKSTART = ROOT / "examples" / "01-quickstart"


@dataclass(frozen=True)
class Installed:
    """An environment with both wheels and their requirements."""

    folder: Path

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with no other program on the path."""
        programs = self.folder / "bin"
        command = [str(programs / str(words[0])), *map(str, words[1:])]
        environment = ENVIRONMENT | without_compiler(self.folder)
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300,
                              check=False)  # fmt: skip


def without_compiler(folder: Path) -> dict[str, str]:
    return {"PATH": str(folder / "bin"), "CC": "/bin/false", "CXX": "/bin/false"}


@pytest.fixture(scope="session")
def installed(
    built: Built, scheduler_wheel: Path, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Installed:
    def install(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
        command = [*PIP, "--python", folder / "bin" / "python", "install", "--only-binary", ":all:", "-c",
                   ROOT / "constraints.txt", built.wheel, scheduler_wheel]  # fmt: skip
        done = subprocess.run([*map(str, command)], cwd=folder, env=ENVIRONMENT | without_compiler(folder),
                              capture_output=True, text=True, timeout=600, check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    return Installed(once(tmp_path_factory, worker_id, "lean", install))


def test_the_wheels_place_the_pods_of_the_quickstart(installed: Installed) -> None:
    files = (QUICKSTART / "cluster.yaml", QUICKSTART / "workloads.yaml", "--resources", QUICKSTART / "resources.yaml")
    done = installed.run("fluence", "simulate", *files, "-o", "json")
    assert done.returncode == 1, done.stderr  # one of its pods fits nowhere
    result = json.loads(done.stdout)
    assert (result["summary"]["scheduled"], result["summary"]["unschedulable"]) == (3, 1)
    assert "borealis" in {pod["backend"] for pod in result["pods"]}


def test_no_module_of_the_repository_is_imported(installed: Installed) -> None:
    code = "import fluxion_cy, session_scheduler, fluence_plugins as p; print(fluxion_cy.__file__, *p.__path__)"
    done = installed.run("python", "-c", code)
    assert all(path.startswith(str(installed.folder)) for path in done.stdout.split()), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["nats-py", "cryptography", "grpcio", "protobuf", "bokeh", "jinja2"])
def test_a_dependency_of_a_single_feature_is_not_installed(installed: Installed, name: str) -> None:
    code = f"from importlib.metadata import version; version({name!r})"
    assert "PackageNotFoundError" in installed.run("python", "-c", code).stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("master-queue", "master-queue"),
        ("webhook", "webhook"),
        ("device-plugin", "device-plugin"),
        ("dashboard", "dashboard"),
    ],
)
def test_a_command_that_needs_an_extra_names_it(installed: Installed, command: str, extra: str) -> None:
    done = installed.run("fluence", command)
    assert done.returncode == 2
    assert done.stderr.endswith(f"run pip install 'fluence-scheduler[{extra}]'\n")
    assert len(done.stderr.splitlines()) == 1


def test_every_extra_but_the_one_for_tests_is_in_all() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert everything == f"fluence-scheduler[{','.join(sorted(extras.keys() - {'all', 'notebook', 'testing'}))}]"
