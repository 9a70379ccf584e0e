"""Builds the package as `make dist` does, and installs it into an environment of its own."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

SOURCE = Path(__file__).parents[3] / "fluxion_cy"
#: A folder with an sdist and a wheel that are tested instead, as those of `make dist`.
READY = "FLUXION_CY_DIST"
#: No debug information; nothing of this repository on the path.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")} | {
    "CFLAGS": "-g0",
    "CXXFLAGS": "-g0",
}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@dataclass(frozen=True)
class Built:
    """`python` is that of an environment with the wheel and PyYAML, and nothing else."""

    sdist: Path
    wheel: Path
    python: Path

    @property
    def package(self) -> Path:
        """The installed package."""
        return next(self.python.parents[1].glob("lib/python*/site-packages/fluxion_cy"))


def run(command: list[object], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs it there; what it printed is shown if it fails."""
    done = subprocess.run([*map(str, command)], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def build(dist: Path) -> None:
    """An sdist from a copy without the repository, and a wheel from the sdist alone."""
    copy = dist.parent / "copy"
    left = shutil.ignore_patterns("*.so", "*.cpp", "*.egg-info", "build", "dist", "__pycache__")
    shutil.copytree(SOURCE, copy, ignore=left)
    run([sys.executable, "setup.py", "-q", "sdist", "-d", dist], copy)
    shutil.rmtree(copy)
    sdist = next(dist.glob("*.tar.gz"))
    run([*PIP, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", dist, sdist], dist)


def install(dist: Path, environment: Path) -> None:
    """Without a network; PyYAML is the one that is here."""
    run([sys.executable, "-m", "venv", "--without-pip", environment], dist)
    python = environment / "bin" / "python"
    options = ["--no-index", "--no-deps", "--find-links", dist, "fluxion-cy"]
    run([*PIP, "--python", python, "install", *options], dist)
    packages = next(environment.glob("lib/python*/site-packages"))
    home = Path(yaml.__file__).parent
    for folder in (home, home.with_name("_yaml")):
        shutil.copytree(folder, packages / folder.name)
