"""The prompt's options, and what impatient users give it: no traceback, one line that names what is wrong."""

import io
import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fluxion_cy.query import answers
from fluxion_cy.query.shell import main

from ..graphs import machine, slot, spec, want

GRAPH = ("-L", "graph", "-f", "jgf")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph").write_text(json.dumps(machine(nodes=2, cores=2)))
    (tmp_path / "job").write_text(json.dumps(spec(slot(2, want("core", 1)), duration=10)))
    (tmp_path / "bad").write_text("{}")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit status and standard error."""
    try:
        status = main([*arguments])
    except SystemExit as stop:
        status = int(stop.code or 0)
    return status, capsys.readouterr().err


def commands(files: Path, *lines: str) -> str:
    (files / "commands").write_text("\n".join(lines))
    return "commands"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("-L", "nothing"), "can't open nothing"),
        (("-L", "."), "can't open .: Is a directory"),
        (("-L", "bad"), "bad: graph: "),
        (("-L", "graph", "-f", "hwloc"), "flux R encode"),
        (("-L", "graph", "-f", "fly"), "'fly' is unknown"),
        (("-L", "graph", "-f", "grug"), "graph: "),
        (("-L", "graph", "-W", "node,core"), "command remove"),
        (("-L", "graph", "-S", "IBA"), "use CA"),
        (("-L", "graph", "-P", "fly"), "or an option of a policy, got 'fly'"),
        (("-L", "graph", "-F", "fly"), "match_format='fly'"),
        (("-L", "graph", "-T", "fly"), "traverser='fly'"),
        (("-L", "graph", "-p", "fly"), "prune_filters: expected ANCHOR:TYPE, got 'fly'"),
        (("-L", "graph", "-g", "png"), "use dot, graphml, jgf"),
        (("-L", "graph", "-c", "nothing"), "can't open nothing"),
        (("-L", "graph", "-c", "bad", "-t", "no/where"), "can't write no/where: No such file"),
        (("-L", "graph", "-c", "bad", "-o", "no/where"), "can't write no/where.dot: No such file"),
        (("-L", "graph", "--engine", "fly"), "engine='fly'"),
        (("-L", "graph", "--engine", "reapi", "--library", "no/where.so"), "no/where.so"),
        (("-L", "graph", "stray"), "stray"),
        ((), "-L"),
    ],
)
def test_options_that_cannot_be_used_are_named_and_end_with_2(
    arguments: tuple[str, ...], word: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, error = said(capsys, *arguments)
    assert status == 2
    assert word in error.splitlines()[-1]


def test_no_more_of_a_file_is_read_than_its_limit(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_LONGEST", 1000)
    message = "can't open /dev/zero: it is longer than 1000 characters"
    assert said(capsys, "-L", "/dev/zero")[1].splitlines()[-1].endswith(message)


def test_a_broken_line_is_named_by_file_and_number_and_the_rest_goes_on(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (
        "match allocate job",
        "",
        "# a remark",
        "matsch allocate job",
        "match allocate bad",
        'find "open',
        "stat x",
    )
    status = main([*GRAPH, "-c", commands(files, *lines, "list")])
    out, error = capsys.readouterr()
    assert status == 1
    assert error.splitlines() == [
        "ERROR: commands:4: unknown command 'matsch'; did you mean match?",
        "ERROR: commands:5: bad: jobspec: the key 'version' is missing",
        "ERROR: commands:6: malformed command: No closing quotation",
        "ERROR: commands:7: malformed command; use stat",
    ]
    assert out.splitlines()[-1].startswith("INFO: 1, ALLOCATED, 0, job, ")


def test_several_jobspecs_end_at_the_first_without_a_place(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(
        [*GRAPH, "--json", "-c", commands(files, "multi-match allocate job job job job", "M allocate job bad")]
    )
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert status == 0
    assert [match["matched"] for match in first["matches"]] == [True, True, False]
    assert second["matches"][0]["matched"] is False


def test_what_was_matched_before_an_error_is_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*GRAPH, "--json", "-c", commands(files, "multi-match allocate job bad job", "list")])
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["ok"], len(first["matches"]), first["errno"]) == (False, 1, "EINVAL")
    assert first["error"].startswith("commands:1: bad: ")
    assert [job["jobid"] for job in second["jobs"]] == [1]


def test_answers_go_to_the_file_and_asides_to_standard_output(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*GRAPH, "-t", "answers", "-c", commands(files, "match allocate job", "info 1")])
    assert capsys.readouterr().out.startswith("INFO: 1, ALLOCATED, 0, job, ")
    assert "INFO: JOBID=1\n" in (files / "answers").read_text()


def test_ranks_are_removed_whole(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            *GRAPH,
            "--json",
            "-c",
            commands(files, "remove 1 false", "remove 7 false", "remove x false", "find status=up"),
        ]
    )
    given = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["ok"] for answer in given] == [True, False, False, True]
    assert given[0]["paths"] == ["/cluster0/node1"]
    assert {node["metadata"].get("rank") for node in given[3]["graph"]["graph"]["nodes"]} <= {-1, 0, None}


def test_the_graph_is_written_at_the_end(files: Path) -> None:
    for form in ("dot", "graphml", "JGF"):
        assert main([*GRAPH, "-c", commands(files, "remove /cluster0/node1"), "-o", "drawn", "-g", form]) == 0
    assert '"0" -> "1" [label="containment"];' in (files / "drawn.dot").read_text()
    assert "node1" not in (files / "drawn.dot").read_text()
    tree = ElementTree.parse(files / "drawn.graphml").getroot()
    assert sum(element.tag.endswith("}node") for element in tree.iter()) == 5
    assert main(["-L", "drawn.jgf", "-c", commands(files, "get-status /cluster0/node0")]) == 0


def test_times_are_told_on_request(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([*GRAPH, "-e", "-c", commands(files, "match allocate job", "match satisfiability job")])
    out = capsys.readouterr().out
    assert out.startswith("INFO: Graph Load Time: ")
    assert "INFO: Vertex Count: 9\nINFO: Edge Count: 8\n" in out
    assert out.count("INFO: ELAPSE=0.") == 2


def test_a_person_has_a_prompt_that_ctrl_c_only_clears(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    lines: list[str | BaseException] = [KeyboardInterrupt(), "get-status /cluster0", "fly", EOFError()]
    typed = iter(lines)

    def answer(prompt: str) -> str:
        assert prompt == "resource-query> "
        found = next(typed)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", answer)
    assert main([*GRAPH]) == 1
    out, error = capsys.readouterr()
    assert out == "\n/cluster0 is up\n\n"
    assert error == "ERROR: unknown command 'fly'; try help\n"


def test_names_of_files_and_vertices_do_not_break_a_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"no\xff\x1b[31m")
    status, error = said(capsys, *GRAPH, "-c", commands(files, f"cat {name!a}", "get-status '/a\u2028b'"))
    assert status == 1
    assert error.isascii()
    assert [line.startswith("ERROR: commands:") for line in error.splitlines()] == [True, True]
