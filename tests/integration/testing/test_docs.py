"""The documents for plugin authors are correct: the tutorial's code runs, and the reference lists all names."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from session_scheduler import testing
from session_scheduler.testing import FakeCluster

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def tutorial(tmp_path: Path) -> Path:
    """The tutorial's package and its tests, in a folder."""
    plugin, tests = re.findall(r"```python\n(.*?)```", (DOCS / "tutorial/first-plugin.md").read_text(), re.DOTALL)
    (tmp_path / "at_most").mkdir()
    (tmp_path / "at_most" / "__init__.py").write_text("from at_most.plugin import AtMost\n\n__all__ = ['AtMost']\n")
    (tmp_path / "at_most" / "plugin.py").write_text(plugin)
    (tmp_path / "test_plugin.py").write_text(tests)
    return tmp_path


def printed_by(folder: Path) -> str:
    plugin = ["-p", "no:fluence", "-p", "session_scheduler.testing.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(folder), *plugin, "test_plugin.py"]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=120, check=False).stdout


def test_the_tutorial_s_plugin_passes_its_tests(tutorial: Path) -> None:
    assert "5 passed" in printed_by(tutorial)


def test_a_wrong_scope_fails_with_the_tutorials_message(tutorial: Path) -> None:
    plugin = tutorial / "at_most" / "plugin.py"
    plugin.write_text(plugin.read_text().replace("Scope.NODE", "Scope.STATIC"))
    printed = printed_by(tutorial)
    section = (DOCS / "tutorial/first-plugin.md").read_text().partition("## Declare the right scope")[2]
    shown = section.split("```")[1].strip().splitlines()
    assert len(shown) == 4
    assert "FAILED test_plugin.py::test_the_scopes_are_true" in printed
    for line in shown:
        assert line in printed, printed


@pytest.mark.parametrize("name", [
    *testing.__all__,
    *(name for name, value in inspect.getmembers(FakeCluster) if not name.startswith("_") and callable(value)),
])  # fmt: skip
def test_the_reference_names(name: str) -> None:
    assert re.search(rf"`[^`\n]*\b{name}\b", (DOCS / "reference/testing.md").read_text())
