"""The programs for the tests in this folder: nats-server, and Kueue with its API definitions, got once.

`python -m tests.queues.programs` (that is `make queues-peer`) gets them into .cache: nats-server out of Debian's
package, where the machine has none (it is not installed: the package starts a service), and Kueue from its Go module,
which kueue/go.mod names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..controlplane.binaries import BUNDLES, ROOT, MissingBinaries, build, find

_TARGET = BUNDLES["kueue"].target
_NATS = "nats-server"
_UNPACKED = ROOT / ".cache" / _NATS
_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin", str(_UNPACKED / "usr/sbin"))


def nats_server() -> Path:
    """The path of nats-server. Raises: MissingBinaries."""
    found = shutil.which(_NATS) or shutil.which(_NATS, path=os.pathsep.join(_FOLDERS))
    if found is None:
        raise MissingBinaries(f"{_NATS} is not there: run `make {_TARGET}`, as root, on a Debian")
    return Path(found)


def kueue() -> Path:
    """The path of Kueue's controller. Raises: MissingBinaries."""
    return find("kueue")["kueue"]


def kueue_definitions() -> list[Path]:
    """The files of Kueue's CustomResourceDefinitions. Raises: MissingBinaries."""
    return sorted((kueue().parent / "crds").glob("kueue.x-k8s.io_*.yaml"))


def kueue_webhooks() -> Path:
    """The file of Kueue's webhook configurations, which name a Service. Raises: MissingBinaries."""
    return kueue().parent / "webhooks" / "manifests.yaml"


def install() -> None:
    """Get what is missing. Raises: MissingBinaries, CalledProcessError."""
    try:
        nats_server()
    except MissingBinaries:
        _unpack_nats_server()
    started = time.monotonic()
    print(f"{build(BUNDLES['kueue'])} (in {time.monotonic() - started:.0f} s)")


def _unpack_nats_server() -> None:
    """The folder appears all-or-nothing."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise MissingBinaries(f"{_NATS} is missing: install it, or run `make {_TARGET}` as root on a Debian")
    _UNPACKED.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_UNPACKED.parent) as scratch:
        _run("apt-get", "-q", "update", at=scratch)
        _run("apt-get", "-q", "download", _NATS, at=scratch)
        (package,) = Path(scratch).glob("*.deb")
        _run("dpkg-deb", "--extract", str(package), _NATS, at=scratch)
        (Path(scratch) / _NATS).rename(_UNPACKED)


def _run(*command: str, at: str) -> None:
    subprocess.run(command, cwd=at, check=True, stdin=subprocess.DEVNULL)


def main() -> int:
    """Get them, or say in a line why not."""
    try:
        install()
    except (MissingBinaries, OSError, subprocess.CalledProcessError) as why:
        print(f"queues-peer: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
