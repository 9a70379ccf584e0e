"""Container images, made from what is on this machine: OCI layouts as tar files that containerd imports.

That of Fluence is built by image_build.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FOLDERS = ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "usr", "var")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CHUNK = 1 << 20


@dataclass
class Content:
    """What an image holds: files and links, by their place in it."""

    files: dict[str, Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


# ------------------------------------------------------------------ what is in them


def pause_image(target: Path, program: Path) -> Path:
    """The first process of every pod."""
    content = Content(files={"pause": program})
    return write_image(target, "registry.local/pause:3.10", content, entrypoint=["/pause"])


def busybox_image(target: Path, tag: str = "1.36") -> Path:
    """A shell and its commands, by the name that the examples give it."""
    names = subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True, text=True, timeout=10)
    content = Content(files={"bin/busybox": Path("/bin/busybox")})
    content.links = {f"bin/{name}": "busybox" for name in names.stdout.split() if name != "busybox"}
    return write_image(target, f"docker.io/library/busybox:{tag}", content, entrypoint=[])


# ------------------------------------------------------------------ how they are written


def write_image(target: Path, name: str, content: Content, *, entrypoint: Sequence[str] = ()) -> Path:
    """An image of one layer, in a tar file that `ctr images import` takes."""
    layer = target.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for member, data in _members(content):
            tar.addfile(member, data)
            if data is not None:
                data.close()
    config = {"Env": ["PATH=/usr/local/bin:/bin"], "Entrypoint": list(entrypoint), "WorkingDir": "/"}
    return _write_layout(target, name, [layer], config)


def write_layers(target: Path, name: str, roots: Sequence[Path], config: Mapping[str, object]) -> Path:
    """An image with a layer for each folder, the lowest one first."""
    layers = []
    for number, root in enumerate(roots):
        layers.append(layer := target.with_suffix(f".layer{number}"))
        # Devices and what the kernel shows are the container runtime's to mount.
        left_out = [f"--exclude=./{folder}/*" for folder in ("dev", "proc", "sys")]
        command: list[str | Path] = [
            "tar",
            "--create",
            "--numeric-owner",
            "--sort=name",
            *left_out,
            "-C",
            root,
            "-f",
            layer,
            ".",
        ]
        subprocess.run(command, check=True, timeout=600)
    return _write_layout(target, name, layers, config)


def _write_layout(target: Path, name: str, layers: Sequence[Path], options: Mapping[str, object]) -> Path:
    """Pack the layers' files, which it removes."""
    digests = [_digest(layer) for layer in layers]
    config = _blob({
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": digests}, "config": dict(options),
    })  # fmt: skip
    manifest = _blob({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _described(config, "config.v1+json"),
        "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest,
                    "size": layer.stat().st_size} for layer, digest in zip(layers, digests, strict=True)],
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
        for layer, digest in zip(layers, digests, strict=True):
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
        yield member, path.open("rb")
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
