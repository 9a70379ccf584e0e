"""The command as a separate process: when a stream is closed or full, or its reader exits, and in other locales."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.session_scheduler.cli.test_main import CONFIG, MANIFESTS

COMMAND = "import sys; from session_scheduler.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    """The options of a command that works without Fluxion."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    return ["--config", str(tmp_path / "config.yaml")]


@pytest.mark.parametrize("arguments", [["plugins"], ["plugins", "-o", "json"], ["--help"]])
def test_the_command_ends_quietly_when_its_reader_exits(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", COMMAND, *arguments]
    done = subprocess.run(command, env=environment, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def _shell(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell, because only a shell can close a stream before the process begins."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = f'exec "$@" {redirection}'
    command = ["sh", "-c", script, "sh", sys.executable, "-c", COMMAND, *arguments]
    return subprocess.run(command, env=environment, text=True, capture_output=True)


@pytest.mark.parametrize(
    ("redirection", "problem"),
    [
        (">&-", "standard output is closed; redirect it to a file, a pipe or a terminal"),
        (">/dev/full", "cannot write the output: No space left on device; free space, or redirect the output"),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["plugins"], ["plugins", "-o", "json"], ["--help"]])
def test_a_failed_write_of_output_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, redirection: str, problem: str, arguments: list[str], unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    done = _shell(redirection, *arguments)
    assert (done.returncode, done.stderr) == (2, f"fluence: {problem}\n")


@pytest.mark.parametrize(
    ("redirection", "problem"),
    [("<&-", "is closed; pipe a manifest into it"), ("0>/dev/null", "cannot be read: Bad file descriptor")],
)
def test_unreadable_standard_input_is_an_error_of_one_line(config: list[str], redirection: str, problem: str) -> None:
    done = _shell(redirection, "simulate", "-", *config)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"fluence: <stdin>: {problem}")


def test_files_are_read_if_standard_input_is_closed(config: list[str], tmp_path: Path) -> None:
    (tmp_path / "fits.yaml").write_text(MANIFESTS)
    done = _shell("<&-", "simulate", str(tmp_path / "fits.yaml"), *config, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_a_failed_write_of_an_error_changes_neither_output_nor_status(redirection: str) -> None:
    done = _shell(redirection, "simulate", "no-such-file.yaml")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_the_output_is_utf_8_in_every_locale(config: list[str], tmp_path: Path, encoding: str) -> None:
    (tmp_path / "fits.yaml").write_text(MANIFESTS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "session_scheduler.cli", "explain", str(tmp_path / "fits.yaml"), *config]
    done = subprocess.run(command, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "TaintToleration 100 × 3" in done.stdout.decode()
