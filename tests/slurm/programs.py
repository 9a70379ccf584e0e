"""Slurm's programs for the tests in this folder: Debian's packages in a folder of their own, outside git, made once.

`python -m tests.slurm.programs` (that is `make slurm-peer`) makes it, as root. The packages of Debian sid: those of the
releases before it know neither external jobs nor the versions of the REST API that are tested.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from ..controlplane.binaries import MissingBinaries
from ..tools import debian

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
    """Make the folder, all-or-nothing."""
    if os.geteuid() != 0:
        raise MissingSlurm(f"packages are installed in a chroot: run `{_TARGET}` as root")
    if CHROOT.is_dir():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="new-") as scratch:
        new = Path(scratch) / "debian"
        try:
            debian.bootstrap(new, SUITE, "ca-certificates")
            _no_services(new)
            options = ("-o", "Acquire::Check-Valid-Until=false", "-q")
            debian.within(new, "apt-get", *options, "update")
            debian.within(new, "apt-get", *options, "install", "-y", "--no-install-recommends", *_PACKAGES)
            debian.within(new, "apt-get", "clean")
        except debian.DebianError as error:
            raise MissingSlurm(str(error)) from None
        new.rename(CHROOT)


def _no_services(chroot: Path) -> None:
    """Have packages that are installed start nothing."""
    policy = chroot / "usr" / "sbin" / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)


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
