"""What `--help` shows of every command, and what a shell completes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import typer.main

from session_scheduler.cli import kubectl, main
from session_scheduler.cli.app import build


def paths(command: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command and group, by the words that call it."""
    yield " ".join(path)
    for name, below in getattr(command, "commands", {}).items():
        yield from paths(below, (*path, name))


COMMANDS = sorted(paths(typer.main.get_command(build([]))))


def shown(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words.split()) == 0
    return capsys.readouterr().out


def test_the_commands_are_the_cores_and_those_of_its_plugins() -> None:
    assert {"", "run", "explain", "plugins new", "pool publish", "webhook", "graph", "device-plugin"} <= {*COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_has_examples_that_the_command_line_accepts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(f"{command} --help", capsys)
    examples = re.search(r"^  Examples:\n((?:    fluence .*\n)+)", text, re.MULTILINE)
    assert examples, text
    for example in examples[1].split("\n    "):
        words = example.removeprefix("    ").removeprefix("fluence ").strip()
        assert words.startswith(command)
        if words != "--install-completion":
            assert shown(f"{words} --help", capsys)  # what is not an option of the command is refused


@pytest.mark.parametrize("command", COMMANDS)
def test_h_is_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(f"{command} -h", capsys) == shown(f"{command} --help", capsys)


def test_the_plugin_of_kubectl_is_called_so_in_its_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["kubectl-fluence", "explain", "-h"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert kubectl() == 0
    assert capsys.readouterr().out.startswith("Usage: kubectl fluence explain ")


def completed(
    shell: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[str, object]:
    monkeypatch.setenv("_FLUENCE_COMPLETE", f"complete_{shell}")
    if shell == "bash":
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    else:
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setattr("sys.argv", ["fluence"])
    with pytest.raises(SystemExit) as end:
        main([])
    return capsys.readouterr().out, end.value.code


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fluence sim", "simulate"),
        ("fluence mas", "master-queue"),
        ("fluence pool pub", "publish"),
        ("fluence explain --names", "--namespace"),
        ("fluence simulate --reso", "--resources"),
    ],
)
def test_a_shell_completes_commands_and_options(
    shell: str, line: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, status = completed(shell, line, monkeypatch, capsys)
    assert expected in text
    assert status == 0
