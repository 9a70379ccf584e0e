"""Ten thousand inputs for each target; `make fuzz` runs any number."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzz.corpus import FOLDER, minimised, seeds
from tests.fuzz.run import LONGEST, NAMES
from tests.fuzz.targets import TARGETS
from tests.fuzz.watch import Finding, bounded

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_inputs_break_nothing(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", name, "--runs", "10000", "--seed", "1", "--found", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    assert "10000 executions, nothing found" in run.stdout or "10000 executions in" in run.stdout


def test_every_target_has_a_small_corpus() -> None:
    assert sorted(NAMES) == sorted(TARGETS) == sorted(path.stem for path in FOLDER.iterdir())
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 500_000
    for name in NAMES:
        assert all(len(data) <= LONGEST.get(name, 4096) for data in seeds(name))


def test_the_corpus_keeps_the_shortest_inputs_that_reach_something() -> None:
    def target(data: bytes) -> tuple[str, ...]:
        return ("long",) if len(data) > 3 else ()

    assert minimised([b"12345", b"1234", b"1", b""], target, "/nowhere") == [b"1234"]


def test_more_than_the_limit_of_processor_time_is_a_finding() -> None:
    def endless(_: bytes) -> None:
        sum(range(100_000))

    with pytest.raises(Finding, match="took"):
        bounded(endless, 1e-6)(b"")
