"""Container images, made by hand from what is on this machine: OCI layouts as tar files that containerd imports.

`fluence_image` holds this environment's Python and the packages that the project says it needs, no others: what a
build from deploy/Dockerfile.slim would hold, with nothing downloaded.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_FOLDERS = ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "usr", "var")
_LIBRARY = re.compile(r"(?:=>\s*)?(/\S+)\s+\(0x")
_NEVER = frozenset({"test", "tests", "idlelib", "turtledemo", "tkinter", "ensurepip", "site-packages", "dist-packages"})
"""Of the standard library: what no server needs, and other people's packages."""
_NOT_RUN = frozenset({".a", ".cpp", ".pyx", ".pyi"})
_CHUNK = 1 << 20


@dataclass
class Content:
    """What an image holds: files by their place in it, links, and texts."""

    files: dict[str, Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def add_tree(self, folder: Path, at: str, leave: frozenset[str] = frozenset()) -> None:
        """All files below a folder, but for sub-folders of its own that have one of these names."""
        for here, folders, files in os.walk(folder):
            if Path(here) == folder:
                folders[:] = [name for name in folders if name not in leave]
            inside = PurePosixPath(at) / Path(here).relative_to(folder).as_posix()
            for name in files:
                self.files[str(inside / name)] = Path(here) / name


# ------------------------------------------------------------------ what is in them


def pause_image(target: Path, program: Path) -> Path:
    """The first process of every pod."""
    content = Content(files={"pause": program})
    return write_image(target, "registry.local/pause:3.10", content, entrypoint=["/pause"])


def busybox_image(target: Path) -> Path:
    """A shell and its commands, by the name that the examples give it."""
    names = subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True, text=True, timeout=10)
    content = Content(files={"bin/busybox": Path("/bin/busybox")})
    content.links = {f"bin/{name}": "busybox" for name in names.stdout.split() if name != "busybox"}
    return write_image(target, "docker.io/library/busybox:1.36", content, entrypoint=[])


def fluence_image(target: Path, name: str) -> Path:
    """The command `fluence`, with Python and all that it needs."""
    content = Content()
    standard = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    packages = f"usr/local/lib/{PYTHON}/site-packages"
    content.add_tree(standard, f"usr/local/lib/{PYTHON}", leave=_NEVER)
    content.files["usr/local/bin/python3"] = Path(sys.executable).resolve()
    for installed in _needed("fluence-scheduler"):
        for file in installed.files or ():
            if ".." not in file.parts and "__editable__" not in file.name:
                content.files[f"{packages}/{file}"] = Path(str(installed.locate_file(file)))
    for source in ("scheduler/session_scheduler", "plugins/fluence_plugins", "fluxion_cy/src/fluxion_cy"):
        content.add_tree(ROOT / source, f"{packages}/{Path(source).name}")
    content.files = {at: path for at, path in content.files.items() if path.is_file() and path.suffix not in _NOT_RUN}
    _add_libraries(content)
    content.texts["usr/local/bin/fluence"] = (
        "#!/usr/local/bin/python3\nimport sys\nfrom session_scheduler.cli import main\nsys.exit(main())\n"
    )
    return write_image(target, name, content, user="65532:65532", env=("PYTHONHOME=/usr/local",))


def _needed(name: str) -> list[metadata.Distribution]:
    """A distribution and all that it requires here, those included that these require."""
    found: dict[str, metadata.Distribution] = {}
    todo = [Requirement(name)]
    while todo:
        wanted = todo.pop()
        if wanted.name in found or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        found[wanted.name] = installed = metadata.distribution(wanted.name)
        todo += [Requirement(text) for text in installed.requires or ()]
    return list(found.values())


def _add_libraries(content: Content) -> None:
    """The shared libraries that programs and modules are linked with, where the loader looks for them."""
    linked = [path for place, path in content.files.items() if ".so" in place or place.endswith("/python3")]
    answer = subprocess.run(["ldd", *linked], check=False, capture_output=True, text=True, timeout=120)
    for library in sorted(set(_LIBRARY.findall(answer.stdout))):
        if not Path(library).resolve().is_relative_to(sys.prefix):  # else a package has it with it
            content.files.setdefault(library.lstrip("/"), Path(library).resolve())


# ------------------------------------------------------------------ how they are written


def write_image(target: Path, name: str, content: Content, *, entrypoint: Sequence[str] = (), user: str = "",
                env: Sequence[str] = ()) -> Path:  # fmt: skip
    """An image of one layer, in a tar file that `ctr images import` takes."""
    layer = target.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for member, data in _members(content):
            tar.addfile(member, data)
            if data is not None:
                data.close()
    digest = _digest(layer)
    config = _blob({
        "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest]},
        "config": {"Env": ["PATH=/usr/local/bin:/bin", *env], "Entrypoint": list(entrypoint), "User": user,
                   "WorkingDir": "/"},
    })  # fmt: skip
    manifest = _blob({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _described(config, "config.v1+json"),
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest,
                    "size": layer.stat().st_size}],
    })  # fmt: skip
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    index = _blob(
        {"schemaVersion": 2, "manifests": [_described(manifest, "manifest.v1+json") | {"annotations": names}]}
    )
    with tarfile.open(target, "w") as tar:
        for place, blob in {
            "oci-layout": _blob({"imageLayoutVersion": "1.0.0"}), "index.json": index,
            _place(config): config, _place(manifest): manifest,
        }.items():  # fmt: skip
            tar.addfile(_file(place, len(blob)), io.BytesIO(blob))
        tar.add(layer, f"blobs/sha256/{digest.removeprefix('sha256:')}")
    layer.unlink()
    return target


def _members(content: Content) -> Iterator[tuple[tarfile.TarInfo, Any]]:
    for name in _FOLDERS:
        folder = tarfile.TarInfo(name)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        yield folder, None
    for place, path in sorted(content.files.items()):
        member = _file(place, path.stat().st_size)
        member.mtime = int(path.stat().st_mtime)  # compiled modules hold their source's time
        yield member, path.open("rb")
    for place, text in content.texts.items():
        yield _file(place, len(text)), io.BytesIO(text.encode())
    for place, leads_to in content.links.items():
        link = tarfile.TarInfo(place)
        link.type, link.linkname = tarfile.SYMTYPE, leads_to
        yield link, None


def _file(place: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(place)
    member.size, member.mode = size, 0o755
    return member


def _blob(value: object) -> bytes:
    return json.dumps(value).encode()


def _sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _place(blob: bytes) -> str:
    return f"blobs/sha256/{_sha(blob).removeprefix('sha256:')}"


def _described(blob: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": _sha(blob), "size": len(blob)}


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"
