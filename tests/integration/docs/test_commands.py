"""Every command in the documents runs and prints the shown output, or is listed with its requirements."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer.main

from session_scheduler.cli import main
from session_scheduler.cli.app import build

from ...tools import doc_commands
from ...tools.deploying import objects
from ...tools.doc_commands import CONSOLE, LISTED, PAGES, PROGRAMS, ROOT, Command, Shell, blocks, commands, program

IN_SENTENCES = re.compile(r"(?<!`)`(fluence [^`]+)`(?!`)")
OBJECTS = {one["metadata"]["name"] for file in (ROOT / "deploy").glob("**/*.yaml") if "chart" not in file.parts
           for one in objects(file.read_text()) if "metadata" in one}  # fmt: skip
TREE = typer.main.get_command(build([]))
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
PLAIN = ("", "sh", "bash", "shell")
TEXT = {page: (ROOT / page).read_text() for page in PAGES}


def shown(page: str) -> list[Command]:
    return [command for block in blocks(TEXT[page]) if block.language == CONSOLE for command in commands(block)]


SHOWN = {page: found for page in PAGES if (found := shown(page))}
WITH_COMMANDS = pytest.mark.parametrize("page", SHOWN)


def path_of(words: Sequence[str]) -> list[str]:
    """The words that name a command: `pool publish`."""
    command, path = TREE, list[str]()
    for word in words:
        below = getattr(command, "commands", {})
        if word not in below:
            break
        command = below[word]
        path.append(word)
    return path


def options_of(text: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The options of the command in a text, from its help."""
    called = path_of(text.split()[1:])
    assert called or text.split()[1].startswith(("-", "[-")), f"{text}: unknown command"
    assert main([*called, "--help"]) == 0
    return {*OPTION.findall(capsys.readouterr().out)}


@WITH_COMMANDS
def test_the_commands_of_a_page_print_the_shown_output(page: str, tmp_path: Path) -> None:
    with Shell(tmp_path) as shell:
        for command, printed in doc_commands.different(page, shell):
            assert [*command.shown] == printed, f"{page}: $ {command.text}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_in_console_blocks(page: str) -> None:
    for block in blocks(TEXT[page]):
        if block.language in PLAIN:
            for line in block.lines:
                called = line.split(" ")[0].rpartition("/")[2]
                assert called not in ("$", *PROGRAMS), f"{page}: write {line!r} into a block ```{CONSOLE}"


@WITH_COMMANDS
def test_commands_that_are_not_run_name_existing_files_objects_and_targets(page: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in SHOWN[page]:
        assert program(command.text) in PROGRAMS, f"{page}: {command.text}: list the program"
        for name in re.findall(r"(?<![\w/.-])((?:deploy|examples|docs|tests|fluxion_cy)/[\w./-]*\w)", command.text):
            assert (ROOT / name).exists(), f"{page}: {name}"
        for name in re.findall(r"\b(?:deployment|daemonset|configmap)s?[/ ](fluence[\w-]*)", command.text):
            assert name in OBJECTS, f"{page}: {name}"
        if program(command.text) == "make":
            assert doc_commands.words(command.text)[1] in targets, f"{page}: {command.text}"


@WITH_COMMANDS
def test_the_command_line_accepts_commands_that_are_not_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in SHOWN[page]:
        if program(command.text) == "fluence" and doc_commands.why_not_run(command.text):
            text = re.split(r" (?:\||>) ", command.text)[0]
            assert main([*doc_commands.words(text)[1:], "--help"]) == 0, f"{page}: {text}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", [page for page in PAGES if IN_SENTENCES.search(TEXT[page])])
def test_sentences_name_existing_commands_and_options(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in IN_SENTENCES.findall(TEXT[page]):
        assert {*OPTION.findall(text)} <= options_of(text, capsys), f"{page}: {text}"


def test_the_reference_shows_existing_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    usage, *_ = blocks(TEXT["docs/reference/command.md"])
    called = {name for line in usage.lines for name in path_of(line.split()[1:])[:1]}
    assert called == {*TREE.commands}  # type: ignore[attr-defined]
    for line in usage.lines:
        assert {*OPTION.findall(line)} <= options_of(line, capsys), line


def test_each_listed_command_is_in_a_page() -> None:
    there = {command.text.partition("  #")[0].rstrip() for found in SHOWN.values() for command in found}
    assert [text for text in LISTED if text not in there] == []
