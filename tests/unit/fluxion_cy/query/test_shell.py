"""The prompt: the commands of resource-query, from a file or standard input."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from fluxion_cy.query.shell import main

from ..graphs import machine, slot, spec, want


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph").write_text(json.dumps(machine(nodes=1, cores=2)))
    (tmp_path / "job").write_text(json.dumps(spec(slot(2, want("core", 1)), duration=10)))
    (tmp_path / "large").write_text(json.dumps(spec(slot(3, want("core", 1)))))
    return tmp_path


def given(files: Path, capsys: pytest.CaptureFixture[str], *lines: str) -> tuple[int, list[dict[str, Any]]]:
    (files / "commands").write_text("\n".join(lines))
    status = main(["-L", "graph", "-F", "jgf", "-c", "commands", "--json"])
    return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_jobs_are_matched_told_of_and_cancelled(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("match allocate job", "match allocate_orelse_reserve job", "m allocate_with_satisfiability large", "list")
    status, found = given(files, capsys, *lines, "cancel 1", "info 1", "quit", "never read")
    assert status == 0
    assert [answer.get("mode") for answer in found] == ["ALLOCATED", "RESERVED", None, None, None, "CANCELED"]
    assert found[1]["at"] == 10
    assert found[2]["unsatisfiable"]
    assert [job["jobspec"] for job in found[3]["jobs"]] == ["job", "job"]


def test_what_is_wrong_is_said_in_one_line_and_the_rest_goes_on(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = given(
        files, capsys, "fly", "match allocate nothing", "cancel 5", "cancel x", "find (", "get-status /x", "stat"
    )
    assert status == 1
    assert [answer["ok"] for answer in found] == [False] * 6 + [True]
    assert found[2]["errno"] == "ENOENT"
    assert all("\n" not in answer["error"] for answer in found[:6])


def test_status_and_properties_are_set_and_shown(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = "/cluster0/node0"
    lines = (f"set-status {node} down", f"get-status {node}", f"set-property {node} a=b", f"get-property {node}")
    status, found = given(files, capsys, *lines)
    assert status == 0
    assert found[1]["status"] == "down"
    assert found[3]["properties"] == {"a": "b"}


@pytest.mark.parametrize(
    "line",
    ["match satisfy job # a remark, don't read it", "# all of it", "match satisfy 'job' #", "match satisfy jo'b' # \""],
)
def test_a_remark_may_end_a_line(files: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert given(files, capsys, line)[0] == 0


def test_a_sign_within_a_word_or_in_quotes_begins_no_remark(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a#b", "#c d", "e #f"):
        (files / name).write_text("text of " + name)
    _, found = given(files, capsys, "cat a#b", "cat '#c d'", 'cat "e #f"', "cat \\#c\\ d")
    assert [answer.get("text") for answer in found] == [f"text of {name}" for name in ("a#b", "#c d", "e #f", "#c d")]


def test_a_line_too_long_is_refused_and_the_next_one_read(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Input(io.StringIO):
        def readline(self, size: int | None = -1) -> str:  # type: ignore[override]  # typeshed has two of them
            asked.append(size or -1)
            return super().readline(-1 if size is None else size)

    monkeypatch.setattr("sys.stdin", Input("cat " + "x" * 300_000 + "\nmatch satisfy job\n"))
    assert main(["-L", "graph", "--json"]) == 1
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["error"] == "stdin:1: malformed command: the line is longer than 65,536 characters"
    assert second["ok"]
    assert set(asked) == {65_537}


def test_closed_streams_are_told_in_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["-L", "graph"]) == 2
    assert capsys.readouterr().err == "ERROR: standard input is closed; pass the commands in a file with -c\n"
    assert given(files, capsys, "match satisfy job")[0] == 0
    monkeypatch.setattr("sys.stdout", None)
    assert main(["-L", "graph", "-c", "commands"]) == 2
    assert capsys.readouterr().err == "ERROR: standard output is closed\n"


def test_a_file_that_cannot_be_written_is_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "commands").write_text("match allocate job")
    assert main(["-L", "graph", "-c", "commands", "-t", "/dev/full"]) == 2
    assert capsys.readouterr().err == "ERROR: can't write /dev/full: No space left on device\n"


@pytest.mark.parametrize(("option", "name"), [("-o", "nowhere/out.dot"), ("-t", "nowhere/out")])
def test_a_folder_that_is_not_there_is_found_before_the_graph_is_read(
    files: Path, capsys: pytest.CaptureFixture[str], option: str, name: str
) -> None:
    assert main(["-L", "no graph", option, "nowhere/out"]) == 2
    assert capsys.readouterr().err == f"ERROR: can't write {name}: No such file or directory\n"
