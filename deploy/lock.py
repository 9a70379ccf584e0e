"""Writes the hashed requirements of the image: `python deploy/lock.py`, or `make constraints`. Needs uv on the PATH.

The image's build installs from them with `--require-hashes`. constraints.txt has no hashes: with hashes, pip would
require them for the project itself, too, which `make setup` installs from its folder. The files have the hashes of each
version's wheels and sdist, for all platforms and Pythons.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
RUNTIME: Final = "deploy/requirements.lock"
BUILD: Final = "deploy/build-requirements.lock"
BUILD_TOOLS: Final = ("pip", "setuptools", "Cython", "hatchling")
_HEADER = "# The hashes of {what}. Do not edit: `make constraints` writes this file.\n"
_NOT_IN_IMAGES = ("notebook", "testing")
_OWN = ("fluxion-cy", "fluence-scheduler")
_SECONDS = 300


def runtime() -> list[str]:
    """What the image needs: the requirements of the distribution and of its features, without its own distributions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    chosen = [name for name in extras if name not in _NOT_IN_IMAGES]
    found = [*project["dependencies"], *(each for name in chosen for each in extras[name])]
    return sorted({each for each in found if not each.startswith(_OWN)})


def compiled(requirements: Iterable[str]) -> str:
    """The pinned closure of these requirements, with hashes. Raises CalledProcessError."""
    command = ["uv", "pip", "compile", "-", "--constraints", "constraints.txt", "--universal", "--python-version",
               "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "-q"]  # fmt: skip
    text = "\n".join(requirements)
    return subprocess.run(command, input=text, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE,  # noqa: S603
                          timeout=_SECONDS).stdout  # fmt: skip


def locked(text: str) -> dict[str, tuple[str, list[str]]]:
    """By normalised name: the version and the hashes of a file's packages."""
    found: dict[str, tuple[str, list[str]]] = {}
    for entry in re.split(r"\n(?=\S)", text.replace("\\\n", " ")):
        matched = re.match(r"([\w.-]+)==([^\s;]+)", entry)
        if matched:
            name = re.sub(r"[-_.]+", "-", matched[1]).lower()
            found[name] = matched[2], re.findall(r"--hash=(sha256:[0-9a-f]{64})", entry)
    return found


def main() -> None:
    """Write both files."""
    if shutil.which("uv") is None:
        sys.exit("deploy/lock.py needs uv; install uv")
    for name, what, requirements in (
        (RUNTIME, "the packages in the image", runtime()),
        (BUILD, "the packages that build the image's wheels", BUILD_TOOLS),
    ):
        (ROOT / name).write_text(_HEADER.format(what=what) + compiled(requirements))


if __name__ == "__main__":
    main()
