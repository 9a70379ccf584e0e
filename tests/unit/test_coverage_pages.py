"""The pages on coverage of kube-scheduler's tests name test files and functions that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGES = [*sorted((TESTS / "conformance").glob("*.md")), *sorted((TESTS / "conformance/filters").glob("*.md"))]
_FILE = re.compile(r"`(?:tests/)?((?:[\w/]+/)?test_[\w*]+\.py)`")
_FUNCTION = re.compile(r"`(test_\w+)`")


@cache
def functions() -> set[str]:
    return {name for file in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_existing_test_files_and_functions(page: Path) -> None:
    text = page.read_text()
    assert [name for name in _FILE.findall(text) if not any(TESTS.rglob(name))] == []
    assert set(_FUNCTION.findall(text)) <= functions()


def test_names_are_found() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert len(_FILE.findall(text)) > 20
    assert _FUNCTION.findall(text)
