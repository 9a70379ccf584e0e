"""Builds and checks the parts of a release that one machine can build, and lists the others.

Run it with `python -m deploy.release_check`. It leaves the artifacts in dist/. Exit status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import yaml
from packaging.metadata import Metadata, parse_email
from rich.console import Console
from rich.table import Table
from tests.controlplane.binaries import MissingBinaries, find
from trove_classifiers import classifiers

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "chart" / "fluence"
_SECONDS = 1800
_REQUIRED = ("Name", "Version", "Summary", "License-Expression", "Requires-Python", "Classifier", "Project-URL",
             "Keywords", "Description-Content-Type")  # fmt: skip
_MEGABYTE = 1_000_000
ELSEWHERE = (
    (
        "wheels of fluxion-cy",
        "for other Pythons, aarch64, musl and macOS: built by cibuildwheel in the release workflow",
    ),
    ("images", "on Docker's base images and for arm64, SBOM and provenance: built by buildx in the release workflow"),
    ("pushing", "wheels to PyPI, images and chart to ghcr.io: pushed by the release workflow for a tag"),
)
"""The parts of a release that one machine cannot build."""


class CheckError(Exception):
    """A check failed; the text is the reason."""


class ElsewhereError(Exception):
    """This machine cannot run a check; the text is the reason."""


@dataclass(frozen=True)
class Row:
    """The result of a check."""

    name: str
    result: str
    """ok, failed or elsewhere."""
    detail: str


# ------------------------------------------------------------------ the checks: each returns a summary


def versions(_: Path) -> str:
    """All versions equal the one in pyproject.toml."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    found = {"pyproject.toml": _project()["version"], "Chart.yaml, version": chart["version"]}
    found["fluxion_cy/pyproject.toml"] = _project("fluxion_cy")["version"]
    found["Chart.yaml, appVersion"] = str(chart["appVersion"])
    for name in ("Dockerfile", "fluence.yaml", "device-plugin.yaml"):
        text = (ROOT / "deploy" / name).read_text()
        for number in set(
            re.findall(r'(?:converged-computing/fluence:|ARG VERSION=")([^\s"]+?)(?:-flux-sched)?["\s]', text)
        ):
            found[f"deploy/{name}, {number}"] = number
    if len(set(found.values())) != 1:
        raise CheckError("; ".join(f"{place}: {number}" for place, number in found.items()))
    return str(_project()["version"])


def fluxion_cy(into: Path) -> str:
    """Builds the sdist of fluxion-cy, and a wheel from it."""
    _clear(into, "fluxion_cy-*")
    scratch = into / "build"
    scratch.mkdir(exist_ok=True)
    _run(
        sys.executable, "setup.py", "-q", "egg_info", "--egg-base", scratch, "sdist", "-d", into, at=ROOT / "fluxion_cy"
    )
    shutil.rmtree(scratch)
    return _wheel_of(into, "fluxion_cy")


def fluence_scheduler(into: Path) -> str:
    """Builds the sdist of fluence-scheduler, and a wheel from it."""
    _clear(into, "fluence_scheduler-*")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", into)
    return _wheel_of(into, "fluence_scheduler")


def metadata(into: Path) -> str:
    """Finds metadata that PyPI rejects or shows badly: invalid or missing fields, unknown classifiers."""
    archives = sorted([*into.glob("*.tar.gz"), *into.glob("*.whl")])
    if not archives:
        raise CheckError("found no sdist and no wheel")
    wrong = [f"{archive.name}: {fault}" for archive in archives for fault in _faults(_metadata_of(archive))]
    if wrong:
        raise CheckError("; ".join(wrong))
    return f"valid and complete in {len(archives)} files"


def chart(into: Path) -> str:
    """Lints the chart and packages it."""
    helm = find("helm")["helm"]
    _run(helm, "lint", "--strict", CHART)
    _clear(into, "fluence-*.tgz")
    _run(helm, "package", CHART, "--destination", into)
    (package,) = into.glob("fluence-*.tgz")
    return _described(package)


