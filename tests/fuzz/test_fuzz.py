"""Ten thousand inputs for each target; `make fuzz` runs as many as one likes."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzz.run import CORPUS, NAMES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_inputs_break_nothing(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", name, "--runs", "10000", "--seed", "1", "--found", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    assert "10000 executions, nothing found" in run.stdout or "10000 executions in" in run.stdout


def test_every_target_has_a_small_corpus_of_its_own() -> None:
    assert sorted(NAMES) == sorted(path.name for path in CORPUS.iterdir())
    for name in NAMES:
        sizes = [path.stat().st_size for path in (CORPUS / name).iterdir()]
        assert sizes
        assert max(sizes) <= 4096
