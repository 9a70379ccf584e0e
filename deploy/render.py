"""Renders the flat manifests of deploy/ from deploy/kustomize: `python deploy/render.py`, or `make manifests`.

The rendered files are checked in, so that users need only kubectl. A test renders them again and compares.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

DEPLOY = Path(__file__).resolve().parent
SOURCES = {
    "queues.yaml": "base/queues",
    "fluence.yaml": "fluence",
    "fluence-resources.yaml": "base/resources",
    "device-plugin.yaml": "base/device-plugin",
    "options/annotations.yaml": "options/annotations",
    "options/coordination.yaml": "options/coordination",
    "options/dashboard.yaml": "options/dashboard",
    "options/fencing.yaml": "options/fencing",
    "options/go-compatible.yaml": "options/go-compatible",
    "options/gpu-device-plugin.yaml": "options/gpu-device-plugin",
    "options/master-queue.yaml": "options/master-queue",
    "options/monitoring.yaml": "options/monitoring",
    "options/numa.yaml": "options/numa",
    "options/reserved-gpus.yaml": "options/reserved-gpus",
    "options/slurm-bridge.yaml": "options/slurm-bridge",
}
"""Each flat file, with its source directory in kustomize/."""
WHOLE = {"options/slurm-bridge.yaml", "options/gpu-device-plugin.yaml"}
"""Options that contain all objects of another file, with changes. The chart has templates for these."""
CHART_FILES = "chart/fluence/files"
"""The chart includes the rendered options, and only sets their namespace."""
_HEADER = """\
# {title}
#
#   kubectl apply -f deploy/{name}
#
# Developers: change deploy/kustomize/{source}, which has the comments, then run `make manifests`.
"""
_SECONDS = 60


def title(source: str) -> str:
    """The comment at the start of a kustomization, which describes its objects."""
    lines = (DEPLOY / "kustomize" / source / "kustomization.yaml").read_text().splitlines()
    comment = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    return "\n".join(comment).removeprefix("# ")


def render(name: str, kustomize: str) -> str:
    """The text of a flat file. Raises CalledProcessError if kustomize fails."""
    source = SOURCES[name]
    command = [kustomize, "build", str(DEPLOY / "kustomize" / source)]
    objects = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, timeout=_SECONDS).stdout  # noqa: S603
    return _HEADER.format(title=title(source), name=name, source=source) + objects


def write(path: Path, text: str) -> None:
    """Write a file, and create its parent directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Render all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kustomize", default="kustomize", help="the program (default: the one on the PATH)")
    parser.add_argument("--into", type=Path, default=DEPLOY, help="the directory to write to (default: deploy/)")
    options = parser.parse_args()
    for name in SOURCES:
        text = render(name, options.kustomize)
        write(options.into / name, text)
        if name.startswith("options/") and name not in WHOLE:
            write(options.into / CHART_FILES / Path(name).name, text)


if __name__ == "__main__":
    main()