def image(_: Path) -> str:
    """Builds the image with the Dockerfile's steps, on a root file system of Debian packages."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ElsewhereError("the image is built in chroots of Debian packages: run this as root on Debian")
    output = _run(sys.executable, "-m", "tests.e2e.image_build")
    path = Path(output.strip().splitlines()[-1].partition(" (")[0])
    return _described(path)


def dockerfile(_: Path) -> str:
    """Lints the Dockerfile with hadolint."""
    _run(Path(sys.executable).parent / "hadolint", "--no-color", "--failure-threshold", "style", "deploy/Dockerfile")
    return "hadolint found no problems"


def workflows(_: Path) -> str:
    """Lints the workflows with actionlint."""
    files = sorted((ROOT / ".github" / "workflows").iterdir())
    _run(find("actionlint")["actionlint"], "-no-color", "-shellcheck=", "-pyflakes=", *files)
    return f"actionlint found no problems in {', '.join(file.name for file in files)}"


CHECKS: dict[str, Callable[[Path], str]] = {
    "versions": versions, "fluxion-cy": fluxion_cy, "fluence-scheduler": fluence_scheduler, "metadata": metadata,
    "dockerfile": dockerfile, "image": image, "chart": chart, "workflows": workflows,
}  # fmt: skip


# ------------------------------------------------------------------ helpers


def _project(folder: str = ".") -> dict[str, str]:
    found: dict[str, str] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    return found


def _run(*command: str | Path, at: Path = ROOT) -> str:
    """The output of a command. Raises CheckError with the end of the output if the command fails."""
    done = subprocess.run(command, cwd=at, text=True, stdout=subprocess.PIPE,  # noqa: S603
                          stderr=subprocess.STDOUT, timeout=_SECONDS, check=False)  # fmt: skip
    if done.returncode != 0:
        raise CheckError(f"{Path(command[0]).name}: {' '.join(done.stdout.split()[-60:])}")
    return done.stdout


def _clear(into: Path, pattern: str) -> None:
    for stale in into.glob(pattern):
        stale.unlink()


def _wheel_of(into: Path, name: str) -> str:
    (sdist,) = into.glob(f"{name}-*.tar.gz")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel")
    _run(*pip, "--no-build-isolation", "--no-deps", "--no-index", "-w", into, sdist)
    (wheel,) = into.glob(f"{name}-*.whl")
    return f"{_described(sdist)}, {_described(wheel)}"


def _described(file: Path) -> str:
    return f"{file.name} ({file.stat().st_size / _MEGABYTE:.1f} MB)"


def _metadata_of(archive: Path) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")))
    with tarfile.open(archive) as sdist:
        top = min((name for name in sdist.getnames() if name.endswith("/PKG-INFO")), key=len)
        member = sdist.extractfile(top)
        return member.read() if member else b""


def _faults(text: bytes) -> Iterator[str]:
    raw, unknown = parse_email(text)
    yield from (f"{field}: unknown field" for field in unknown)
    try:
        Metadata.from_raw(raw)
    except ExceptionGroup as errors:
        yield from (str(error) for error in errors.exceptions)
    headers: Message = HeaderParser().parsestr(text.decode())
    yield from (f"{field}: missing" for field in _REQUIRED if not headers.get(field))
    yield from (f"Classifier: {each} is not a valid PyPI classifier" for each in headers.get_all("Classifier", [])
                if each not in classifiers)  # fmt: skip
    if not raw.get("description", "").strip():
        yield "Description: missing"


# ------------------------------------------------------------------ the command


def check(names: list[str], into: Path) -> Iterator[Row]:
    """Run these checks, and list the parts that are built elsewhere."""
    for name in names:
        try:
            yield Row(name, "ok", CHECKS[name](into))
        except CheckError as error:
            yield Row(name, "failed", str(error))
        except (ElsewhereError, MissingBinaries) as error:
            yield Row(name, "elsewhere", str(error))
    yield from (Row(name, "elsewhere", detail) for name, detail in ELSEWHERE)


def main(words: list[str] | None = None) -> int:
    """Report all checks. Returns 1 if one failed."""
    parser = argparse.ArgumentParser(prog="release_check", description=__doc__)
    parser.add_argument("--only", choices=CHECKS, nargs="+", default=list(CHECKS), help="these checks (default: all)")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="the directory to build into (default: dist/)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="the format of the report")
    options = parser.parse_args(words)
    into = options.into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in check(options.only, into):
        print(f"{row.name}: {row.result}", file=sys.stderr, flush=True)
        rows.append(row)
    failed = any(row.result == "failed" for row in rows)
    if options.output == "json":
        machine = f"{platform.system().lower()}/{platform.machine()}"
        print(
            json.dumps({"version": _project()["version"], "machine": machine, "checks": [asdict(row) for row in rows]})
        )
        return int(failed)
    table = Table("check", "result", "detail", box=None)
    for row in rows:
        table.add_row(row.name, row.result, row.detail)
    Console().print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
