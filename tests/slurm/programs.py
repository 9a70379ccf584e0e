"""Slurm's programs for the tests in this folder: Debian's packages in a folder of their own, outside git, made once.

`python -m tests.slurm.programs` (that is `make slurm-peer`) makes it, as root. The packages of Debian sid: those of the
releases before it know neither external jobs nor the versions of the REST API that are tested.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..controlplane.binaries import MissingBinaries

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "slurm"
CHROOT = FOLDER / "debian"
SUITE = "sid"
NODES = tuple(f"k8s-{number}" for number in range(64))
"""Names that resolve in the chroot. One that does not holds slurmctld up for seconds when it is given a job."""
_PACKAGES = ("slurmctld", "slurmrestd", "slurm-wlm-basic-plugins", "slurm-wlm-jwt-plugin")
_TARGET = "make slurm-peer"


class MissingSlurm(MissingBinaries):
    """Slurm cannot run here, or is not installed; the text says what to do."""


def installed() -> Path:
    """The folder to chroot to. Raises: MissingSlurm."""
    if os.geteuid() != 0:
        raise MissingSlurm("Slurm runs in a chroot: run the tests as root")
    if not CHROOT.is_dir():
        raise MissingSlurm(f"Slurm is not installed for the tests: run `{_TARGET}`, as root, on a Debian")
    return CHROOT


def install() -> None:
    """Make the folder, whole or not at all."""
    if os.geteuid() != 0:
        raise MissingSlurm(f"packages are installed in a chroot: run `{_TARGET}` as root")
    if CHROOT.is_dir():
        return
    _debootstrap_installed()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="new-") as scratch:
        new = Path(scratch) / "debian"
        mirror = _mirror()
        _run("debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE, new, *([mirror] if mirror else []))
        _no_services(new)
        options = ("-o", "Acquire::Check-Valid-Until=false", "-q")
        _within(new, "apt-get", *options, "update")
        _within(new, "apt-get", *options, "install", "-y", "--no-install-recommends", *_PACKAGES)
        _within(new, "apt-get", "clean")
        new.rename(CHROOT)


def _debootstrap_installed() -> None:
    if shutil.which("debootstrap", path=_path()):
        return
    if not shutil.which("apt-get"):
        raise MissingSlurm("debootstrap is missing, and there is no apt-get to install it with: use a Debian")
    _run("apt-get", "-q", "update")
    _run("apt-get", "-q", "install", "-y", "--no-remove", "--no-install-recommends", "debootstrap")


def _mirror() -> str | None:
    """Where this machine's own packages come from, without its security updates; None for debootstrap's default."""
    listed = _run("apt-get", "indextargets", "--format", "$(REPO_URI)", capture=True).split()
    return next((uri for uri in listed if uri.rstrip("/").endswith("/debian")), None)


def _no_services(chroot: Path) -> None:
    """Have packages that are installed start nothing."""
    policy = chroot / "usr" / "sbin" / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)


def _within(chroot: Path, *command: str) -> None:
    _run("chroot", chroot, "env", "-i", f"PATH={_path()}", "HOME=/", "DEBIAN_FRONTEND=noninteractive", *command)


def _run(*command: str | Path, capture: bool = False) -> str:
    stdout = subprocess.PIPE if capture else None
    environment = {**os.environ, "PATH": _path(), "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, check=True, text=True, stdout=stdout, env=environment, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as why:
        raise MissingSlurm(f"{_shown(command)} failed: {why}") from None
    return done.stdout or ""


def _shown(command: Sequence[str | Path]) -> str:
    return " ".join(str(word) for word in command[:6])


def _path() -> str:
    return os.pathsep.join(("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin"))


def main() -> int:
    """Install, or say in a line why not."""
    try:
        install()
    except MissingSlurm as why:
        print(f"slurm-peer: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
