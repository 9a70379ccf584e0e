"""Builds the two distributions as they are released, and installs them into separate environments."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "fluxion_cy"
#: A folder with an sdist and a wheel of fluxion-cy to test instead, such as those of `make dist`.
READY = "FLUXION_CY_DIST"
#: The path contains nothing of this repository, and no flags request debug information.
LEFT = ("PYTHONPATH", "PYTHONHOME", "CFLAGS", "CXXFLAGS", "FLUENCE_RESOURCES", "KUBECONFIG")
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in LEFT}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
WHEEL = [*PIP, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w"]


@dataclass(frozen=True)
class Built:
    """fluxion-cy. `python` belongs to an environment with only the wheel and PyYAML."""

    sdist: Path
    wheel: Path
    python: Path

    @property
    def package(self) -> Path:
        """The installed package."""
        return next(self.python.parents[1].glob("lib/python*/site-packages/fluxion_cy"))


def run(command: list[object], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in the folder. If it fails, the assertion shows its output."""
    done = subprocess.run([*map(str, command)], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def once(factory: pytest.TempPathFactory, worker: str, name: str, build: Callable[[Path], None]) -> Path:
    """A folder that all workers share. The first worker that asks for it fills it."""
    base = factory.getbasetemp()
    shared = (base if worker == "master" else base.parent) / name
    shared.mkdir(exist_ok=True)
    result, done = shared / "result", shared / "done"
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(result, ignore_errors=True)  # the remains of a worker that failed
            result.mkdir()
            build(result)
            done.touch()
    return result


def build_scheduler(folder: Path) -> None:
    """Build the wheel of fluence-scheduler into the folder."""
    run([*WHEEL, folder, ROOT], folder)


def build_fluxion_cy(folder: Path) -> None:
    """Build an sdist from a copy without the repository, and a wheel from the sdist alone, into the folder's `dist`.

    The wheel is installed into the folder's `environment`.
    """
    dist = folder / "dist"
    dist.mkdir()
    if os.environ.get(READY):
        shutil.copytree(os.environ[READY], dist, dirs_exist_ok=True)
    else:
        copy = folder / "copy"
        left = shutil.ignore_patterns("*.so", "*.cpp", "*.egg-info", "build", "dist", "__pycache__")
        shutil.copytree(SOURCE, copy, ignore=left)
        run([sys.executable, "setup.py", "-q", "sdist", "-d", dist], copy)
        shutil.rmtree(copy)
        run([*WHEEL, dist, next(dist.glob("*.tar.gz"))], dist)
    _install(dist, folder / "environment")


def built_in(folder: Path) -> Built:
    """The files that `build_fluxion_cy` built in the folder."""
    dist = folder / "dist"
    python = folder / "environment" / "bin" / "python"
    return Built(next(dist.glob("*.tar.gz")), next(dist.glob("*.whl")), python)


def _install(dist: Path, environment: Path) -> None:
    """Install without a network, with the PyYAML of the current environment."""
    run([sys.executable, "-m", "venv", "--without-pip", environment], dist)
    python = environment / "bin" / "python"
    options = ["--no-index", "--no-deps", "--find-links", dist, "fluxion-cy"]
    run([*PIP, "--python", python, "install", *options], dist)
    packages = next(environment.glob("lib/python*/site-packages"))
    home = Path(yaml.__file__).parent
    for folder in (home, home.with_name("_yaml")):
        shutil.copytree(folder, packages / folder.name)
