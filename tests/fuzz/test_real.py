"""Some hundred sessions on Fluxion's own library, if it is installed; `make fuzz-reapi` runs any number."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzz.sessions import Session

from fluxion_cy.reapi.library import VARIABLE

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no library of Fluxion's own")
def test_no_session_ends_or_blocks_the_process() -> None:
    command = [sys.executable, "-m", "tests.fuzz.real", "--sessions", "600", "--seed", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    assert "600 sessions" in run.stdout
    assert "0 findings" in run.stdout


def test_equal_seeds_give_equal_sessions() -> None:
    graphs = [Session(7, print).graph() for _ in range(2)]
    assert graphs[0] == graphs[1]
