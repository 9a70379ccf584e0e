"""Runs the upgrade from a second checkout: its scheduler is killed in flight, and this checkout's takes over.

python -m tests.controlplane.upgrade.live --other PATH              # every situation; words select some of them
python -m tests.controlplane.upgrade.live --other PATH --record     # and write recorded/, which test_upgrade.py loads

PATH is a checkout of an older commit in which `make setup` was run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..harness import ControlPlane
from ..processes import StartError
from ..scheduler_process import fluence_of
from .recording import RECORDED, cluster_of, record
from .situations import PRIORITIES, SITUATIONS, Situation, upgrade


def run(plane: ControlPlane, folder: Path, situation: Situation, other: Path, commit: str = "") -> None:
    """Run one situation; with `commit`, also record it."""
    with cluster_of(plane, folder, situation, replace(situation.settings, checkout=other)) as crash:
        situation.crash(crash)
        if commit:
            record(crash.world, situation, commit)
        upgrade(crash, situation)


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="live", description="Upgrade a cluster from another checkout.")
    parser.add_argument("--other", type=Path, metavar="PATH", required=True, help="the checkout of an older commit")
    parser.add_argument("--record", action="store_true", help=f"write what it leaves into {RECORDED.name}/")
    parser.add_argument("words", nargs="*", help="run the situations with one of these in their names")
    options = parser.parse_args(arguments)
    try:
        fluence_of(options.other)
    except StartError as error:
        parser.exit(2, f"--other: {error}\n")
    asked = ["git", "-C", str(options.other), "rev-parse", "HEAD"]
    commit = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    chosen = [each for name, each in SITUATIONS.items() if not options.words or any(w in name for w in options.words)]
    folder, failed = Path(tempfile.mkdtemp(prefix="upgrade-")), 0
    (folder / "plane").mkdir()
    with ControlPlane(folder / "plane") as plane:
        for priority in PRIORITIES:
            plane.create(priority)
        for situation in chosen:
            began, verdict = time.monotonic(), "ok"
            try:
                run(plane, folder, situation, options.other, commit if options.record else "")
            except Exception:  # noqa: BLE001 (every failure is counted and shown)
                failed, verdict = failed + 1, "FAILED"
                traceback.print_exc()
            print(f"{situation.name}: {verdict} [{time.monotonic() - began:.1f} s]", flush=True)
    print(f"from {commit[:12]}: {len(chosen) - failed} of {len(chosen)} situations are upgraded; logs: {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
