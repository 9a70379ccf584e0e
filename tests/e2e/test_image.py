"""The image that the Dockerfile's steps make: what is in it, and how large it is. The other tests run it."""

from __future__ import annotations

import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ..tools.dockerfile import stages
from ..tools.real_programs import made
from .image_build import SUITE, built_image

LARGEST = 180_000_000
"""Bytes that our layer may have, unpacked: Python's packages and the bytecode of their modules."""
PACKAGES = "opt/fluence/lib/python3"


@pytest.fixture(scope="module")
def image() -> Path:
    return made(built_image)


def blob(image: Path, digest: str) -> dict[str, Any]:
    with tarfile.open(image) as layout:
        member = layout.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
        assert member is not None
        found: dict[str, Any] = json.load(member)
    return found


def manifest(image: Path) -> dict[str, Any]:
    with tarfile.open(image) as layout:
        member = layout.extractfile("index.json")
        assert member is not None
        (only,) = json.load(member)["manifests"]
    return blob(image, only["digest"])


def files(image: Path, layer: dict[str, Any]) -> dict[str, tarfile.TarInfo]:
    """The entries of a layer by their paths."""
    with tarfile.open(image) as layout:
        member = layout.extractfile(f"blobs/sha256/{layer['digest'].removeprefix('sha256:')}")
        with tarfile.open(fileobj=member) as packed:
            return {entry.name.removeprefix("./"): entry for entry in packed.getmembers()}


def test_the_stand_in_for_the_base_image_is_of_the_same_debian() -> None:
    assert f"-slim-{SUITE}@" in stages()["slim"][0].arguments


def test_our_layer_is_small(image: Path) -> None:
    base, ours = manifest(image)["layers"]
    assert ours["size"] <= LARGEST
    assert base["size"] > 0


def test_our_layer_adds_one_folder_that_root_owns(image: Path) -> None:
    *_, ours = manifest(image)["layers"]
    entries = {path: entry for path, entry in files(image, ours).items() if not entry.isdir()}
    assert {"/".join(path.split("/")[:2]) for path in entries} == {"opt/fluence"}
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}
    assert not [path for path, entry in entries.items() if entry.mode & 0o022 and not entry.issym()]


def test_what_no_pod_needs_is_left_out(image: Path) -> None:
    *_, ours = manifest(image)["layers"]
    packages = {path.split("/")[5] for path in files(image, ours) if path.startswith(PACKAGES) and path.count("/") > 4}
    assert {
        "session_scheduler",
        "fluence_plugins",
        "fluence_lab",
        "fluxion_cy",
        "numpy",
        "aiohttp",
        "bokeh",
    } <= packages
    assert not packages & {"kubernetes", "requests", "pip", "setuptools", "Cython", "pytest", "hypothesis", "mypy",
                           "PIL", "tornado", "contourpy", "narwhals", "xyzservices", "packaging"}  # fmt: skip
    assert not [path for path in files(image, ours) if "/tests/" in path or path.endswith(".cpp")]


def test_every_module_has_bytecode_that_fits_it(image: Path) -> None:
    """Else each start compiles it again, because the file system is read-only."""
    *_, ours = manifest(image)["layers"]
    with tarfile.open(image) as layout:
        layer = layout.extractfile(f"blobs/sha256/{ours['digest'].removeprefix('sha256:')}")
        with tarfile.open(fileobj=layer) as packed:
            entries = {entry.name.removeprefix("./"): entry for entry in packed.getmembers()}
            compiled = {
                path.replace("__pycache__/", "").partition(".cpython-")[0]: entry
                for path, entry in entries.items()
                if "/session_scheduler/" in path and path.endswith(".pyc")
            }
            modules = {path.removesuffix(".py"): entry for path, entry in entries.items()
                       if "/session_scheduler/" in path and path.endswith(".py")}  # fmt: skip
            assert modules
            for path, module in modules.items():
                code = packed.extractfile(compiled[path])
                assert code is not None
                flags, changed, size = struct.unpack("<III", code.read(16)[4:])  # Source: PEP 552
                assert (flags, changed, size) == (0, int(module.mtime), module.size), path


def test_the_image_says_who_runs_it_and_what_it_is(image: Path) -> None:
    config = blob(image, manifest(image)["config"]["digest"])["config"]
    assert (config["User"], config["WorkingDir"]) == ("65532:65532", "/")
    assert (config["Entrypoint"], config["Cmd"]) == (["fluence"], ["--help"])
    assert config["ExposedPorts"].keys() == {"8080/tcp", "8443/tcp"}
    (path,) = [value for value in config["Env"] if value.startswith("PATH=")]
    assert path.startswith("PATH=/opt/fluence/bin:")
    labels = config["Labels"]
    assert (labels["org.opencontainers.image.title"], labels["org.opencontainers.image.licenses"]) == ("fluence", "MIT")
    assert labels["org.opencontainers.image.version"]
