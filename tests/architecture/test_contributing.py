"""The files and functions that CONTRIBUTING.md names exist: the steps of a pod, and the places for changes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.architecture.import_graph import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
CORE = ROOT / "scheduler" / "session_scheduler"
STEPS = re.findall(r"^\| [^|]+ \| `([\w/]+\.py)` \| `([\w.]+)` \|$", TEXT, re.M)
PLACES = re.findall(r"`([\w./-]+(?:\.py|\.md|/))`", TEXT.partition("## Where to put what")[2].partition("\n## ")[0])


def defined(path: Path) -> set[str]:
    """The functions and classes of a file, methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {node.name, *(f"{node.name}.{one.name}" for one in node.body if hasattr(one, "name"))}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_each_step_of_a_pod_starts_where_the_table_says(file: str, name: str) -> None:
    assert name in defined(CORE / file)


def test_each_place_for_a_change_exists() -> None:
    assert len(STEPS) == 8
    assert len(PLACES) > 15
    roots = (ROOT, CORE, CORE / "builtin", ROOT / "tests" / "unit" / "session_scheduler")
    assert [place for place in PLACES if not any((root / place).exists() for root in roots)] == []
