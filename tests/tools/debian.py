"""Root file systems of Debian packages, built with debootstrap. They need root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

PATH = os.pathsep.join(("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin"))


class DebianError(Exception):
    """A command failed; the message names it."""


def bootstrap(root: Path, suite: str, *packages: str) -> None:
    """Build the smallest root file system of a suite, with these packages. Raises: DebianError."""
    _install_debootstrap()
    mirror = _mirror()
    run(
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(packages)}",
        suite,
        root,
        *([mirror] if mirror else []),
    )


def within(root: Path, *command: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a command with the root file system as its root. Raises: DebianError."""
    variables = {"PATH": PATH, "HOME": "/", "DEBIAN_FRONTEND": "noninteractive", **(environment or {})}
    run("chroot", root, "env", "-i", *(f"{name}={value}" for name, value in variables.items()), *command)


def run(*command: str | Path, capture: bool = False) -> str:
    """The output of a command, if `capture` is set. Raises: DebianError."""
    stdout = subprocess.PIPE if capture else None
    environment = {**os.environ, "PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, check=True, text=True, stdout=stdout, env=environment, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise DebianError(f"{' '.join(str(word) for word in command[:6])} failed: {error}") from None
    return done.stdout or ""


def _install_debootstrap() -> None:
    if shutil.which("debootstrap", path=PATH):
        return
    if not shutil.which("apt-get"):
        raise DebianError("debootstrap and apt-get are missing: run this on Debian")
    run("apt-get", "-q", "update")
    run("apt-get", "-q", "install", "-y", "--no-remove", "--no-install-recommends", "debootstrap")


def _mirror() -> str | None:
    """The mirror of this machine's own packages, without its security updates; None for debootstrap's default."""
    listed = run("apt-get", "indextargets", "--format", "$(REPO_URI)", capture=True).split()
    return next((uri for uri in listed if uri.rstrip("/").endswith("/debian")), None)
