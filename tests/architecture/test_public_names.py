"""The public names have docstrings, one page lists them, and plugins and examples use no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest
from tests.architecture.import_graph import ROOT

_SCRIPT = ROOT / "docs" / "public_names.py"
_spec = util.spec_from_file_location("public_names", _SCRIPT)
assert _spec is not None
assert _spec.loader is not None
script = util.module_from_spec(_spec)
_spec.loader.exec_module(script)

PACKAGES = {"config", "model", "sdk", "testing", "observation", "hookspecs", "errors"}
_IMPORT = re.compile(
    r"^\s*(?:from (session_scheduler[\w.]*) import \(?([^()\n]*)\)?|import (session_scheduler[\w.]*))", re.M
)


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Each name that a file imports from the core, with its module; an import of a whole module has an empty name."""
    text = path.read_text()
    if path.suffix == ".in":  # a template: its marks are not Python
        for base, names, module in _IMPORT.findall(text):
            yield from [(base, name.split()[0]) for name in names.split(",") if name.strip()] or [(module, "")]
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "session_scheduler":
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "session_scheduler")


def is_public(module: str, name: str) -> bool:
    whole = f"{module}.{name}".rstrip(".")
    return whole in script.MODULES or (module in script.MODULES and name in script.public_names(module))


def files() -> list[Path]:
    templates = (ROOT / "scheduler/session_scheduler/cli/templates").glob("*.in")
    return sorted([*(ROOT / "plugins").rglob("*.py"), *(ROOT / "examples").rglob("*.py"), *templates])


def test_the_page_lists_what_the_code_has() -> None:
    assert script.PAGE.read_text() == script.page(), "run `python docs/public_names.py`"


@pytest.mark.parametrize("module", script.MODULES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    names = script.public_names(module)
    assert names
    assert [name for name in names if not script.summary(module, name)] == []


def test_every_module_of_the_sdk_is_public_and_nothing_outside_of_the_public_packages_is() -> None:
    core = ROOT / "scheduler" / "session_scheduler"
    sdk = {f"session_scheduler.sdk.{path.stem}" for path in (core / "sdk").glob("*.py") if path.stem != "__init__"}
    assert sdk <= set(script.MODULES)
    assert {module.split(".")[1] for module in script.MODULES if "." in module} == PACKAGES
    assert list(script.MODULES) == sorted(script.MODULES, key=lambda module: (_place(module), module))


def _place(module: str) -> int:
    order = ["session_scheduler", "hookspecs", "errors", "config", "model", "sdk", "testing", "observation"]
    return order.index(module.split(".")[1] if "." in module else module)


def test_plugins_examples_and_templates_import_public_names_only() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {module} {name}"
        for path in files()
        for module, name in imports(path)
        if not is_public(module, name)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("from session_scheduler.framework.board import Board", False),
        ("from session_scheduler.model.columns import Interner", False),
        ("from session_scheduler.model.policy import PodDisruptionBudget", False),
        ("def function():\n    import session_scheduler.state.cache", False),
        ("from session_scheduler.model.columns import IntColumn", True),
        ("from session_scheduler.sdk import signals", True),
        ("from session_scheduler import Session, hookimpl", True),
    ],
)
@pytest.mark.parametrize("suffix", [".py", ".py.in"])
def test_an_internal_name_is_found_in_every_import(tmp_path: Path, text: str, suffix: str, public: bool) -> None:
    file = tmp_path / f"plugin{suffix}"
    file.write_text(text + ("\n@@ not Python" if suffix == ".py.in" else ""))
    assert all(is_public(*one) for one in imports(file)) is public
    assert list(imports(file))


def test_a_page_that_is_out_of_date_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "PAGE", tmp_path / "public-names.md")
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0
    (tmp_path / "public-names.md").write_text("old")
    assert script.main(["--check"]) == 1
    assert "run `python docs/public_names.py`" in capsys.readouterr().err


def test_a_name_without_a_docstring_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made.py").write_text('ONE = 1\n"""It."""\nTWO = 2\n\ndef three():\n    pass\n')
    monkeypatch.setattr(script, "CORE", tmp_path)
    assert [script.summary("made", name) for name in ("ONE", "TWO", "three")] == ["It.", "", ""]
