"""A new plugin's names, and what becomes of wrong ones: nothing is written, nothing overwritten."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest

from session_scheduler.cli import main
from session_scheduler.cli.new_plugin import Names, names_of


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("rack-label", Names("rack-label", "rack_label", "RackLabel")),
        ("Rack_Label.2", Names("rack-label-2", "rack_label_2", "RackLabel2")),
        ("a--b", Names("a-b", "a_b", "AB")),
        ("x", Names("x", "x", "X")),
        ("scope", Names("scope", "scope", "ScopePlugin")),
        ("settings", Names("settings", "settings", "SettingsPlugin")),
        ("none", Names("none", "none", "NonePlugin")),
        ("exception", Names("exception", "exception", "ExceptionPlugin")),
    ],
)
def test_the_names_of_package_and_class_follow_from_the_one_that_is_given(name: str, names: Names) -> None:
    assert names_of(name) == names


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is not a valid distribution name"),
        ("x-", "is not a valid distribution name"),
        (".x", "is not a valid distribution name"),
        ("a/b", "is not a valid distribution name"),
        ("..", "is not a valid distribution name"),
        ("a b", "is not a valid distribution name"),
        ("x\\n", "is not a valid distribution name"),
        ("é", "is not a valid distribution name"),
        ("x" * 41, "has 41 characters; use 40 or fewer"),
        ("2x", "becomes the package '2x', which Python cannot import"),
        ("class", "becomes the package 'class', which Python cannot import"),
        ("json", "is reserved"),
        ("Fluence_Scheduler", "is reserved"),
        ("tests", "is reserved"),
        ("NodeName", "is already the plugin NodeName of fluence-scheduler"),
        ("prometheus_client", "is already an installed distribution"),
        ("session-scheduler", "becomes the module 'session_scheduler', which already exists"),
    ],
)
def test_a_name_that_cannot_be_used_is_one_line_and_nothing_is_written(
    name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "new", name, "--directory", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fluence: NAME ")
    assert problem in line
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_is_told_in_each_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "one-rule", "--directory", str(tmp_path), "-o", "json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    folder = tmp_path / "one-rule"
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert reported == {"name": "one-rule", "distribution": "one-rule", "package": "one_rule", "class": "OneRule",
                    "directory": str(folder), "files": files}  # fmt: skip
    assert "tests/test_plugin.py" in files
    assert main(["plugins", "-o", "yaml", "new", "two", "--directory", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("name: two\n")
    assert main(["plugins", "new", "three", "--directory", str(tmp_path)]) == 0
    assert "  src/three/plugin.py\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["x", "scope", "x" * 40, "a-b-c-d-e-f-g-h-i-j-k-l-m-n-o-p-q-r-s-t"])
def test_every_name_makes_files_that_can_be_read_and_name_no_registry(name: str, tmp_path: Path) -> None:
    assert main(["plugins", "new", name, "--directory", str(tmp_path)]) == 0
    names = names_of(name)
    project = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())
    assert project["project"]["name"] == name
    entry = {name: f"{names.package}:{names.cls}"}
    assert project["project"]["entry-points"]["session_scheduler.plugins"] == entry
    for file in (tmp_path / name).rglob("*"):
        text = file.read_text() if file.is_file() else ""
        assert not re.search(r"\$|https?:|index-url", text), file
        if file.suffix == ".py":
            ast.parse(text)


def test_nothing_that_is_there_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a-file").write_text("mine")
    (tmp_path / "a-link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a-folder").mkdir()
    for name in ("a-file", "a-link", "a-folder"):
        assert main(["plugins", "new", name, "--directory", str(tmp_path)]) == 2
        assert "already exists; choose another name or directory" in capsys.readouterr().err
    assert (tmp_path / "a-file").read_text() == "mine"
    assert list((tmp_path / "a-folder").iterdir()) == []


def test_a_directory_that_cannot_be_used_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["plugins", "new", "x", "--directory", str(tmp_path / "no")]) == 2
    assert re.fullmatch(r"fluence: --directory .*/no: is not a directory; .*\n", capsys.readouterr().err)

    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert main(["plugins", "new", "x", "--directory", str(tmp_path)]) == 2
    assert "cannot be written (No space left on device)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "what was begun is taken away"
