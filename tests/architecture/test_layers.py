"""The import contract: the number of levels, the imports that count, and that breaking it fails."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.architecture.import_graph import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CORE = next(contract for contract in SETTINGS["contracts"] if contract.get("containers") == ["session_scheduler"])
LAYERS = [[name.strip() for name in layer.split("|")] for layer in CORE["layers"]]
PUBLIC_FILES = {"__init__", "errors", "hookspecs"}


def test_the_core_has_eight_levels_at_most_and_type_only_imports_count() -> None:
    assert len(LAYERS) <= 8
    assert CORE["type"] == "layers"
    assert CORE["exhaustive"] is True
    assert SETTINGS["exclude_type_checking_imports"] is False
    assert not CORE.get("ignore_imports")
    assert not any(":" in name or "(" in name for names in LAYERS for name in names)


def test_the_top_level_has_the_public_files_and_at_most_18_packages() -> None:
    core = ROOT / "scheduler" / "session_scheduler"
    assert {path.stem for path in core.glob("*.py")} == PUBLIC_FILES
    packages = {path.parent.name for path in core.glob("*/__init__.py")}
    assert len(packages) <= 18
    assert packages | PUBLIC_FILES - {"__init__"} == {name for names in LAYERS for name in names}


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        ("model", "cli", "from session_scheduler.cli import one"),
        (
            "framework",
            "actions",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import session_scheduler.actions",
        ),
        ("cluster", "state", "import session_scheduler.state"),
    ],
)
def test_an_import_up_or_across_breaks_the_contract(tmp_path: Path, low: str, high: str, written: str) -> None:
    for name in (name for names in LAYERS for name in names):
        package = tmp_path / "session_scheduler" / name
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "one.py").touch()
    (tmp_path / "session_scheduler/__init__.py").touch()
    assert lint(tmp_path) == 0
    (tmp_path / "session_scheduler" / low / "one.py").write_text(written)
    assert lint(tmp_path) == 1


def lint(folder: Path) -> int:
    """The exit status of the linter for a generated core in the folder, checked against the project's contract."""
    lines = [
        "[importlinter]", "root_package = session_scheduler",
        f"exclude_type_checking_imports = {SETTINGS['exclude_type_checking_imports']}",
        "[importlinter:contract:levels]", "name = levels", "type = layers", "containers = session_scheduler",
        "exhaustive = true", "layers =", *(f"    {layer}" for layer in CORE["layers"]),
    ]  # fmt: skip
    (folder / ".importlinter").write_text("\n".join([*lines, ""]))
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True).returncode
