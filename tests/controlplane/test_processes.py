"""The harness's programs: it observes their start, and leaves none behind."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .forked import FluenceProgram
from .processes import Program, StartError, free_ports


def test_a_program_that_ends_early_is_quoted(tmp_path: Path) -> None:
    program = Program("broken", ["sh", "-c", "echo first; echo no such flag >&2; exit 3"], tmp_path / "log")
    with pytest.raises(StartError, match=r"broken ended with status 3:\nfirst\nno such flag"):
        program.wait_until(lambda: False, 30)


def test_a_program_that_does_not_become_ready_is_given_up(tmp_path: Path) -> None:
    program = Program("slow", ["sleep", "100"], tmp_path / "log")
    with pytest.raises(StartError, match="slow was not ready after 0 s"):
        program.wait_until(lambda: False, 0)
    program.stop()


def test_a_program_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    program = Program("stubborn", ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.01; done"], tmp_path / "log")
    program.wait_until(lambda: "up" in (tmp_path / "log").read_text(), 30)
    program.stop(grace=0.1)
    assert program.status == -signal.SIGKILL


def test_free_ports_are_different_ones() -> None:
    assert len(set(free_ports(20))) == 20


@pytest.mark.parametrize("customized", [False, True])
def test_the_command_ends_with_its_status_and_in_the_tests_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, customized: bool
) -> None:
    if customized:
        (tmp_path / "sitecustomize.py").write_text("import sys; print('customized', file=sys.stderr)")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = FluenceProgram("fluence", ["simulate", tmp_path / "absent.yaml"], tmp_path / "log")
    with pytest.raises(StartError, match="fluence ended with status 2:\n") as failed:
        program.wait_until(lambda: False, 60)
    assert "absent.yaml" in str(failed.value)
    assert ("customized" in str(failed.value)) is customized


def test_the_command_can_be_stopped_continued_and_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never-written.yaml")
    program = FluenceProgram("fluence", ["simulate", tmp_path / "never-written.yaml"], tmp_path / "log")
    program.signal(signal.SIGSTOP)
    state = Path(f"/proc/{program.pid}/stat")
    program.wait_until(lambda: state.read_text().rpartition(") ")[2].startswith("T"), 10)
    assert program.status is None
    program.signal(signal.SIGCONT)
    program.kill()
    assert program.status == -signal.SIGKILL


def test_one_thread_may_poll_while_another_kills_and_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never-written.yaml")
    with ThreadPoolExecutor(1) as thread:
        for turn in range(20):
            program = FluenceProgram("fluence", ["simulate", tmp_path / "never-written.yaml"], tmp_path / f"log{turn}")
            killed = thread.submit(program.kill)
            while program.status is None:
                pass
            killed.result(30)
            assert program.status == -signal.SIGKILL
