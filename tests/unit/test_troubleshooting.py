"""Every message that the page about troubleshooting lists is one that the code, or what it speaks with, can say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/help/troubleshooting.md"
_ROW = re.compile(r"^\| (`[^|]*`) \|", re.MULTILINE)
_GAP = re.compile(r"…+|\\")
ELSEWHERE = {"failed calling webhook"}
"""Words of the API server."""
SHORTAGES = "integration/fluence/test_shortages.py"
COMPOSED = {
    "…/… nodes are available: … Insufficient …": "unit/session_scheduler/reporting/test_recorder_failures.py",
    "the pod requests …, and … of … are free": SHORTAGES,
    "no node has … free …; the most any of … candidate nodes has is …": SHORTAGES,
    "has reached its …limit of …": "unit/session_scheduler/actions/test_reclaim.py",
}
"""Messages that the code composes of several literals, each with a test that compares it in full."""
SOURCES = ("scheduler/session_scheduler", "plugins/fluence_plugins")


def messages() -> list[str]:
    return [row.strip("`") for row in _ROW.findall(PAGE.read_text())]


def strings(tree: ast.AST) -> Iterator[str]:
    """The literals but for docstrings; a gap where an f-string has a value."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@cache
def texts() -> list[str]:
    """The literals of the programs' files with all words of a message, and the policies of deploy/."""
    words = [_GAP.sub(" ", message).split() for message in messages()]
    files = [file.read_text() for root in SOURCES for file in sorted((ROOT / root).rglob("*.py"))]
    files = [code for code in files if any(all(word in code for word in each) for each in words)]
    policies = [path.read_text() for path in sorted((ROOT / "deploy").glob("**/*.yaml"))]
    return [text for code in files for text in strings(ast.parse(code))] + policies


def holds(text: str, message: str) -> bool:
    """Whether the text has all parts of the message in order."""
    at = 0
    for part in _GAP.split(message):
        found = text.find(part.strip(), at)
        if found < 0:
            return False
        at = found + len(part.strip())
    return True


def test_messages_are_found() -> None:
    assert len(messages()) > 50


@pytest.mark.parametrize("message", messages())
def test_one_literal_has_all_parts_of_a_message(message: str) -> None:
    if message not in ELSEWHERE:
        file = COMPOSED.get(message)
        found = strings(ast.parse((ROOT / "tests" / file).read_text())) if file else texts()
        assert any(holds(text, message) for text in found)


def test_every_exception_is_on_the_page() -> None:
    assert {*ELSEWHERE, *COMPOSED} <= set(messages())


def test_parts_are_searched_in_order_in_one_literal_and_not_in_docstrings() -> None:
    code = 'def f(x):\n    """Wanted, none free."""\n    return f"{x} of {x} are free", "wanted, "\n'
    found = list(strings(ast.parse(code)))
    assert [any(holds(text, message) for text in found) for message in ("… of … are free", "wanted, … of … free")] == [
        True,
        False,
    ]
    assert not any(holds(text, "are … of") or "none" in text for text in found)
