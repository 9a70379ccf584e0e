"""Builds the image of deploy/Dockerfile without a container engine: `python -m tests.e2e.image_build`, as root.

Its steps run as they are, in chroots. A root file system of Debian's packages stands in for the base image, since no
registry of images is needed then. It has the Debian release of that image, and that release's Python. Each stage is an
overlay on it, so what the last stage adds is the image's second layer. Needs root, and the network for packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..controlplane.binaries import MissingBinaries
from ..tools import debian
from ..tools.deploying import IMAGE
from ..tools.dockerfile import DOCKERFILE, ROOT, Instruction, context, expanded, stages
from . import images

FOLDER = ROOT / ".cache" / "image"
SUITE = "trixie"
"""The Debian release of the base image."""
ARGUMENTS = {"PACKAGES": "g++ python3-dev python3-venv"}
"""The build arguments: those for a base image that has Debian's Python."""
_PACKAGES = ("ca-certificates", "python3")
_HOST = ("/etc/resolv.conf", "/etc/ssl/certs", "/dev", "/proc", "/sys")
"""What a build uses of this machine, as with a container engine."""
_SETTINGS = ("PIP_", "SSL_CERT_", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_TARGET = "make e2e-image"
_TAR = "image.tar"


class BuildError(Exception):
    """The image cannot be built; the text says why."""


def image_path() -> Path:
    """Where the image of these sources is, or will be: an OCI layout in a tar file, named by its sources' digest."""
    digest = hashlib.sha256(repr((IMAGE, SUITE, _PACKAGES, ARGUMENTS)).encode())
    for path in (Path(__file__), Path(images.__file__), DOCKERFILE, *context()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return FOLDER / f"fluence-{digest.hexdigest()[:16]}.tar"


def built_image() -> Path:
    """The image that was built of these sources. Raises: MissingBinaries."""
    if not (image := image_path()).exists():
        raise MissingBinaries(f"the image of these sources is not built: run `{_TARGET}`, as root, on a Debian")
    return image


def build() -> Path:
    """Build the image, unless it is there already. Raises: BuildError, DebianError."""
    image = image_path()
    if image.exists():
        return image
    _base()
    for stale in FOLDER.glob("fluence-*.tar"):
        stale.unlink()
    # What the stages mount ends with their namespace, so that nothing but their own files is removed.
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix="new-") as scratch:
        own_mounts = ["unshare", "--mount", "--propagation", "private"]
        inside = [*own_mounts, sys.executable, "-m", "tests.e2e.image_build", scratch]
        if subprocess.run(inside, cwd=ROOT, check=False).returncode != 0:
            raise BuildError("a step failed: see above")
        (Path(scratch) / _TAR).rename(image)
    return image


def _build_inside(scratch: Path) -> None:
    base = _base()
    builder = _Builder(base, scratch, ARGUMENTS)
    builder.run()
    images.write_layers(scratch / _TAR, IMAGE, [base, builder.layer], builder.config)


def _base() -> Path:
    """The root file system that stands in for the base image. It appears complete or not at all."""
    folder = FOLDER / f"debian-{SUITE}"
    if not folder.is_dir():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER, prefix="new-") as scratch:
            new = Path(scratch) / "root"
            debian.bootstrap(new, SUITE, *_PACKAGES)
            debian.within(new, "apt-get", "clean")
            # As Debian's own images have it: dpkg does not wait for the disk after each package.
            (new / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
            for each in (new / "var/lib/apt/lists").iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            new.rename(folder)
    return folder


class _Builder:
    """Runs the stages. `layer` and `config` are those of the last one."""

    def __init__(self, base: Path, scratch: Path, given: Mapping[str, str]) -> None:
        self._base = base
        self._scratch = scratch
        self._given = given
        self._roots: dict[str, Path] = {}
        self.layer = scratch
        self.config: dict[str, object] = {}

    def run(self) -> None:
        """Build the stage `build` and the last one."""
        found = stages()
        for name in ("build", ""):
            self._stage(name, found[name])

    def _stage(self, name: str, steps: Sequence[Instruction]) -> None:
        folder = self._scratch / f"stage-{name or 'last'}"
        root, self.layer, work = folder / "root", folder / "layer", folder / "work"
        for each in (root, self.layer, work):
            each.mkdir(parents=True)
        options = f"lowerdir={self._base},upperdir={self.layer},workdir={work}"
        debian.run("mount", "-t", "overlay", "overlay", "-o", options, root)
        self._roots[name] = root
        stage = _Stage(root, self._roots, self._given)
        if any(step.name == "RUN" for step in steps):
            for path in _HOST:
                place = root / path.lstrip("/")
                if not place.exists():
                    place.touch()
                debian.run("mount", "--rbind", path, place)
        for step in steps[1:]:
            print(f"{name or 'last stage'}: {step.name} {step.arguments[:100]}", flush=True)
            stage.carry_out(step)
        self.config = stage.config


class _Stage:
    """The state that instructions of one stage change."""

    def __init__(self, root: Path, others: Mapping[str, Path], given: Mapping[str, str]) -> None:
        self._root = root
        self._others = others
        self._given = given
        self._shell = ["/bin/sh", "-c"]
        self._folder = "/"
        self._arguments: dict[str, str] = {}
        self._environment = {"PATH": debian.PATH}
        self.config: dict[str, object] = {}

    def carry_out(self, step: Instruction) -> None:
        """Do what an instruction asks for. Raises: BuildError, DebianError."""
        match step.name:
            case "ARG":
                name, _, default = step.arguments.partition("=")
                self._arguments[name] = self._given.get(name, default.strip('"'))
            case "ENV":
                self._environment.update(self._pairs(step))
                self.config["Env"] = [f"{name}={value}" for name, value in self._environment.items()]
            case "LABEL":
                self.config["Labels"] = self._pairs(step)
            case "SHELL":
                self._shell = json.loads(step.arguments)
            case "ENTRYPOINT" | "CMD":
                self.config[step.name.capitalize()] = json.loads(step.arguments)
            case "WORKDIR":
                self._folder = self.config["WorkingDir"] = step.arguments
                self._at(self._folder).mkdir(parents=True, exist_ok=True)
            case "EXPOSE":
                self.config["ExposedPorts"] = {f"{port}/tcp": {} for port in step.arguments.split()}
            case "USER":
                self.config["User"] = step.arguments
            case "RUN":
                self._run(step.arguments)
            case "COPY":
                self._copy(step.arguments.split())
            case _:
                raise BuildError(f"deploy/Dockerfile: {step.name} is not an instruction that this builder knows")

    def _pairs(self, step: Instruction) -> dict[str, str]:
        variables = {**self._arguments, **self._environment}
        pairs = (word.partition("=") for word in shlex.split(step.arguments))
        return {name: expanded(value, variables) for name, _, value in pairs}

    def _run(self, command: str) -> None:
        if self.config.get("User") != "0":
            raise BuildError("deploy/Dockerfile: RUN without USER 0 before it: this builder runs steps as root alone")
        settings = {name: value for name, value in os.environ.items() if name.upper().startswith(_SETTINGS)}
        within = f"cd {shlex.quote(self._folder)} && exec {shlex.join([*self._shell, command])}"
        debian.within(
            self._root, "/bin/sh", "-c", within, environment={**settings, **self._arguments, **self._environment}
        )

    def _copy(self, words: Sequence[str]) -> None:
        *sources, target = words
        if sources[0].startswith("--from="):
            stage, *sources = sources
            top = self._others[stage.removeprefix("--from=")]
            for source in sources:
                place = self._at(target)
                place.parent.mkdir(parents=True, exist_ok=True)
                debian.run("cp", "-a", top / source.lstrip("/"), place)
            return
        seen = {str(path.relative_to(ROOT)): path for path in context()}
        for source in sources:
            files = {name: path for name, path in seen.items() if name == source or name.startswith(f"{source}/")}
            if not files:
                raise BuildError(f"deploy/Dockerfile: COPY {source}: .dockerignore leaves no such file in the context")
            for name, path in files.items():
                inside = Path(name).name if name == source else Path(name).relative_to(source)
                place = self._at(target) / inside
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)

    def _at(self, path: str) -> Path:
        """Where a path of the image is here: one that is not absolute is in the working directory."""
        return self._root / os.path.join(self._folder, path).lstrip("/")


def main() -> int:
    """Build, and report the image's path; with a folder, run the stages there."""
    if os.geteuid() != 0:
        print("an image is built in chroots: run this as root", file=sys.stderr)
        return 2
    started = time.monotonic()
    try:
        if sys.argv[1:]:
            _build_inside(Path(sys.argv[1]))
        else:
            print(f"{build()} (in {time.monotonic() - started:.0f} s)")
    except (BuildError, debian.DebianError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
