"""A plugin's command may be a group of commands; what commands show people is tables and lines."""

from __future__ import annotations

from importlib import metadata

import pytest
import typer

from session_scheduler.cli import main
from session_scheduler.sdk.commands import Output, TableRows


def grouped() -> typer.Typer:
    group = typer.Typer(help="Fruit.")

    @group.command("count")
    def count(context: typer.Context, number: int) -> int:
        """Count it."""
        context.obj.show(
            [TableRows(("FRUIT", "NUMBER"), [("apple", number), ("a very long pear", None)], ("NUMBER",)), "", "all"]
        )
        return number % 2

    @group.command("write")
    def write(context: typer.Context) -> None:
        """Write it."""
        context.obj.write({"apple": 1}, Output.JSON)

    return group


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with the group `fruit`, and the command `single`."""

    def single() -> int:
        """Alone."""
        return 7

    class Entry(metadata.EntryPoint):
        def load(self) -> object:
            return {"fruit": grouped, "single": lambda: single}[self.name]()

    entries = [Entry(name, f"somewhere:{name}", "session_scheduler.commands") for name in ("fruit", "single")]
    real = metadata.entry_points

    def entry_points(*, group: str) -> object:
        return entries if group == "session_scheduler.commands" else real(group=group)

    monkeypatch.setattr(metadata, "entry_points", entry_points)


def test_a_groups_commands_are_called_below_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fruit", "count", "4"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "FRUIT             NUMBER", "apple                  4", "a very long pear       -", "", "all",
    ]  # fmt: skip
    assert main(["fruit", "write"]) == 0
    assert capsys.readouterr().out == '{\n  "apple": 1\n}\n'


def test_their_exit_status_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fruit", "count", "3"]) == 1
    assert main(["single"]) == 7
    assert capsys.readouterr().err == ""


def test_a_group_without_a_command_and_a_wrong_one_are_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fruit"]) == main(["fruit", "eat"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0] == "fluence: Missing command. See fluence --help."
    assert "No such command 'eat'" in lines[1]


def test_the_help_names_the_group_and_below_it_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "fruit" in capsys.readouterr().out
    assert main(["fruit", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Count it." in shown
    assert "Write it." in shown
