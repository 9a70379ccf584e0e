"""The prompt as a separate process: its streams, its end, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ...unit.fluxion_cy.graphs import machine, slot, spec, want

GRAPH = ("-L", "graph", "-f", "jgf")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "graph").write_text(json.dumps(machine(nodes=2, cores=2)))
    (tmp_path / "job").write_text(json.dumps(spec(slot(2, want("core", 1)), duration=10)))
    return tmp_path


def test_the_process_prints_the_output_of_resource_query(files: Path) -> None:
    command = [sys.executable, "-m", "fluxion_cy", "-L", "graph", "-F", "jgf"]
    run = subprocess.run(
        command, input="match allocate job\nno\n", capture_output=True, text=True, cwd=files, timeout=120
    )
    lines = run.stdout.splitlines()
    assert lines[1:] == [
        "INFO: =============================",
        "INFO: JOBID=1",
        "INFO: RESOURCES=ALLOCATED",
        "INFO: SCHEDULED AT=Now",
        "INFO: =============================",
    ]
    assert run.stderr.startswith("ERROR: stdin:2: unknown command 'no'")
    assert run.returncode == 1
    bad = subprocess.run([*command[:4], "nothing"], capture_output=True, text=True, cwd=files, timeout=120)
    assert (bad.returncode, bad.stderr) == (2, "ERROR: can't open nothing: No such file or directory\n")


def process(files: Path, *program: str, **more: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, *(program or ("-m", "fluxion_cy")), *GRAPH]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=files, **more)  # type: ignore[call-overload]


def test_input_that_is_not_text_is_an_error_and_the_end_of_input_ends_the_prompt(files: Path) -> None:
    out, error = process(files).communicate(b"match \xff\xfe\x00 job\nget-status /cluster0", timeout=30)
    assert error.startswith(b"ERROR: stdin:1: unknown subcmd")
    assert error.count(b"\n") == 1
    assert out == b"/cluster0 is up\n"


def test_an_exited_reader_causes_no_traceback(files: Path) -> None:
    with process(files) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        child.stdin.write(b"help\n" * 50)
        child.stdin.close()
        assert child.wait(timeout=30) == 1
        assert child.stderr.read() == b""


HEARS_CTRL_C = """
import runpy, signal

signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("fluxion_cy", run_name="__main__", alter_sys=True)
"""
"""A program that was started in the background ignores it, and so would its children.

With a preexec_fn it would be forked, which runs what libraries of the other tests have for that: gRPC's aborts it.
"""


def first_answer(child: subprocess.Popen[bytes], line: bytes) -> bytes:
    """The answer to a line; without one, the process's end."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    with suppress(BrokenPipeError):
        child.stdin.write(line)
    return child.stdout.readline() or b"%d: %b" % (child.wait(timeout=30), child.stderr.read())


def test_ctrl_c_ends_in_one_line(files: Path) -> None:
    with process(files, "-c", HEARS_CTRL_C, bufsize=0) as child:
        assert first_answer(child, b"get-status /cluster0\n") == b"/cluster0 is up\n"  # it waits for more input
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=30)
    assert (child.returncode, error) == (130, b"ERROR: interrupted\n")
