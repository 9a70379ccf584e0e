from __future__ import annotations

from pathlib import Path

import pytest
from tests.architecture.import_graph import PACKAGES, above, cycles, import_graph


def made(folder: Path, **texts: str) -> Path:
    """A package `made` of modules; `a_b` is made/a/b.py."""
    (folder / "made").mkdir()
    (folder / "made/__init__.py").touch()
    for name, text in texts.items():
        file = folder / "made" / f"{name.replace('_', '/')}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return folder


@pytest.mark.parametrize("package", PACKAGES)
def test_no_files_import_each_other_in_a_cycle(package: str) -> None:
    assert cycles(import_graph(package, PACKAGES[package])) == []


@pytest.mark.parametrize(
    "back",
    [
        "from made.one import name",
        "from made import one",
        "from . import one",
        "import made.one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made.one import Name",
        "def function():\n    from .one import name",
    ],
)
def test_a_cycle_is_found_however_it_is_written(tmp_path: Path, back: str) -> None:
    folder = made(tmp_path, one="from made import two", two="from made import three", three=back)
    assert cycles(import_graph("made", folder)) == [["made.one", "made.three", "made.two"]]


def test_imports_in_one_direction_are_not_a_cycle(tmp_path: Path) -> None:
    folder = made(tmp_path, one="import json\nfrom made import two", two="from made.deep import low", deep_low="")
    graph = import_graph("made", folder)
    assert cycles(graph) == []
    assert above(graph)["made.deep.low"] == {"made.one", "made.two"}
